"""Synchronous consumer of assigned partitions, without a group, commits or fetch sessions."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.client.admin import EARLIEST, LATEST, Admin
from kbroker.client.cluster import Cluster, check
from kbroker.client.connection import Body
from kbroker.client.partitions import by_leader, partition_rows, topic_rows
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.topic_names import TopicPartition
from kbroker.protocol.records import RecordBatch, iter_batches

FETCH = 1
MAX_FETCH_VERSION = 12  # v13 and later identify topics by id, which needs Metadata v10
ABORT_MARKER = b"\x00\x00"  # type of an abort marker: bytes 2 and 3 of a control record's key


class Record(NamedTuple):
    """One record; `timestamp_ms` is the create or append time, depending on the topic's configuration."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """Bytes of one partition from one fetch: whole batches as stored, possibly followed by a partial one.

    The first batch may begin before `fetch_offset`. `aborted` lists producer id and first offset of aborted
    transactions (only for read_committed).
    """

    topic: str
    partition: int
    fetch_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    data: memoryview


class Consumer:
    """Consumer that reads partitions from given offsets.

    Args:
        cluster: owned by the caller.
        positions: per partition the first offset to read, or EARLIEST, or LATEST.
        max_wait_ms: time that the broker may wait for `min_bytes`.
        min_bytes: minimum size of a response.
        max_bytes: maximum size of a response.
        max_partition_bytes: maximum size of one partition in it; a single larger batch is still returned.
        read_committed: leave out aborted transactions, end at the last stable offset.
        reset: new position when one is outside the log: EARLIEST, LATEST, or None to raise
            OFFSET_OUT_OF_RANGE.

    Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION for a partition that does not exist.

    Threads: as its Cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 16 << 20,
        max_partition_bytes: int = 1 << 20,
        read_committed: bool = False,
        reset: int | None = None,
    ) -> None:
        if reset not in (None, EARLIEST, LATEST):
            raise ValueError(f"reset must be EARLIEST, LATEST or None, got {reset}")
        self.cluster = cluster
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.max_partition_bytes = max_partition_bytes
        self.read_committed = read_committed
        self.reset = reset
        self.positions: dict[TopicPartition, int] = {}
        self._admin = Admin(cluster)
        self._turn = 0
        self.seek(positions)

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Set positions (EARLIEST and LATEST are looked up now); adds partitions not yet assigned.

        Raises: ValueError for an impossible offset; KafkaError, BrokerConnectionError.
        """
        for tp, offset in positions.items():
            if offset < 0 and offset not in (EARLIEST, LATEST):
                raise ValueError(f"offset of {tp[0]}-{tp[1]} must be >= 0, EARLIEST or LATEST, got {offset}")
        symbolic = {tp: offset for tp, offset in positions.items() if offset < 0}
        for tp in positions:
            self.cluster.leader(*tp)
        found = self._admin.list_offsets(symbolic, read_committed=self.read_committed) if symbolic else {}
        self.positions.update({**positions, **{tp: info.offset for tp, info in found.items()}})

    def seek_to_timestamp(self, timestamp_ms: int) -> None:
        """Move every partition to its first record at or after a time; to its end if no record is that late."""
        self.seek(self._admin.offsets_at(self.positions, timestamp_ms, read_committed=self.read_committed))

    def fetch(self) -> list[FetchedPartition]:
        """Send one request per leader; return the partitions with bytes. Positions do not move.

        Raises: KafkaError, BrokerConnectionError after the retries.
        """
        return self.cluster.retry(self._fetch_once)

    def poll(self) -> list[Record]:
        """Return the records of one fetch, perhaps none, in offset order per partition; advance the positions.

        Raises: as ``fetch`` and ``decode``; a damaged batch is an error once the records before it were returned.
        """
        found: list[Record] = []
        try:
            for part in self.fetch():
                found.extend(self.decode(part))
        except KafkaError:
            if not found:
                raise
        return found

    def __iter__(self) -> Iterator[Record]:
        """Yield records endlessly."""
        while True:
            yield from self.poll()

    def decode(self, part: FetchedPartition) -> Iterator[Record]:
        """Yield the records of a fetched partition from its position on, and move the position; checksums are verified.

        Raises: KafkaError CORRUPT_MESSAGE, naming partition and offset.
        """
        tp = (part.topic, part.partition)
        aborted = AbortedTransactions(part.aborted)
        try:
            for batch in iter_batches(part.data, allow_truncated=True):
                rows = batch.records()  # first: this verifies the checksum, and `skips` relies on intact attributes
                skipped = self.read_committed and aborted.skips(batch)
                if not (skipped or batch.is_control):
                    for offset, timestamp_ms, key, value, headers in rows:
                        if offset >= self.positions[tp]:
                            self.positions[tp] = offset + 1
                            yield Record(part.topic, part.partition, offset, timestamp_ms, key, value, headers)
                self.positions[tp] = max(self.positions[tp], batch.last_offset + 1)
        except ProtocolError as error:
            where = f"partition {part.topic}-{part.partition} at offset {self.positions[tp]}"
            raise KafkaError(error.error, f"{where}: {error.message}") from None

    # ---- the wire

    def _fetch_once(self) -> list[FetchedPartition]:
        found: list[FetchedPartition] = []
        led = by_leader(self.cluster, self.positions)
        for node_id, partitions in led.items():
            # the broker fills a response in request order: rotate the partitions, so that each gets its share
            self._turn += 1
            start = self._turn % len(partitions)
            found += self._fetch_from(node_id, partitions[start:] + partitions[:start], self.max_wait_ms // len(led))
        return found

    def _fetch_from(self, node_id: int, partitions: list[TopicPartition], max_wait_ms: int) -> list[FetchedPartition]:
        limit = {"PartitionMaxBytes": self.max_partition_bytes}
        rows = ((tp[0], {"Partition": tp[1], "FetchOffset": self.positions[tp], **limit}) for tp in partitions)
        body: Body = {
            "ReplicaId": -1,
            "MaxWaitMs": max_wait_ms,
            "MinBytes": self.min_bytes,
            "MaxBytes": self.max_bytes,
            "IsolationLevel": int(self.read_committed),
            "Topics": topic_rows(rows, "Topic"),
        }
        response = self.cluster.ask(
            FETCH,
            body,
            "fetch",
            node_id=node_id,
            max_version=MAX_FETCH_VERSION,
            timeout_s=max_wait_ms / 1000 + self.cluster.request_timeout_s,
        )
        taken = [self._take(tp, row) for tp, row in partition_rows(response["Responses"], "Topic")]
        return [part for part in taken if part is not None]

    def _take(self, tp: TopicPartition, p: Body) -> FetchedPartition | None:
        if p["ErrorCode"] == Errors.OFFSET_OUT_OF_RANGE and self.reset is not None:
            self.seek({tp: self.reset})
            return None
        check(p["ErrorCode"], f"partition {tp[0]}-{tp[1]} at offset {self.positions[tp]}")
        return fetched_partition(tp[0], self.positions[tp], p)


def fetched_partition(topic: str, fetch_offset: int, fields: Body) -> FetchedPartition | None:
    """Return the fetched bytes of one partition of a response; None if it has none."""
    data = fields["Records"]
    if not data:
        return None
    return FetchedPartition(
        topic,
        fields["PartitionIndex"],
        fetch_offset,
        fields["HighWatermark"],
        fields["LastStableOffset"],
        fields["LogStartOffset"],
        tuple((a["ProducerId"], a["FirstOffset"]) for a in fields.get("AbortedTransactions") or ()),
        memoryview(data),
    )


class AbortedTransactions:
    """Tracker of aborted transactions through the batches of one fetched partition, in offset order.

    Args: ``aborted``: producer id and first offset of each, as a Fetch lists them.
    Source: ``CompletedFetch`` of the Java consumer.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry[1], reverse=True)  # the next entry is the last one
        self._open: set[int] = set()

    def skips(self, batch: RecordBatch) -> bool:
        """Return whether `batch` is a marker or of an aborted transaction; call it with all batches, in order."""
        if batch.producer_id < 0:
            return False
        while self._coming and self._coming[-1][1] <= batch.last_offset:
            self._open.add(self._coming.pop()[0])
        if batch.is_control:
            if any((key or b"")[2:4] == ABORT_MARKER for _, _, key, _, _ in batch.records()):
                self._open.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._open
