"""The pool and its buffers: sizes out of range, double release, views that outlive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.requests.memory_pool import MemoryPool, PooledBuffer
from tests.support.bad_input import JUNK, OBJECTS, at_any_pace, attempt, storm

SIZES = st.one_of(OBJECTS, st.integers(-(2**70), 2000), st.integers(2**50, 2**70))
READS = dict.fromkeys(
    ("size_bytes", "max_single_bytes", "available_bytes", "is_out_of_memory", "is_low", "depleted_ns"), ()
)


@at_any_pace
@given(st.data())
def test_pool(data: st.DataObject) -> None:
    """Whatever is asked for, the pool is whole again when all was given back or forgotten."""
    attempt(lambda: MemoryPool, data, [JUNK, JUNK], ())
    pool = data.draw(st.sampled_from([MemoryPool(1000), MemoryPool(1000, 10, strict=True), MemoryPool.unlimited()]))
    before = pool.available_bytes
    storm(data, pool, {**READS, "try_allocate": [SIZES]}, (MemoryError,))
    assert pool.available_bytes == before
    attempt(lambda: MemoryPool.unlimited, data, [JUNK], ())


@at_any_pace
@given(st.data())
def test_buffer(data: st.DataObject) -> None:
    """A released buffer has no bytes, one in use is not released, and none comes from anywhere but a pool."""
    pool = MemoryPool(100)
    buffer = pool.try_allocate(data.draw(st.integers(1, 100)))
    assert buffer is not None
    view = memoryview(buffer)
    with pytest.raises(BufferError):
        buffer.release()
    view.release()
    storm(data, buffer, {"release": [], "__len__": [], "__init__": []})
    orphan = PooledBuffer.__new__(PooledBuffer)
    for thing in (buffer, orphan):
        attempt(lambda thing=thing: thing.release, data, [], ())
        with pytest.raises(ValueError, match="released"):
            memoryview(thing)
    with pytest.raises(TypeError):
        PooledBuffer()
