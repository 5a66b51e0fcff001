"""A partition to move between the two log folders of one broker."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from kbroker.log.manager import LogManager
from tests.support.log_manager import NOW_MS, Brokers, append

KEY = ("orders", 0)


def filled(brokers: Brokers, **topic: Any) -> LogManager:
    """Return the manager of a broker whose partition has three segments and a producer."""
    manager, _ = brokers.start((("orders", 1),), segment_ms=1000, **topic)
    for number in range(3):
        append(manager, time=NOW_MS + 60_000 * number, count=3)
    for sequence in range(3):
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        append(manager, time=NOW_MS + 120_000, **producer)
    return manager


def homes(folders: list[Path]) -> Counter[str]:
    return Counter(folder.name for folder in folders for entry in folder.iterdir() if re.search(r"-\d+\Z", entry.name))


def finish(manager: LogManager) -> None:
    """Run every step of every move."""
    while manager.mover.scheduler.task_names:
        manager.mover.scheduler.run_due()


def home(manager: LogManager, key: tuple[str, int] = KEY) -> str:
    log_dir = manager._hosted[key].log_dir
    assert log_dir is not None
    return log_dir.path.name


def values(manager: LogManager) -> list[bytes]:
    """Return the bytes of each batch of the partition, by offset."""
    log = manager.partition(*KEY)
    assert log is not None
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1)
        assert read.error == 0
        found.append(read.records)
        offset = int.from_bytes(read.records[:8], "big") + int.from_bytes(read.records[23:27], "big") + 1
    return found
