"""A partition of any Kafka, read over the wire with the interface of a log that ``record_reader`` needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.client.admin import EARLIEST, LATEST, Admin
from kbroker.client.consumer import Consumer
from kbroker.common.errors import KafkaError
from kbroker.protocol._columns import whole_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kbroker.client.cluster import Cluster


AHEAD_BYTES = 8 << 20  # maximum size of the response to one request for several partitions


class _Read(NamedTuple):
    """Result of a read, as that of a log."""

    records: memoryview
    error: int = 0


class _Found(NamedTuple):
    """Result of the search for a timestamp, as that of a log."""

    offset: int


class WirePartition:
    """One partition with its offsets at one time.

    Args: ``start``, ``end``: log start offset and high watermark.
    Threads: as its Cluster.
    """

    def __init__(self, cluster: Cluster, topic: str, partition: int, start: int, end: int) -> None:
        self._cluster, self._tp = cluster, (topic, partition)
        self.log_start_offset, self.high_watermark = start, end
        self.ahead: dict[int, memoryview] = {}  # whole batches by the offset from which they were read

    def until(self, end: int) -> WirePartition:
        """Return the same partition without the records from an offset on."""
        found = WirePartition(self._cluster, *self._tp, self.log_start_offset, min(end, self.high_watermark))
        found.ahead = self.ahead
        return found

    def read(self, offset: int, max_bytes: int, *, min_one: bool) -> _Read:
        """Return batches from an offset on; a first batch of more than ``max_bytes`` is returned whole.

        Raises: KafkaError, BrokerConnectionError.
        """
        if offset in self.ahead:
            return _Read(self.ahead.pop(offset))
        consumer = Consumer(
            self._cluster, {self._tp: offset}, max_wait_ms=0, max_bytes=max_bytes, max_partition_bytes=max_bytes
        )
        found = consumer.fetch()
        return _Read(found[0].data if found else memoryview(b""))

    def offset_for_timestamp(self, time_ms: int) -> _Found:
        """Return the first offset at or after a time, -1 if no record is that late. Raises: KafkaError."""
        return _Found(Admin(self._cluster).list_offsets({self._tp: time_ms})[self._tp].offset)


def read_ahead(
    cluster: Cluster, topic: str, partitions: Mapping[int, WirePartition], offsets: Mapping[int, int]
) -> None:
    """Read several partitions with one request to each leader; the records that do not fit are read later.

    Raises: KafkaError, BrokerConnectionError.
    """
    if len(offsets) < 2:
        return
    consumer = Consumer(
        cluster,
        {(topic, number): offset for number, offset in offsets.items()},
        max_wait_ms=0,
        max_bytes=AHEAD_BYTES,
        max_partition_bytes=AHEAD_BYTES // len(offsets),
    )
    for part in consumer.fetch():
        if whole_batches(part.data)[1] > part.fetch_offset:
            partitions[part.partition].ahead[part.fetch_offset] = part.data


def wire_partitions(
    cluster: Cluster, topic: str, numbers: Iterable[int]
) -> tuple[Mapping[int, WirePartition], Mapping[int, KafkaError]]:
    """Return partitions of a topic with their offsets, and the errors of the others. Raises: BrokerConnectionError."""
    wanted = [(topic, number) for number in numbers]
    admin = Admin(cluster)
    starts = admin.try_offsets(dict.fromkeys(wanted, EARLIEST))
    ends = admin.try_offsets(dict.fromkeys(wanted, LATEST))
    found, errors = {}, {}
    for tp in wanted:
        start, end = starts[tp], ends[tp]
        if isinstance(start, KafkaError) or isinstance(end, KafkaError):
            errors[tp[1]] = start if isinstance(start, KafkaError) else end
        else:
            found[tp[1]] = WirePartition(cluster, *tp, start.offset, end.offset)
    return found, errors  # type: ignore[return-value]
