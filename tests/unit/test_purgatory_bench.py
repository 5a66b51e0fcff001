"""Study of `bench/purgatory`: the old design, which the study compiles, and the verdicts on goals."""

import sys
from pathlib import Path
from typing import Any

import pytest

from bench.purgatory import results
from bench.purgatory.build import native, old_design
from tests.support.compiled import CannotCompile


@pytest.fixture(scope="module")
def old() -> Any:
    """Return the old design, compiled at its first use."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the old design is compiled as on Linux")
    try:
        return old_design()
    except CannotCompile as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.parametrize("interval", [1000, 10**9])
def test_every_request_of_the_old_design_ends_once(old: Any, interval: int) -> None:
    """Completed, expired and immediate requests add up to all, and requests drawn below the time-out do not expire."""
    driver = native("driver")
    run = driver.StudyRun(old, 20_000, rate=200_000, p50=2, p75=6, timeout_ms=20, purge_interval=interval)
    run.go()
    figures = run.figures()
    assert figures["given_up"] == ""
    assert figures["immediate"] + figures["completed"] + figures["expired"] == 20_000
    assert figures["expired"] >= 20_000 - figures["drawn_to_complete"]
    assert figures["expiry_late_ms"]["min"] >= 0
    assert "offers_per_request" not in figures  # it has no timing wheel


@pytest.mark.slow
def test_the_old_design_holds_what_is_completed(old: Any) -> None:
    """Without a purge no request's memory is freed."""
    driver = native("driver")
    run = driver.StudyRun(old, 5_000, rate=500_000, p50=2, p75=6, timeout_ms=20, purge_interval=10**9)
    run.go()
    figures = run.figures()
    assert driver.held(run) >= figures["completed"] + figures["expired"] > 0


@pytest.mark.slow
def test_the_old_design_purges_by_the_number_of_entries(old: Any) -> None:
    """With a low threshold the design scans its lists and frees completed requests."""
    driver = native("driver")
    run = driver.StudyRun(old, 20_000, rate=200_000, p50=2, p75=6, timeout_ms=20, purge_interval=100)
    run.go()
    assert driver.held(run) < 18_000  # all 20,000 without a purge


@pytest.mark.slow
def test_a_run_over_its_memory_gives_up(old: Any) -> None:
    """The memory limit ends a run, whose figures cover the time until then."""
    driver = native("driver")
    run = driver.StudyRun(old, 100_000, rate=100_000, timeout_ms=200, purge_interval=10**9, memory_mb=1)
    run.go()
    figures = run.figures()
    assert figures["given_up"] == "memory"
    assert figures["made"] < 100_000


def goal_document(rate: float, late_ms: float, other_cpus: float, stolen_cpus: float = 0.0) -> dict[str, Any]:
    """Return two rounds of one point in which kbroker is twice as fast as Kafka."""
    common = {"part": "goals", "mix": "low", "rate_target": rate, "n": 1000, "drawn_to_complete": 900, "expired": 101}
    common |= {"expiry_late_ms": {"p99": late_ms}, "other_cpus": other_cpus, "stolen_cpus": stolen_cpus}
    common["rss_peak_mb"] = 50.0
    kbroker = {**common, "series": "kbroker", "rate_enqueue": 2e6, "cpu_us_per_request": 1.0}
    kafka = {**common, "series": "kafka", "rate_enqueue": 1e6, "cpu_us_per_request": 3.0}
    return {"points": [kbroker, kafka, kbroker, kafka]}


def test_goals_are_judged_by_the_rounds_ratios() -> None:
    """Twice Kafka's rate reaches the goal of 1.5; without a run of Kafka there is no verdict."""
    document = goal_document(0, 1.0, 0.0)
    assert results.goal_rows(document)[0][1:] == ("2,000,000", "1,000,000", "2.00", ">= 1.5 of Kafka", "reached")
    document["points"] = document["points"][::2]
    assert results.goal_rows(document)[0][-1] == "Kafka was not run"


@pytest.mark.parametrize(
    ("late_ms", "other_cpus", "stolen_cpus", "verdict"),
    [
        (2.9, 1.5, 0.0, "reached"),
        (3.1, 0.0, 0.05, "**missed**"),
        (3.1, 1.5, 0.0, "not judged: others had 1.50 CPU"),
        (3.1, 0.05, 0.2, "not judged: others had 0.25 CPU"),
    ],
)
def test_lateness_is_not_judged_on_a_busy_machine(
    late_ms: float, other_cpus: float, stolen_cpus: float, verdict: str
) -> None:
    """A late expiry counts against the design only if no other process used the CPUs, on the machine or on its host."""
    rows = results.goal_rows(goal_document(results.GOAL_RATE, late_ms, other_cpus, stolen_cpus))
    assert [row[-1] for row in rows if "late" in row[0]] == [verdict]


def test_figures_replace_what_is_between_the_marks(tmp_path: Path) -> None:
    """The text of the page around the figures is kept."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{results.MARKS[0]}\nold\n{results.MARKS[1]}\nafter\n", encoding="utf-8")
    results.write_markdown(page, "new\n")
    assert page.read_text(encoding="utf-8") == f"before\n{results.MARKS[0]}\nnew\n{results.MARKS[1]}\nafter\n"
