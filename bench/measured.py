"""Cost of a block of a benchmark: time, CPU and memory of this process."""

from __future__ import annotations

import gc
import os
import time

from tests.support.broker import rss_bytes


class Measured:
    """Context manager that prints the cost of its block.

    Args: `count`: number of operations in the block, for the CPU of each.
    """

    def __init__(self, what: str, count: int = 1) -> None:
        self.what = what
        self.count = count

    def __enter__(self) -> None:
        gc.collect()
        self.rss = rss_bytes(os.getpid())
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        gc.collect()
        grown = (rss_bytes(os.getpid()) - self.rss) / 2**20
        each = f", {cpu / self.count * 1e6:,.1f} us of CPU each" if self.count > 1 else ""
        print(f"{self.what}: {wall:.3f} s, CPU {cpu:.3f} s, {grown:+.1f} MiB{each}", flush=True)
