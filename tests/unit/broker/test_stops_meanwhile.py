"""Stops of a broker during its start and beside another stop, and requests before the end of a start."""

import logging
import threading
from collections.abc import Callable

import pytest

from kbroker.broker import StartCancelled
from kbroker.broker.runtime import BrokerRuntime
from kbroker.common.errors import Errors
from kbroker.testing import EmbeddedBroker
from tests.support.client import Client


def doing_first(monkeypatch: pytest.MonkeyPatch, step: str, first: Callable[[BrokerRuntime], object]) -> None:
    """Run a function before a step of each start."""
    original = getattr(BrokerRuntime, step)

    def run(runtime: BrokerRuntime) -> None:
        first(runtime)
        original(runtime)

    monkeypatch.setattr(BrokerRuntime, step, run)


@pytest.mark.parametrize("step", ["_open_storage", "_open_coordinators", "_start_metrics"])
@pytest.mark.parametrize("keeps", [False, True], ids=["memory", "folder"])
def test_a_signal_handler_that_stops_a_start(step: str, keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler, which runs in the start's thread, returns, and the start is cancelled; the next start is not."""
    broker = EmbeddedBroker(snapshots=keeps)
    with monkeypatch.context() as patch:
        doing_first(patch, step, lambda runtime: broker.stop())
        with pytest.raises(StartCancelled):
            broker.start()
    assert not broker.is_running
    with broker:
        assert broker.create_topic("t") == "t"


@pytest.mark.parametrize("is_at_exit", [False, True])
def test_a_stop_waits_for_that_of_a_failure(is_at_exit: bool) -> None:
    """A broker that has failed can be started again as soon as `stop` returns; the stop at exit closes no log early."""
    broker = EmbeddedBroker()
    broker.start()
    assert broker._runtime is not None
    stop = broker._runtime.stop if is_at_exit else broker.stop
    begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert may_end.wait(10)

    broker._runtime._undo.insert(0, ("last step", has_ended.set))
    broker._runtime._on_stop("slow step", slow)
    broker._fail("the disk burns")
    assert begun.wait(10)
    stopping = threading.Thread(target=stop)
    stopping.start()
    stopping.join(0.05)
    assert stopping.is_alive()
    may_end.set()
    stopping.join(10)
    assert has_ended.is_set()


def test_a_failure_at_the_end_of_a_start(caplog: pytest.LogCaptureFixture) -> None:
    """A stop that begins as soon as the start's locks are free does not disturb the last line of the start."""
    broker = EmbeddedBroker()
    lock, taken = broker._state_lock, []

    class TakenAtTheEnd:
        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *failure: object) -> None:
            taken.append(broker._runtime)
            broker._runtime = None
            lock.release()

    broker._state_lock = TakenAtTheEnd()  # type: ignore[assignment]
    with caplog.at_level(logging.INFO):
        broker.start()
    (runtime,) = taken
    assert runtime is not None
    runtime.stop()
    assert "broker 1 serves 127.0.0.1:" in caplog.text


def test_faults_apply_to_requests_during_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has reconnected before `start` returns gets the faults, with and without a delay."""
    broker = EmbeddedBroker()
    broker.faults.add("Metadata", client_id="refused", error="REQUEST_TIMED_OUT", count=-1)
    broker.faults.add("Metadata", client_id="delayed", delay_ms=1, count=-1)
    found: list[list[int]] = []

    def ask(runtime: BrokerRuntime) -> None:
        host, port = next(iter(runtime.ctx.endpoints.values()))
        for client_id in ("refused", "delayed"):
            with Client(f"{host}:{port}", client_id) as client:
                body = {"Topics": [{"Name": "t"}], "AllowAutoTopicCreation": False}
                topics = client.call("Metadata", 9, body)["Topics"]
                found.append([topic["ErrorCode"] for topic in topics])

    doing_first(monkeypatch, "_start_metrics", ask)
    with broker:
        assert found == [[Errors.REQUEST_TIMED_OUT], [Errors.UNKNOWN_TOPIC_OR_PARTITION]]
