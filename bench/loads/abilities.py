"""Abilities of kbroker and of its peers: the same probes, with real clients, against each of them.

    python bench/loads/abilities.py [--only NAME ...] [--probe TEXT ...] [--json FILE] [--markdown FILE] [--short]

Each probe acts as a client and has a time limit; nothing is copied from documentation. Servers that are not available,
and the reason for each "no", are listed. Apache Kafka comes from Maven and needs Java.
"""

import argparse
import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.loads import report  # noqa: E402
from bench.loads.contenders import CONTENDERS, Contender, Mode, Skipped  # noqa: E402
from bench.loads.peers import MissingPeer, Server  # noqa: E402
from bench.loads.probes import configs, groups, quotas, records, robustness, security, telemetry, transactions  # noqa: E402
from bench.loads.probes.place import Lacking, Place, Probe  # noqa: E402
from tests.support import wire  # noqa: E402

FIRST, *REST = configs.PROBES
PROBES: list[Probe] = [
    FIRST,
    *records.PROBES,
    *groups.PROBES,
    *REST,
    *transactions.PROBES,
    *security.PROBES,
    *quotas.PROBES,
    *telemetry.PROBES,
    *records.CLEANING,
    *robustness.PROBES,
]


@dataclass(frozen=True)
class Result:
    """Result of one probe: the cell of the table, the reason of a "no", and the duration."""

    cell: str
    reason: str = ""
    seconds: float = 0.0


def reason_of(failure: BaseException) -> str:
    """Return the reason of a failure in one line; an assertion without a message is represented by its source."""
    text = " ".join(str(failure).split())
    frames = traceback.extract_tb(failure.__traceback__)
    if not text and frames and isinstance(failure, AssertionError):
        text = frames[-1].line or ""
    if not isinstance(failure, AssertionError | KafkaException | Lacking | MissingPeer | Skipped):
        text = f"{type(failure).__name__}: {text}".removesuffix(": ")
    return text[:200]


def judged(probe: Probe, place: Place) -> Result:
    """Run a probe in a separate thread, so that a hanging probe can be abandoned."""
    outcome: list[Result] = []

    def run() -> None:
        try:
            outcome.append(Result(probe.run(place) or "yes"))
        except Skipped as missing:
            outcome.append(Result("-", reason_of(missing)))
        except Exception as failure:
            outcome.append(Result("no", reason_of(failure)))

    begun = time.monotonic()
    thread = threading.Thread(target=run, name=probe.name, daemon=True)
    thread.start()
    thread.join(probe.seconds)
    taken = round(time.monotonic() - begun, 1)
    found = outcome[0] if outcome else Result("no", f"not done within {probe.seconds:g} s")
    return Result(found.cell, found.reason, taken)


class Running:
    """Server of a contender, which is restarted when a probe leaves it unresponsive."""

    def __init__(self, contender: Contender, stack: contextlib.ExitStack) -> None:
        self.contender = contender
        self._outer = stack
        self._inner = stack.enter_context(contextlib.ExitStack())
        self.server = self._inner.enter_context(contender.start(Mode.PLAIN))

    def responding(self) -> tuple[Server, bool]:
        """Return the server, and whether it was restarted."""
        if any(wire.responses(self.server.bootstrap, 5) for _ in range(3)):
            return self.server, False
        with contextlib.suppress(Exception):
            self._inner.close()
        self._inner = self._outer.enter_context(contextlib.ExitStack())
        self.server = self._inner.enter_context(self.contender.start(Mode.PLAIN))
        return self.server, True


def results(contender: Contender, probes: Sequence[Probe]) -> Iterator[tuple[Probe, Result]]:
    """Run probes one after the other. Raises: MissingPeer if the server is not available."""
    with contextlib.ExitStack() as stack:
        running = Running(contender, stack)
        for probe in probes:
            server, _ = running.responding()
            result = judged(probe, Place(contender, server))
            _, was_ended = running.responding()
            if was_ended:
                result = Result("no", f"the server no longer responds to any client ({result.reason or result.cell})")
            yield probe, result


Table = Mapping[str, Mapping[str, Result]]
HEAD = "| check by a client |"


def markdown(table: Table, probes: Sequence[Probe]) -> str:
    """Return a table with a row for each probe and a column for each server."""
    lines = [f"{HEAD} " + " | ".join(table) + " |", "|---" * (len(table) + 1) + "|"]
    for probe in probes:
        cells = [found[probe.name].cell if probe.name in found else "?" for found in table.values()]
        lines.append(f"| {probe.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def reasons(table: Table, probes: Sequence[Probe]) -> str:
    """Return the reason for each cell that is not a "yes"."""
    lines = ["| server | what | found |", "|---|---|---|"]
    for server, found in table.items():
        for probe in probes:
            result = found.get(probe.name)
            if result is not None and result.reason:
                lines.append(f"| {server} | {probe.name} | {result.reason.replace('|', '/')} |")
    return "\n".join(lines)


def chosen(words: Sequence[str]) -> list[Probe]:
    """Return the probes whose names contain one of these words; without words, all probes, including figures."""
    every = [*PROBES, *robustness.COSTS]
    return [probe for probe in every if not words or any(word.lower() in probe.name.lower() for word in words)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--probe", nargs="+", default=[], metavar="TEXT", help="only rows whose names contain this")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "loads" / "abilities.json")
    parser.add_argument("--markdown", type=Path, help="where to write the tables too")
    parser.add_argument("--short", action="store_true", help="only the rows of the README")
    options = parser.parse_args()
    probes = [probe for probe in chosen(options.probe) if probe.short or not options.short]
    facts, table, missing = report.machine(), {}, {}
    for name in options.only:
        contender = CONTENDERS[name]()
        found: dict[str, Result] = {}
        try:
            for probe, result in results(contender, probes):
                found[probe.name] = result
                note = f" ({result.reason})" if result.reason else ""
                print(f"{contender.name}: {probe.name}: {result.cell}{note}, {result.seconds} s", file=sys.stderr)
        except MissingPeer as absent:
            missing[contender.name] = reason_of(absent)
            continue
        except Exception as failure:  # results are kept, and the other contenders follow
            print(f"{contender.name}: {reason_of(failure)}", file=sys.stderr)
        table[contender.name] = found
    text = f"{markdown(table, probes)}\n\n{reasons(table, probes)}"
    text += "".join(f"\n\nskipped: {name}: {why}" for name, why in missing.items())
    print(text)
    save(options.json, facts, table, missing)
    if options.markdown:
        options.markdown.write_text(text + "\n", encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # a hanging probe may have left a thread that prevents a normal exit


def save(path: Path, facts: Mapping[str, Any], table: Table, missing: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    servers = {name: {row: asdict(result) for row, result in found.items()} for name, found in table.items()}
    document = {"machine": facts, "servers": servers, "skipped": missing}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
