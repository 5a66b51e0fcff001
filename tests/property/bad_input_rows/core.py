"""Rows of the cores: clocks, checksum, framing, memory pool, queue, timer and purgatory."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from kbroker._core.clock import BaseClock, SystemClock, VirtualClock
from kbroker._core.codec.crc32c import _crc32c_by_table, crc32c
from kbroker._core.codec.framing import Framer
from kbroker._core.requests.memory_pool import MemoryPool, PooledBuffer
from kbroker._core.requests.request_queue import Queue
from kbroker._core.timer.purgatory import DelayedOperation, Purgatory
from kbroker._core.timer.timing_wheel import Timer, TimerTask
from tests.support.bad_input import BUFFERS, JUNK, NO_TIME, OBJECTS, Call, Life, Object, Refusal, Row, Storm, attempt

CLOCK_READS = dict.fromkeys(("now_ns", "now_ms", "epoch_ms", "wall_ms", "is_virtual"), ())


def virtual_clock(data: st.DataObject) -> Life:
    """Yield a clock, whose time neither goes back nor overflows."""
    clock = attempt(data, VirtualClock, [JUNK, JUNK]) or VirtualClock()
    before = clock.now_ns()
    yield clock
    assert clock.now_ns() >= before
    assert -(2**63) <= clock.epoch_ms() < 2**63


def system_clock(data: st.DataObject) -> Life:
    yield SystemClock()


KINDS = st.sampled_from(["length-prefix", "delimiter", "raw"])
POOL_BYTES = 1000
FEED = {"feed": [st.one_of(JUNK, BUFFERS, st.binary(max_size=200))], "bytes_read": [], "is_partial": []}


def framer(data: st.DataObject) -> Life:
    """Yield a framer, whose frames return their memory to the pool when they are dropped."""
    pool = MemoryPool(POOL_BYTES, POOL_BYTES)
    words = [st.one_of(KINDS, JUNK), st.one_of(st.integers(1, 60), JUNK), st.one_of(st.just(b"\r\n"), JUNK)]
    made = attempt(data, Framer, [*words, st.one_of(st.just(pool), st.none(), JUNK)], (BufferError,))
    yield made if made is not None else Framer("delimiter", 9, b"ab", pool)
    del made
    assert pool.available_bytes == POOL_BYTES


SIZES = st.one_of(OBJECTS, st.integers(-(2**70), 2000), st.integers(2**50, 2**70))
POOL_READS = dict.fromkeys(
    ("size_bytes", "max_single_bytes", "available_bytes", "is_out_of_memory", "is_low", "depleted_ns"), ()
)


def pool(data: st.DataObject) -> Life:
    """Yield a pool, which is full again once all memory is released or dropped."""
    chosen = data.draw(st.sampled_from([MemoryPool(1000), MemoryPool(1000, 10, strict=True), MemoryPool.unlimited()]))
    before = chosen.available_bytes
    yield chosen
    assert chosen.available_bytes == before


def buffer_in_use() -> None:
    one = MemoryPool(100).try_allocate(5)
    view = memoryview(one)  # type: ignore[arg-type]
    try:
        one.release()
    finally:
        view.release()


def released_buffer() -> PooledBuffer:
    one = MemoryPool(100).try_allocate(5)
    assert one is not None
    one.release()
    return one


def buffer(data: st.DataObject) -> Life:
    """Yield a buffer, then the released buffer and a buffer without a pool, which have no bytes."""
    source = MemoryPool(100)
    taken = source.try_allocate(data.draw(st.integers(1, 100)))
    assert taken is not None
    yield taken
    orphan = PooledBuffer.__new__(PooledBuffer)
    for thing in (taken, orphan):
        yield thing
        attempt(data, lambda thing=thing: thing.release(), [])
        with pytest.raises(ValueError, match="released"):
            memoryview(thing)


def queue(data: st.DataObject) -> Life:
    """Yield a queue, which can be closed after any calls and is empty then."""
    made = Queue(data.draw(st.sampled_from([1, 500, 2**63 - 1])), VirtualClock())
    yield made
    made.close()
    assert len(made) == 0


QUEUE_CALLS: dict[str, Sequence[Any]] = {
    **dict.fromkeys(("capacity", "closed", "is_nearly_full", "idle_ns", "put_blocked_ns", "__len__"), ()),
    "close": [],
    "refuse_all": [],
}

# An exception of a callback goes to sys.unraisablehook and does not depend on the arguments, so callbacks may run.
CALLBACKS = st.one_of(st.just(int), JUNK.filter(lambda value: value is not len))
TIMER_CALLS = {
    "add": [JUNK, CALLBACKS],
    "advance": [NO_TIME],
    "size": [],
    "closed": [],
    "__len__": [],
    "_levels": [],
    "_next_delay_ms": [],
}
TASK_CALLS: dict[str, list[Any]] = {"cancel": [], "is_pending": [], "due_ms": [], "__init__": []}


def timer(data: st.DataObject) -> Life:
    """Yield a timer, which drops its tasks when it is closed and then refuses tasks with RuntimeError."""
    clock = VirtualClock()
    made = Timer(clock, data.draw(st.integers(1, 1000)), data.draw(st.integers(2, 30)))
    yield made
    clock.advance_ms(data.draw(st.integers(0, 2**43)))
    made.advance(0)
    made.close()
    assert made.size == 0
    yield made


def tasks(data: st.DataObject) -> Life:
    """Yield a task without a timer and a task of one; neither can be cancelled after the timer is closed."""
    orphan = TimerTask.__new__(TimerTask)
    owner = Timer(VirtualClock())
    task = owner.add(5, int)
    yield orphan
    yield task
    owner.close()
    assert not task.cancel()
    assert not orphan.cancel()


class Waiting(DelayedOperation):
    def try_complete(self) -> bool:
        return False


class Failing(DelayedOperation):
    def try_complete(self) -> bool:
        raise ZeroDivisionError


class Unborn(DelayedOperation):
    def __init__(self) -> None:
        pass


class Liar:
    """Key whose comparison fails."""

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError


PURGATORY_ERRORS = (RuntimeError, ZeroDivisionError, AttributeError, NotImplementedError)
OPERATIONS = st.one_of(
    JUNK, st.builds(Waiting, st.integers(0, 2**61)), st.builds(Failing, st.just(5)), st.builds(Unborn),
    st.builds(DelayedOperation, st.just(1)),
)  # fmt: skip
KEYS = st.one_of(JUNK, st.lists(st.one_of(st.integers(0, 3), JUNK), max_size=4), st.just([Liar()]))
PURGATORY_CALLS = {
    "try_complete_else_watch": [OPERATIONS, KEYS],
    "check_and_complete": [JUNK],
    "advance": [NO_TIME],
    "watched": [],
    "delayed": [],
    "closed": [],
}
OPERATION_CALLS = {
    **dict.fromkeys(("force_complete", "safe_try_complete", "try_complete", "is_completed", "timeout_ms", "lock"), ()),
    "__init__": [JUNK],
}


def purgatory(data: st.DataObject) -> Life:
    """Yield a purgatory, which drops its operations when it is closed and then refuses operations with RuntimeError."""
    clock = VirtualClock()
    made = Purgatory("p", clock, shards=data.draw(st.integers(1, 3)))
    yield made
    clock.advance_ms(data.draw(st.integers(0, 2**42)))
    made.advance(0)
    made.close()
    assert (made.watched, made.delayed) == (0, 0)
    yield made
    assert made.watched == 0


def operation(data: st.DataObject) -> Life:
    """Yield an operation without a purgatory or in one that never advances."""
    with Purgatory("p", VirtualClock()) as owner:
        made = data.draw(st.one_of(st.builds(Waiting, st.just(5)), st.builds(Unborn), st.builds(Failing, st.just(0))))
        if data.draw(st.booleans()):
            watched = [st.just(made), st.just([1])]
            attempt(data, owner.try_complete_else_watch, watched, PURGATORY_ERRORS)
        yield made
    assert made.is_completed in (True, False)


def in_32_bits(value: int) -> bool:
    return 0 <= value < 2**32


ROWS: list[Row] = [
    Call("VirtualClock()", VirtualClock, [JUNK, JUNK]),
    Object("VirtualClock", virtual_clock, [Storm({**CLOCK_READS, "advance_ms": [JUNK], "advance_ns": [JUNK]})]),
    Call("SystemClock()", SystemClock),
    Object("SystemClock", system_clock, [Storm(CLOCK_READS)]),
    Call("crc32c", crc32c, [JUNK, JUNK], (BufferError,), holds=in_32_bits),
    Call("_crc32c_by_table", _crc32c_by_table, [JUNK, JUNK], (BufferError,), holds=in_32_bits),
    Object("Framer", framer, [Storm(FEED, (BufferError, MemoryError), 20)]),
    Call("MemoryPool()", MemoryPool, [JUNK, JUNK]),
    Call("MemoryPool.unlimited", MemoryPool.unlimited, [JUNK]),
    Object("MemoryPool", pool, [Storm({**POOL_READS, "try_allocate": [SIZES]}, (MemoryError,))]),
    Object(
        "PooledBuffer",
        buffer,
        [Storm({"release": [], "__len__": [], "__init__": []}), Storm({"release": []}), Storm({"release": []})],
    ),
    Call("Queue()", Queue, [JUNK, JUNK]),
    Object("Queue", queue, [Storm(QUEUE_CALLS)]),
    Call("Timer()", Timer, [JUNK, JUNK, JUNK]),
    Object(
        "Timer", timer, [Storm(TIMER_CALLS), Storm({**TIMER_CALLS, "advance": [JUNK], "close": []}, (RuntimeError,))]
    ),
    Object("TimerTask", tasks, [Storm(TASK_CALLS), Storm(TASK_CALLS)]),
    Call("Purgatory()", Purgatory, [JUNK, JUNK, JUNK, JUNK, JUNK]),
    Object(
        "Purgatory",
        purgatory,
        [
            Storm({**PURGATORY_CALLS, "cancel_for_key": [JUNK]}, PURGATORY_ERRORS),
            Storm({**PURGATORY_CALLS, "advance": [JUNK], "close": [], "run_reaper": []}, PURGATORY_ERRORS),
        ],
    ),
    Call("DelayedOperation()", DelayedOperation, [JUNK, JUNK]),
    Object("DelayedOperation", operation, [Storm(OPERATION_CALLS, PURGATORY_ERRORS)]),
]

REFUSALS: dict[str, list[Refusal]] = {
    "BaseClock": [
        *[Refusal(TypeError, lambda name=name: getattr(BaseClock(), name)(), "has no time") for name in CLOCK_READS  # type: ignore[misc]
          if name != "is_virtual"],
        Refusal(TypeError, lambda: BaseClock().is_virtual, "has no time"),
    ],
    "Framer": [
        Refusal(TypeError, lambda: Framer("delimiter", None, 5)),  # type: ignore[arg-type]
        Refusal(TypeError, lambda: Framer("delimiter", None, "\n")),  # type: ignore[arg-type]
        Refusal(ValueError, lambda: Framer("delimiter")),
        Refusal(ValueError, lambda: Framer("raw", None, b"\n")),
        Refusal(ValueError, lambda: Framer("lines")),
        Refusal(TypeError, lambda: Framer(["raw"])),  # type: ignore[arg-type]
        Refusal(ValueError, lambda: Framer("raw", 2**31)),
        Refusal(ValueError, lambda: Framer("raw", 2**64)),
    ],
    "PooledBuffer": [
        Refusal(TypeError, PooledBuffer),
        Refusal(BufferError, buffer_in_use),
        Refusal(ValueError, lambda: memoryview(released_buffer()), "released"),
        Refusal(ValueError, lambda: memoryview(PooledBuffer.__new__(PooledBuffer)), "released"),
    ],
    "Timer": [
        *[
            Refusal(ValueError, lambda tick=tick, slots=slots: Timer(None, tick, slots))  # type: ignore[misc]
            for tick, slots in ((0, 20), (86_400_001, 20), (1, 1), (1, 65537), (2**80, 20))
        ],
        Refusal(TypeError, lambda: Timer("clock")),  # type: ignore[arg-type]
        Refusal(TypeError, lambda: Timer(None, 1.0)),  # type: ignore[arg-type]
        Refusal(TypeError, TimerTask),
    ],
    "Purgatory": [
        Refusal(ValueError, lambda: Purgatory("p", VirtualClock(), timer=Timer()), "not both"),
        Refusal(TypeError, lambda: Purgatory("p", timer=5)),  # type: ignore[arg-type]
        Refusal(RuntimeError, lambda: DelayedOperation.__init__(Waiting(5), 6), "called before"),
        Refusal(TypeError, lambda: Waiting(5, 3), "lock"),  # type: ignore[arg-type]
    ],
}  # fmt: skip
