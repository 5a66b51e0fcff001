"""pytest bench/bench_timing_wheel.py --benchmark-group-by=group

Accepted on one core of an AMD EPYC (Zen 4), Python 3.11: timer 8.6 M add+cancel pairs/s, asyncio 0.55 M.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.timing_wheel import Timer

PAIRS = 10_000


def nothing() -> None:
    pass


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.benchmark(group="10,000 add and cancel")
def bench_timer_add_cancel(benchmark: Any) -> None:
    timer = Timer()

    def pairs() -> None:
        add = timer.add
        for _ in range(PAIRS):
            add(30_000, nothing).cancel()

    benchmark(pairs)
    assert timer.size == 0


@pytest.mark.benchmark(group="10,000 add and cancel")
def bench_asyncio_call_later_cancel(benchmark: Any, loop: asyncio.AbstractEventLoop) -> None:
    def pairs() -> None:
        add = loop.call_later
        for _ in range(PAIRS):
            add(30, nothing).cancel()

    benchmark(pairs)


@pytest.mark.benchmark(group="add, cancel among 100,000 pending")
def bench_timer_add_cancel_crowded(benchmark: Any) -> None:
    timer = Timer()
    kept = [timer.add(10_000 + i, nothing) for i in range(100_000)]
    benchmark(lambda: timer.add(30_000, nothing).cancel())
    assert timer.size == len(kept) == 100_000
    timer.close()


@pytest.mark.benchmark(group="10,000 expire")
def bench_timer_expire(benchmark: Any) -> None:
    clock = VirtualClock()
    timer = Timer(clock)
    ran = []

    def expire() -> None:
        for i in range(PAIRS):
            timer.add(i % 400 + 1, nothing)
        for _ in range(400):
            clock.advance_ms(1)
            timer.advance(0)
        ran.append(timer.size)

    benchmark(expire)
    assert not any(ran)
