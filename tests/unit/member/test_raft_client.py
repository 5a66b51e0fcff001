"""Thread that fetches the metadata: a disk that is full or broken, and defects."""

import errno
import threading
from typing import cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.member import raft_client
from kbroker.member.controller_connection import ControllerConnections
from kbroker.member.raft_client import RaftClient
from kbroker.member.raft_observer import FETCH, RaftObserver, Send, Wait
from kbroker.protocol.codec import Body

SEND = Send(("c1", 9093), FETCH, (0, 17), {}, 1000)


class Observer:
    """Observer that requests the same again, and applies responses as a test chooses."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.failures: list[str] = []
        self.applied = 0
        self.is_closed = False
        self.last_error = ""
        self.high_watermark = 7
        self.done = threading.Event()

    def next(self, now_ms: int) -> Send | Wait:
        return Wait(10) if self.done.is_set() else SEND

    def on_response(self, sent: Send, response: Body, now_ms: int) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.applied += 1
        self.last_error = ""
        self.done.set()

    def on_failure(self, sent: Send, reason: str, now_ms: int) -> None:
        self.failures.append(reason)
        self.last_error = reason

    def close(self) -> None:
        self.is_closed = True


class Client:
    """Client of an observer, whose requests all have an empty response."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.observer = Observer(*errors)
        self.progress: list[int] = []
        self.fatal: list[str] = []
        monkeypatch.setattr(raft_client, "DISK_BACKOFF_S", 0.001)
        monkeypatch.setattr(RaftClient, "_exchange", lambda client, send: {})
        observer, connections = cast("RaftObserver", self.observer), cast("ControllerConnections", None)
        self.client = RaftClient(
            observer, connections, "kbroker", VirtualClock(), self.progress.append, self.fatal.append
        )
        self.client.start()


def test_a_full_disk_delays_the_metadata(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The records are fetched again until they can be written; the reason is logged."""
    full = OSError(errno.ENOSPC, "No space left on device")
    client = Client(monkeypatch, full, full)
    assert client.observer.done.wait(30)
    assert client.client.close()
    text = "the metadata log cannot be written: [Errno 28] No space left on device"
    assert client.observer.failures == [text, text]
    assert (client.observer.applied, client.progress, client.fatal) == (1, [7, 7, 7], [])
    assert [line for line in caplog.messages if "no metadata is fetched" in line] == [f"no metadata is fetched: {text}"]
    assert client.observer.is_closed


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EIO, "broken"), "the folder of the metadata log has failed: [Errno 5] broken"),
        (ZeroDivisionError("zero"), "the metadata cannot be fetched any more: ZeroDivisionError('zero')"),
    ],
)
def test_a_failure_that_ends_the_node(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    """A broken disk or a defect ends the thread once, with its reason."""
    client = Client(monkeypatch, error)
    client.client._thread.join(30)
    assert not client.client._thread.is_alive()
    assert (client.fatal, client.observer.applied, client.progress) == ([reason], 0, [])
    assert client.observer.is_closed
    assert client.client.close()
