"""Memory pool, hand-over between threads, and CRC-32C: pytest bench/bench_queues.py --benchmark-group-by=group"""

import queue
import threading
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from kbroker._core.codec.crc32c import _crc32c_by_table, crc32c
from kbroker._core.requests.memory_pool import MemoryPool
from kbroker._core.requests.request_queue import Queue
from tests.native.echo import put_batch, take_batch

TURNS = 1_000
PAYLOAD = b"\x00\x12\x00\x00\x00\x00\x00\x01\x00\x04load"


@pytest.mark.benchmark(group="1,000 buffers of 4 KiB")
def bench_pool(benchmark: Any) -> None:
    pool = MemoryPool(1 << 24, 1 << 20)

    def turns() -> None:
        take = pool.try_allocate
        for _ in range(TURNS):
            buffer = take(4096)
            assert buffer is not None
            buffer.release()

    benchmark(turns)
    assert pool.available_bytes == pool.size_bytes


@pytest.mark.benchmark(group="1,000 buffers of 4 KiB")
def bench_bytearray(benchmark: Any) -> None:
    def turns() -> None:
        for _ in range(TURNS):
            bytearray(4096)

    benchmark(turns)


def handed_over(benchmark: Any, put: Callable[[], object], take: Callable[[], object], end: Callable[[], None]) -> None:
    """Measure 1,000 hand-overs per round from this thread to another one."""
    taken = threading.Semaphore(0)
    count = 0

    def taker() -> None:
        nonlocal count
        while take() is not None:
            count += 1
            if count % TURNS == 0:
                taken.release()

    thread = threading.Thread(target=taker)
    thread.start()

    def turns() -> None:
        for _ in range(TURNS):
            put()
        taken.acquire()

    try:
        benchmark(turns)
    finally:
        end()
        thread.join(30)
    assert count > 0
    assert count % TURNS == 0


@pytest.mark.benchmark(group="1,000 requests to another thread")
def bench_request_queue(benchmark: Any) -> None:
    requests = Queue(500)
    handed_over(benchmark, lambda: put_batch(requests, [PAYLOAD]), lambda: take_batch(requests, 10**10), requests.close)


@pytest.mark.benchmark(group="1,000 requests to another thread")
def bench_standard_queue(benchmark: Any) -> None:
    requests: queue.Queue[bytes | None] = queue.Queue(500)
    handed_over(benchmark, lambda: requests.put(PAYLOAD), requests.get, lambda: requests.put(None))


BLOCK = bytes(range(256)) * 256
CHECKSUMS: dict[str, Callable[[bytes], int]] = {
    "crc32c": crc32c,
    "crc32c by table": _crc32c_by_table,
    "zlib.crc32": zlib.crc32,
}


@pytest.mark.benchmark(group="checksum of 64 KiB")
@pytest.mark.parametrize("name", list(CHECKSUMS))
def bench_checksum(benchmark: Any, name: str) -> None:
    assert benchmark(CHECKSUMS[name], BLOCK) == CHECKSUMS[name](BLOCK)
