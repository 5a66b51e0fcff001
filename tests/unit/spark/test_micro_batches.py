"""A stream's batches over Spark Connect: offered on the server, taken here, committed only when that went well."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.spark import micro_batches
from kbroker.spark.errors import PipelineError
from kbroker.spark.micro_batches import MicroBatches


class FakeSession:
    """What server and client share: settings and views."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.views: dict[str, object] = {}
        self.conf = self.catalog = self

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str, default: str) -> str:
        return self.values.get(key, default)

    def table(self, name: str) -> object:
        return self.views[name]

    def dropTempView(self, name: str) -> None:
        del self.views[name]


FakeSession.__module__ = "pyspark.sql.connect.session"


class FakeBatch:
    def __init__(self, session: FakeSession, name: str) -> None:
        self.sparkSession = session
        self.name = name

    def createOrReplaceTempView(self, view: str) -> None:
        self.sparkSession.views[view] = self


class FakeWriter:
    """A query: it keeps the function that runs on the server."""

    def foreachBatch(self, function: Callable[[Any, int], None]) -> FakeWriter:
        self.run = function
        return self

    def start(self) -> FakeWriter:
        return self


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "POLL_SECONDS", 0.001)


def test_batches_are_taken_in_this_process() -> None:
    """Each once, on one thread, as views that are dropped; the server waits for each."""
    session = FakeSession()
    taken: list[tuple[str, int, bool]] = []

    def write(batch: Any, number: int) -> None:
        taken.append((batch.name, number, threading.current_thread() is server))

    batches = MicroBatches(session, write)  # type: ignore[arg-type]
    query = batches.start(FakeWriter())
    server = threading.current_thread()
    for number in range(3):
        query.run(FakeBatch(session, f"batch {number}"), number)
        assert taken[-1] == (f"batch {number}", number, False)
    batches.close()
    assert len(taken) == 3
    assert session.views == {}


def test_a_batch_that_fails_here_fails_there() -> None:
    """With its reason, so that Spark does not commit it; another start begins anew."""
    session = FakeSession()

    def write(batch: Any, number: int) -> None:
        if batch.name == "bad":
            raise PipelineError("the disk is full")

    batches = MicroBatches(session, write)  # type: ignore[arg-type]
    query = batches.start(FakeWriter())
    with pytest.raises(PipelineError, match="the disk is full"):
        query.run(FakeBatch(session, "bad"), 0)
    batches.start(query)
    query.run(FakeBatch(session, "good"), 0)
    batches.close()


def test_a_client_that_is_silent_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not wait for ever, and commits nothing."""
    monkeypatch.setattr(micro_batches, "PATIENCE_SECONDS", 0.02)
    session = FakeSession()
    batches = MicroBatches(session, lambda batch, number: None)  # type: ignore[arg-type]
    query = batches.start(FakeWriter())
    batches.close()
    with pytest.raises(PipelineError, match="has been silent for"):
        query.run(FakeBatch(session, "late"), 0)


def test_a_client_that_cannot_look_for_batches_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its reason: signs of life from its other thread do not keep the server waiting for ever."""
    monkeypatch.setattr(micro_batches, "BEAT_SECONDS", 0.001)

    class Broken(FakeSession):
        def get(self, key: str, default: str) -> str:
            if threading.current_thread() is not server:
                raise OSError("the channel is closed")
            self.looks = getattr(self, "looks", 0) + 1
            assert self.looks < 6000, "the server waits for ever"
            return super().get(key, default)

    Broken.__module__ = FakeSession.__module__
    server = threading.current_thread()
    session = Broken()
    batches = MicroBatches(session, lambda batch, number: None)  # type: ignore[arg-type]
    query = batches.start(FakeWriter())
    with pytest.raises(PipelineError, match="the channel is closed"):
        query.run(FakeBatch(session, "a batch"), 0)
    batches.close()


def test_without_connect_spark_calls_the_function_itself() -> None:
    """A session with a JVM: nothing in between."""
    writer = FakeWriter()

    def write(batch: Any, number: int) -> None:
        pass

    assert MicroBatches(object(), write).start(writer).run is write  # type: ignore[arg-type]
