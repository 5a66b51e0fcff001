"""Limits of the requests that are forwarded to the controller."""

from typing import cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.common.limited_log import LINES_PER_SECOND
from kbroker.member.client import Client
from kbroker.member.controller_channel import ControllerChannel
from kbroker.member.forwarding import MAX_REQUEST_BYTES, MAX_WAITING_BYTES, ForwardedResponse, ForwardingManager
from tests.support.member import FakeChannel

ALICE = Client("User:alice", "10.0.0.1")


def test_a_request_that_is_too_large(caplog: pytest.LogCaptureFixture) -> None:
    """The request is refused at once, and does not reduce the limit of the next request."""
    channel = FakeChannel()
    forwarding = ForwardingManager(cast("ControllerChannel", channel), VirtualClock())
    ends: list[ForwardedResponse] = []
    forwarding.forward(bytes(MAX_REQUEST_BYTES + 1), ALICE, ends.append)
    assert ends == [ForwardedResponse(b"", Errors.INVALID_REQUEST)]
    assert f"User:alice at 10.0.0.1 is refused: it has {MAX_REQUEST_BYTES + 1} bytes" in caplog.text
    forwarding.forward(bytes(MAX_REQUEST_BYTES), ALICE, ends.append)
    assert (len(channel.sent), forwarding.queue_length) == (1, 1)


def test_requests_that_wait_together() -> None:
    """A request above the limit is refused until another request ends."""
    channel = FakeChannel()
    forwarding = ForwardingManager(cast("ControllerChannel", channel), VirtualClock())
    ends: list[ForwardedResponse] = []
    for _ in range(MAX_WAITING_BYTES // MAX_REQUEST_BYTES + 1):
        forwarding.forward(bytes(MAX_REQUEST_BYTES), ALICE, ends.append)
    assert ends == [ForwardedResponse(b"", Errors.REQUEST_TIMED_OUT)]
    channel.fail(Errors.NETWORK_EXCEPTION)
    forwarding.forward(b"next", ALICE, ends.append)
    assert [one.error for one in ends[1:]] == [Errors.NETWORK_EXCEPTION]


def test_a_request_that_cannot_be_sent() -> None:
    """A request that cannot be sent is neither counted as waiting nor towards the limit of waiting requests."""
    forwarding = ForwardingManager(cast("ControllerChannel", FakeChannel()), VirtualClock())
    ends: list[ForwardedResponse] = []
    for _ in range(MAX_WAITING_BYTES // MAX_REQUEST_BYTES):
        with pytest.raises(ValueError, match="no address"):
            forwarding.forward(bytes(MAX_REQUEST_BYTES), Client("User:alice", "no address"), ends.append)
    forwarding.forward(bytes(MAX_REQUEST_BYTES), ALICE, ends.append)
    assert (forwarding.queue_length, ends) == (1, [])


def test_refused_requests_have_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Clients that repeat a request do not fill the disk: a later line has the number of requests without a line."""
    clock, data = VirtualClock(), bytes(MAX_REQUEST_BYTES + 1)
    forwarding = ForwardingManager(cast("ControllerChannel", FakeChannel()), clock)
    for _ in range(100):
        forwarding.forward(data, ALICE, lambda response: None)
    assert len(caplog.messages) == LINES_PER_SECOND
    clock.advance_ms(1000)
    forwarding.forward(data, ALICE, lambda response: None)
    assert caplog.messages[LINES_PER_SECOND] == "90 lines like the next were left out"
