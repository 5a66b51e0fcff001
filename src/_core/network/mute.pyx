"""The mute table of a channel, and a Python view of it for other implementations of channels."""
cimport cython


cdef int mute_next(int state, int event) noexcept nogil:
    if event == REQUEST_RECEIVED:
        if state == MUTED:
            return MUTED_AND_RESPONSE_PENDING
    elif event == RESPONSE_SENT:
        if state == MUTED_AND_RESPONSE_PENDING:
            return MUTED
        if state == MUTED_AND_THROTTLED_AND_RESPONSE_PENDING:
            return MUTED_AND_THROTTLED
    elif event == THROTTLE_STARTED:
        if state == MUTED_AND_RESPONSE_PENDING:
            return MUTED_AND_THROTTLED_AND_RESPONSE_PENDING
    elif event == THROTTLE_ENDED:
        if state == MUTED_AND_THROTTLED:
            return MUTED
        if state == MUTED_AND_THROTTLED_AND_RESPONSE_PENDING:
            return MUTED_AND_RESPONSE_PENDING
    return -1


class IllegalStateError(RuntimeError):
    """An operation that the present state of a channel does not allow (Java's IllegalStateException)."""


STATES = (
    "NOT_MUTED", "MUTED", "MUTED_AND_RESPONSE_PENDING", "MUTED_AND_THROTTLED",
    "MUTED_AND_THROTTLED_AND_RESPONSE_PENDING",
)
EVENTS = ("REQUEST_RECEIVED", "RESPONSE_SENT", "THROTTLE_STARTED", "THROTTLE_ENDED")


@cython.final
cdef class MuteTable:
    """One channel's mute state.

    Threads: one; it has no lock.
    Source: KIP-219, ``KafkaChannel.ChannelMuteState``.
    """
    cdef int current

    @property
    def state(self):
        """One of ``STATES``; NOT_MUTED at first."""
        return STATES[self.current]

    def mute(self):
        """Stop reading; acts only on a channel that is NOT_MUTED."""
        self.current = mute_state_after_mute(self.current)

    def maybe_unmute(self):
        """Read again if nothing else forbids it; return whether the channel is NOT_MUTED now."""
        self.current = mute_state_after_unmute(self.current)
        return self.current == NOT_MUTED

    def handle(self, str event not None):
        """Apply one of ``EVENTS``.

        Raises: TypeError, ValueError for an unknown event, IllegalStateError where the table has no such move.
        """
        cdef int following
        if event not in EVENTS:
            raise ValueError(f"event must be one of {', '.join(EVENTS)}, got {event!r}")
        following = mute_next(self.current, EVENTS.index(event))
        if following < 0:
            raise IllegalStateError(f"{event} is not allowed in state {self.state}")
        self.current = following
