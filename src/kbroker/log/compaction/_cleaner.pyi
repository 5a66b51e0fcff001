from typing import final

from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction._throttle import ByteThrottle
from kbroker.log.log_types import CleanResult

@final
class Cleaner:
    """Compacts partitions, one at a time. Threads: ``clean`` one at a time, ``stop`` any.

    Args: `memory_bytes` what the map of keys may take while a round runs; `load_factor` how full it may be;
        `throttle` how fast it may read and write.
    """

    def __new__(cls, memory_bytes: int, load_factor: float = ..., throttle: ByteThrottle | None = ...) -> Cleaner: ...
    def stop(self) -> None:
        """End a round under way at the next batch; nothing that is half done stays. Rounds begun later end at once."""
    def clean(
        self,
        log: PartitionLog,
        first_dirty: int,
        first_uncleanable: int,
        *,
        now_ms: int,
        delete_retention_ms: int = ...,
    ) -> CleanResult | None:
        """Compact sealed segments up to the one that holds `first_uncleanable`; appends and reads go on.

        Args: `first_dirty` where the last round ended; `first_uncleanable` base of a segment, the active one's at most.
        Returns: what was done, None when stopped or when the partition was changed or closed meanwhile.
        Raises: CorruptLogError (nothing was changed from the damaged batch's segment on), OSError.
        Source: ``Cleaner.doClean``.
        """
    def _crash_before(self, step: int) -> int: ...
