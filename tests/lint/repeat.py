"""Repeat each failed test once, alone, after the whole suite.

    pytest -p tests.lint.repeat --verdicts FILE ...    run tests, and write the outcome of each into FILE
    python tests/lint/repeat.py FILE STATUS            repeat failed tests; STATUS is that of the first command

The second command prints each test that failed first and then passed as unstable, with its first error, and at the end
the numbers of both runs. It succeeds if each test passed in one of the runs. Some failures are final, because a
repetition could not refute them: a crashed worker or process, an interrupted run, an error of collection, an error in
the teardown of a fixture (which may have served a file or the whole run), and more than REPEATED_MAX failures.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

REPEATED_MAX = 30
ERROR_LINES = 3


class Verdicts:
    """Pytest plugin that writes the outcome of each test when the run ends.

    Args:
        path: JSON file; a previous one is deleted first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = time.monotonic()
        self._tests: dict[str, dict[str, str]] = {}
        self._final: list[str] = []
        path.unlink(missing_ok=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._final.append(f"{report.nodeid}: not collected: {first_error(report)}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests.setdefault(report.nodeid, {"outcome": "passed", "error": ""})
        if report.failed:
            error = first_error(report)
            if report.when not in ("setup", "call"):  # "teardown", or xdist's "???" for a crash
                self._final.append(f"{report.nodeid}: {error}")
            if test["outcome"] != "failed":
                test.update(outcome="failed", error=error)
        elif report.skipped and test["outcome"] == "passed":
            test["outcome"] = "skipped"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        seconds = time.monotonic() - self._begun
        document = {"status": int(exitstatus), "seconds": seconds, "final": self._final, "tests": self._tests}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(document), encoding="utf-8")


def first_error(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return the place and the message of a failure, shortened."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = f"{crash.path}:{crash.lineno}: {crash.message}" if crash is not None else str(report.longrepr)
    return "\n".join(text.strip().splitlines()[:ERROR_LINES])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--verdicts", type=Path, help="write the outcome of each test into this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("--verdicts")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Verdicts(path), "kbroker-verdicts")


def read(path: Path) -> dict[str, Any]:
    """Return the verdicts of a run; a missing file counts as a crash."""
    try:
        verdicts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"status": -1, "seconds": 0.0, "final": [f"pytest ended without writing {path}"], "tests": {}}
    if verdicts["status"] not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        verdicts["final"].append(f"pytest ended with status {verdicts['status']}")
    return verdicts


def failed_in(verdicts: dict[str, Any]) -> list[str]:
    """Return the ids of the failed tests."""
    return [nodeid for nodeid, test in verdicts["tests"].items() if test["outcome"] == "failed"]


def repeat(nodeids: list[str], path: Path) -> dict[str, Any]:
    """Run tests one after the other in one process, and return the verdicts."""
    arguments, second = path.with_suffix(".again"), path.with_suffix(".second")
    arguments.write_text("\n".join(nodeids), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.lint.repeat", "--verdicts", str(second)]
    second.unlink(missing_ok=True)
    subprocess.run([*command, f"@{arguments}"], check=False)
    return read(second)


def main(path: Path, status: int) -> int:
    first = read(path)
    failed, final = failed_in(first), list(first["final"])
    if status != 0 and not failed and not final:
        final.append(f"the run ended with status {status}, and no test failed")
    if len(failed) > REPEATED_MAX:
        final.append(f"{len(failed)} tests failed: more than {REPEATED_MAX} are not repeated")
    unstable: list[str] = []
    seconds = first["seconds"]
    if failed and not final:
        print(f"\nrepeating what failed, one after the other: {len(failed)}", flush=True)
        second = repeat(failed, path)
        seconds += second["seconds"]
        final += second["final"]
        unstable = [nodeid for nodeid in failed if second["tests"].get(nodeid, {}).get("outcome") == "passed"]
    print()
    for nodeid in unstable:
        error = first["tests"][nodeid]["error"].replace("\n", "\n    ")
        print(f"unstable, passed when it was repeated alone: {nodeid}\n    first error: {error}")
    for reason in final:
        print(f"not repeatable: {reason}")
    outcomes = [test["outcome"] for test in first["tests"].values()]
    numbers = {
        "failed": len(failed) - len(unstable),
        "passed": outcomes.count("passed") + len(unstable),
        "skipped": outcomes.count("skipped"),
        "unstable": len(unstable),
    }
    is_red = bool(final) or len(unstable) < len(failed)
    shown = ", ".join(f"{count} {name}" for name, count in numbers.items() if count or name in ("passed", "unstable"))
    print(f"==== {'red' if is_red else 'green'}: {shown} in {seconds:.0f} s ====", flush=True)
    return int(is_red)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
