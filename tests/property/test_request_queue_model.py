"""Every interleaving of a small model of the request queue, its takers, helping network threads and their stand-ins.

The model makes the same decisions as ``_core/requests/request_queue.pyx`` and ``network/processor/_helping.pyx``; a
step is a section under the queue's lock, or an atomic exchange of a network thread's role. All reachable states are
explored.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

TARGET, BACKLOG, HELPED = 1, 1, 2  # small values of awake_target, BACKLOG_BATCHES and HELPED_BATCHES
ASLEEP, WOKEN, RETURNS, EXECUTES, STUCK = "asleep", "woken", "returns", "executes", "stuck"
# States of a network thread, besides EXECUTES and STUCK. FINISHES: executes frames gathered before a returned batch.
LOOP, HELPS, FINISHES, STUCK_FINISHING, WAITS = "loop", "helps", "finishes", "stuck finishing", "waits"
OWN, HELPING, STAND_IN, WANTED = "own", "helping", "stand-in", "wanted back"  # roles of a network thread


class State(NamedTuple):
    """Fields of the queue, then the threads."""

    waiting: int
    busy: int
    helpers: int
    signalled: int
    is_recent: bool  # a taker has taken a batch within the last 0.2 ms, and no taker has fallen asleep since
    takers: tuple[str, ...]
    networks: tuple[str, ...]
    roles: tuple[str, ...]
    to_come: int  # batches that clients will send
    done: int


def put(items: tuple[str, ...], at: int, value: str) -> tuple[str, ...]:
    return (*items[:at], value, *items[at + 1 :])


def wake(state: State, wanted: int) -> State:
    takers = list(state.takers)
    for at in range(len(takers) - 1, -1, -1):
        if wanted > 0 and takers[at] == ASLEEP:
            takers[at] = WOKEN
            wanted -= 1
            state = state._replace(signalled=state.signalled + 1)
    return state._replace(takers=tuple(takers))


def wakes_due(state: State, batches: int, helps: bool) -> int:
    awake = state.busy + state.signalled
    backlog = BACKLOG * (awake - state.helpers) + HELPED * state.helpers
    wanted = min(TARGET - awake, batches)
    if wanted <= 0:
        held_up = not helps and not state.is_recent
        return int(batches > 0 and (state.waiting > backlog or held_up))
    return wanted


def arrivals(state: State, helps_at_all: bool) -> Iterator[State]:
    """Yield the states after a network thread, or its stand-in, has put the batches that it has read into the queue."""
    for at, (network, role) in enumerate(zip(state.networks, state.roles, strict=True)):
        reads = (network == LOOP and role == OWN) or role == STAND_IN
        for number in range(1, state.to_come + 1):
            if not reads:
                continue
            helps = helps_at_all and role == OWN
            after = state._replace(waiting=state.waiting + number, to_come=state.to_come - number)
            if helps:
                after = after._replace(busy=after.busy + 1, helpers=after.helpers + 1)
                after = after._replace(networks=put(after.networks, at, HELPS), roles=put(after.roles, at, HELPING))
            yield wake(after, wakes_due(after, number, helps))


def of_takers(state: State, may_stick: bool) -> Iterator[State]:
    for at, taker in enumerate(state.takers):
        if taker in (WOKEN, RETURNS):
            after = state
            if taker == WOKEN:
                after = after._replace(signalled=after.signalled - 1)
            elif after.busy > after.helpers:
                after = after._replace(busy=after.busy - 1)
            if after.waiting:
                after = after._replace(waiting=after.waiting - 1, busy=after.busy + 1, is_recent=True)
                yield after._replace(takers=put(after.takers, at, EXECUTES))
            else:
                yield after._replace(is_recent=False, takers=put(after.takers, at, ASLEEP))
        elif taker == EXECUTES:
            yield state._replace(done=state.done + 1, takers=put(state.takers, at, RETURNS))
            if may_stick:
                yield state._replace(takers=put(state.takers, at, STUCK))
        elif taker == STUCK:
            yield state._replace(takers=put(state.takers, at, EXECUTES))


def of_networks(state: State, may_stick: bool) -> Iterator[State]:
    for at, (network, role) in enumerate(zip(state.networks, state.roles, strict=True)):
        if network == HELPS:
            if state.waiting:
                yield state._replace(waiting=state.waiting - 1, networks=put(state.networks, at, EXECUTES))
            # the thread may also end its help and leave the first batch in the queue
            after = state._replace(busy=state.busy - 1, helpers=state.helpers - 1)
            after = wake(after, wakes_due(after, after.waiting, False) if after.waiting else 0)
            if role == HELPING:
                yield after._replace(networks=put(after.networks, at, LOOP), roles=put(after.roles, at, OWN))
            elif role == STAND_IN:
                yield after._replace(networks=put(after.networks, at, WAITS), roles=put(after.roles, at, WANTED))
            else:  # the stand-in has left because the thread is to end
                yield after._replace(networks=put(after.networks, at, LOOP))
        elif network == EXECUTES:
            yield state._replace(done=state.done + 1, networks=put(state.networks, at, HELPS))
            if may_stick:
                yield state._replace(networks=put(state.networks, at, STUCK))
            yield state._replace(waiting=state.waiting + 1, networks=put(state.networks, at, FINISHES))
        elif network == FINISHES:
            yield state._replace(networks=put(state.networks, at, HELPS))
            if may_stick:
                yield state._replace(networks=put(state.networks, at, STUCK_FINISHING))
        elif network == STUCK:
            yield state._replace(networks=put(state.networks, at, EXECUTES))
        elif network == STUCK_FINISHING:
            yield state._replace(networks=put(state.networks, at, HELPS))
        if role == HELPING and network in (STUCK, STUCK_FINISHING):  # the watch passes the loop on
            yield state._replace(roles=put(state.roles, at, STAND_IN))
        if role == WANTED:
            yield state._replace(networks=put(state.networks, at, LOOP), roles=put(state.roles, at, OWN))


def explore(start: State, steps: Callable[[State], Iterator[State]]) -> Iterator[tuple[State, list[State]]]:
    seen, rest = {start}, [start]
    while rest:
        state = rest.pop()
        following = list(steps(state))
        yield state, following
        for after in following:
            if after not in seen:
                seen.add(after)
                rest.append(after)


def stuck_threads(state: State) -> int:
    return sum(thread in (STUCK, STUCK_FINISHING) for thread in state.takers + state.networks)


def check_counts(state: State) -> None:
    """Check that the queue's counters agree with the threads, and that each loop has one owner."""
    helping = sum(network not in (LOOP, WAITS) for network in state.networks)
    busy = sum(taker in (EXECUTES, STUCK, RETURNS) for taker in state.takers)
    assert state.signalled == state.takers.count(WOKEN)
    assert state.helpers == helping
    assert state.busy == busy + helping
    for network, role in zip(state.networks, state.roles, strict=True):
        assert (network == LOOP) == (role == OWN)
        assert (network == WAITS) == (role == WANTED)


@pytest.mark.parametrize("helps", [True, False])
@pytest.mark.parametrize("may_stick", [False, True])
def test_no_batch_is_left_without_a_thread(helps: bool, may_stick: bool, soak: bool) -> None:
    """No batch waits when no thread can take a step any more, even with threads that are stuck forever.

    Without stuck threads no wake-up depends on time. Batches of a taker that is stuck before a second one is woken wait
    for the watch or, without helping network threads, for the takers' time-out of 300 ms.
    """
    batches = 3 if helps and may_stick and not soak else 4
    start = State(0, 0, 0, 0, False, (ASLEEP,) * 3, (LOOP,) * 2, (OWN,) * 2, batches, 0)
    states = ended = 0

    def steps(state: State) -> Iterator[State]:
        yield from arrivals(state, helps)
        yield from of_takers(state, may_stick)
        yield from of_networks(state, may_stick)
        if state.is_recent:
            yield state._replace(is_recent=False)
        if helps and may_stick and state.waiting:
            yield wake(state, state.waiting)  # request_queue_unstick

    for state, following in explore(start, steps):
        check_counts(state)
        states += 1
        moves = [after for after in following if after._replace(is_recent=state.is_recent) != state]
        stuck = stuck_threads(state)
        # stuck threads stay stuck: only the steps of other threads count
        moves = [after for after in moves if stuck_threads(after) >= stuck]
        if not moves:
            ended += 1
            assert state.to_come == 0
            assert state.waiting == 0 or ASLEEP not in state.takers or (stuck and not helps), state
    assert states > 500
    assert ended > 0
