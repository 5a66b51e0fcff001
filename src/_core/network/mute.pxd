"""Mute states of a channel and their events: Kafka's ChannelMuteState table. It has no state and no lock."""

cdef enum MuteState:
    NOT_MUTED = 0
    MUTED = 1                                       # memory pressure or explicit; nothing pending
    MUTED_AND_RESPONSE_PENDING = 2
    MUTED_AND_THROTTLED = 3
    MUTED_AND_THROTTLED_AND_RESPONSE_PENDING = 4

cdef enum MuteEvent:
    REQUEST_RECEIVED = 0
    RESPONSE_SENT = 1
    THROTTLE_STARTED = 2
    THROTTLE_ENDED = 3

cdef inline int mute_next(int state, int event) noexcept nogil:        # the state after the event, -1: illegal
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
cdef inline int mute_state_after_mute(int state) noexcept nogil:       # mute(): acts only from NOT_MUTED
    return MUTED if state == NOT_MUTED else state
cdef inline int mute_state_after_unmute(int state) noexcept nogil:     # maybeUnmute(): acts only from MUTED
    return NOT_MUTED if state == MUTED else state
