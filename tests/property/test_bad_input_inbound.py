"""Requests in Python's hands: those made by hand, and responses that are lost on purpose."""

from hypothesis import given
from hypothesis import strategies as st

from kbroker.network.processor._inbound import ChannelThrottle, InboundRequest
from kbroker.network.request_channel import SuppressedResponses
from tests.support.bad_input import JUNK, OBJECTS, at_any_pace, attempt, refused, storm


@at_any_pace
@given(st.data())
def test_lost_responses(data: st.DataObject) -> None:
    """Only True and False say what becomes of a connection; closed and closed again it stays closed."""
    attempt(lambda: SuppressedResponses, data, [JUNK], ())
    for wrong in data.draw(st.lists(OBJECTS.filter(lambda one: not isinstance(one, bool)), max_size=3)):
        assert refused(SuppressedResponses, wrong) is TypeError
    lost = SuppressedResponses(data.draw(st.booleans()))
    storm(data, lost, {"close": [], "kept": [], "lost": [], "__init__": []})
    assert (lost.kept, lost.lost) == (0, 0)


def test_what_only_the_network_makes() -> None:
    """Requests and throttles made by hand are refused, or do nothing."""
    assert refused(InboundRequest) is TypeError
    forged = InboundRequest.__new__(InboundRequest)
    assert forged.answered
    for call in (forged.close, forged.respond_nothing, forged.start_throttle):
        assert refused(call) is ValueError
    assert refused(forged.respond, b"") is ValueError
    assert refused(forged.suppress_response, SuppressedResponses(True)) is ValueError
    assert refused(forged.suppress_response, None) is TypeError
    ChannelThrottle().end()
