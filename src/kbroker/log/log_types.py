"""Results of a partition log: plain named tuples."""

from typing import NamedTuple


class AppendInfo(NamedTuple):
    """Outcome of an append; ``error`` is Kafka's code, 0 for an appended batch or a duplicate.

    ``bad_record``: index of the first refused record in the batch, -1 for none; ``bad_records``: indexes of all.
    """

    error: int
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    bad_record: int
    message: str | None
    is_duplicate: bool
    high_watermark_moved: bool
    flush_offset: int
    bad_records: tuple[int, ...]


class AbortedTransaction(NamedTuple):
    """One entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ReadInfo(NamedTuple):
    """Outcome of a read: ``records`` begins with the batch that contains the offset; its last batch may be cut off."""

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: bytes
    position: int
    aborted: list[AbortedTransaction]


class OffsetAndTimestamp(NamedTuple):
    """First record at or after a time; all fields are -1 when there is none."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class SegmentFacts(NamedTuple):
    """Size, largest timestamp and index entries of a segment."""

    base_offset: int
    size_bytes: int
    max_timestamp_ms: int
    offset_entries: int
    time_entries: int


class CleanResult(NamedTuple):
    """Result of a round of the cleaner; all records below ``end_offset`` are clean."""

    end_offset: int
    bytes_read: int
    bytes_written: int
    segments_before: int
    segments_after: int
    records_read: int
    records_kept: int


class CorruptLogError(ValueError):
    """A log that the cleaner cannot read and leaves unchanged."""


class ActiveProducer(NamedTuple):
    """State of a producer in a partition; an absent value is -1."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int
    last_sequence: int
    current_txn_first_offset: int
