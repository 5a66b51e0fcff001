"""Moves of a partition between three log folders, whose system calls are recorded.

    python -m tests.support.recorded_moves PLACE CONTROL

Each record is on the disk when its offset is marked in the record, even one appended between the last step of a move
and the removal of the former folder. One former folder cannot be removed, and one log folder fails.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.log.folder_scan import StartReport, TopicLogs
from kbroker.log.log_dir import LogDir
from kbroker.log.manager import LogManager
from kbroker.log.replica_mover import ReplicaMover
from tests.support.disk_calls import Control, mark
from tests.support.log_manager import ID, NOW_MS, batch
from tests.support.log_moves import KEY, finish

DATA, RECORD, NAMES = "data", "record", ("a", "b", "c")
ROUTE = ("b", "a", "c", "b", "a", "c", "a")


def started(data: Path) -> tuple[LogManager, StartReport]:
    """Start a log manager on the log folders that exist as such."""
    config = BrokerConfig({"metadata.log.dir": str(data / "m")})
    manager = LogManager([data / name for name in NAMES], VirtualClock(NOW_MS), config)
    topic = TopicLogs(KEY[0], ID, 1, config.topic_configs({"segment.ms": "1000"}))
    return manager, manager.start([topic], run_threads=False)


class Appender:
    """Appender of durable records. Args: ``manager``: of the partition."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._count = 0

    def append(self) -> None:
        """Append a record that begins a segment if it is the third one, flush, and mark the end of the log."""
        log = self._manager.partition(*KEY)
        assert log is not None
        self._count += 1
        result = log.append(batch(time=NOW_MS + self._count // 3 * 60_000, value=b"%d" % (self._count - 1)))
        assert (result.error, result.base_offset) == (0, self._count - 1)
        log.flush()
        mark(str(self._count))


def main(words: Sequence[str]) -> None:
    place, control = Path(words[0]), Control(Path(words[1]))
    (place / DATA).mkdir()
    control.set(root=place / DATA, record=place / RECORD)
    manager, _ = started(place / DATA)
    appender = Appender(manager)
    remove_former, rename = ReplicaMover._remove_former, LogDir.rename_for_delete

    def remove_late(self: ReplicaMover, *args: Any) -> None:
        appender.append()
        remove_former(self, *args)

    def fail(self: LogDir, topic: str, partition: int) -> Path:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplicaMover, "_remove_former", remove_late)
        for number, name in enumerate(ROUTE):
            if number % 2 == 0:  # otherwise no sync of the folder comes between two moves
                appender.append()
                manager.tasks.write_checkpoints()
            patch.setattr(LogDir, "rename_for_delete", fail if number == 2 else rename)
            manager.move_partition(*KEY, str(place / DATA / name))
            finish(manager)
    manager._disarm()


if __name__ == "__main__":
    main(sys.argv[1:])
