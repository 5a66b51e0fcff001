"""Report of the everyday scenario at the end of the test run."""

import pytest

pytest.register_assert_rewrite("tests.clients.everyday", "tests.clients.exactly_once")

from tests.clients.everyday import heading  # noqa: E402


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the abilities of each client as the table in docs/compatibility.md."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    rows = [str(value) for report in reports for key, value in report.user_properties if key == "everyday"]
    if rows:
        terminalreporter.section("everyday work of each client")
        for line in (*heading(), *sorted(rows, key=str.lower)):
            terminalreporter.write_line(line)
