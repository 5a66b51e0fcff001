"""The report: complete HTML that asks nobody for anything, with names of clients that are no markup."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.common.quotas import QuotaEntity
from kbroker.spark.errors import PipelineError
from kbroker.spark.recommend import Need, needs_of_table, recommend
from kbroker.spark.report.plots import byte_ticks, heat_map, paired_bars, ticks, time_ticks
from kbroker.spark.report.write import write_report
from kbroker.spark.table import write_table
from tests.spark.logged import logged, traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = datetime(2026, 1, 3, tzinfo=timezone.utc)
NASTY = '<script>alert("x")</script>'


class Checker(HTMLParser):
    """Every element is closed, and nothing is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not {"src", "href", "srcset"} & {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(spark: SparkSession, tmp_path: Path) -> None:
    """All plots and tables are there, well formed, without a script or an address, whatever clients are called."""
    quotas = {QuotaEntity.of({"user": None, "client-id": None}): {"producer_byte_rate": 2_000.0}}
    log = logged(traffic(1_500, 31, ("ann", "bob"), ("a", NASTY, "")), quotas).table()
    write_table(spark.createDataFrame(log), tmp_path / "t", buckets=2)
    found = recommend(needs_of_table(spark, tmp_path / "t", share=0.05), share=0.05, top=2)
    page = tmp_path / "report.html"
    size = write_report(
        spark, tmp_path / "t", page, found.quotas(), NOW, recommendation=found, current=quotas
    )  # fmt: skip
    text = page.read_text(encoding="utf-8")
    assert size == len(text.encode())
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert "script" not in checker.seen
    assert not re.search(r"https?://|url\(|@import", text)
    assert "&lt;script&gt;" in text
    for heading in ("Usage over time", "Who was throttled", "Recommended quotas", "What if", "Clients"):
        assert heading in text
    assert text.count("<svg") >= 6
    assert "open loop" in text.lower()
    assert "prefers-color-scheme: dark" in text
    with pytest.raises(PipelineError, match="no requests"):
        write_report(spark, tmp_path / "t", page, found.quotas(), NOW, dates=["2001-01-01"])


def test_scales() -> None:
    """Round ticks from nothing to beyond the highest; nothing to draw is no error."""
    assert ticks(0) == [0, 1]
    assert ticks(7) == [0, 2, 4, 6, 8]
    assert ticks(1e-3)[-1] >= 1e-3
    assert byte_ticks(3_000_000)[1] % 1024 == 0
    assert time_ticks(3_605, 7_195) == [4_200, 4_800, 5_400, 6_000, 6_600]
    assert len(time_ticks(0, 30 * 86_400)) <= 9
    assert "svg" in heat_map(["a"], [[0, 0]], 0, 10, str, "t")
    assert "no quota" in paired_bars(["a"], [None], [1.0], str, "t")


def test_a_share_of_nothing() -> None:
    """An entity that sent nothing has no share to divide."""
    assert Need("u", None, "Produce", 1.0, 0, 0, 0.0).share == 0
