"""Check by tasks, before a job begins, that the Python of Spark's executors can run kbroker's functions.

The function of these tasks is sent by value, not by its name, because an executor may have no kbroker.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import kbroker
from kbroker._core.clock import SystemClock
from kbroker.spark.errors import PipelineError
from kbroker.spark.failures import NEEDS_PYTHON, is_of_spark, sentence, with_workers
from kbroker.spark.session_kind import is_connect, is_dynamic, parallelism, runs_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Modules that functions in tasks import; the last one is needed to write a table on an object store.
MODULES = ("kbroker", "pyarrow", "pandas", "deltalake")
SLOW = ("pandas", "deltalake")  # slow to import, so only their installation is checked
SETTLE_SECONDS, QUIET_SECONDS, STEP_SECONDS = 5.0, 0.5, 0.1
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
SPARKS_PARTITIONS = 200  # Spark's default for a shuffle
PARTITIONS_OF_A_SLOT = 3


def require_executors(spark: SparkSession) -> None:
    """Check the Python of each executor by a task; then size shuffles by the cluster.

    The function does nothing if executors run on this machine with this Python. Like Spark, it waits for the first
    executor without a limit.
    Raises: PipelineError, one sentence that names the machine, the missing part and the remedy.
    """
    if not runs_elsewhere(spark):
        return
    if is_connect(spark) or is_dynamic(spark):
        _probe(spark, 1)  # executors are started on demand
    if not is_connect(spark):
        _await(spark)
    slots = parallelism(spark)
    _probe(spark, slots)
    wanted = PARTITIONS_OF_A_SLOT * slots
    if spark.conf.get(SHUFFLE_PARTITIONS) == str(SPARKS_PARTITIONS) and wanted > SPARKS_PARTITIONS:
        spark.conf.set(SHUFFLE_PARTITIONS, str(wanted))


def require_server(spark: SparkSession) -> None:
    """Check the Python of a Spark Connect server, which plans kbroker's sources and runs functions of streams.

    The archive of `--py-env` is for executors only. Raises: PipelineError.
    """
    if not is_connect(spark):
        return
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StringType, StructField, StructType

    look = _looker(MODULES)

    class Probe(DataSource):
        @classmethod
        def name(cls) -> str:
            return "kbroker_probe"

        def schema(self) -> StructType:
            return StructType([StructField(look(0), StringType())])

    spark.dataSource.register(Probe)
    found = _spoken(lambda: spark.read.format("kbroker_probe").load().schema.names[0])
    _judge(json.loads(found), "the Spark Connect server", 'install "kbroker[spark]" there')


def _await(spark: SparkSession) -> None:
    """Wait for the first executor, and then until no further one has started: a cluster starts them one by one."""
    clock = SystemClock()
    context = spark.sparkContext._jsc.sc()
    count, first_ms, since_ms = 1, 0.0, 0.0  # the driver counts as one
    while not context.isStopped():
        now: int = context.getExecutorMemoryStatus().size()
        now_ms = clock.now_ms()
        if now != count:
            first_ms, since_ms, count = first_ms or now_ms, now_ms, now
        if count > 1 and (now_ms - first_ms > SETTLE_SECONDS * 1000 or now_ms - since_ms > QUIET_SECONDS * 1000):
            return
        time.sleep(STEP_SECONDS)


def _probe(spark: SparkSession, tasks: int) -> None:
    """Run as many tasks as there are slots: Spark gives each executor one before it gives any a second."""
    from pyspark.sql import functions as F

    look = F.udf(_looker(MODULES), "string", useArrow=False)  # without Arrow, it runs even if pyarrow is not installed
    rows = _spoken(lambda: spark.range(0, tasks, 1, tasks).select(look("id").alias("found")).collect())
    for row in rows:
        _judge(json.loads(row["found"]), "Spark's executor", NEEDS_PYTHON)


def _spoken(job: Callable[[], Any]) -> Any:
    try:
        return with_workers(job)
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise PipelineError(sentence(error)) from error


def _judge(found: Mapping[str, str], whose: str, way_out: str) -> None:
    """Compare the Python of another process with this one. Raises: PipelineError for the first difference."""
    where = f"the Python of {whose} on {found['host']} ({found['executable']})"
    if found["python"] != _minor():
        raise PipelineError(f"{where} is {found['python']}, and this command's is {_minor()}: {way_out}")
    for module in MODULES:
        if f"no {module}" in found:
            raise PipelineError(f"{where} has no {module} ({found[f'no {module}']}): {way_out}")
    if found["kbroker"] != kbroker.__version__:
        raise PipelineError(
            f"{where} has kbroker {found['kbroker']}, and this command has {kbroker.__version__}: {way_out}"
        )


def _minor() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _looker(modules: Iterable[str]) -> Callable[[Any], str]:
    names, slow = tuple(modules), SLOW

    def look(_: Any) -> str:
        """Describe this Python as JSON; nothing but the standard library is needed."""
        import importlib.util
        import json
        import socket
        import sys

        found = {
            "host": socket.gethostname(),
            "executable": sys.executable,
            "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        }
        for name in names:
            try:
                if name in slow:
                    if importlib.util.find_spec(name) is None:
                        raise ModuleNotFoundError(f"No module named {name!r}")
                    continue
                found[name] = str(getattr(importlib.import_module(name), "__version__", ""))
                if name == "kbroker":
                    importlib.import_module("kbroker._core.clock")
            except Exception as error:  # a library that cannot be loaded raises OSError and others
                found[f"no {name}"] = f"{type(error).__name__}: {error}"[:200]
        return json.dumps(found)

    return look
