"""One Spark session for all tests of this folder, and brokers for single tests.

A test that imports PySpark, pandas or Arrow belongs here, not in `unit`, whose tests also run where these packages are
not installed. The session starts with the first test that requests it, and ends with its JVM before other folders'
tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from kbroker.cli import cli, pipeline_jobs, pipeline_views, pipeline_whatif
from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.jars import CONNECTOR, DELTA, Jar, delta_jars, fetch_jars
from kbroker.spark.setup.session import build_session
from tests.spark.class_archive import JVM, LAUNCHER
from tests.spark.source_support import WORKER_STARTS
from tests.spark.standalone import NO_CODE, PYTHON_START
from tests.support import need
from tests.support.broker import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.testing import EmbeddedBroker

HERE = Path(__file__).resolve().parent
#: Replaces Spark's default, which other processes use and which starts readlink up to twenty times per batch.
BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "20ms",
    **NO_CODE,
}
TIMEOUT_S = 900


class Sessions:
    """The Spark session of all tests, started at the first request.

    Jars can be added only at the start of a session, so those of the connector and of Delta Lake are added whenever
    they are available.
    """

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self.no_connector: str | None = None  # reason for a session without the connector
        self.no_delta: str | None = None

    def get(self) -> SparkSession:
        """Return the session; if it cannot start, the test lacks a prerequisite."""
        if self._session is None:
            need.spark()
            self.no_connector, self.no_delta = self._fetch(CONNECTOR), self._fetch(DELTA)
            from kbroker.spark.tables import table_stream  # PySpark is installed at this point

            os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(JVM))
            os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER)
            self._interrupt = signal.getsignal(signal.SIGINT)
            table_stream.STARTS = WORKER_STARTS
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PYTHONPATH", str(PYTHON_START), prepend=os.pathsep)
                self._session = build_session(
                    "kbroker tests",
                    master="local[2]",
                    delta=self.no_delta is None,
                    connector=self.no_connector is None,
                    settings={**SETTINGS, "spark.sql.streaming.checkpointFileManagerClass": BY_FILE_SYSTEM},
                )
        return self._session

    @staticmethod
    def _fetch(jars: Sequence[Jar]) -> str | None:
        """Fetch jars; return the reason if they cannot be used."""
        try:
            fetch_jars(jars)
            if jars is DELTA:
                delta_jars()
        except (PipelineError, OSError) as error:
            return str(error)
        return None

    def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            stop_session(session)
            signal.signal(signal.SIGINT, self._interrupt)  # PySpark has replaced the handler


def stop_session(spark: SparkSession) -> None:
    """Stop a session and the JVM behind it, and wait until that has ended; the next session starts a new one."""
    from pyspark import SparkContext

    spark.stop()
    running = SparkContext._gateway
    if running is None:
        return
    process = getattr(running, "proc", None)
    running.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if process is not None:
        process.stdin.close()  # the JVM ends when this closes
        process.wait()


_sessions = Sessions()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set a long time-out: a JVM beside other work takes minutes to start, and any test may be the first.

    The mark of an item comes before the mark of its module, so tests that have a time-out keep it.
    """
    for item in items:
        if item.nodeid.startswith("tests/spark/") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the session after the last test of this folder, since later tests may need its half gigabyte."""
    if nextitem is None or HERE not in nextitem.path.parents:
        _sessions.close()


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """Return the session of all tests: local[2], two shuffle partitions."""
    return _sessions.get()


@pytest.fixture(scope="module")
def connector(spark: SparkSession) -> SparkSession:
    """Return the session with the official Kafka connector."""
    if _sessions.no_connector is not None:
        need.lack(_sessions.no_connector)
    return spark


@pytest.fixture(scope="module")
def delta(spark: SparkSession) -> SparkSession:
    """Return the session with Delta Lake."""
    if _sessions.no_delta is not None:
        need.lack(_sessions.no_delta)
    return spark


@pytest.fixture
def by_consumer(connector: SparkSession) -> Iterator[SparkSession]:
    """Yield the session with a driver that looks up offsets by a consumer, a method that Spark has deprecated."""
    name = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    connector.conf.set(name, "true")
    yield connector
    connector.conf.unset(name)


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs a command of the pipeline, except `watch`, in the session of the tests."""

    class Kept:
        def __getattr__(self, name: str) -> Any:
            return (lambda: None) if name == "stop" else getattr(spark, name)

    for commands in (pipeline_jobs, pipeline_views, pipeline_whatif):
        monkeypatch.setattr(commands, "session", lambda common: Kept())

    def run(*words: object) -> Result:
        done = CliRunner().invoke(cli, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done

    return run


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """Return a broker in a process for the test, on port 0, with its own folder."""
    return start_broker(group__initial__rebalance__delay__ms="0", log__retention__ms="-1")


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    """Yield a broker in this process for the tests of a module, whose state and requests can be inspected."""
    from kbroker.testing import EmbeddedBroker

    settings = {"auto.create.topics.enable": False, "log.retention.ms": -1}  # records of 1970 are kept
    with EmbeddedBroker(settings) as broker:
        yield broker
