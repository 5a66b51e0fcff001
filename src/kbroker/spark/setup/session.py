"""Start a Spark session. Requirements are checked first, so that a missing Java is reported in one sentence."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.spark.errors import INSTALL, PACKAGES, PipelineError, missing_package
from kbroker.spark.executors import SHUFFLE_PARTITIONS
from kbroker.spark.setup import gateway, jars
from kbroker.spark.setup.java import require_java
from kbroker.spark.setup.reachable import require_reachable
from kbroker.spark.setup.remote import connect_session
from kbroker.spark.setup.spark_settings import (
    ALL_CORES,
    DRIVER_MEMORY,
    MASTER,
    PYTHON,
    REMOTE,
    SUBMIT,
    TASK_PYTHON,
    chosen_settings,
    is_local,
    properties,
    require_master,
    shipped,
    spark_defaults,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_PYSPARK, FIRST_TOO_NEW_PYSPARK = (4, 2), (4, 4)
#: The maximum number of tasks that list the files of a table.
LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LOGGING = Path(__file__).with_name("log4j2.properties")


def require_packages() -> None:
    """Check that the Python packages of the extra `spark` are installed, without importing them.

    Raises: PipelineError that names the missing one, or the version that does not fit.
    """
    for module in PACKAGES:
        if importlib.util.find_spec(module) is None:
            raise missing_package(module)
    found = importlib.metadata.version("pyspark")
    version = tuple(int(part) for part in found.split(".")[:2])
    if not OLDEST_PYSPARK <= version < FIRST_TOO_NEW_PYSPARK:
        raise PipelineError(f"the pipeline needs PySpark 4.2 or 4.3, and {found} is installed: {INSTALL}")


def require_spark() -> None:
    """Check the requirements of a session: the Python packages and Java. `java -version` takes some 0.1 s.

    Raises: PipelineError, one sentence that names the package to install.
    """
    require_packages()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started the JVM already
        require_java()


def build_session(
    name: str = "kbroker",
    *,
    master: str | None = None,
    remote: str | None = None,
    connector: bool = False,
    delta: bool = False,
    more_jars: Sequence[Path] = (),
    driver_memory: str | None = None,
    log_level: str = "ERROR",
    settings: Mapping[str, str] | None = None,
    properties_file: Path | None = None,
    py_env: Path | None = None,
    listener: gateway.Listener = gateway.to_stderr,
) -> SparkSession:
    """Return a Spark session: the one of this process, or a new one.

    Args:
        master: as Spark's; by default that of `settings`, spark-submit or `spark-defaults.conf`, else all cores of this
            machine.
        remote: the URL of a Spark Connect server instead (default: the variable SPARK_REMOTE, unless a master is
            given), for which only `settings` have an effect.
        connector, delta: whether to add the jars of the Kafka connector, and those of Delta Lake.
        more_jars: further jars.
        driver_memory: as `-Xmx`; 1g unless `spark-defaults.conf` has another value.
        log_level: of Spark's log on stderr.
        settings: any of Spark's; they override all others.
        properties_file: read in place of `spark-defaults.conf`.
        py_env: an archive with a Python environment that is sent to the executors.
        listener: called with each line that the JVM writes to stderr.

    Memory and jars have an effect in the first session of a process only, which starts the JVM.
    Raises: PipelineError: Java, a package or a jar is missing, the JVM did not start, or no master or server responds.
    Threads: any, one at a time; the environment is changed while the JVM starts.
    """
    given = dict(settings or {})
    filed = {} if properties_file is None else properties(properties_file)
    remote = remote or given.pop(REMOTE, None) or (None if master else filed.get(REMOTE))
    remote = remote or (None if master else os.environ.get("SPARK_REMOTE"))
    if remote:
        require_packages()
        if driver_memory is not None:
            raise PipelineError("the driver of Spark Connect is the server's, and its memory is set there")
        filed.pop(REMOTE, None)
        return connect_session(remote, {**filed, **given}, py_env)
    require_spark()
    files = [*more_jars, *(jars.connector_jars() if connector else ()), *(jars.delta_jars() if delta else ())]
    if driver_memory is not None:
        given.setdefault(DRIVER_MEMORY, driver_memory)
    defaults = _submitted() if "PYSPARK_GATEWAY_PORT" in os.environ else spark_defaults(properties_file)
    place = given.get(MASTER) or master or defaults.get(MASTER) or ALL_CORES
    require_master(place)
    logging = (
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        f"-Dkbroker.log.level={log_level}",
        f"-Dkbroker.task.level={'OFF' if log_level == 'ERROR' else log_level}",
    )
    if py_env is not None:
        given |= shipped(py_env, place, {**defaults, **given})
    chosen = chosen_settings(
        given,
        defaults,
        name=name,
        master=place,
        java_options=" ".join(logging),
        jars=",".join(map(str, files)),
        more=jars.DELTA_SETTINGS if delta else {},
    )
    require_reachable(place)
    with _environment(place, chosen, properties_file), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from 3.12 on
        gateway.start_jvm(chosen, listener)
        from pyspark.sql import SparkSession

        builder = SparkSession.builder
        for key, value in chosen.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    if is_local(place):
        # most of Spark's 200 and 10,000 tasks would be empty on a few cores; the latter list the files of a table
        for name in {SHUFFLE_PARTITIONS, LISTING_TASKS} - chosen.keys():
            session.conf.set(name, str(max(2, session.sparkContext.defaultParallelism)))
    return session


def _submitted() -> dict[str, str]:
    """Return the settings of the JVM that spark-submit has started."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


@contextlib.contextmanager
def _environment(master: str, chosen: dict[str, str], properties_file: Path | None) -> Iterator[None]:
    """Set the environment of the JVM and its Python workers, where the user has not set it.

    Executors on this machine get the loopback address and this interpreter. Those of a cluster have another Python, and
    the driver finds this interpreter first on the PATH. If theirs does not exist here, only tasks run it (`chosen` is
    changed) and the driver runs this interpreter.
    """
    wanted: dict[str, str] = {}
    overruled = {"PATH", SUBMIT}
    if properties_file is not None:  # Spark's own launcher would read spark-defaults.conf
        wanted[SUBMIT] = (
            f"--properties-file {shlex.quote(str(properties_file))} {os.environ.get(SUBMIT, 'pyspark-shell')}"
        )
    if is_local(master):
        wanted |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": chosen.get(PYTHON, sys.executable)}
    else:
        path = os.pathsep.join(filter(None, (os.path.dirname(sys.executable), os.environ.get("PATH"))))
        wanted["PATH"] = path
        theirs = os.environ.get("PYSPARK_PYTHON") or chosen.get(PYTHON)
        if TASK_PYTHON in chosen or (theirs and shutil.which(theirs, path=path) is None):
            chosen.setdefault(TASK_PYTHON, theirs or "")
            wanted["PYSPARK_PYTHON"] = sys.executable
            overruled.add("PYSPARK_PYTHON")
        elif theirs:
            wanted["PYSPARK_PYTHON"] = theirs
    changed = {key: value for key, value in wanted.items() if key in overruled or key not in os.environ}
    before = {key: os.environ.get(key) for key in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
