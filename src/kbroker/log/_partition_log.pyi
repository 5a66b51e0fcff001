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
        """Open or create a partition.

        Args:
            directory: the partition's folder, created if absent; None only in memory.
            config: Kafka's topic settings by name; absent settings get Kafka's defaults.
            clean: the last stop was clean, so that the segments are not scanned.
            recovery_point: the offset known to be on disk; after an unclean stop the batches above it are checked.
            files: a cache of open files, by default the process's.
            is_prepared: the folder exists and belongs to this topic; it is not checked.

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
            verification_guard: for a transactional batch: the guard of `start_verification`; -1: none is needed.
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
        """Append the control batch with which the transaction coordinator ends a producer's transaction.

        Args:
            transaction_version: of the transaction. From 2 on the epoch must be above that of the records, except for
            the repeat of the marker that ended it and for the largest epoch; below 2 it must not be lower. -1: unknown.

        Returns: `error` 0, 47 (an older epoch), 52 (an older coordinator), 56, 3 or -1 (an unknown transaction
        version); `flush_offset` as for `append`.
        Delayed fetches are checked before it returns.
        Raises: TypeError, ValueError for a number out of range.
        """
    def start_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, bumps_epochs: bool = ...
    ) -> tuple[int, int]:
        """Return (error, guard) for a transactional batch, before it is appended.

        A guard of 0: the producer's transaction is open here. Any other guard is kept until the producer's next
        transactional batch or marker, or for producer.id.expiration.ms: the caller verifies the transaction with the
        coordinator, then appends the batch with the guard.

        Args:
            base_sequence: that of the batch, -1 if it has none.
            bumps_epochs: the client uses transaction version 2.

        Returns: `error` 0, 47 (an older epoch), 3 (closed) or 56.
        """
    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Return whether the oldest open transaction has had no batch for over `max_timeout_ms` plus five minutes."""
    def read(self, offset: int, max_bytes: int = ..., *, min_one: bool = ..., isolation: int = ...) -> ReadInfo:
        """Read from the batch that contains `offset`; the last batch is cut at `max_bytes` as in Kafka."""
    def probe(self, offset: int, max_bytes: int = ..., *, isolation: int = ...) -> tuple[int, int, bool]:
        """Return (error, readable bytes from `offset` in its segment, whether a later segment has more)."""
    def offset_for_timestamp(self, timestamp_ms: int, *, isolation: int = ...) -> OffsetAndTimestamp:
        """Return the first readable record at or after a time (-3: that with the largest timestamp); offset -1: none.

        Raises: OSError: the file cannot be read or a batch cannot be unpacked.
        """
    def flush(self, up_to: int = ...) -> int:
        """Sync all records below `up_to` (negative: all); return the flushed offset.

        Raises: OSError; appends are then refused until the log is opened again.
        """
    def roll(self) -> None: ...
    def apply_retention(self, now_ms: int) -> int:
        """Delete the segments that retention allows at this time (files get the name .deleted); return their number."""
    def purge_deleted(self, now_ms: int) -> int:
        """Remove the files of segments that were deleted at least file.delete.delay.ms ago; return their number."""
    def delete_records(self, offset: int) -> int:
        """Move the log start up to `offset` (-1: high watermark); return it. Raises: ValueError for an offset above."""
    def move_to(
        self,
        directory: str,
        complete: Callable[[], None],
        commit: Callable[[], None],
        undo: Callable[[], None],
    ) -> None:
        """Move the log to another folder; appends and flushes wait meanwhile.

        `complete` copies the bytes that the copy still lacks; `commit` renames the copy to `directory`, durably; `undo`
        reverses a commit, even a partial one. When this returns, no read uses the former folder.

        Raises: ValueError, when the log is closed or has failed; OSError, when the copy cannot be written, read or
        differs; the log then stays in its folder, without appends if `undo` failed.
        """
    def expire_producers(self, now_ms: int) -> None: ...
    def update_config(self, config: Mapping[str, Any]) -> None: ...
    def close(self, clean: bool = ...) -> None:
        """Stop appends and reads; a clean close also syncs, writes the producer snapshot and trims the indexes.

        A log in memory frees its memory.
        """
    def delete(self) -> None:
        """Close and remove the folder or the memory. Reads in progress keep their open files."""
    def segments(self) -> list[SegmentFacts]: ...
    def set_leader_epoch(self, epoch: int) -> None:
        """Set the leader epoch of later batches. Raises: ValueError if it is negative."""
    def leader_epochs(self) -> list[tuple[int, int]]: ...
    def end_of_epoch(self, wanted: int) -> tuple[int, int]:
        """Return the latest epoch up to `wanted`, and the offset after its last record; (-1, -1): `wanted` is later."""
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
    def max_message_bytes(self) -> int:
        """Limit of a batch, ``max.message.bytes`` of the topic."""
    @property
    def leader_epoch(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    is_under_min_isr: bool
    """Fewer replicas are in sync than min.insync.replicas: appends with acks=all are refused with
    NOT_ENOUGH_REPLICAS, and the high watermark stays."""
    @property
    def is_failed(self) -> bool: ...
    @property
    def producer_count(self) -> int: ...
    @property
    def damage(self) -> str | None: ...
    @property
    def cut(self) -> str | None:
        """Readable report of the bytes that opening cut off the log's end after an unclean stop, or None."""
    @property
    def damage_offset(self) -> int | None: ...
    @property
    def size_bytes(self) -> int: ...

def active_producers(log: PartitionLog) -> list[ActiveProducer]:
    """Return the active producers, sorted by id. Threads: any; holds the partition's append lock while copying."""
