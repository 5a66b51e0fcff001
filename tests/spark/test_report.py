"""Report: complete HTML that needs no other file or server, and whose names are never markup."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbroker.common.quotas import QuotaEntity
from kbroker.spark.errors import PipelineError
from kbroker.spark.report import write
from kbroker.spark.report.data import MEASURES, Client, ReportData
from kbroker.spark.report.document import render_page
from kbroker.spark.report.page import render
from kbroker.spark.report.plots import Line, Mark, Plot, byte_ticks, heat_map, paired_bars, ticks, time_ticks
from kbroker.spark.report.throttled import Throttles
from kbroker.spark.report.write import write_report
from kbroker.spark.tables.delta_table import describe_table
from kbroker.spark.whatif.recommend import Need, Recommendation, needs_of_table, recommend
from kbroker.spark.whatif.replay import replay_bins
from tests.spark.logged import logged, traffic
from tests.spark.written_table import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW = datetime(2026, 1, 3, tzinfo=timezone.utc)
NASTY = '<script>alert("x")</script>'


class Checker(HTMLParser):
    """Parser that asserts that every element is closed and nothing is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not {"src", "href", "srcset"} & {name for name, _ in attrs}
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_stands_alone(text: str) -> None:
    """Assert that a page is well formed and has no script."""
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert "script" not in checker.seen


def test_the_page_stands_alone(spark: SparkSession, tmp_path: Path) -> None:
    """All plots and tables are well formed, without a script or an address, with any names of clients."""
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
    assert_stands_alone(text)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "&lt;script&gt;" in text
    for heading in ("Usage over time", "Throttled clients", "Recommended quotas", "What if", "Clients", "What to do"):
        assert heading in text
    assert text.count("<svg") >= 6
    assert "open loop" in text.lower()
    assert "prefers-color-scheme: dark" in text
    with pytest.raises(PipelineError, match="no requests"):
        write_report(spark, tmp_path / "t", page, found.quotas(), NOW, dates=["2001-01-01"])


def test_the_page_is_about_one_version(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that `ingest` adds while the page is made are in none of its parts."""
    quotas = {QuotaEntity.of({"user": None, "client-id": None}): {"producer_byte_rate": 2_000.0}}
    rows = spark.createDataFrame(logged(traffic(300, 31, ("ann",), ("a",)), quotas).table())
    write_table(rows, tmp_path / "t", buckets=1)
    pages = [tmp_path / "alone.html", tmp_path / "beside.html"]
    write_report(spark, tmp_path / "t", pages[0], quotas, NOW)

    def beside(*of: Any, **given: Any) -> DataFrame:
        write_table(rows, tmp_path / "t")
        return replay_bins(*of, **given)

    monkeypatch.setattr(write, "replay_bins", beside)
    write_report(spark, tmp_path / "t", pages[1], quotas, NOW)
    assert describe_table(tmp_path / "t")["rows"] == 2 * rows.count()
    assert pages[1].read_text() == pages[0].read_text()


def test_scales() -> None:
    """Ticks are round numbers from 0 to beyond the highest value, and an empty plot is not an error."""
    assert ticks(0) == [0, 1]
    assert ticks(7) == [0, 2, 4, 6, 8]
    assert ticks(1e-3)[-1] >= 1e-3
    assert byte_ticks(3_000_000)[1] % 1024 == 0
    assert time_ticks(3_605, 7_195) == [4_200, 4_800, 5_400, 6_000, 6_600]
    assert len(time_ticks(0, 30 * 86_400)) <= 9
    assert [mark for mark in marks(heat_map(["a"], [[0, 0]], 0, 10, str, "t")) if mark.title] == []
    assert "no quota" in [mark.text for mark in marks(paired_bars(["a"], [None], [1.0], str, "t"))]
    assert "logarithmic" in paired_bars(["a"], [1.0], [1000.0], str, "t").note
    assert paired_bars(["a"], [1.0], [2.0], str, "t").note == ""


def marks(plot: Plot) -> list[Mark]:
    return [mark for drawing in plot.drawings for mark in drawing.marks]


def test_every_value_is_text(tmp_path: Path) -> None:
    """In each macro, as an attribute and between tags, a value shows its own characters."""
    nasty = '"><script>&amp;'
    (tmp_path / "all.html").write_text(
        '{% extends "page.html" %}{% from "parts.html" import legend, plot, table %}{% block body %}'
        "{{ legend([name]) }}{{ table([name], [[name]], numbers=0) }}{{ plot(drawn) }}{% endblock %}"
    )
    drawn = heat_map([nasty], [[1.0, 2.0]], 0, 10, str, nasty)._replace(lines=[Line(nasty, [], 1)], note=nasty)
    text = render_page(
        "all.html",
        folder=tmp_path,
        name=nasty,
        drawn=drawn,
        title=nasty,
        source=nasty,
        made_at=NOW,
        cards=[(nasty, nasty)],
    )
    assert_stands_alone(text)
    assert text.count("script") == text.count("&gt;&lt;script&gt;&amp;amp;") > 15


def test_a_share_of_nothing() -> None:
    """An entity without traffic has a share of 0."""
    assert Need("u", None, "Produce", 1.0, 0, 0, 0.0).share == 0


def page_of(start_s: int, clients: list[Client], current: dict[QuotaEntity, dict[str, float]] | None) -> str:
    """Return a page of two seconds, with quotas recommended for all and for one client."""
    sums = dict.fromkeys(MEASURES, 0)
    found = Recommendation("client-id", 0.01, {"Produce": 50.0}, [Need(None, "a", "Produce", 90.0, 9, 0, 80.0)], [])
    data = ReportData(
        "s", start_s, start_s + 2, 1, clients, [], 0, {key: [9.0, 9.0] for key in MEASURES}, {**sums, "clients": 2},
        Throttles((), 0, 0, 0, 0, {}), [], found, current, found.quotas(),
    )  # fmt: skip
    return render(data, NOW)


def cells_of(row: str) -> str:
    """Return the texts of a table's row."""
    return re.sub(r"\|+", "|", re.sub(r"<.*?>", "|", row)).strip("|")


def client(name: str, received: float, sent: float) -> Client:
    over = {**{key: [0.0, 0.0] for key in MEASURES}, "request_bytes": [received, 0.0], "response_bytes": [sent, 0.0]}
    times = dict.fromkeys(("delayed_seconds", "logged_delayed_seconds", "active_seconds", "longest_delay_ms"), 0)
    return Client(name, {**dict.fromkeys(MEASURES, 0), **times}, over)


def test_a_client_has_one_colour() -> None:
    """A client has one colour in every plot over time, independent of its rank."""
    text = page_of(0, [client("first", 9, 1), client("second", 8, 2), client("third", 0, 3)], {})
    named = re.findall(r'class="line c(\d)" points="[^"]*"><title>(\w+)</title>', text)
    assert {name: {colour for colour, other in named if other == name} for _, name in named} == {
        "first": {"1"},
        "second": {"2"},
        "third": {"3"},
    }


def test_who_has_a_quota_now_is_compared() -> None:
    """An entity that no longer has a separate quota gets the default; other kinds of entities are not compared."""
    ids = {name: QuotaEntity.of({"client-id": name}) for name in ("a", "b")}
    current = {
        ids["b"]: {"producer_byte_rate": 30.0, "consumer_byte_rate": 7.0},
        QuotaEntity.of({"user": "u"}): {"producer_byte_rate": 2.0},
    }
    text = page_of(0, [], current)
    rows = [cells_of(row) for row in re.findall(r"<tr>(.*?)</tr>", text)]
    assert "client-id b|producer_byte_rate|30 B/s|50 B/s|sent nothing|by the default" in rows
    assert "client-id b|consumer_byte_rate|7 B/s|no quota|sent nothing|by the default" in rows
    assert "client-id a|producer_byte_rate|no quota|90 B/s|" in "".join(rows)
    assert "user u" not in text


def test_unknown_quotas_are_not_said_to_be_missing() -> None:
    """Without --current or a broker the current quotas are unknown, even if the log has clients that they throttled."""
    text = page_of(0, [], None)
    assert "client-id a|producer_byte_rate|not known|90 B/s|" in "".join(
        cells_of(row) for row in re.findall(r"<tr>(.*?)</tr>", text)
    )
    assert (">not known</text>" in text, "no quota" in text) == (True, False)
    assert (">not known</text>" in page_of(0, [], {}), "no quota" in page_of(0, [], {})) == (False, True)


def test_a_short_log_has_its_seconds() -> None:
    """The title of a log of two seconds has seconds, and that of a log over midnight both days."""
    assert "<h1>Quotas and usage, 1970-01-01 00:00:00 to 00:00:02 UTC</h1>" in page_of(0, [], {})
    assert "1970-01-01 23:59:59 to 1970-01-02 00:00:01 UTC" in page_of(86_399, [], {})


def test_phones_have_plots_of_their_own() -> None:
    """Each plot exists for desktops and for phones, and the style shows one of them."""
    text = page_of(0, [client("first", 9, 1)], {})
    assert text.count('<svg class="wide"') == text.count('<svg class="narrow"') > 2
    shown = r"\.wide \{ display: none \} \.narrow \{ display: block \}"
    assert re.search(r"@media screen and \(max-width: \d+px\) \{ " + shown, text)
