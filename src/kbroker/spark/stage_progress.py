"""Progress of Spark: the tasks of the running stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kbroker.spark.session_kind import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The highest number of a running stage, completed tasks, all tasks.
StageProgress = tuple[int, int, int]
Ask = Callable[[], StageProgress | None]


def stage_progress(spark: SparkSession) -> tuple[Ask, Callable[[], None]]:
    """Return two functions: one returns the progress of the running stages, None between them; one stops reporting.

    Over Spark Connect the server reports it while a result is awaited, but not for the batches of a stream.
    Threads: any.
    """
    if is_connect(spark):
        return _of_connect(spark)
    tracker = spark.sparkContext.statusTracker()

    def ask() -> StageProgress | None:
        running = [info for number in tracker.getActiveStageIds() if (info := tracker.getStageInfo(number)) is not None]
        if not running:
            return None
        done, total = (sum(getattr(info, name) for info in running) for name in ("numCompletedTasks", "numTasks"))
        return max(info.stageId for info in running), done, total

    return ask, lambda: None


def _of_connect(spark: Any) -> tuple[Ask, Callable[[], None]]:
    latest: list[StageProgress | None] = [None]

    def hear(stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        running = [stage for stage in stages or () if not stage.done]
        if done or not running:
            latest[0] = None
            return
        completed, total = (sum(getattr(one, name) for one in running) for name in ("num_completed_tasks", "num_tasks"))
        latest[0] = max(stage.stage_id for stage in running), completed, total

    spark.registerProgressHandler(hear)
    return lambda: latest[0], lambda: spark.removeProgressHandler(hear)
