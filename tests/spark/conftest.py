"""One Spark session for all tests of this folder, and brokers of a test's own.

A test that imports PySpark, pandas or Arrow belongs here, not into `unit`: that one also runs where they are not
installed. The session starts with the first test that asks for it and ends, JVM and all, before other folders' tests.
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
from kbroker.spark.setup.session import build_session, stop_session
from tests.spark.class_archive import JVM
from tests.spark.source_support import WORKER_STARTS
from tests.spark.standalone import NO_CODE, PYTHON_START
from tests.support import need
from tests.support.broker import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.testing import EmbeddedBroker

HERE = Path(__file__).resolve().parent
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",  # partition counts as planned
    "spark.sql.streaming.pollingDelay": "20ms",
    **NO_CODE,
}
TIMEOUT_S = 900


class Sessions:
    """Starts the session when it is first asked for. Jars count at its start only, so those of the connector and of
    Delta Lake are given to it whenever they can be had."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self.no_connector: str | None = None  # why the session goes without
        self.no_delta: str | None = None

    def get(self) -> SparkSession:
        """Return the session; the test lacks something if it cannot start."""
        if self._session is None:
            need.spark()
            self.no_connector, self.no_delta = self._fetch(CONNECTOR), self._fetch(DELTA)
            from kbroker.spark.tables import table_stream  # PySpark is here by now

            os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(JVM))
            self._interrupt = signal.getsignal(signal.SIGINT)
            table_stream.STARTS = WORKER_STARTS
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PYTHONPATH", str(PYTHON_START), prepend=os.pathsep)
                self._session = build_session(
                    "kbroker tests",
                    master="local[2]",
                    delta=self.no_delta is None,
                    connector=self.no_connector is None,
                    settings=SETTINGS,
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
            signal.signal(signal.SIGINT, self._interrupt)  # PySpark has put its own handler in its place


_sessions = Sessions()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A JVM beside other work takes minutes to start, and whichever test is the first waits for it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the session with the last test of this folder: half a gigabyte that the tests after it may need."""
    if nextitem is None or HERE not in nextitem.path.parents:
        _sessions.close()


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """The session of all tests: local[2], two shuffle partitions, no adaptive planning."""
    return _sessions.get()


@pytest.fixture(scope="module")
def connector(spark: SparkSession) -> SparkSession:
    """The session, with the official Kafka connector in it."""
    if _sessions.no_connector is not None:
        need.lack(_sessions.no_connector)
    return spark


@pytest.fixture(scope="module")
def delta(spark: SparkSession) -> SparkSession:
    """The session, with Delta Lake in it."""
    if _sessions.no_delta is not None:
        need.lack(_sessions.no_delta)
    return spark


@pytest.fixture
def by_consumer(connector: SparkSession) -> Iterator[SparkSession]:
    """The session, whose driver learns offsets as a member of a consumer group: deprecated, and still to be had."""
    name = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    connector.conf.set(name, "true")
    yield connector
    connector.conf.unset(name)


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command of the pipeline other than `watch` in the session of the tests, which it must not stop."""

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
    """A broker for the test in a process, on port 0, with its own folder."""
    return start_broker(group__initial__rebalance__delay__ms="0", log__retention__ms="-1")


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    """A broker in this process for the tests of a module: what it holds and was asked for can be looked at."""
    from kbroker.testing import EmbeddedBroker

    settings = {"auto.create.topics.enable": False, "log.retention.ms": -1}  # records of 1970 are kept
    with EmbeddedBroker(settings) as broker:
        yield broker
