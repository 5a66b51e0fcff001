"""`tests/lint/repeat.py`: a test that fails once is unstable, one that fails twice is red, and so is any crash."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ONCE = """
from pathlib import Path
import pytest

def once(name):
    marker = Path(name)
    was_there = marker.exists()
    marker.touch()
    assert was_there, f"{name} failed first"
"""

pytestmark = pytest.mark.slow


class Suite:
    """Suite in a folder that is run as `.ci/run` runs the project's suite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self.environment.pop("PYTEST_ADDOPTS", None)

    def run(self, tests: str, *options: str) -> tuple[int, list[str]]:
        """Return the exit status and the lines of the second command."""
        (self.folder / "test_it.py").write_text(ONCE + textwrap.dedent(tests))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.lint.repeat", "--verdicts", "verdicts.json"]
        status = self.call([*command, *options]).returncode
        done = self.call([sys.executable, str(ROOT / "tests/lint/repeat.py"), "verdicts.json", str(status)])
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    def call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=240
        )


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def closing(lines: list[str]) -> str:
    """Return the last line without its seconds."""
    return lines[-1].partition(" in ")[0]


def test_a_suite_without_failures_is_not_repeated(suite: Suite) -> None:
    status, lines = suite.run("def test_a(): pass\n@pytest.mark.skip\ndef test_b(): pass")
    assert (status, len(lines), closing(lines)) == (0, 2, "==== green: 1 passed, 1 skipped, 0 unstable")


def test_a_test_that_fails_once_is_unstable(suite: Suite) -> None:
    """Only failed tests are repeated, even with unusual ids; the first error is shown."""
    status, lines = suite.run(
        """
        @pytest.mark.parametrize("text", ["a b", "x::y[z]/@-k"])
        def test_odd(text): once("".join(filter(str.isalpha, text)))
        def test_ran_once(): Path("ran").mkdir()
        @pytest.fixture
        def given(): once("given")
        def test_setup(given): pass
        """,
        *("-p", "xdist", "-n", "2"),
    )
    assert (status, closing(lines)) == (0, "==== green: 4 passed, 3 unstable"), lines
    unstable = [line for line in lines if line.startswith("unstable, passed when it was repeated alone: test_it.py::")]
    found = sorted(line.partition("::")[2] for line in unstable)
    assert found == ["test_odd[a b]", "test_odd[x::y[z]/@-k]", "test_setup"]
    assert " failed first" in lines[lines.index(unstable[0]) + 1]


def test_a_test_that_fails_twice_is_red(suite: Suite) -> None:
    status, lines = suite.run("def test_a(): once('a')\ndef test_b(): assert 0\ndef test_c(): pass")
    assert (status, closing(lines)) == (1, "==== red: 1 failed, 2 passed, 1 unstable"), lines


def test_a_test_that_is_skipped_when_repeated_is_red(suite: Suite) -> None:
    status, lines = suite.run("def test_a():\n    if Path('a').exists(): pytest.skip()\n    once('a')")
    assert (status, closing(lines)) == (1, "==== red: 1 failed, 0 passed, 0 unstable"), lines


@pytest.mark.parametrize(
    ("tests", "options", "reason"),
    [
        ("import os\ndef test_a(): os._exit(3)", (), "pytest ended without writing verdicts.json"),
        (
            "import os\ndef test_a():\n    if not Path('a').exists(): Path('a').touch(); os._exit(3)",
            ("-p", "xdist", "-n", "1"),
            "crashed",
        ),
        ("if not Path('a').exists(): once('a')\ndef test_a(): pass", (), "not collected: "),
        ("def test_a(): pytest.exit('enough')", (), "pytest ended with status 2"),
        ("def test_a(): pass", ("-k", "other"), "pytest ended with status 5"),
        (
            "@pytest.fixture\ndef f():\n    yield\n    once('f')\ndef test_a(f): pass",
            (),
            "AssertionError: f failed first",
        ),
        ("@pytest.mark.parametrize('n', range(31))\ndef test_a(n): once(f'{n}')", (), "31 tests failed: more than 30"),
    ],
)
def test_a_failure_that_a_repetition_cannot_refute_is_red(
    suite: Suite, tests: str, options: tuple[str, ...], reason: str
) -> None:
    status, lines = suite.run(tests, *options)
    assert status == 1
    assert any(line.startswith("not repeatable: ") and reason in line for line in lines), lines
    assert closing(lines).startswith("==== red: ")


def test_a_process_that_fails_after_a_green_run_is_red(suite: Suite) -> None:
    """A run with a non-zero exit status is not repeatable, even if no test failed."""
    suite.run("def test_a(): pass")
    done = suite.call([sys.executable, str(ROOT / "tests/lint/repeat.py"), "verdicts.json", "2"])
    assert done.returncode == 1
    assert "not repeatable: the run ended with status 2, and no test failed" in done.stdout
