"""Output of the programs on docs/pipeline.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.spark.setup.jars import CONNECTOR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.broker import BrokerProcess

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")


def test_read_and_write(connector: SparkSession, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """The program of the page prints the output below it."""
    found = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    program, printed = found.groups()
    exec(compile(program.replace("127.0.0.1:9092", broker.bootstrap), "docs/pipeline.md", "exec"), {})
    assert capsys.readouterr().out.strip() == printed.strip()


def test_the_jars() -> None:
    """The page lists the jars that are fetched."""
    rows = re.findall(r"^\| ([\w.]+):([\w.-]+) \| ([\d.]+)", PAGE, re.MULTILINE)
    assert rows == [(jar.group, jar.artifact, jar.version) for jar in CONNECTOR]
