"""Report in words and for readers: sentences, badges, names, axes, contrast, phones, a thousand clients."""

import os
import re
import threading
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli import pipeline_whatif
from kbroker.common.quotas import QuotaEntity
from kbroker.common.shown_names import LONGEST, client_name, shown_name
from kbroker.spark.report.data import MEASURES, Client, ReportData
from kbroker.spark.report.outliers import outliers
from kbroker.spark.report.page import MAX_BARS, render
from kbroker.spark.report.plots import LEFT, RIGHT, Line, Mark, Plot, clock_text, heat_map, line_plot, time_ticks
from kbroker.spark.report.throttled import Throttled, Throttles, advice, lead
from kbroker.spark.report.write import write_page
from kbroker.spark.whatif.recommend import Need, Recommendation

NOW = datetime(2026, 1, 3, tzinfo=timezone.utc)
STYLE = Path(render.__code__.co_filename).with_name("templates") / "style.css"
ANN = Throttled("Produce", "ann", "app", None, 1_048_576.0, 148, 0, 90_000, 3_000, 0.9)
FETCH = Throttled("Fetch", "", "bob", None, 1_000.0, 1, 0, 10_000, 10_000, 0.1)


def throttles(*rows: Throttled) -> Throttles:
    by_quota: dict[str, int] = {}
    for row in rows:
        by_quota[row.quota] = by_quota.get(row.quota, 0) + row.delay_ms
    verdicts, refused, delay_ms = (
        sum(getattr(row, name) for row in rows) for name in ("verdicts", "refused", "delay_ms")
    )
    return Throttles(rows, len(rows), verdicts, refused, delay_ms, by_quota)


def test_the_first_paragraph() -> None:
    """The paragraph has the throttled clients, the quotas that throttled them, and the delays."""
    assert (
        lead(Throttles((), 0, 0, 0, 0, {})) == "No client was throttled: no request was delayed or refused by a quota."
    )
    assert lead(throttles(ANN)) == (
        "148 requests and connections were delayed by quotas, 1 min 30 s in all: all of user ann, client id app, by "
        "its Produce quota of 1.0 MiB/s on what it produced."
    )
    assert lead(throttles(ANN, FETCH)) == (
        "149 requests and connections were delayed by quotas, 1 min 40 s in all. 2 clients or addresses were "
        "affected. Most of the delay, 90.0 %, was that of user ann, client id app, by its Produce quota of 1.0 MiB/s "
        "on what it produced. By quota: Produce 90.0 %, Fetch 10.0 %."
    )
    assert "The largest part of the delay, 40.0 %" in lead(throttles(ANN._replace(share=0.4), FETCH))
    refused = ANN._replace(quota_type="ControllerMutation", verdicts=1, refused=1, delay_ms=0, longest_ms=0, limit=5.0)
    assert lead(throttles(refused)).startswith("1 request or connection was refused: all of user ann")
    assert "delayed by quotas, 1 min 30 s in all, and 1 was refused. 2 clients" in lead(throttles(ANN, refused))
    unknown = FETCH._replace(quota_type=None, limit=None)
    assert lead(throttles(unknown)) == (
        "1 request or connection was delayed by quotas, 10.0 s in all: all of client id bob, by a quota that the log "
        "does not name."
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ANN, "let it produce less, or raise its producer_byte_rate."),
        (FETCH, "Client id bob: 1 time over its Fetch quota, 10.0 s at most; let it fetch less"),
        (
            ANN._replace(quota_type="Request"),
            "let it send fewer requests (larger linger.ms, fetch.min.bytes), or raise",
        ),
        (ANN._replace(quota_type="ControllerMutation"), "create and delete fewer topics at a time"),
        (ANN._replace(quota_type="ConnectionRate", ip="10.0.0.1"), "Address 10.0.0.1: 148 times over its Connection"),
        (ANN._replace(quota_type=None), "the log of Apache Kafka does not state by which quota"),
        (ANN._replace(user="", client_id=""), "A client without a name: 148 times"),
    ],
)
def test_what_to_do(row: Throttled, said: str) -> None:
    """Each of the first throttled clients has one sentence, which names its quota."""
    (sentence,) = advice(throttles(row))
    assert said in sentence
    assert sentence.endswith(".")


def test_one_that_takes_too_much_is_not_given_more() -> None:
    doubt = "takes 40 times as much as half of the others do: find the reason before you grant it"
    (sentence,) = advice(throttles(ANN), lambda row: doubt)
    assert sentence.endswith(f"; it {doubt}.")
    assert "raise" not in sentence


def needs(*limits: float) -> list[Need]:
    return [Need(None, f"c{number}", "Produce", limit, 9, 0, limit) for number, limit in enumerate(limits)]


@pytest.mark.parametrize(
    ("limits", "now", "throttled", "said"),
    [
        ((1000.0, 20.0, 10.0, 5.0), None, True, "takes 100 times as much as half of the others do"),
        ((1000.0, 20.0, 10.0, 5.0), 50.0, False, "takes 100 times as much as half of the others do"),
        ((1000.0, 20.0, 10.0, 5.0), None, False, None),  # its use may be right
        ((1000.0, 20.0, 10.0, 5.0), 2000.0, False, None),  # its limit would be lower
        ((90.0, 20.0, 10.0, 5.0), None, True, None),
        ((50.0, 50.0, 40.0, 30.0), 5.0, True, "takes 10 times as much as its quota allows"),
        ((50.0, 50.0, 40.0, 30.0), 6.0, True, None),
        ((1000.0, 5.0), None, True, None),  # of two clients, either may be the outlier
    ],
)
def test_an_outlier(limits: tuple[float, ...], now: float | None, throttled: bool, said: str | None) -> None:
    """An outlier takes far more than others or than its quota, and was throttled or would get more."""
    found = Recommendation("client-id", 0.01, {"Produce": min(limits)}, needs(*limits)[:1], needs(*limits))
    rows = [FETCH._replace(quota_type="Produce", client_id="c0")] if throttled else [FETCH]
    reasons = outliers(found, lambda entity, quota_type: now, rows)
    entity = QuotaEntity.of({"client-id": "c0"})
    if said is None:
        assert reasons == {}
    else:
        assert list(reasons) == [(entity, "Produce")]
        assert reasons[entity, "Produce"].startswith(said)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain id-7_é 日本", "plain id-7_é 日本"),
        ("abc\u202edef\u2066", "abc\\u202edef\\u2066"),
        ("a\nb\x00\x7f\u2028", "a\\u000ab\\u0000\\u007f\\u2028"),
        ("\u200b\ufeff", "\\u200b\\ufeff"),
        ("\ud800x", "\\ud800x"),
        ("z" + "\u0301" * 50 + "a", "z" + "\u0301" * 4 + "a"),
        ("مرحبا", "\u2068مرحبا\u2069"),
    ],
)
def test_names(name: str, shown: str) -> None:
    """Characters that are invisible, reverse text or break the line are escaped."""
    assert shown_name(name) == shown
    shown_name(name).encode()


def test_a_long_name_is_cut_in_its_middle() -> None:
    name = shown_name("a" * 200 + "z")
    assert len(name) == LONGEST
    assert (name[0], name[-1]) == ("a", "z")
    assert "…" in name
    assert len(shown_name("b" * 32_767)) == LONGEST
    assert client_name("User:u", None) == "u / -"


def texts_at(plot: Plot, width: int) -> dict[str, str]:
    """Return the times of a plot's axis with their positions."""
    (drawing,) = [one for one in plot.drawings if one.width == width]
    bottom = max(float(str(mark.attributes["y"])) for mark in drawing.marks if mark.tag == "text")
    return {
        mark.text: str(mark.attributes["x"])
        for mark in drawing.marks
        if mark.tag == "text" and float(str(mark.attributes["y"])) == bottom
    }


@pytest.mark.parametrize("width", [920, 400])
def test_axes_of_time_are_aligned(width: int) -> None:
    """A time has the same position in lines and in cells, since a page is read from top to bottom."""
    values = [0.0, 0.0, 9.0, 0.0]
    line = line_plot([Line("a", values, 1)], 0, 86_400, str, "t")
    cells = heat_map(["a"], [values], 0, 86_400, str, "t")
    assert texts_at(line, width) == texts_at(cells, width)
    assert len(texts_at(line, width)) > 2

    def of(plot: Plot, kind: str) -> Mark:
        (drawing,) = [one for one in plot.drawings if one.width == width]
        (mark,) = [mark for mark in drawing.marks if str(mark.attributes.get("class", "")).startswith(kind)]
        return mark

    peak = float(str(of(line, "line").attributes["points"]).split()[2].split(",")[0])
    cell = of(cells, "heat").attributes
    middle = float(str(cell["x"])) + (width - LEFT - RIGHT) / len(values) / 2
    assert abs(peak - middle) < 0.2


@pytest.mark.parametrize("hours", [0.4, 2, 23, 30, 47, 60, 100, 400, 5_000])
def test_no_two_times_of_an_axis_read_the_same(hours: float) -> None:
    """Two ticks of a log of days never have the same text."""
    start, end = 3_600 * 7, 3_600 * (7 + hours)
    for about in (3, 4, 7):
        shown, day = [], ""
        for tick in time_ticks(start, end, about):
            text = clock_text(tick, end - start)
            day = day if ":" in text else text  # a day's name applies until the next one
            shown.append((day, text))
        assert len(shown) == len(set(shown)) > 0


def test_a_log_of_one_moment_has_a_line() -> None:
    """A line needs two points to be visible."""
    plot = line_plot([Line("a", [5.0], 1)], 0, 1, str, "t")
    for drawing in plot.drawings:
        (points,) = [mark.attributes["points"] for mark in drawing.marks if mark.tag == "polyline"]
        assert len(set(str(points).split())) == 2


def client(name: str, received: float = 9.0) -> Client:
    over = {**{key: [0.0, 0.0] for key in MEASURES}, "request_bytes": [received, 0.0]}
    times = dict.fromkeys(("delayed_seconds", "logged_delayed_seconds", "active_seconds", "longest_delay_ms"), 0)
    return Client(name, {**dict.fromkeys(MEASURES, 0), **times}, over)


def data(limits: list[float], current: dict[str, float], rows: tuple[Throttled, ...] = ()) -> ReportData:
    """Return data of clients c0, c1, ... that need these limits, with the current quotas by client id."""
    found = Recommendation("client-id", 0.01, {"Produce": min(limits)}, needs(*limits)[:-1], needs(*limits))
    by_entity = {QuotaEntity.of({"client-id": name}): {"producer_byte_rate": q} for name, q in current.items()}
    one = client("c0")
    return ReportData(
        "s", 0, 2, 1, [one], [(f"c{number}", one.totals) for number in range(1, len(limits))], 0,
        {key: [9.0, 9.0] for key in MEASURES}, {**dict.fromkeys(MEASURES, 0), "clients": len(limits)},
        throttles(*rows), [], found, by_entity, found.quotas(),
    )  # fmt: skip


def test_the_badge_is_beside_the_quota_and_explained() -> None:
    row = FETCH._replace(quota_type="Produce", client_id="c0")
    text = render(data([1000.0, 20.0, 10.0, 5.0], {}, (row,)), NOW)
    why = "takes 100 times as much as half of the others do: find the reason before you grant it"
    assert text.count('<span class="badge" title=') == 1
    assert f"producer_byte_rate of client-id c0: it {why}." in text
    assert f" s at most; it {why}." in text  # in the first paragraph too, instead of advice to raise it


def test_a_silent_client_is_in_no_plot() -> None:
    """A client with a quota and without requests has a row in the table and no bar."""
    text = render(data([30.0, 20.0, 10.0], {"retired": 5.0, "c1": 7.0}), NOW)
    drawn = re.findall(r"<text [^>]*>(client-id [^<]*)</text>", text)
    assert "client-id c1" in drawn
    assert "client-id retired" not in drawn
    row = text[text.index("<bdi>client-id retired</bdi>") :]
    assert "sent nothing" in row[: row.index("</tr>")]


def test_a_thousand_clients() -> None:
    """All clients are in the tables, collapsed after the first rows, and a plot has a limited number of bars."""
    one = data([float(number) for number in range(2_000, 1_000, -1)], {f"c{n}": 5.0 for n in range(1_000)})
    text = render(one, NOW)
    assert len(text) < 1_500_000
    assert all(f"<bdi>c{number}</bdi>" in text for number in range(1_000))
    assert "999 more clients</summary>" in text
    assert len(re.findall(r"<text [^>]*>client-id ", text)) == 2 * MAX_BARS  # for desktops and for phones
    assert "more entities are in the table only." in text
    assert text.count("<details>") == 2


def test_wide_tables_scroll_with_a_sign_and_by_keyboard() -> None:
    text = render(data([30.0, 20.0, 10.0], {}), NOW)
    tables = re.findall(r'<div class="scroll" role="region" tabindex="0" aria-label="[^"]+"><table>', text)
    assert len(tables) == text.count("<table>") >= 2
    assert "9 columns: swipe the table sideways for the rest." in text
    assert text.count("<th scope=") == text.count("<th ") >= 15
    style = STYLE.read_text()
    assert ".more-columns { display: block }" in style[style.index("@media screen and (max-width") :]
    assert ".scroll:focus-visible" in style


def test_plots_have_their_legends() -> None:
    """Each plot has a legend directly above it, including plots with bars and shades."""
    text = render(replace(data([30.0, 20.0], {}), held=[("c0", [0.0, 470.0])]), NOW)
    for figure in re.findall(r"<figure>(.*?)</figure>", text, re.DOTALL):
        assert '<p class="legend">' in figure[: figure.index("<svg")]
    assert 'class="shade"' in text


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast(theme: int) -> None:
    """Text has a contrast of 4.5 to 1, lines and bars of 3 to 1, as WCAG requires."""
    block = re.findall(r":root \{(.*?)\}", STYLE.read_text(), re.DOTALL)[theme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    for text, ground in (("fg", "bg"), ("soft", "bg"), ("fg", "empty"), ("soft", "empty"), ("warn", "warn-bg")):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for name in ("heat", *(f"c{number}" for number in range(7))):
        assert contrast(colours[name], colours["bg"]) >= 3, name


def test_paper_is_light_and_says_where_folded_rows_are() -> None:
    """Printed pages cannot be unfolded, and the dark theme applies to screens only."""
    style = STYLE.read_text()
    assert re.findall(r"@media ([^{]*prefers-color-scheme[^{]*) {", style) == [
        "screen and (prefers-color-scheme: dark)"
    ]
    printed = style[style.index("@media print") :]
    assert 'summary::after { content: " are on the page itself" }' in printed


def test_a_page_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A reader gets the old page or the new one; a link is kept, and a failure keeps the old page."""
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    link.symlink_to(real)
    real.write_text("old")
    real.chmod(0o640)
    with real.open() as reading:
        assert write_page(link, "new") == 3
        assert reading.read() == "old"
    assert (real.read_text(), link.is_symlink(), real.stat().st_mode & 0o777) == ("new", True, 0o640)
    (tmp_path / ".real.html.new").mkdir()  # a folder, which cannot be written to
    with pytest.raises(OSError, match="directory"):
        write_page(real, "newer")
    assert real.read_text() == "new"


def test_a_page_into_a_pipe(tmp_path: Path) -> None:
    """A pipe such as /dev/stdout is written to, not replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_page(pipe, "page")
    reader.join(10)
    assert found == ["page"]
    assert pipe.is_fifo()


def test_a_file_without_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without quotas is replayed as it is; without a file, the recommendation is replayed."""
    found = Recommendation("user", 0.01, {"Produce": 5.0}, [], [])
    replayed: list[object] = []

    def write_report(spark: object, table: object, output: object, quotas: object, *_: object, **__: object) -> int:
        replayed.append(quotas)
        return 1

    monkeypatch.setattr(pipeline_whatif, "_spark", lambda *_: nullcontext((None, None)))
    monkeypatch.setattr(pipeline_whatif, "_recommended", lambda *_: found)
    monkeypatch.setattr("kbroker.spark.report.write.write_report", write_report)
    path = tmp_path / "quotas.json"
    path.write_text("[]")
    for more in (["--quotas", str(path)], []):
        done = CliRunner().invoke(pipeline_whatif.report, [str(tmp_path), "-o", str(tmp_path / "page"), *more])
        assert done.exit_code == 0, done.output
    assert replayed == [{}, found.quotas()]
