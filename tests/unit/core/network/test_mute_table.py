"""Every pair of state and event of Kafka's ChannelMuteState, legal and illegal."""

import pytest

from kbroker._core.network.selector import EVENTS, STATES, IllegalStateError, MuteTable

MRP, MT, MTRP = "MUTED_AND_RESPONSE_PENDING", "MUTED_AND_THROTTLED", "MUTED_AND_THROTTLED_AND_RESPONSE_PENDING"
MOVES = {
    ("MUTED", "REQUEST_RECEIVED"): MRP,
    (MRP, "RESPONSE_SENT"): "MUTED",
    (MTRP, "RESPONSE_SENT"): MT,
    (MRP, "THROTTLE_STARTED"): MTRP,
    (MT, "THROTTLE_ENDED"): "MUTED",
    (MTRP, "THROTTLE_ENDED"): MRP,
}
WAYS: dict[str, list[str]] = {
    "NOT_MUTED": [],
    "MUTED": ["mute"],
    MRP: ["mute", "REQUEST_RECEIVED"],
    MTRP: ["mute", "REQUEST_RECEIVED", "THROTTLE_STARTED"],
    MT: ["mute", "REQUEST_RECEIVED", "THROTTLE_STARTED", "RESPONSE_SENT"],
}


def table_in(state: str) -> MuteTable:
    """Return a table in the state, reached by legal transitions."""
    table = MuteTable()
    for step in WAYS[state]:
        if step == "mute":
            table.mute()
        else:
            table.handle(step)
    assert table.state == state
    return table


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_event(state: str, event: str) -> None:
    """A listed event changes the state; any other is illegal and changes nothing."""
    table = table_in(state)
    if (state, event) in MOVES:
        table.handle(event)
        assert table.state == MOVES[state, event]
    else:
        with pytest.raises(IllegalStateError, match=f"{event} is not allowed in state {state}"):
            table.handle(event)
        assert table.state == state


@pytest.mark.parametrize("state", STATES)
def test_mute_acts_only_when_not_muted(state: str) -> None:
    """mute() has no effect in the states in which the channel is muted already."""
    table = table_in(state)
    table.mute()
    assert table.state == ("MUTED" if state == "NOT_MUTED" else state)


@pytest.mark.parametrize("state", STATES)
def test_unmute_acts_only_from_muted(state: str) -> None:
    """maybe_unmute() ends neither a pending response nor a throttle."""
    table = table_in(state)
    assert table.maybe_unmute() == (state in {"NOT_MUTED", "MUTED"})
    assert table.state == ("NOT_MUTED" if state == "MUTED" else state)


def test_unknown_event_is_an_argument_error() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        MuteTable().handle("nonsense")
