"""Recorder of Apache Kafka's responses, and comparison of a broker with the recording; README.md explains both.

    python -m tests.conformance check HOST:PORT [--sasl HOST:PORT] [-k PATTERN] [-j N] [-v]
    python -m tests.conformance record [HOST:PORT] [--sasl HOST:PORT] [-k PATTERN] [-j N]
    python -m tests.conformance list [-k PATTERN]

`check` counts separately the responses in which kbroker differs deliberately (left_out.txt).
--sasl: the listener for the users of sasl.py; without it their cases are absent.
`record` without an address starts Apache Kafka from Maven. Every case is run twice and kept if both runs agree; other
cases are printed. Exit status: 0 no difference, 1 a difference, 2 wrong usage.
"""

import argparse
import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.run import (
    RECORDING,
    Case,
    Recorded,
    Run,
    Runner,
    cases,
    judged,
    load,
    reason_of,
    recorded_of,
    save,
)
from tests.conformance.sasl import SETTINGS
from tests.conformance.talk import look_at
from tests.support.kafka import ApacheKafka, compiled
from tests.support.ports import free_run

RECEIVER = Path(__file__).parents[1] / "support" / "java" / "ReceiveMetrics.java"
Address = tuple[str, str]  # address of the broker, and of its listener with SASL


def chosen(pattern: str | None) -> list[Case]:
    return [case for case in cases() if pattern is None or re.search(pattern, case.id)]


def runs(address: Address, wanted: list[Case], at_a_time: int, *, is_verbose: bool) -> Iterator[Run]:
    runner = Runner(look_at(*address), at_a_time)
    runner.warm()
    for number, run in enumerate(runner.run_all(wanted), 1):
        if is_verbose:
            print(f"{run.seconds:6.2f} s  {run.case.id}  {run.absent or run.stuck}", file=sys.stderr, flush=True)
        elif number % 100 == 0:
            print(f"{number} of {len(wanted)}", file=sys.stderr, flush=True)
        yield run


def check(address: Address, wanted: list[Case], at_a_time: int, *, is_verbose: bool) -> int:
    recording = load()
    words: Counter[str] = Counter()
    begun = time.monotonic()
    for run in runs(address, wanted, at_a_time, is_verbose=is_verbose):
        verdict = judged(run, recording.get(run.case.id))
        reason = reason_of(run.case)
        if verdict.word == "differs" and reason is not None:
            verdict.word = "on purpose"
        words[verdict.word] += 1
        if verdict.word in ("differs", "not recorded") or (is_verbose and verdict.remarks):
            print(f"{verdict.word}: {run.case.id} ({run.case.title})")
            for line in verdict.differences + (verdict.remarks if is_verbose else []):
                print(f"    {line}")
    print(f"{dict(words)} in {time.monotonic() - begun:.0f} s")
    return 1 if words["differs"] or words["not recorded"] else 0


@contextlib.contextmanager
def reference(bootstrap: str | None, sasl: str) -> Iterator[Address]:
    if bootstrap is not None:
        yield bootstrap, sasl
        return
    port = free_run(3)  # the controller uses the second port
    own_sasl = f"127.0.0.1:{port + 2}"
    receiver = compiled(RECEIVER)
    settings = {**SETTINGS, "metric.reporters": RECEIVER.stem}
    listeners = (f"SASL_PLAINTEXT://{own_sasl}",)
    with ApacheKafka(settings, port=port, listeners=listeners, before=str(receiver)) as kafka:
        yield kafka.bootstrap, own_sasl


def record(bootstrap: str | None, sasl: str, wanted: list[Case], at_a_time: int, *, is_all: bool) -> int:
    with reference(bootstrap, sasl) as address:
        first, second = (
            {run.case.id: run for run in runs(address, wanted, at_a_time, is_verbose=False)} for _ in range(2)
        )
    found: dict[str, Recorded] = {} if is_all or not RECORDING.exists() else load()
    wrong = 0
    for case in wanted:
        run = second[case.id]
        verdict = judged(first[case.id], recorded_of(run))
        found.pop(case.id, None)
        if run.absent or run.stuck or verdict.differences:
            wrong += 1
            print(f"not kept: {case.id}: {run.absent or run.stuck}")
            print("".join(f"    {line}\n" for line in verdict.differences), end="")
        else:
            found[case.id] = recorded_of(run)
    save(found)
    print(f"{len(found)} cases, {RECORDING.stat().st_size:,} bytes, {wrong} not kept")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "record", "list"))
    parser.add_argument("bootstrap", nargs="?", metavar="HOST:PORT")
    parser.add_argument(
        "--sasl", default="", metavar="HOST:PORT", help="the broker's listener for the users of sasl.py"
    )
    parser.add_argument("-k", metavar="PATTERN", help="only cases whose id has a match of this expression")
    parser.add_argument("-j", type=int, default=4, metavar="N", help="cases at a time")
    parser.add_argument("-v", action="store_true", help="each case as it ends; other wording of messages")
    options = parser.parse_args()
    wanted = chosen(options.k)
    if options.what == "list":
        for case in wanted:
            print(f"{case.id:60} {case.title}")
        return 0
    if options.what == "record":
        return record(options.bootstrap, options.sasl, wanted, options.j, is_all=options.k is None)
    if options.bootstrap is None:
        parser.error("check needs the broker's address")
    return check((options.bootstrap, options.sasl), wanted, options.j, is_verbose=options.v)


if __name__ == "__main__":
    sys.exit(main())
