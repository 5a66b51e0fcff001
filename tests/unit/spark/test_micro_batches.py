"""Micro-batches of a stream over Spark Connect: offered by the server, written by the client, then committed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.spark import micro_batches
from kbroker.spark.errors import PipelineError
from kbroker.spark.micro_batches import MicroBatches
from tests.support.thread_starts import allow_threads


class AnalysisException(Exception):
    """Exception with PySpark's name, because PySpark need not be installed."""


class FakeServer:
    """Server with a session of the client and its clone for `foreachBatch`, which share only global views."""

    def __init__(self) -> None:
        self.views: dict[str, FakeFrame] = {}
        self.client, self.clone = FakeSession(self), FakeSession(self)


class FakeSession:
    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.conf = {"spark.sql.globalTempDatabase": "shared"}
        self.catalog = self

    def createDataFrame(self, rows: list[tuple[str]], schema: str) -> FakeFrame:
        return FakeFrame(self, rows)

    def table(self, name: str) -> FakeFrame:
        database, _, view = name.partition(".")
        assert database == "shared"
        if view not in self.server.views:
            raise AnalysisException(name)
        return self.server.views[view]

    def dropGlobalTempView(self, name: str) -> None:
        self.server.views.pop(name, None)


FakeSession.__module__ = "pyspark.sql.connect.session"


class FakeFrame:
    """DataFrame. `rows`: its rows, or any name of a batch."""

    def __init__(self, session: FakeSession, rows: Any) -> None:
        self.sparkSession = session
        self.rows = rows

    def collect(self) -> Any:
        return self.rows

    def createOrReplaceGlobalTempView(self, view: str) -> None:
        self.sparkSession.server.views[view] = self


class FakeWriter:
    """Streaming query writer that keeps the function for the server."""

    def foreachBatch(self, function: Callable[[Any, int], None]) -> FakeWriter:
        self.run = function
        return self

    def start(self) -> FakeWriter:
        return self


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "POLL_SECONDS", 0.001)


def test_batches_are_taken_in_this_process() -> None:
    """Each batch is written once, on one thread of the client; the server waits, and the views are dropped."""
    server = FakeServer()
    taken: list[tuple[str, int, bool]] = []

    def write(batch: Any, number: int) -> None:
        taken.append((batch.rows, number, threading.current_thread() is caller))

    batches = MicroBatches(server.client, write)  # type: ignore[arg-type]
    query = batches.start(FakeWriter())
    caller = threading.current_thread()
    for number in range(3):
        query.run(FakeFrame(server.clone, f"batch {number}"), number)
        assert taken[-1] == (f"batch {number}", number, False)
    batches.close()
    assert len(taken) == 3
    assert server.views == {}


def test_a_batch_that_fails_here_fails_there() -> None:
    """The failure reaches the server with its reason, so that Spark does not commit the batch; a restart succeeds."""
    server = FakeServer()

    def write(batch: Any, number: int) -> None:
        if batch.rows == "bad":
            raise PipelineError("the disk is full")

    batches = MicroBatches(server.client, write)  # type: ignore[arg-type]
    query = batches.start(FakeWriter())
    with pytest.raises(PipelineError, match="the disk is full"):
        query.run(FakeFrame(server.clone, "bad"), 0)
    batches.start(query)
    query.run(FakeFrame(server.clone, "good"), 0)
    batches.close()


def test_a_client_that_is_silent_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server stops waiting after a time-out and commits nothing."""
    monkeypatch.setattr(micro_batches, "PATIENCE_SECONDS", 0.02)
    released = threading.Event()
    server = FakeServer()
    batches = MicroBatches(server.client, lambda batch, number: None)  # type: ignore[arg-type]
    query = batches.start(FakeWriter())
    monkeypatch.setattr(batches._client, "_write", lambda batch, number: released.wait())
    with pytest.raises(PipelineError, match="has been silent for"):
        query.run(FakeFrame(server.clone, "late"), 0)
    released.set()
    batches.close()
    assert server.views == {}


def test_a_client_that_has_ended_ends_the_query() -> None:
    """The server fails at once when the client has ended, and the views are dropped."""
    server = FakeServer()
    batches = MicroBatches(server.client, lambda batch, number: None)  # type: ignore[arg-type]
    query = batches.start(FakeWriter())
    batches.close()
    with pytest.raises(PipelineError, match="has ended"):
        query.run(FakeFrame(server.clone, "late"), 0)
    assert server.views == {}


def test_a_client_that_cannot_look_for_batches_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure ends the query with its reason, although the heartbeats of the client's other thread continue."""
    monkeypatch.setattr(micro_batches, "BEAT_SECONDS", 0.001)

    class Broken(FakeSession):
        def table(self, name: str) -> FakeFrame:
            if threading.current_thread() is not caller and name.endswith("_offered"):
                raise OSError("the channel is closed")
            return super().table(name)

    Broken.__module__ = FakeSession.__module__
    caller = threading.current_thread()
    server = FakeServer()
    server.client = Broken(server)
    batches = MicroBatches(server.client, lambda batch, number: None)  # type: ignore[arg-type]
    query = batches.start(FakeWriter())
    with pytest.raises(PipelineError, match="the channel is closed"):
        query.run(FakeFrame(server.clone, "a batch"), 0)
    batches.close()


def test_without_connect_spark_calls_the_function_itself() -> None:
    """With a session in a JVM, the query gets the function unchanged."""
    writer = FakeWriter()

    def write(batch: Any, number: int) -> None:
        pass

    assert MicroBatches(object(), write).start(writer).run is write  # type: ignore[arg-type]


def test_a_client_without_its_second_thread_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """If its second thread cannot be started, the client keeps no heartbeat thread and no note on the server."""
    server = FakeServer()
    with monkeypatch.context() as patch:
        started = allow_threads(patch, 1)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            MicroBatches(server.client, lambda batch, number: None).start(FakeWriter())  # type: ignore[arg-type]
    assert [thread.is_alive() for thread in started] == [False]
    assert server.views == {}


def test_a_heartbeat_that_fails_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """One failed call to the server does not make the client of a long batch appear silent."""
    monkeypatch.setattr(micro_batches, "BEAT_SECONDS", 0.001)
    has_beaten = threading.Event()

    class Failing(FakeSession):
        def createDataFrame(self, rows: list[tuple[str]], schema: str) -> FakeFrame:
            if rows == [("1",)]:
                raise OSError("the channel is closed")
            if rows == [("2",)]:
                has_beaten.set()
            return super().createDataFrame(rows, schema)

    Failing.__module__ = FakeSession.__module__
    server = FakeServer()
    server.client = Failing(server)
    batches = MicroBatches(server.client, lambda batch, number: None)  # type: ignore[arg-type]
    batches.start(FakeWriter())
    assert has_beaten.wait(5)
    batches.close()
