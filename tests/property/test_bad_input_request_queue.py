"""The queue of requests, and the channel that takes from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker._core.requests.request_queue import Queue
from kbroker.network.processor._inbound import ChannelThrottle, InboundRequest, OwnedPayload, receive
from kbroker.network.request_channel import RequestChannel
from tests.support.bad_input import JUNK, OBJECTS, at_any_pace, attempt, refused, storm

CALLS = {
    **dict.fromkeys(("capacity", "closed", "is_nearly_full", "idle_ns", "put_blocked_ns", "__len__"), ()),
    "close": [],
    "refuse_all": [],
}


@at_any_pace
@given(st.data())
def test_queue(data: st.DataObject) -> None:
    """A capacity is at least one frame; open or closed, no call does harm."""
    attempt(lambda: Queue, data, [JUNK, JUNK], ())
    queue = Queue(data.draw(st.sampled_from([1, 500, 2**63 - 1])), VirtualClock())
    storm(data, queue, CALLS)
    queue.close()
    attempt(lambda: receive, data, [st.one_of(st.just(queue), JUNK), JUNK], ())
    assert len(queue) == 0


@at_any_pace
@given(st.data())
def test_channel(data: st.DataObject) -> None:
    """Any time is a time-out of the channel or an error of the argument."""
    attempt(lambda: lambda q: RequestChannel(q), data, [OBJECTS], ())
    attempt(lambda: lambda c, k: RequestChannel(capacity=c, clock=k), data, [JUNK, JUNK], ())
    channel = RequestChannel(clock=VirtualClock())
    no_time = st.one_of(st.sampled_from([0, 0.0, -1.0, float("-inf")]), st.text())
    attempt(lambda: lambda t: channel.receive(t), data, [no_time], ())  # without an argument it waits for the close
    channel.close()
    storm(data, channel, {"receive": [JUNK], "closed": [], "close": [], "__len__": []})
    assert refused(channel.receive, float("nan")) is ValueError
    assert channel.receive(float("inf")) is None


@at_any_pace
@given(st.data())
def test_requests_of_no_connection(data: st.DataObject) -> None:
    """A request made out of nothing counts as answered."""
    with pytest.raises(TypeError):
        InboundRequest()
    request = InboundRequest.__new__(InboundRequest)
    names = ("payload", "body", "client_id", "principal", "connection_id", "size_bytes", "respond_nothing", "close")
    storm(data, request, {**dict.fromkeys(names, ()), "respond": [JUNK], "start_throttle": []})
    assert request.answered
    ChannelThrottle.__new__(ChannelThrottle).end()
    assert bytes(memoryview(OwnedPayload.__new__(OwnedPayload))) == b""
