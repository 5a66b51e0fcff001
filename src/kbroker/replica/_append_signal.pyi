from typing import final

from kbroker.log._partition_log import PartitionLog

@final
class AppendSignal:
    """Signal of appends to watched partitions. Threads: any; one at a time in `wait`."""

    def __new__(cls) -> AppendSignal: ...
    def watch(self, log: PartitionLog) -> None:
        """Watch a partition until its next append, deletion or close. Raises: MemoryError."""
    def wait(self) -> list[tuple[bytes, int]]:
        """Wait for appends; return topic id and number of the partitions, whose watches end; [] once closed."""
    def close(self) -> None:
        """End the wait and release the partitions. Idempotent."""
    @property
    def watched(self) -> int: ...
