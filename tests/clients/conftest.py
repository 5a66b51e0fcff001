"""What the scenarios share: a folder for programs, and the table of the everyday scenario at the end of the run."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.clients.everyday", "tests.clients.exactly_once")

from tests.clients.everyday import heading  # noqa: E402


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where client programs are built."""
    return tmp_path_factory.mktemp("clients")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each client could do, as the table in docs/compatibility.md has it."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    rows = [str(value) for report in reports for key, value in report.user_properties if key == "everyday"]
    if rows:
        terminalreporter.section("everyday work of each client")
        for line in (*heading(), *sorted(rows, key=str.lower)):
            terminalreporter.write_line(line)
