"""A share fetch: its wait for records that its member may acquire, and its reads.

Source: ``DelayedShareFetch``, ``ShareFetchUtils``, ``PartitionMaxBytesStrategy``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker._core.timer.purgatory import DelayedOperation
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.log._partition_log import PartitionLog
from kbroker.share.acquisition import AcquireMode
from kbroker.share.fetched import AcquiredRecords, Fetched
from kbroker.share.share_partition import SharePartition, SharePartitionKey

logger = get_logger(__name__)

MIN_READ_BYTES = 16 << 10
#: Ratio of a read's size to the average size of the wanted records, since batches are larger than records.
READ_AHEAD = 1.5


class ShareFetchParams(NamedTuple):
    """Limits of a share fetch."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: AcquireMode
    is_read_committed: bool

    @property
    def isolation(self) -> int:
        """Isolation of the log's reads."""
        return 1 if self.is_read_committed else 0


class FetchedPartition(NamedTuple):
    """Result of a share fetch for one partition."""

    error: Errors = Errors.NONE
    message: str | None = None
    records: bytes | memoryview = b""
    acquired: Sequence[AcquiredRecords] = ()


Results = dict[SharePartitionKey, FetchedPartition]


class ReadPartition(NamedTuple):
    """A partition of a share fetch."""

    share: SharePartition
    log: PartitionLog


@dataclass
class ShareFetch:
    """A share fetch of a member. ``done`` is called once, with the results of the partitions that have any.

    ``failed`` is called for a partition that is to be dropped, with its error. ``is_abandoned`` returns whether no
    client can receive the results any more: then no records are acquired, as each acquisition counts as a delivery.
    """

    member_id: str
    params: ShareFetchParams
    partitions: Mapping[SharePartitionKey, ReadPartition]
    done: Callable[[Results], None]
    failed: Callable[[SharePartitionKey, KafkaError], None]
    is_abandoned: Callable[[], bool] = bool
    errors: Results = field(default_factory=dict)

    def add_error(self, key: SharePartitionKey, error: KafkaError) -> None:
        """Set the error of a partition in the response."""
        self.errors[key] = FetchedPartition(error.error, error.message)


class DelayedShareFetch(DelayedOperation):
    """A share fetch that waits until its minimum of bytes can be acquired.

    Args: ``watch`` watches a partition for its next append; ``released`` is called with the partitions that other share
    fetches may read again.
    """

    def __init__(
        self,
        fetch: ShareFetch,
        watch: Callable[[SharePartitionKey, PartitionLog], None],
        released: Callable[..., None],
    ) -> None:
        super().__init__(max(0, fetch.params.max_wait_ms))
        self._fetch = fetch
        self._watch = watch
        self._released = released
        self._ready: dict[SharePartitionKey, int] = {}

    def try_complete(self) -> bool:
        fetch = self._fetch
        if fetch.is_abandoned() or all(key in fetch.errors for key in fetch.partitions):
            return self.force_complete()
        try:
            ready = self._lock_partitions()
            if ready and self._is_enough(ready):
                self._ready = ready
                if self.force_complete():
                    return True
                self._ready = {}
        finally:
            self._unlock()
        return False

    def on_complete(self) -> None:
        fetch = self._fetch
        results: Results = {}
        with self.lock:  # at a time-out another thread may be in `try_complete`, which unlocks all partitions
            ready = self._ready
            try:
                ready = ready or self._lock_partitions()
                if not fetch.is_abandoned():
                    self._read(ready, results)
            except Exception as error:
                logger.exception("cannot complete the share fetch of %s", fetch.member_id)
                for key in ready:
                    if key not in results:
                        fetch.add_error(key, KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)))
            finally:
                self._unlock()
        self._released(*ready)
        fetch.done({**results, **fetch.errors})

    def _lock_partitions(self) -> dict[SharePartitionKey, int]:
        """Lock the partitions from which records may be acquired; return their next offsets."""
        found: dict[SharePartitionKey, int] = {}
        for key, (share, log) in self._fetch.partitions.items():
            if key in self._fetch.errors or not share.acquire_fetch_lock(self):
                continue
            offset = share.next_fetch_offset()
            if offset is None:
                share.release_fetch_lock(self)
            else:
                self._watch(key, log)
                found[key] = offset
        return found

    def _unlock(self) -> None:
        """Unlock all partitions that this fetch has locked."""
        for share, _ in self._fetch.partitions.values():
            share.release_fetch_lock(self)

    def _is_enough(self, ready: Mapping[SharePartitionKey, int]) -> bool:
        """Return whether the minimum of bytes can be read; also if a partition has an error or crosses a segment."""
        params = self._fetch.params
        total = 0
        for (key, offset), max_bytes in zip(ready.items(), uniform_bytes(params.max_bytes, len(ready)), strict=True):
            log = self._fetch.partitions[key].log
            error, available, crosses = log.probe(offset, max_bytes, isolation=params.isolation)
            if error or crosses:
                return True
            total += available
        return total >= params.min_bytes

    def _read(self, ready: Mapping[SharePartitionKey, int], results: Results) -> None:
        """Read and acquire, in order; the limits hold for all partitions together."""
        fetch = self._fetch
        params = fetch.params
        records_left, bytes_left, min_one = params.max_records, params.max_bytes, True
        for (key, offset), max_bytes in zip(ready.items(), uniform_bytes(params.max_bytes, len(ready)), strict=True):
            one = fetch.partitions[key]
            error, fetched = read_enough(
                one, offset, min(max_bytes, bytes_left), records_left, params.isolation, min_one=min_one
            )
            min_one = min_one and not fetched.records
            bytes_left = max(0, bytes_left - len(fetched.records))
            if error is Errors.OFFSET_OUT_OF_RANGE:
                one.share.move_log_start(one.log.log_start_offset)
                results[key] = FetchedPartition()
            elif error is not Errors.NONE:
                failure = KafkaError(error)
                results[key] = FetchedPartition(error, failure.message)
                fetch.failed(key, failure)
            else:
                acquired = one.share.acquire(
                    fetch.member_id, params.mode, params.batch_size, records_left, offset, fetched
                )
                records_left -= sum(row.size for row in acquired)
                results[key] = FetchedPartition(records=fetched.slice(acquired) if acquired else b"", acquired=acquired)


def read_enough(
    one: ReadPartition, offset: int, max_bytes: int, max_records: int, isolation: int, *, min_one: bool
) -> tuple[Errors, Fetched]:
    """Read batches with about the wanted number of records, but no less than one batch if the limit allows it.

    Kafka reads up to the maximum size, and sends a part of that. Here the average size of the records that the share
    partition read last limits the read.
    """
    share, log = one
    wanted = max(1, min(max_records, share.free_records()))
    size = int(max(MIN_READ_BYTES, wanted * share.record_bytes * READ_AHEAD))
    info = log.read(offset, min(size, max_bytes), min_one=min_one or size < max_bytes, isolation=isolation)
    if not min_one and len(info.records) > max_bytes:
        return Errors.NONE, Fetched(b"", ())
    try:
        fetched = Fetched.of(info.records, info.aborted)
    except ProtocolError:
        return Errors.CORRUPT_MESSAGE, Fetched(b"", ())
    if fetched.batches:
        offsets = fetched.last_offset - fetched.batches[0].base_offset + 1
        share.record_bytes = sum(batch.size_bytes for batch in fetched.batches) / offsets
    return Errors.of(info.error), fetched


def uniform_bytes(max_bytes: int, count: int) -> list[int]:
    """Return a size limit for each partition: equal, plus the remainder for the first; 1 or 0 bytes if too few."""
    if count == 0:
        return []
    each, rest = divmod(max_bytes, count)
    if each == 0:
        return [1 if number < rest else 0 for number in range(count)]
    return [each + rest, *[each] * (count - 1)]
