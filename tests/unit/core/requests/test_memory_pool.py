"""Vectors MP-1 to MP-8 (GarbageCollectedMemoryPoolTest, and further vectors of the simple pool)."""

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.sensor import Sensor
from kbroker._core.metrics.stats import Meter
from kbroker._core.requests.memory_pool import MemoryPool


@pytest.mark.parametrize(("size", "single"), [(0, 7), (-1, 7), (100, 0), (100, -1), (100, 101)])
def test_refuses_sizes_that_make_no_sense(size: int, single: int) -> None:
    """MP-1 to MP-3: a pool or a largest buffer below one byte, or a buffer above the pool, is an argument error."""
    with pytest.raises(ValueError, match="must be between 1 and"):
        MemoryPool(size, single)


@pytest.mark.parametrize("size", [11, 0, -1])
def test_refuses_single_buffers_out_of_range(size: int) -> None:
    """MP-4: a buffer is one byte at least and the configured size at most."""
    with pytest.raises(ValueError, match="size must be between 1 and 10"):
        MemoryPool(1000, 10).try_allocate(size)


def test_lends_while_one_byte_is_left() -> None:
    """MP-5, MP-6: a pool that is not strict overcommits by one buffer, and allocates again once a byte is free."""
    pool = MemoryPool(21, 10)
    lent = [pool.try_allocate(10) for _ in range(3)]
    assert None not in lent
    assert pool.available_bytes == -9
    assert pool.try_allocate(1) is None
    assert lent[0] is not None
    lent[0].release()
    again = pool.try_allocate(10)
    assert again is not None
    assert pool.try_allocate(1) is None


def test_strict_pool_never_overcommits() -> None:
    """MP-7: a strict pool allocates no more than the available bytes."""
    pool = MemoryPool(10, 10, strict=True)
    kept = pool.try_allocate(6)
    assert kept is not None
    assert pool.try_allocate(5) is None
    assert pool.available_bytes == 4


def test_available_may_be_negative() -> None:
    """MP-8: the available bytes may be negative, and are restored by the release."""
    pool = MemoryPool(10)
    kept, other = pool.try_allocate(6), pool.try_allocate(5)
    assert kept is not None
    assert other is not None
    assert (pool.available_bytes, pool.is_out_of_memory) == (-1, True)
    assert pool.try_allocate(1) is None
    other.release()
    assert (pool.available_bytes, pool.is_out_of_memory) == (4, False)


def test_buffer_is_exact_writable_and_released_once() -> None:
    """A buffer has the requested size, an open view forbids its release, and a second release is an error."""
    buffer = MemoryPool(100).try_allocate(7)
    assert buffer is not None
    view = memoryview(buffer)
    view[:] = b"1234567"
    assert (len(buffer), bytes(view)) == (7, b"1234567")
    with pytest.raises(BufferError):
        buffer.release()
    view.release()
    buffer.release()
    with pytest.raises(ValueError, match="released"):
        buffer.release()
    with pytest.raises(ValueError, match="released"):
        memoryview(buffer)


def test_forgotten_buffer_gives_its_bytes_back() -> None:
    """The bytes of a buffer that was never released are freed with it."""
    pool = MemoryPool(10)
    assert pool.try_allocate(10) is not None
    assert pool.available_bytes == 10


def test_low_below_a_tenth() -> None:
    """The pool is low below a tenth of its size in whole bytes."""
    pool = MemoryPool(105, 105, strict=True)
    kept = pool.try_allocate(95)
    assert kept is not None
    assert not pool.is_low
    more = pool.try_allocate(1)
    assert more is not None
    assert pool.is_low


def test_dry_spell_runs_from_refusal_to_release() -> None:
    """Depletion is the time from the first refusal to the next success or release, and counts once."""
    clock = VirtualClock()
    pool = MemoryPool(10, clock=clock)
    kept = pool.try_allocate(10)
    clock.advance_ms(5)
    assert pool.try_allocate(1) is None
    clock.advance_ms(3)
    assert pool.try_allocate(1) is None
    clock.advance_ms(4)
    assert kept is not None
    kept.release()
    assert (pool.depleted_ns, pool.depletion_count) == (7_000_000, 1)


def test_sensor_of_depletion() -> None:
    """MemoryPoolAvgDepletedPercent is the share of depleted time, MemoryPoolDepletedTimeTotal its sum in ms."""
    clock = VirtualClock()
    sensor = Sensor("MemoryPoolUtilization", clock=clock)
    sensor.add(None, Meter("share", "total", unit="milliseconds"))
    pool = MemoryPool(10, clock=clock, depletion=sensor)
    for dry_ms in (6, 3):
        kept = pool.try_allocate(10)
        assert kept is not None
        assert pool.try_allocate(1) is None
        clock.advance_ms(dry_ms)
        clock.advance_ns(500_000)
        kept.release()
    assert sensor.metrics["total"].measure() == 10.0
    assert sensor.metrics["share"].measure() == pytest.approx(10 / 30_003, rel=1e-3)
    with pytest.raises(TypeError):
        MemoryPool(1, depletion="sensor")  # type: ignore[arg-type]


def test_unlimited_pool_counts_nothing() -> None:
    """Without a size every allocation succeeds and the pool is never low."""
    pool = MemoryPool.unlimited()
    kept = pool.try_allocate(1 << 20)
    assert kept is not None
    assert (pool.size_bytes, pool.available_bytes, pool.is_low) == (-1, 2**63 - 1, False)


def test_clock_must_be_a_clock() -> None:
    """A wrong clock is a TypeError, not a crash."""
    with pytest.raises(TypeError):
        MemoryPool(1, clock="now")  # type: ignore[arg-type]
