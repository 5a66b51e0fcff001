"""Purgatory study in one process: the drawn requests, their outcomes, and the valid points and plans."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.purgatory.build import native
from bench.purgatory.run_point import MIXES, Point, measure, mix_of, point_of, run_once, saturation
from bench.purgatory.spark_job import points_of
from kbroker.spark.errors import PipelineError
from tests.support.compiled import CannotCompile

SHORT = {"p50": 2.0, "p75": 6.0, "timeout_ms": 20}
POINT = Point("short", 2.0, 6.0, 200_000.0, n=20_000, timeout_ms=20, memory_mb=0, limit_s=3600.0)


@pytest.fixture(scope="module")
def driver() -> Any:
    """Return the compiled harness, compiled at its first use."""
    try:
        return native("driver")
    except CannotCompile as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def drawn(driver: Any) -> Callable[..., Any]:
    """Return the compiled function that generates requests."""
    found: Callable[..., Any] = native("workload").drawn
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("p50", "p75", "below"), [(20, 60, 921_342), (200, 400, 499_650)])
def test_the_drawn_requests_are_kafkas(drawn: Callable[..., Any], p50: float, p75: float, below: int) -> None:
    """Seed 1 gives the number of latencies below the time-out that the program for Kafka's purgatory states."""
    _, latencies, to_complete = drawn(1_000_000, 0, p50, p75, show=5)
    assert to_complete == below
    if p50 == 20:
        assert latencies == [283, 23, 12, 5, 3]


def test_due_times_carry_the_fraction(drawn: Callable[..., Any]) -> None:
    """Arrivals are summed as doubles and truncated to whole milliseconds afterwards."""
    assert drawn(1000, 1000, 20, 60, show=5)[0] == [0, 1, 3, 5, 5]


@pytest.mark.parametrize("settings", [(0, 1, 2), (10, 0, 2), (10, 5, 5)])
def test_a_workload_that_cannot_be_drawn(drawn: Callable[..., Any], settings: tuple[int, float, float]) -> None:
    """A count below 1, and percentiles that are not in order, are rejected."""
    with pytest.raises(ValueError, match="0 < p50 < p75"):
        drawn(settings[0], 0, *settings[1:])


@pytest.mark.slow
def test_every_request_ends_once(driver: Any) -> None:
    """Completed, expired and immediate requests add up to all, and requests drawn below the time-out do not expire."""
    run = driver.StudyRun("wheel", 20_000, rate=200_000, **SHORT)
    with pytest.raises(RuntimeError, match="no figures"):
        run.figures()
    run.go()
    figures = run.figures()
    assert figures["given_up"] == ""
    assert figures["immediate"] + figures["completed"] + figures["expired"] == 20_000
    assert figures["expired"] >= 20_000 - figures["drawn_to_complete"]
    assert figures["expiry_late_ms"]["min"] >= 0
    with pytest.raises(RuntimeError, match="once"):
        run.go()


@pytest.mark.slow
def test_nothing_is_held_at_the_end(driver: Any) -> None:
    """A completed request's memory is freed at once, with or without a purge."""
    run = driver.StudyRun("wheel", 5_000, rate=500_000, purge_interval=10**9, **SHORT)
    run.go()
    assert driver.held(run) == 0


@pytest.mark.slow
def test_a_run_that_never_went_or_gave_up_leaves_nothing(driver: Any) -> None:
    """A run without `go`, and a run that ends before its schedule, leave no thread."""
    del_me = driver.StudyRun("wheel", 1_000, rate=1, **SHORT)
    del del_me
    run = driver.StudyRun("wheel", 1_000, rate=0.01, limit_s=0.05, **SHORT)  # the second request is due in minutes
    run.go()
    assert run.figures()["given_up"] == "time"
    assert run.figures()["made"] < 1_000


@pytest.mark.slow
def test_the_harness_alone(driver: Any) -> None:
    """Without a purgatory, due requests complete and none expires."""
    run = driver.StudyRun("bare", 2_000, rate=200_000, **SHORT)
    run.go()
    figures = run.figures()
    assert (figures["completed"], figures["expired"]) == (figures["drawn_to_complete"], 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 0), ("n", 10**9), ("rate", -1.0), ("rate", math.nan), ("p50", 60.0), ("p75", math.inf), ("keys", 65),
     ("keys", 0), ("timeout_ms", 0), ("size", -1), ("size", 1 << 40), ("tick_ms", 0), ("wheel_size", 1),
     ("wheel_size", 1 << 40), ("key_space", 0), ("memory_mb", 1 << 60), ("limit_s", 0.0), ("limit_s", math.inf)],
)  # fmt: skip
def test_a_run_that_cannot_be(driver: Any, name: str, value: Any) -> None:
    """Each argument has a range, and the error names the argument that is outside it."""
    with pytest.raises(ValueError, match=name):
        driver.StudyRun("wheel", **{"n": 10, name: value})


def test_a_design_that_there_is_not(driver: Any) -> None:
    """A design is "wheel", "bare" or a StudyDesign; the old design has no name here."""
    with pytest.raises(ValueError, match="must be wheel, bare or a StudyDesign"):
        driver.StudyRun("heap", 10)
    with pytest.raises(TypeError, match="n must be an integer"):
        driver.StudyRun("wheel", 10.5)


@pytest.mark.slow
def test_a_point_gives_a_row(driver: Any, drawn: Callable[..., Any]) -> None:
    """A row holds the requested settings, the count of every outcome, the shares, and the load of the machine."""
    row = measure(POINT)
    assert {name: row[name] for name in ("mix", "rate", "seed", "n", "timeout_ms")} == {
        "mix": "short",
        "rate": 200_000.0,
        "seed": 1,
        "n": 20_000,
        "timeout_ms": 20,
    }
    assert row["made"] == row["immediate"] + row["completed"] + row["expired"] == 20_000
    assert row["drawn_share"] == pytest.approx(1 - drawn(20_000, 200_000, 2, 6, timeout_ms=20)[2] / 20_000)
    assert row["expired_share"] == row["expired"] / 20_000
    assert row["error"] is None
    assert row["rss_peak_mb"] >= row["rss_start_mb"] > 0
    assert row["other_cpus"] >= 0
    again = measure(replace(POINT, repetition=2))
    assert again["drawn_share"] == row["drawn_share"]
    assert measure(replace(POINT, seed=2))["drawn_share"] != row["drawn_share"]


@pytest.mark.slow
def test_memory_counts_from_what_the_process_held(driver: Any) -> None:
    """Only a process's growth counts towards the memory limit, so a large process may run a point."""
    assert driver.rss_mb() > 5
    row = measure(replace(POINT, memory_mb=1000))
    assert row["saturated"] in ("", "rate")
    grown = measure(replace(POINT, n=300_000, rate=0.0, timeout_ms=1000, p50_ms=900.0, p75_ms=950.0, memory_mb=1))
    assert grown["saturated"] == "memory"
    assert grown["made"] < 300_000


@pytest.mark.slow
def test_a_warm_up_is_not_counted(driver: Any) -> None:
    """The figures are those of the run after the warm-up."""
    found = run_once("wheel", 1_000, 100_000.0, 5_000, **SHORT)
    assert found["made"] == 1_000
    assert found["held_at_end"] == 0


def test_saturation_is_named() -> None:
    """A run that gave up is saturated by its limit, a run 5 % behind by its rate, and a run at full speed never."""
    kept = {"rate_target": 100.0, "rate_drawn": 100.0, "rate_enqueue": 96.0, "given_up": ""}
    assert saturation(kept) == ""
    assert saturation({**kept, "rate_enqueue": 94.0}) == "rate"
    assert saturation({**kept, "given_up": "memory"}) == "memory"
    assert saturation({**kept, "rate_target": 0, "rate_drawn": 0, "rate_enqueue": 5.0}) == ""


def test_a_sweep_has_every_point_once() -> None:
    """A sweep combines mixes, rates, seeds and repetitions; repetitions of a point are as far apart as possible."""
    points = points_of(["low", "5/9.5"], [100, 0], seeds=(1, 7), repetitions=3, n=50)
    assert len(set(points)) == len(points) == 24
    assert [p.repetition for p in points[:8]] == [1] * 8
    assert {(p.mix, p.p50_ms, p.p75_ms) for p in points} == {("low", 20.0, 60.0), ("5/9.5", 5.0, 9.5)}
    assert {p.n for p in points} == {50}
    assert str(points[0]) == "low mix at 100/s, seed 1, repetition 1"
    assert "full speed" in str(points[1])


@pytest.mark.parametrize("text", ["", "medium", "20", "60/20", "20/20", "0/5", "a/b", "20/60/80", "1/inf", "nan/2"])
def test_a_mix_that_there_is_not(text: str) -> None:
    """The error describes the form of a mix."""
    with pytest.raises(PipelineError, match="a mix is low, high, or its median"):
        mix_of(text)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "needs the column 'rate'"),
        ({"rate": 1, "speed": 2}, "no column 'speed'"),
        ({"rate": 1, "p50_ms": 2.0}, "both percentiles"),
        ({"rate": 1, "mix": "medium"}, "a mix is low, high"),
        ({"rate": -1}, r"low mix at -1/s, seed 1, repetition 1: the rate"),
        ({"rate": math.nan}, "the rate must be"),
        ({"rate": "fast"}, "holds what cannot be"),
        ({"rate": 1, "n": 0}, "low mix at 1/s, seed 1, repetition 1: n must be between 1 and 100,000,000, not 0"),
        ({"rate": 1, "n": 1.5}, "n must be a whole number"),
        ({"rate": 1, "seed": -1}, "seed must be"),
        ({"rate": 1, "wheel_size": 1}, "wheel_size must be"),
        ({"rate": 1, "p50_ms": 9.0, "p75_ms": 3.0}, "75th percentile above it"),
        ({"rate": 1, "limit_s": math.inf}, "limit_s"),
    ],
)
def test_a_row_that_is_no_point(row: dict[str, Any], said: str) -> None:
    """The error names the point or the column and the reason."""
    with pytest.raises(PipelineError, match=said):
        point_of(row)


def test_a_row_with_what_it_has() -> None:
    """Omitted and null columns have the article's values, and percentiles without a mix give the mix its name."""
    assert point_of({"rate": 10, "seed": None}) == Point("low", *MIXES["low"], 10.0)
    assert point_of({"rate": 10, "mix": "high"}) == Point("high", 200.0, 400.0, 10.0)
    assert point_of({"rate": 10, "p50_ms": 1, "p75_ms": 2}).mix == "1/2"
    assert point_of({"rate": 10, "p50_ms": 1, "p75_ms": 2, "mix": "mine"}).mix == "mine"
