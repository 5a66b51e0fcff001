"""Runs of the mixed load in which one system call fails, each in a process that is killed and started again.

    python -m tests.support.fault_runs PLACE CONTROL < CASES > RESULTS

PLACE is a folder for the data; CONTROL is the control file of `disk_calls.py`, whose library is preloaded. Cases and
results are lines of JSON. Each run is a fork of this process, which has already imported all modules.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.broker import Broker, BrokerStartError
from tests.support.disk_calls import FAIL, Control, DiskCalls
from tests.support.folder_contents import captured, differences, settings_of
from tests.support.mixed_load import RETRIABLE, STORAGE_ERROR, TIMED_OUT, UNKNOWN, Expected, Load

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"log__flush__interval__messages": 1}
START, LOAD, STOP = "start", "load", "stop"


class Case(NamedTuple):
    """Failure. ``phase``: phase of the broker's life in which it happens; other fields: see `Control.set`."""

    phase: str
    call: str
    error: int
    part: str
    first: int
    times: int = 1
    action: int = FAIL

    def __str__(self) -> str:
        kind = errno.errorcode[self.error] if self.action == FAIL else "short"
        times = "once" if self.times == 1 else "until it is repaired"
        return f"{self.phase}: {self.call} {self.first} on {self.part} {kind} {times}"


class Result(NamedTuple):
    """Result of a run. ``failed``: number of failed calls; ``problems``: violations of the guarantees."""

    failed: int
    problems: list[str]


class Runs:
    """Process that makes the runs, used as a context manager."""

    def __init__(self, place: Path) -> None:
        data = place / "runs"
        data.mkdir()
        disk = DiskCalls(place, data)
        command = [sys.executable, "-m", "tests.support.fault_runs", str(data), disk.environment["DISK_CALLS"]]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **disk.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.__exit__(None, None, None)  # closes the pipes and waits

    def make(self, case: Case) -> Result:
        """Make one run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        return Result(*json.loads(self._process.stdout.readline()))

    def sweep(self, case: Case) -> Iterator[tuple[Case, Result]]:
        """Make a run for each call that the load makes, beginning with the call of the case."""
        while True:
            result = self.make(case)
            if result.failed == 0:
                return
            yield case, result
            case = case._replace(first=case.first + 1)


# ---------------------------------------------------------------------------------------- in the process of the runs


def _in_child(action: Callable[[], Any], *, is_killed: bool) -> Any:
    """Perform an action in a fork; return the action's result, or a traceback under "crash".

    Args: ``is_killed``: the fork is killed by SIGKILL afterwards.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            text = json.dumps(action())
        except BaseException:
            text = json.dumps({"crash": traceback.format_exc()})
        with os.fdopen(writing, "w") as out:
            out.write(text)
        if is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as read:
        text = read.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return {"crash": f"the process ended with status {status}"}
    return json.loads(text)


class _Process:
    """Template of the folders, and the runs on copies of the template."""

    def __init__(self, place: Path, control: Control) -> None:
        self._control = control
        self._template, self._folder = place / "template", place / "run"
        self._template.mkdir()
        control.set(root=self._folder)
        with Broker(settings_of(self._template, **SETTINGS)) as broker:
            load = Load(broker)
            load.set_up()
            load.round(1)
            load.close()
        with Broker(settings_of(self._template, **SETTINGS)) as broker:
            assert differences(broker, load.expected) == []
        self._expected = load.expected.to_json()

    def run(self, case: Case) -> Result:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._template, self._folder)
        made = _in_child(lambda: self._fail(case), is_killed=case.phase != STOP)
        if "crash" in made:
            return Result(1, [made["crash"]])
        problems = list(made["problems"])
        if made["failed"]:
            verified = _in_child(lambda: self._verify(made["expected"]), is_killed=False)
            problems += [verified["crash"]] if "crash" in verified else verified["problems"]
        return Result(made["failed"], problems)

    def _fail(self, case: Case) -> dict[str, Any]:
        """Run the load with failing calls, then without failures."""
        control, expected, problems = self._control, Expected.from_json(self._expected), list[str]()
        arm = {"calls": (case.call,), "action": case.action, "error": case.error, "first": case.first,
               "times": case.times, "part": case.part}  # fmt: skip
        raised: list[str] = []
        threading.excepthook = lambda info: raised.append("".join(traceback.format_exception(info.exc_value)))
        broker = Broker(settings_of(self._folder, **SETTINGS))
        ended = threading.Event()
        broker.on_failure = ended.set
        failed = 0
        with captured() as lines:
            if case.phase == START:
                control.set(**arm)  # type: ignore[arg-type]
            try:
                broker.start()
            except BrokerStartError as error:
                problems += _bad_sentence(str(error))
                failed = control.failed
                control.set()
            if broker.is_running:
                load = Load(broker, expected, patience_s=0.2)
                if case.phase == LOAD:
                    control.set(**arm)  # type: ignore[arg-type]
                    load.round(2)
                failed += control.failed
                problems += self._judge(case, load, ended) if case.phase == LOAD else []
                control.set()
                if not ended.is_set():
                    expected.codes.clear()
                    load.patience_s = 5.0 if _is_temporary(case) else 0.0
                    load.round(3)
                    if case.phase == LOAD and _is_temporary(case):
                        problems += [
                            f"not served again: {step} {codes}" for step, codes in load.failing_steps().items()
                        ]
                load.close()
                if case.phase == STOP:
                    control.set(**arm)  # type: ignore[arg-type]
                    broker.stop()
                    failed = control.failed
                    control.set()
        problems += raised + lines.traces
        return {"failed": failed, "problems": problems, "expected": expected.to_json()}

    def _judge(self, case: Case, load: Load, ended: threading.Event) -> list[str]:
        """Return the responses during the failure that are wrong for every state of the disk."""
        problems = []
        for step, codes in load.failing_steps((0, STORAGE_ERROR)).items():
            if set(codes) - {0, STORAGE_ERROR, TIMED_OUT, *RETRIABLE} and not (ended.is_set() and UNKNOWN in codes):
                problems.append(f"{step}: {codes}")
        if case.part != "/m/":
            problems += [
                f"a partition that is not concerned fails: {step} {load.expected.codes[step]}"
                for step in ("produce 1", "exactly once 1")
                if load.expected.codes.get(step) not in ([0], None)
            ]
        return problems

    def _verify(self, text: str) -> dict[str, Any]:
        """Start again without a failure, compare, run every step, stop, and compare again."""
        expected = Expected.from_json(text)
        problems = []
        with captured() as lines:
            for number in (4, 5):
                with Broker(settings_of(self._folder, **SETTINGS)) as broker:
                    problems += differences(broker, expected)
                    expected.codes.clear()
                    load = Load(broker, expected)
                    load.round(number)
                    load.close()
                    problems += [f"after the restart: {step} {codes}" for step, codes in load.failing_steps().items()]
        return {"problems": problems + lines.traces}


def _is_temporary(case: Case) -> bool:
    is_passing = case.error in (errno.ENOSPC, errno.EMFILE, errno.EINTR) or case.action != FAIL
    return is_passing and (case.call, case.error) != ("sync", errno.ENOSPC)  # after a failed sync nothing is certain


def _bad_sentence(text: str) -> list[str]:
    return [f"the start ends with {text!r}"] if "\n" in text or "Traceback" in text or not text else []


def main(lines: Iterable[str] = sys.stdin) -> None:
    faulthandler.enable()
    place, control = sys.argv[1:]
    process = _Process(Path(place), Control(Path(control)))
    for line in lines:
        call = json.loads(line)
        print(json.dumps(process.run(Case(*call))), flush=True)


if __name__ == "__main__":
    main()
