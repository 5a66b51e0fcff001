from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, final
from uuid import UUID

from kbroker._core.clock import BaseClock
from kbroker.log.log_types import ActiveProducer, AppendInfo, OffsetAndTimestamp, ReadInfo, SegmentFacts
from kbroker.log.segment._segment import OpenFileCache

def topic_id_bytes(topic_id: bytes | str | UUID) -> bytes: ...

@final
class PartitionLog:
    """One partition's log in Kafka's on-disk format. Threads: every method may be called from any thread."""

    directory: str | None
    topic: str
    partition_id: int
    in_memory: bool

    def __new__(
        cls,
        directory: str | PathLike[str] | None,
        topic: str,
        partition: int,
        topic_id: bytes | str | UUID,
        config: Mapping[str, Any],
        clock: BaseClock | None,
        *,
        in_memory: bool = ...,
        clean: bool = ...,
        recovery_point: int = ...,
        log_start_offset: int = ...,
        leader_epoch: int = ...,
        files: OpenFileCache | None = ...,
        is_prepared: bool = ...,
    ) -> PartitionLog:
        """Open or create.

        Args:
            directory: the partition's folder (made if missing; None only in memory).
            config: Kafka's topic settings by name; absent ones get Kafka's defaults.
            clean: whether the last stop was a clean one (no scan).
            recovery_point: the offset known to be on disk: an unclean start checks what lies above it.
            files: a cache of open files, the process's own by default.
            is_prepared: the folder is there, and of this topic: it is not looked at.

        Raises: OSError naming the file that cannot be read or written; ValueError for a setting out of range or a
        folder of another topic.
        """
    def append(
        self,
        records: bytes | bytearray | memoryview,
        *,
        acks: int = ...,
        api_version: int = ...,
        is_client: bool = ...,
        verification_guard: int = ...,
    ) -> AppendInfo:
        """Append the one batch of a Produce request (or, with `is_client=False`, one or more of the broker's own).

        Args:
            verification_guard: of transactional batches, what `start_verification` gave; -1: they need none.
        """
    def append_end_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        *,
        transaction_version: int = ...,
    ) -> AppendInfo:
        """Append the control batch that ends a producer's transaction here, as the transaction coordinator.

        Args:
            transaction_version: of the transaction: from 2 on the epoch must be above the one of its records, but for
                the repeat of a marker that ended it; below 2 it must not be lower.

        Returns: `error` 0, 47 (an older epoch), 52 (an older coordinator), 56 or 3; `flush_offset` as for `append`.
        Delayed fetches look again before it returns.
        Raises: TypeError, ValueError for a number out of range.
        """
    def start_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, bumps_epochs: bool = ...
    ) -> tuple[int, int]:
        """Before a transactional batch is appended: (error, guard).

        A guard of 0: the producer's transaction is open here. Any other is kept until the producer's next transactional
        batch or marker, or producer.id.expiration.ms: the coordinator is asked, then the batch appended with the guard.

        Args:
            base_sequence: of the batch, -1 for one without.
            bumps_epochs: the client speaks transaction version 2.

        Returns: `error` 0, 47 (an older epoch), 3 (closed) or 56.
        """
    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Whether a transaction has been open for more than `max_timeout_ms` and five minutes."""
    def read(self, offset: int, max_bytes: int = ..., *, min_one: bool = ..., isolation: int = ...) -> ReadInfo:
        """Read from the batch that contains `offset`; the last batch is cut at `max_bytes` as Kafka does."""
    def probe(self, offset: int, max_bytes: int = ..., *, isolation: int = ...) -> tuple[int, int, bool]:
        """(error, readable bytes from `offset` in its own segment, whether more is in a later segment)."""
    def offset_for_timestamp(self, timestamp_ms: int, *, isolation: int = ...) -> OffsetAndTimestamp:
        """First record at or after a time; -3 asks for the record with the largest time stamp.

        Raises: OSError: the file cannot be read or a batch not be unpacked.
        """
    def flush(self, up_to: int = ...) -> int:
        """Sync everything below `up_to` (negative: all); returns the flushed offset. Raises OSError; then no
        append works
        until the log is opened again."""
    def roll(self) -> None: ...
    def apply_retention(self, now_ms: int) -> int:
        """Delete what cleanup allows at this time (files get the name .deleted); returns the number of segments."""
    def purge_deleted(self, now_ms: int) -> int:
        """Remove the files of segments deleted file.delete.delay.ms ago or longer; returns their number."""
    def delete_records(self, offset: int) -> int:
        """Move the log start up to `offset` (-1: high watermark); returns the log start. Raises ValueError if out
        of range.
        """
    def truncate_to(self, offset: int) -> None:
        """Forget everything from the batch that contains `offset` on; also what `kbroker log verify --repair` uses."""
    def move_to(self, directory: str, commit: Callable[[], None], undo: Callable[[], None]) -> None:
        """Continue in another folder, without an append or a flush in between.

        `commit` makes `directory` a copy of the log, on the disk; `undo` takes it out of the way again. When this
        returns, no read uses the former folder. Raises: ValueError, when the log is closed or has failed; OSError, when
        the copy cannot be read or differs; the log then stays where it was.
        """
    def expire_producers(self, now_ms: int) -> None: ...
    def update_config(self, config: Mapping[str, Any]) -> None: ...
    def close(self, clean: bool = ...) -> None:
        """Stop appends; a clean close syncs, writes the producer snapshot and trims the indexes."""
    def delete(self) -> None:
        """Close and remove the folder. Reads in flight keep their open files."""
    def segments(self) -> list[SegmentFacts]: ...
    def leader_epochs(self) -> list[tuple[int, int]]: ...
    def _inject_fault(self, write_errno: int = ..., sync_errno: int = ...) -> None: ...
    @property
    def topic_id(self) -> bytes: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def flush_target(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def is_failed(self) -> bool: ...
    @property
    def producer_count(self) -> int: ...
    @property
    def damage(self) -> str | None: ...
    @property
    def cut(self) -> str | None:
        """What opening cut off the log's end after an unclean stop, for people; None: nothing."""
    @property
    def damage_offset(self) -> int | None: ...
    @property
    def size_bytes(self) -> int: ...

def active_producers(log: PartitionLog) -> list[ActiveProducer]:
    """The producers that are not expired, by id. Threads: any; takes the partition's append lock for a copy."""
