"""The loop as an object: ids, descriptors, settings and threads that do not fit."""

import contextlib
import selectors
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.network.mute import EVENTS, IllegalStateError, MuteTable
from kbroker._core.network.poller import PortablePoller
from kbroker._core.network.selector import Endpoint, Receive, Selector
from kbroker._core.requests.memory_pool import MemoryPool
from tests.support.bad_input import BUFFERS, JUNK, OBJECTS, at_any_pace, attempt, refused, storm

# of descriptors only what is never open: a real one would be closed under somebody's feet
DESCRIPTORS = st.one_of(
    OBJECTS.filter(lambda x: not isinstance(x, bool)), st.integers(2**20, 2**70), st.integers(max_value=-1)
)
IDS = st.one_of(st.sampled_from(["a", "b"]), JUNK)
ERRORS = (IllegalStateError, OSError, BufferError)
CALLS = {
    "register": [DESCRIPTORS, IDS],
    "poll": [st.one_of(st.sampled_from([0, -1, -(2**70)]), OBJECTS)],
    "send": [IDS, st.one_of(BUFFERS, JUNK)],
    "mute": [IDS],
    "unmute": [IDS],
    "mute_state": [IDS],
    "is_open": [IDS],
    "wakeup": [],
    "counters": [],
    "lowest_priority_channel": [],
    "is_out_of_memory": [],
    "completed_receives": [],
}


@at_any_pace
@given(st.data())
def test_selector(data: st.DataObject) -> None:
    """Any calls in any order, on connections that are open, half closed and gone; then on a closed selector."""
    pool = MemoryPool(50)
    backend = data.draw(st.sampled_from(["auto", "selectors"]))
    selector = Selector(
        pool=pool, backend=selectors.DefaultSelector() if backend == "selectors" else backend,
        read_ahead=data.draw(st.booleans()), max_receive_size=50,
    )  # fmt: skip
    with contextlib.ExitStack() as clean_up:
        clean_up.callback(selector.close)
        ends = {}
        for name in ("a", "b"):
            ours, ends[name] = socket.socketpair()
            clean_up.callback(ends[name].close)
            selector.register(ours, name)
            ends[name].sendall(data.draw(st.binary(max_size=80)))
        ends["b"].close()
        storm(data, selector, {**CALLS, "close": [st.sampled_from(["a", "b", "c"])]}, ERRORS, longest=20)
        selector.close(None)
        assert pool.available_bytes == 50
        storm(data, selector, {**CALLS, "poll": [JUNK], "close": [JUNK]}, ERRORS)


@at_any_pace
@given(st.data())
def test_settings(data: st.DataObject) -> None:
    """Every option of the wrong kind or size is refused before a descriptor is taken."""
    names = ("framing", "max_receive_size", "delimiter", "pool", "idle_ms", "frame_timeout_ms", "clock", "shuffle_seed")
    chosen = data.draw(st.dictionaries(st.sampled_from(names), JUNK, max_size=3))
    made = attempt(lambda: lambda: Selector(**chosen), data, [], (BufferError,))
    if made is not None:
        made.poll(0)
        made.close()
    attempt(lambda: lambda x: Selector(backend=x), data, [OBJECTS], ())
    attempt(lambda: PortablePoller, data, [OBJECTS], ())


def test_descriptors_that_are_no_sockets() -> None:
    """Closed sockets and negative numbers are told; what is neither socket nor descriptor is a TypeError."""
    selector = Selector()
    gone, other = socket.socketpair()
    gone.close()
    other.close()
    with pytest.raises(OSError, match="cannot register"):
        selector.register(gone, "x")
    assert refused(selector.register, -1, "x") is ValueError
    assert refused(selector.register, 2**31, "x") is ValueError
    assert refused(selector.register, "fd", "x") is TypeError
    assert not selector.is_open("x")
    selector.close()


def test_very_long_waits() -> None:
    """A time-out beyond the poller's own numbers is a long wait, neither none nor an error."""
    for backend in ("auto", selectors.DefaultSelector()):
        for timeout_ms in (2**31, 2**32 + 5, 2**63 - 1):
            selector = Selector(backend=backend) if backend == "auto" else Selector(backend=selectors.DefaultSelector())
            ours, theirs = socket.socketpair()
            selector.register(ours, "a")
            waker = threading.Thread(target=theirs.sendall, args=(b"\0\0\0\1x",))
            waker.start()
            while not selector.completed_receives:
                selector.poll(timeout_ms)
            waker.join()
            theirs.close()
            selector.completed_receives[0].release()
            selector.close()


def test_a_second_thread_is_turned_away() -> None:
    """While one thread polls, every call from another but wakeup is an IllegalStateError."""
    selector = Selector()
    ours, theirs = socket.socketpair()
    selector.register(ours, "a")
    inside, done = threading.Event(), threading.Event()

    def poll() -> None:
        inside.set()
        while not done.is_set():
            selector.poll(10_000)

    thread = threading.Thread(target=poll)
    thread.start()
    inside.wait()
    for call in (selector.counters, lambda: selector.mute("a"), lambda: selector.poll(0)):
        refusal = None
        while refusal is None:  # the thread may not have come to its poll yet
            try:
                call()
            except IllegalStateError as why:
                refusal = str(why)
        assert "another thread" in refusal
    done.set()
    while thread.is_alive():
        selector.wakeup()
        thread.join(0.01)
    theirs.close()
    selector.close()


class Forgetful(selectors.SelectSelector):
    """Reports events of a descriptor that was never registered, and junk."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        strange = [selectors.SelectorKey(None, 1, 3, tag) for tag in (12345, -1, None, "x", 2**70, [])]
        return [(key, 3) for key in strange] + super().select(0)


def test_a_back_end_that_reports_strangers() -> None:
    """Events of what was not registered are dropped, and the others are served."""
    selector = Selector(backend=Forgetful())
    ours, theirs = socket.socketpair()
    selector.register(ours, "a")
    theirs.sendall(b"\0\0\0\1x")
    for _ in range(3):
        selector.poll(0)
        if selector.completed_receives:
            break
    assert [bytes(r.payload) for r in selector.completed_receives] == [b"x"]
    selector.completed_receives[0].release()
    selector.close()
    theirs.close()


@at_any_pace
@given(st.data())
def test_parts(data: st.DataObject) -> None:
    """A receive of nothing has no bytes; a mute table takes its own events only."""
    receive = Receive()
    storm(data, receive, {"release": [], "payload": [], "id": []})
    assert refused(memoryview, receive) is ValueError
    Endpoint()
    table = MuteTable()
    calls = {"handle": [st.one_of(st.sampled_from(EVENTS), JUNK)], "mute": [], "maybe_unmute": [], "state": []}
    storm(data, table, calls, (IllegalStateError,))
