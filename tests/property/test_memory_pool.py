"""The memory pool compared with a simple model."""

from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.requests.memory_pool import MemoryPool, PooledBuffer


@given(st.integers(1, 300), st.booleans(), st.data())
def test_pool_is_a_counter(size: int, strict: bool, data: st.DataObject) -> None:
    """An allocation succeeds if and only if the counter allows it, and a release adds exactly the allocated bytes."""
    single = data.draw(st.integers(1, size))
    pool, left = MemoryPool(size, single, strict=strict), size
    lent: list[PooledBuffer] = []
    for take in data.draw(st.lists(st.one_of(st.integers(1, single), st.none()), max_size=40)):
        if take is None:
            if lent:
                buffer = lent.pop(0)
                left += len(buffer)
                buffer.release()
        else:
            got = pool.try_allocate(take)
            assert (got is not None) == (left >= (take if strict else 1))
            if got is not None:
                lent.append(got)
                left -= take
        assert pool.available_bytes == left
        assert pool.is_out_of_memory == (left <= 0)
        assert left > -single
