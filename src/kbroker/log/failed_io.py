"""Log of failed appends, reads and syncs of the native handlers, which clients received as KAFKA_STORAGE_ERROR.

Threads: ``FailedIo.look`` one at a time for each folder; ``totals`` any.
"""

import os
import threading
from collections.abc import Sequence

from kbroker._core.clock import BaseClock
from kbroker.common.limited_log import RepeatedFailures
from kbroker.common.loggers import get_logger
from kbroker.log._partition import take_failures
from kbroker.log.hosted_logs import PartitionRegistry
from kbroker.log.log_dir import TRANSIENT, LogDir, parse_partition_folder

logger = get_logger(__name__)

LOOK_PERIOD_MS = 1000
DAMAGED = "expected a record batch, found damage: run kbroker log verify"


class FailedIo:
    """Log of failures, each at most once a minute, and the decision whether a folder stays online.

    A sync that failed because descriptors or memory were exhausted is repeated, since clients wait for it.

    Args: ``hosted``: the partitions; ``log_dirs``: their folders.
    """

    def __init__(self, hosted: PartitionRegistry, log_dirs: Sequence[LogDir], clock: BaseClock) -> None:
        self._hosted = hosted
        self._dirs = log_dirs
        self._failures = RepeatedFailures(clock)
        self._totals_lock = threading.Lock()
        #: failures since the start by kind
        self.totals = {"append": 0, "read": 0, "sync": 0}

    def look(self, *folders: LogDir) -> None:
        """Log the failures in these folders (none given: in all) since the last call."""
        for log_dir in folders or self._dirs:
            for name, kind, number, count in take_failures(str(log_dir.path)):
                self._note(log_dir, name, kind, number, count)
            log_dir.write_late_failures()
        self._failures.write_late()

    def _note(self, log_dir: LogDir, name: str, kind: str, number: int, count: int) -> None:
        with self._totals_lock:
            self.totals[kind] += count
        error = OSError(number, os.strerror(number)) if number else None
        if kind == "sync" and number in TRANSIENT:
            self._hosted.flush_again(name)
        if error and kind != "read" and not log_dir.is_offline and log_dir.ends_with(error):
            self._hosted.note_failure(log_dir, f"{'an append to' if kind == 'append' else 'a sync of'} {name}", error)
        if log_dir.is_offline and kind != "read":
            self._notify(log_dir, name, kind, count, f"the folder is offline: {log_dir.failure}")
        elif number:
            self._notify(log_dir, name, kind, count, os.strerror(number), str(number))
        else:
            self._notify(log_dir, name, kind, count, self._own_reason(name, kind), name)

    def _own_reason(self, name: str, kind: str) -> str:
        """Return why the partition itself refuses the operation."""
        key = parse_partition_folder(name)
        hosted = self._hosted.find(key) if key is not None else None
        if hosted is not None and hosted.log.damage is not None:
            return f"{hosted.log.damage}; {repair_command(hosted.log_dir)}"
        return DAMAGED if kind == "read" else "an fsync of it failed: restart the broker to append again"

    def _notify(self, log_dir: LogDir, name: str, kind: str, count: int, reason: str, *cause: str) -> None:
        def write(times: int) -> None:
            what = f"{times} {kind}{'s' if times > 1 else ''}"
            logger.error("%s: %s failed, the last of partition %s: %s", log_dir.path, what, name, reason)

        self._failures.note((log_dir.path, kind, *cause), write, count)


def repair_command(log_dir: LogDir | None) -> str:
    """Return the advice on a damaged log, for messages."""
    folder = "DIR" if log_dir is None else str(log_dir.path)
    return f"stop the broker and run: kbroker log verify --repair {folder}"
