"""Common parts of a table's writers: the order of its rows, reports of a write and of a compaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from operator import add

from kbroker.common.units import counted
from kbroker.spark.tables.delta_table import REQUEST_LOG, TOPIC, VIEWS

#: Order of the rows in a file, by the kind of table: rows that a replay reads consecutively are adjacent.
ORDER = {
    REQUEST_LOG: ("principal", "client_id", "sequence", "time"),
    TOPIC: ("topic", "partition", "offset"),
    VIEWS: ("view", "principal", "client_id", "quota_type", "user", "time"),
}

#: Called with the name of each phase that is done.
PhaseCallback = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a batch: rows and files added, and their hours."""

    rows: int
    files: int
    hours: tuple[tuple[str, int], ...]
    max_time_us: int | None
    rows_by_bucket: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Compacted:
    """Result of a compaction: hours rewritten, files before and after, old files deleted."""

    hours: int = 0
    files_before: int = 0
    files_after: int = 0
    deleted: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(*map(add, astuple(self), astuple(other)))

    def line(self) -> str:
        """Return the result in words."""
        before, hours = counted(self.files_before, "file"), counted(self.hours, "hour")
        return f"compacted {before} of {hours} into {self.files_after}"
