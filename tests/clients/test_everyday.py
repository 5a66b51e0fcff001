"""Everyday scenario of every client library, in programs in their languages; everyday.py describes the steps.

The rows of the results are those of the table in docs/compatibility.md, and are printed at the end of the run.
KBROKER_TEST_BOOTSTRAP=host:port selects another broker; Apache Kafka passes.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.everyday import Lines, heading
from tests.clients.programs import go_program, java_program, node_folder
from tests.support.broker import run_to_end

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS: dict[str, Callable[[], list[str]]] = {
    **{
        name: lambda name=name: [sys.executable, "-m", "tests.clients.everyday_python", name]  # type: ignore[misc]
        for name in ("confluent-kafka", "kafka-python", "aiokafka")
    },
    "franz-go": lambda: [str(go_program())],
    "kafkajs": lambda: ["node", str(node_folder() / "everyday.js")],
    "Java": lambda: java_program(),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def command(name: str, bootstrap: str, topic: str) -> list[str]:
    start_ms = str(int(time.time() * 1000) - 3_600_000)
    verb = ["everyday"] if name == "franz-go" else []
    return [*PROGRAMS[name](), bootstrap, *verb, topic, start_ms]


def without_version(row: str) -> str:
    """Return a row of the table without its second cell."""
    cells = row.split("|")
    return "|".join([*cells[:2], *cells[3:]])


@pytest.mark.parametrize("name", PROGRAMS)
def test_everyday(name: str, bootstrap: str, record_property: Callable[[str, object], None]) -> None:
    """Each step succeeds or is unsupported, and the row of the results is in docs/compatibility.md."""
    topic = f"everyday-{name}-{time.time_ns():x}"
    lines = Lines(bootstrap, topic)
    for line in run_to_end(command(name, bootstrap, topic), seconds=400).splitlines():
        lines.take(line)
    row = lines.row(name)
    record_property("everyday", row)
    assert lines.failures == []
    assert "?" not in row, f"steps are missing: {row}"
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in heading() if line not in page] == [], "the heading of the table in docs/compatibility.md"
    if "KBROKER_RANGES" in os.environ:  # the second cell, the version, differs
        row, page = (without_version(row), [without_version(line) for line in page])
    assert row in page, f"not in docs/compatibility.md: {row}"
