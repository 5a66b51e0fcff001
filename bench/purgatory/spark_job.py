"""Purgatory study on Spark: each point of a plan is one task, and each task one run in the executor's process.

A plan is a DataFrame with the columns of `run_point.Point`, or a list of points. The result has a row per point: the
figures of the run (`measurements.FIGURES`), or its error. `shipping` describes the needs of an executor. No broker
takes part.

A run uses up to four threads in real time. Runs on one machine disturb each other and are disturbed by other programs:
each row has the CPUs that others used meanwhile (`other_cpus`, other runs included). `local[1]` runs one point at a
time; on a cluster `spark.task.cpus` is the number of cores of a run.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bench.purgatory import measurements
from bench.purgatory.run_point import Point, measure, mix_of, point_of
from bench.purgatory.shipping import Shipped, receive, ship
from kbroker.spark.errors import PipelineError
from kbroker.spark.formatting import Progress, silent

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Measure = Callable[[Point], dict[str, Any]]
MAX_POINTS = 100_000
_ASK_AGAIN_S = 0.5
_TASK = re.compile(r"Task (\d+) in stage")


def points_of(
    mixes: Sequence[str], rates: Sequence[float], *, seeds: Sequence[int] = (1,), repetitions: int = 1, **same: Any
) -> list[Point]:
    """Return each mix at each rate with each seed, repeated.

    Repetitions of a point are far apart, so that other load of the machine does not affect all of them.

    Args: `mixes`: as for `mix_of`; `same`: the other fields of all points.
    Raises: PipelineError for impossible values.
    """
    chosen = [mix_of(text) for text in mixes]
    return [
        point_of({"mix": mix, "p50_ms": p50_ms, "p75_ms": p75_ms, "rate": rate, "seed": seed, "repetition": n, **same})
        for n in range(1, repetitions + 1)
        for seed in seeds
        for mix, p50_ms, p75_ms in chosen
        for rate in rates
    ]


def plan(spark: SparkSession, points: Sequence[Point]) -> DataFrame:
    """Return points as a DataFrame, one in each partition, in their order.

    Raises: PipelineError for an impossible or duplicate point, and for none or more than MAX_POINTS.
    """
    if not 0 < len(points) <= MAX_POINTS:
        raise PipelineError(f"a plan of the study has 1 to {MAX_POINTS:,} points, not {len(points):,}")
    whole = [point_of(asdict(point)) for point in points]
    seen: set[Point] = set()
    for point in whole:
        if point in seen:
            raise PipelineError(f"{point}: the plan has it twice; give it another repetition")
        seen.add(point)
    rows = [tuple(asdict(point).values()) for point in whole]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, len(rows)), _ddl(measurements.plan_schema()))


def run_points(points: DataFrame, measure: Measure = measure) -> DataFrame:
    """Run each row of a plan in its own task; return a row of `measurements.COLUMNS` for each.

    Each action on the result repeats all runs: write or cache the result before using it twice.

    Args:
        points: one row per run, with columns of Point, at least `rate`; collected and distributed again.
        measure: function that runs a point in an executor and returns its row, for another design.
    Raises: PipelineError for an impossible plan. A failed run is a row with an `error`.
    """
    rows = points.limit(MAX_POINTS + 1).collect()
    spread = plan(points.sparkSession, [point_of(row.asDict()) for row in rows])
    return spread.mapInArrow(_task(measure, ship(points.sparkSession)), _ddl(measurements.row_schema()))


def run_study(
    spark: SparkSession, points: Sequence[Point], *, progress: Progress = silent, measure: Measure = measure
) -> list[dict[str, Any]]:
    """Run a plan and return its rows, in its order.

    Args: `progress`: called with the number of completed points.
    Raises: PipelineError for an impossible plan, and with the point whose executor's process ended.
    """
    frame = plan(spark, points).mapInArrow(_task(measure, ship(spark)), _ddl(measurements.row_schema()))
    from pyspark.errors import PythonException

    with _notified(spark, len(points), progress):
        try:
            found = frame.collect()
        except Exception as error:
            lost = _TASK.search(str(error))
            if isinstance(error, PythonException) or lost is None or not int(lost[1]) < len(points):
                raise
            raise PipelineError(
                f"{points[int(lost[1])]}: its executor's process ended during the run; is there memory for it?"
            ) from error
    return [row.asDict() for row in found]


def _task(measure: Measure, shipped: Shipped) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for row in batch.to_pylist():
                yield pa.RecordBatch.from_pylist(
                    [_row(Point(**row), measure, shipped)], schema=measurements.row_schema()
                )

    return run


def _row(point: Point, measure: Measure, shipped: Shipped) -> dict[str, Any]:
    try:
        receive(shipped)
        return measure(point)
    except Exception as error:  # the row reports the error, and the other runs continue
        message = str(error)
        what = f"{type(error).__name__}: {message}" if message else type(error).__name__
        return {**dict.fromkeys(measurements.COLUMNS), **asdict(point), "error": what}


@contextmanager
def _notified(spark: SparkSession, count: int, progress: Progress) -> Iterator[None]:
    """Report the number of completed tasks of the session's next job, from a separate thread."""
    if progress is silent:
        yield
        return
    context, over = spark.sparkContext, threading.Event()
    group = "kbroker purgatory study"
    tracker = context.statusTracker()
    before = set(tracker.getJobIdsForGroup(group))
    context.setJobGroup(group, group, interruptOnCancel=True)

    def done() -> int:
        jobs = [tracker.getJobInfo(number) for number in set(tracker.getJobIdsForGroup(group)) - before]
        stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)

    def ask() -> None:
        reported = 0
        while not over.wait(_ASK_AGAIN_S):
            now = done()
            if now > reported:
                reported = now
                progress(f"{now:,} of {count:,} points done")

    asker = threading.Thread(target=ask, name="study-progress", daemon=True)
    asker.start()
    try:
        yield
    finally:
        over.set()
        asker.join()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


def _ddl(schema: pa.Schema) -> Any:
    """Return an Arrow schema as Spark's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
