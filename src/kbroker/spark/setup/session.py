"""Start a Spark session; what it needs is checked first: a missing Java is a sentence, not a crashed JVM."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup import jars
from kbroker.spark.setup.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_PYSPARK, FIRST_TOO_NEW_PYSPARK = (4, 2), (4, 4)
_INSTALL = 'pip install "kbroker[spark]"'
_MODULES = (
    "pyspark",
    "pyarrow",
    "pandas",
    "jinja2",
)  # pandas: Spark asks for it before it runs a function over Arrow batches
_LOGGING = Path(__file__).with_name("log4j2.properties")


def require_packages() -> None:
    """Check that the Python packages of the extra `spark` are there, without importing them.

    Raises: PipelineError that names the missing one, or the version that does not fit.
    """
    for module in _MODULES:
        if importlib.util.find_spec(module) is None:
            raise PipelineError(f"the pipeline needs {module}, which is not installed: {_INSTALL}")
    found = importlib.metadata.version("pyspark")
    version = tuple(int(part) for part in found.split(".")[:2])
    if not OLDEST_PYSPARK <= version < FIRST_TOO_NEW_PYSPARK:
        raise PipelineError(f"the pipeline needs PySpark 4.2 or 4.3, and {found} is installed: {_INSTALL}")


def require_spark() -> None:
    """Check all that a session needs: the Python packages and Java. Takes some 0.1 s, for `java -version`.

    Raises: PipelineError, one sentence that says what to install.
    """
    require_packages()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started the JVM already
        require_java()


def build_session(
    name: str = "kbroker",
    *,
    master: str | None = None,
    connector: bool = False,
    delta: bool = False,
    more_jars: Sequence[Path] = (),
    driver_memory: str = "1g",
    log_level: str = "ERROR",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session, a new one or the one that runs in this process already.

    Args: `master`: as Spark's, by default all cores of this machine, or what spark-submit says; `connector`, `delta`:
    with the jars of the Kafka connector, of Delta Lake; `more_jars`: further ones; `driver_memory`: as `-Xmx`;
    `log_level`: of Spark's log on stderr; `settings`: any of Spark's, above all the others. Memory and jars only count
    for the first session of a process: that one starts the JVM.
    Raises: PipelineError: Java, a package or a jar is missing, or the JVM did not start.
    Threads: any, one at a time; the environment is changed while the JVM starts.
    """
    require_spark()
    files = [*more_jars, *(jars.connector_jars() if connector else ()), *(jars.delta_jars() if delta else ())]
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    more: dict[str, str] = {}
    if delta:
        from kbroker.spark.tables.delta import SETTINGS

        more = SETTINGS
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    chosen = {
        **({} if submitted and master is None else {"spark.master": master or "local[*]"}),
        "spark.app.name": name,
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": " ".join(
            (
                f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
                f"-Dkbroker.log.level={log_level}",
                f"-Dkbroker.task.level={'OFF' if log_level == 'ERROR' else log_level}",
            )
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1)),  # Spark's 200 are tasks of nothing here
        "spark.sql.streaming.pollingDelay": "100ms",  # of 10 ms an idle stream asks the broker 219 times a second
        **({"spark.jars": ",".join(map(str, files))} if files else {}),
        **more,
        **(settings or {}),
    }
    builder = SparkSession.builder
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with _environment(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from 3.12 on
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as error:
            raise PipelineError(
                "Spark's JVM did not start; what it said is above (is there memory for "
                f"spark.driver.memory={chosen['spark.driver.memory']}?)"
            ) from error


def stop_session(spark: SparkSession) -> None:
    """Stop a session and the JVM behind it, and wait until that has ended; the next session starts a new one."""
    from pyspark import SparkContext

    spark.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if process is not None:
        process.stdin.close()  # the JVM ends when this closes
        process.wait()


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """What the JVM and its Python workers shall find in their environment, unless the user has said otherwise."""
    wanted = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    missing = {key: value for key, value in wanted.items() if key not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for key in missing:
            del os.environ[key]
