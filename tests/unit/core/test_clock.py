"""Clocks: two time scales, and a virtual time that only its owner advances."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kbroker._core.clock import BaseClock, SystemClock, VirtualClock


def test_system_clock_is_the_monotonic_clock() -> None:
    """The system clock reads Python's monotonic clock in nanoseconds."""
    before = time.monotonic_ns()
    now = SystemClock().now_ns()
    assert before <= now <= time.monotonic_ns()


def test_system_clock_scales_agree() -> None:
    """Milliseconds are nanoseconds rounded down, and both wall times are near Python's wall clock."""
    clock = SystemClock()
    low, ms, high = clock.now_ns(), clock.now_ms(), clock.now_ns()
    assert low // 1_000_000 <= ms <= high // 1_000_000
    assert abs(clock.wall_ms() - time.time_ns() // 1_000_000) < 1000
    assert clock.epoch_ms() >= 1_600_000_000_000
    assert clock.is_virtual is False


def test_all_system_clocks_are_one() -> None:
    """Two instances of the system clock have the same offset of the epoch."""
    first, second = SystemClock(), SystemClock()
    a, b, c = first.epoch_ms(), second.epoch_ms(), first.epoch_ms()
    assert a <= b <= c


def test_virtual_clock_stands_still_until_moved() -> None:
    """A virtual clock advances only by the steps of its owner."""
    clock = VirtualClock()
    assert clock.wall_ms() == clock.epoch_ms() == 1_700_000_000_000
    start = clock.now_ns()
    assert clock.now_ns() == start > 0
    clock.advance_ms(7)
    assert clock.now_ns() - start == 7_000_000
    assert clock.epoch_ms() == clock.wall_ms() == 1_700_000_000_007
    clock.advance_ns(999_999)
    assert (clock.now_ms(), clock.epoch_ms()) == (start // 1_000_000 + 7, 1_700_000_000_007)
    clock.advance_ns(1)
    assert (clock.now_ms(), clock.epoch_ms()) == (start // 1_000_000 + 8, 1_700_000_000_008)
    assert clock.is_virtual is True


def test_virtual_clock_starts_at_the_given_time() -> None:
    """Both scales of a virtual clock start at the given times."""
    clock = VirtualClock(5, start_ms=390)
    assert (clock.now_ms(), clock.now_ns(), clock.epoch_ms()) == (390, 390_000_000, 5)
    assert (VirtualClock(0, start_ms=0).now_ns(), VirtualClock(0).epoch_ms()) == (0, 0)


def test_epoch_below_the_monotonic_time_rounds_down() -> None:
    """A negative difference of the scales is rounded down."""
    clock = VirtualClock(0, start_ms=1)
    clock.advance_ns(1)
    assert clock.epoch_ms() == 0


@pytest.mark.parametrize("delta", [-1, 1 << 63, -(1 << 80)])
def test_time_neither_goes_back_nor_overflows(delta: int) -> None:
    """An invalid step is rejected and does not change the time."""
    clock = VirtualClock()
    start = clock.now_ns()
    with pytest.raises(ValueError, match="delta"):
        clock.advance_ms(delta)
    with pytest.raises(ValueError, match="delta"):
        clock.advance_ns(delta)
    assert clock.now_ns() == start


def test_far_future_saturates() -> None:
    """Steps beyond 64 bits stop at the largest time instead of wrapping."""
    clock = VirtualClock()
    for _ in range(3):
        clock.advance_ns((1 << 63) - 1)
    assert clock.now_ns() > 1 << 62
    assert clock.epoch_ms() == ((1 << 63) - 1) // 1_000_000


def test_wrong_arguments_are_refused() -> None:
    """Wrong types and ranges raise instead of crashing the interpreter."""
    clock = VirtualClock()
    with pytest.raises(TypeError, match="delta_ms must be an integer"):
        clock.advance_ms(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="start_epoch_ms"):
        VirtualClock("now")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start_epoch_ms"):
        VirtualClock(-1)
    with pytest.raises(TypeError, match="has no time"):
        BaseClock().now_ns()


def test_advances_of_many_threads_add_up() -> None:
    """Steps of all threads add up."""
    clock = VirtualClock()
    start = clock.now_ns()

    def move(_: int) -> None:
        for _ in range(5000):
            clock.advance_ns(3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move, range(4)))
    assert clock.now_ns() - start == 4 * 5000 * 3
