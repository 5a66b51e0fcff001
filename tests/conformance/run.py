"""Situations: how they are marked, found, run, recorded and compared."""

import importlib
import itertools
import json
import lzma
import pkgutil
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.codec import Unreadable
from tests.conformance.names import MESSAGES
from tests.conformance.talk import Absent, Broker, Step, Stuck, Talk
from tests.support.wire import Closed

RECORDING = Path(__file__).with_name("kafka-4.3.1.jsonl.xz")
LEFT_OUT = Path(__file__).with_name("left_out.txt")
OTHER_WORDS = Path(__file__).with_name("other_words.txt")
TRANSACTIONS = ("AddPartitionsToTxn", "EndTxn", "TxnOffsetCommit")  # APIs that a situation with transactions needs
LIMIT_S = 30.0
PATIENCE = 12  # consecutive cases without a response, after which each case has only IMPATIENT_S
IMPATIENT_S = 3.0
Script = Callable[..., None]


@dataclass(frozen=True)
class Case:
    """Situation in one version with one parameter."""

    id: str
    api: str
    version: int | None
    parameter: str | None
    script: Script
    needs: tuple[str, ...]
    limit_s: float
    alone: bool

    @property
    def title(self) -> str:
        return (self.script.__doc__ or "").split("\n")[0]


def situation(
    api: str,
    versions: str | None = None,
    *,
    over: Iterable[str] = (),
    needs: Sequence[str] = (),
    limit_s: float = LIMIT_S,
    alone: bool = False,
) -> Callable[[Script], Script]:
    """Mark a script as a situation. The script's file and name are the situation's id.

    Args:
        api: the API under test. versions: its versions, such as "3,7,9-13"; None: the script chooses the versions.
        over: parameters; the script is run once for each.
        needs: further APIs; without them the situation is absent.
        alone: the script changes shared state, so no other script runs meanwhile.
    """

    def mark(script: Script) -> Script:
        script.situation = (api, versions, tuple(over), tuple(needs), limit_s, alone)  # type: ignore[attr-defined]
        return script

    return mark


def numbers(text: str) -> Iterator[int]:
    """Yield the numbers of a text, such as 3, 7, 9 and 10 of "3,7,9-10"."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def cases() -> list[Case]:
    """Return all cases of all situations in the order of the files and scripts."""
    from tests.conformance import situations

    found = []
    for module in sorted(info.name for info in pkgutil.iter_modules(situations.__path__)):
        loaded = importlib.import_module(f"{situations.__name__}.{module}")
        for name, script in vars(loaded).items():
            if hasattr(script, "situation") and script.__module__ == loaded.__name__:
                found += list(_cases(f"{module}/{name}", script))
    return found


def _cases(name: str, script: Script) -> Iterator[Case]:
    api, versions, parameters, needs, limit_s, alone = script.situation  # type: ignore[attr-defined]
    for version in numbers(versions) if versions else (None,):
        for parameter in parameters or (None,):
            id = name + (f" {version}" if versions else "") + (f" [{parameter}]" if parameters else "")
            yield Case(id, api, version, parameter, script, needs, limit_s, alone)


@dataclass
class Run:
    """Result of a run.

    Args:
        absent: the API or version that the broker does not offer. stuck: reason why the script did not reach its end.
    """

    case: Case
    steps: list[Step]
    seconds: float = 0.0
    absent: str = ""
    stuck: str = ""


class Runner:
    """Runner of cases on a broker, several at a time."""

    def __init__(self, broker: Broker, at_a_time: int = 4) -> None:
        self._broker = broker
        self._at_a_time = at_a_time
        self._run = secrets.token_hex(3)
        self._numbers = itertools.count(1)
        self._silent = 0

    def warm(self) -> None:
        """Make the broker create its internal topics before the first case needs them."""
        from tests.conformance import bodies

        talk = Talk(self._broker, f"cf{self._run}warm", "", None, 60.0)
        try:
            bodies.group(talk)
            if self._broker.offers("AddPartitionsToTxn"):
                bodies.producer(talk, talk.name("tx"))
        except (Absent, Stuck, Closed, TimeoutError):
            pass  # the cases will report this themselves
        finally:
            talk.close()

    def run_all(self, chosen: Iterable[Case]) -> Iterator[Run]:
        chosen = list(chosen)
        with ThreadPoolExecutor(self._at_a_time) as pool:
            yield from pool.map(self.run, [case for case in chosen if not case.alone])
        yield from map(self.run, [case for case in chosen if case.alone])

    def run(self, case: Case) -> Run:
        limit_s = case.limit_s if self._silent < PATIENCE else IMPATIENT_S
        talk = Talk(self._broker, f"cf{self._run}{next(self._numbers):05d}", case.api, case.version, limit_s)
        found = Run(case, talk.steps)
        begun, is_silent = time.monotonic(), False
        try:
            for api in case.needs:
                talk.need(api)
            if case.version is not None:
                talk.need(case.api, case.version)
            case.script(talk, *([case.parameter] if case.parameter is not None else []))
        except Absent as absent:
            found.absent = str(absent)
        except TimeoutError:
            found.stuck, is_silent = f"no response within {limit_s:g} s", True
        except (Stuck, Closed, Unreadable) as stuck:
            found.stuck = str(stuck) or "the connection was closed"
        except (KeyError, IndexError, TypeError) as error:  # an unexpected response ends this script only
            found.stuck = f"the script cannot read the response: {error!r}"
        finally:
            talk.close()
        self._silent = self._silent + 1 if is_silent else 0
        found.seconds = time.monotonic() - begun
        return found


# ---- the recording

Recorded = list[tuple[str, dict[str, Any]]]


def recorded_of(run: Run) -> Recorded:
    """Return steps in the form of the recording, through JSON, so that both sides of a comparison have its types."""
    rows: Recorded = json.loads(json.dumps([[step.name, step.outcome] for step in run.steps]))
    return rows


def save(found: dict[str, Recorded], path: Path = RECORDING) -> None:
    """Write a recording: a line of JSON for each case, compressed by xz."""
    lines = (json.dumps({"case": id, "steps": found[id]}, ensure_ascii=False) + "\n" for id in sorted(found))
    path.write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))


def load(path: Path = RECORDING) -> dict[str, Recorded]:
    rows = map(json.loads, lzma.decompress(path.read_bytes()).decode().splitlines())
    return {row["case"]: row["steps"] for row in rows}


# ---- the verdict


def reasons(path: Path) -> dict[str, str]:
    """Return the expressions of a list of deliberate differences, with their reasons."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split(None, 1) for line in lines if line[:1] not in ("", "#")]
    if nameless := [row[0] for row in rows if len(row) < 2]:
        raise ValueError(f"{path.name} gives no reason for {nameless[0]}")
    return {row[0]: row[1] for row in rows}


def reason_of(case: Case) -> str | None:
    """Return the reason why a case is left out, or None."""
    return next((reason for row, reason in reasons(LEFT_OUT).items() if re.search(row, case.id)), None)


@dataclass
class Verdict:
    """Result of a comparison: "same", "differs", "absent" or "not recorded", and the differences."""

    run: Run
    word: str
    differences: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # different wording


def judged(run: Run, expected: Recorded | None) -> Verdict:
    """Compare a run with Kafka's recorded responses."""
    if run.absent:
        return Verdict(run, "absent")
    if expected is None:
        return Verdict(run, "not recorded")
    verdict = Verdict(run, "same")
    found = recorded_of(run)
    for number, (name, outcome) in enumerate(expected, 1):
        where = f"step {number} ({name})"
        if number > len(found):
            verdict.differences.append(f"{where}: not reached: {run.stuck or 'the script ended before'}")
            break
        other, got = found[number - 1]
        if other != name:
            verdict.differences.append(f"{where}: found the step {other}")
            break
        _compare(where, outcome, got, verdict)
    verdict.differences += [f"step {name}: Kafka has no such step" for name, _ in found[len(expected) :]]
    if run.stuck and not verdict.differences:
        verdict.differences.append(f"the script did not come to its end: {run.stuck}")
    if verdict.differences:
        verdict.word = "differs"
    return verdict


MISSING = object()


def _compare(where: str, expected: dict[str, Any], got: dict[str, Any], verdict: Verdict) -> None:
    for path in {**expected, **got}:
        theirs, ours = expected.get(path, MISSING), got.get(path, MISSING)
        if type(theirs) is type(ours) and theirs == ours:
            continue
        is_message = path.rpartition(".")[2] in MESSAGES and MISSING not in (theirs, ours)
        is_wording = is_message and bool(ours or not theirs)  # a message may be longer than Kafka's
        text = f"{where}: {path or 'outcome'}: Kafka {_shown(theirs)}, found {_shown(ours)}"
        (verdict.remarks if is_wording else verdict.differences).append(text)


def _shown(value: Any) -> str:
    text = "nothing" if value is MISSING else repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
