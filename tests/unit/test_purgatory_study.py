"""The purgatory study: the drawn workload, the old design written for it, and what counts as saturated."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.purgatory import results

needs_native = pytest.mark.slow  # the first test that needs it compiles the native part


@pytest.fixture(scope="module")
def native() -> Iterator[Any]:
    """The compiled part, as the study itself builds it."""
    pytest.importorskip("Cython", reason="Cython is not installed")
    if not sys.platform.startswith("linux"):
        pytest.skip("the study's driver reads /proc")
    from bench.purgatory.build import built

    folder = str(built())
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("purgatory_study.driver"), importlib.import_module("purgatory_study.workload")
    finally:
        sys.path.remove(folder)


@needs_native
@pytest.mark.parametrize(("p50", "p75", "below"), [(20, 60, 921_342), (200, 400, 499_650)])
def test_the_drawn_requests_are_kafkas(native: Any, p50: float, p75: float, below: int) -> None:
    """Seed 1 gives the number of latencies below the time-out that the program for Kafka's purgatory states."""
    _, workload = native
    _, latencies, to_complete = workload.drawn(1_000_000, 0, p50, p75, show=5)
    assert to_complete == below
    if p50 == 20:
        assert latencies == [283, 23, 12, 5, 3]


@needs_native
def test_due_times_carry_the_fraction(native: Any) -> None:
    """Arrivals are added up in double and cut to whole milliseconds afterwards."""
    _, workload = native
    assert workload.drawn(1000, 1000, 20, 60, show=5)[0] == [0, 1, 3, 5, 5]


@needs_native
@pytest.mark.parametrize("settings", [(0, 1, 2), (10, 0, 2), (10, 5, 5)])
def test_a_workload_that_cannot_be_drawn(native: Any, settings: tuple[int, float, float]) -> None:
    """n below 1, and percentiles that are not in order, are refused."""
    _, workload = native
    with pytest.raises(ValueError, match="0 < p50 < p75"):
        workload.drawn(settings[0], 0, *settings[1:])


@needs_native
@pytest.mark.parametrize(("design", "interval"), [("wheel", 1000), ("heap", 1000), ("heap", 10**9)])
def test_every_request_ends_once(native: Any, design: str, interval: int) -> None:
    """Completed, expired or done at once: together they are all; and those drawn below the time-out do not expire."""
    driver, _ = native
    run = driver.StudyRun(design, 20_000, rate=200_000, p50=2, p75=6, timeout_ms=20, purge_interval=interval)
    run.go()
    figures = run.figures()
    assert figures["given_up"] == ""
    assert figures["immediate"] + figures["completed"] + figures["expired"] == 20_000
    assert figures["expired"] >= 20_000 - figures["drawn_to_complete"]
    assert figures["expiry_late_ms"]["min"] >= 0
    with pytest.raises(RuntimeError, match="once"):
        run.go()


@needs_native
def test_the_new_design_holds_nothing_at_the_end(native: Any) -> None:
    """A completed request's memory is given back at once, purge or not; the old design holds it until a purge."""
    driver, _ = native
    held = []
    for design in ("wheel", "heap"):
        run = driver.StudyRun(design, 5_000, rate=500_000, p50=2, p75=6, timeout_ms=20, purge_interval=10**9)
        run.go()
        figures = run.figures()
        held.append((driver.held(run), figures["completed"] + figures["expired"]))
    assert held[0][0] == 0
    assert held[1][0] >= held[1][1] > 0


@needs_native
def test_the_old_design_purges_by_the_number_of_entries(native: Any) -> None:
    """With a low threshold it scans its lists and lets the completed go."""
    driver, _ = native
    run = driver.StudyRun("heap", 20_000, rate=200_000, p50=2, p75=6, timeout_ms=20, purge_interval=100)
    run.go()
    assert driver.held(run) < 18_000  # all, had it not purged


@needs_native
def test_a_run_over_its_memory_gives_up(native: Any) -> None:
    """The cap ends a run; its figures are those until then."""
    driver, _ = native
    run = driver.StudyRun("heap", 100_000, rate=100_000, timeout_ms=200, purge_interval=10**9, memory_mb=1)
    run.go()
    figures = run.figures()
    assert figures["given_up"] == "memory"
    assert figures["made"] < 100_000


def test_saturation_is_named() -> None:
    """A run that gave up is saturated by what ended it; one that fell 5 % behind, by its rate; full speed never."""
    kept = {"rate_target": 100.0, "rate_drawn": 100.0, "rate_enqueue": 96.0, "given_up": ""}
    assert results.saturation(kept) == ""
    assert results.saturation({**kept, "rate_enqueue": 94.0}) == "rate"
    assert results.saturation({**kept, "given_up": "memory"}) == "memory"
    assert results.saturation({**kept, "rate_target": 0, "rate_drawn": 0, "rate_enqueue": 5.0}) == ""


def goal_document(rate: float, late_ms: float, other_cpus: float) -> dict[str, Any]:
    """Two rounds of one point, kbroker twice as fast as Kafka."""
    common = {"part": "goals", "mix": "low", "rate_target": rate, "n": 1000, "drawn_to_complete": 900, "expired": 101}
    common |= {"expiry_late_ms": {"p99": late_ms}, "other_cpus": other_cpus, "rss_peak_mb": 50.0}
    kbroker = {**common, "series": "kbroker", "rate_enqueue": 2e6, "cpu_us_per_request": 1.0}
    kafka = {**common, "series": "kafka", "rate_enqueue": 1e6, "cpu_us_per_request": 3.0}
    return {"points": [kbroker, kafka, kbroker, kafka]}


def test_goals_are_judged_by_the_rounds_ratios() -> None:
    """Twice Kafka's rate reaches the goal of 1.5; without Kafka nothing is said about it."""
    document = goal_document(0, 1.0, 0.0)
    assert results.goal_rows(document)[0][1:] == ("2,000,000", "1,000,000", "2.00", ">= 1.5 of Kafka", "reached")
    document["points"] = document["points"][::2]
    assert results.goal_rows(document)[0][-1] == "Kafka was not run"


@pytest.mark.parametrize(
    ("late_ms", "other_cpus", "verdict"),
    [(2.9, 1.5, "reached"), (3.1, 0.0, "**missed**"), (3.1, 1.5, "not judged: others used 1.50 CPU")],
)
def test_lateness_is_not_judged_on_a_busy_machine(late_ms: float, other_cpus: float, verdict: str) -> None:
    """A late expiry counts against the design only if nobody else had the CPUs."""
    rows = results.goal_rows(goal_document(results.GOAL_RATE, late_ms, other_cpus))
    assert [row[-1] for row in rows if "late" in row[0]] == [verdict]


def test_figures_replace_what_is_between_the_marks(tmp_path: Path) -> None:
    """The text of the page around the figures stays."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{results.MARKS[0]}\nold\n{results.MARKS[1]}\nafter\n", encoding="utf-8")
    results.write_markdown(page, "new\n")
    assert page.read_text(encoding="utf-8") == f"before\n{results.MARKS[0]}\nnew\n{results.MARKS[1]}\nafter\n"
