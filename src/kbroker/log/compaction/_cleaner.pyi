from typing import final

from kbroker._core.clock import BaseClock
from kbroker.log._partition_log import PartitionLog
from kbroker.log.log_types import CleanResult

@final
class ByteThrottle:
    """Limit of the rate at which its users together read and write.

    Args: `clock`: measures the time; `bytes_per_second`: 0 or less, or more than any disk has: no limit.
    Threads: any. Source: ``Throttler``.
    """

    def __new__(cls, clock: BaseClock | None, bytes_per_second: float = ...) -> ByteThrottle: ...
    def set_rate(self, bytes_per_second: float) -> None:
        """Change the rate; waiting threads continue at once."""
    def take(self, size_bytes: int) -> None:
        """Charge the bytes, and wait as long as the rate requires, or until the rate is changed."""

@final
class Cleaner:
    """Cleaner of partitions, one at a time. Threads: ``clean`` one at a time, ``stop`` any.

    Args: `memory_bytes`: limit for the map of keys during a round; `load_factor`: maximum fill of the map; `throttle`:
    limits the rate of reads and writes.
    """

    def __new__(cls, memory_bytes: int, load_factor: float = ..., throttle: ByteThrottle | None = ...) -> Cleaner: ...
    def stop(self) -> None:
        """End a round in progress at the next batch and discard its incomplete work. Later rounds end at once."""
    def clean(
        self,
        log: PartitionLog,
        first_dirty: int,
        first_uncleanable: int,
        *,
        now_ms: int,
        delete_retention_ms: int = ...,
    ) -> CleanResult | None:
        """Compact sealed segments up to the one that contains `first_uncleanable`; appends and reads continue.

        Args: `first_dirty`: end of the last round; `first_uncleanable`: base of a segment, at most the active one's.
        Returns: the result, None when stopped or when the partition was changed or closed meanwhile.
        Raises: CorruptLogError (nothing was changed from the damaged batch's segment on), OSError.
        Source: ``Cleaner.doClean``.
        """
    def _crash_before(self, step: int) -> int: ...
