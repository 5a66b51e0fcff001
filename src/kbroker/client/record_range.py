"""Records of partitions between two offsets each, and the last records of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.client.admin import EARLIEST, Admin
from kbroker.client.cluster import Cluster
from kbroker.client.consumer import Consumer, Record
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition

_WIDER = 8  # factor by which a search goes further back: compaction and markers leave gaps


class RecordRange:
    """Reader of partitions up to given ends.

    Args: ``consumer``: with its positions; owned by the range. ``ends``: the offset after the last record to read, for
    each partition that has an end; the others are read without an end. ``awaits_ends``: records up to an end may
    still be produced; otherwise each end was the end of its log.
    Threads: as its consumer.
    """

    def __init__(self, consumer: Consumer, ends: Mapping[TopicPartition, int], *, awaits_ends: bool = False) -> None:
        self._consumer, self._ends, self._awaits_ends = consumer, ends, awaits_ends
        self._drop_ended()

    @property
    def is_ended(self) -> bool:
        """Return whether every partition was read to its end."""
        return not self._consumer.positions

    def poll(self) -> list[Record]:
        """Return the records of one fetch, perhaps none, in offset order per partition.

        Raises: as ``Consumer.poll``; KafkaError OFFSET_OUT_OF_RANGE for a log that ends before its range does.
        """
        if self.is_ended:
            return []
        before = dict(self._consumer.positions)
        found = [r for r in self._consumer.poll() if r.offset < self._ends.get((r.topic, r.partition), r.offset + 1)]
        if self._consumer.positions == before and not self._awaits_ends:
            check_ends(self._consumer, self._ends)
        self._drop_ended()
        return found

    def _drop_ended(self) -> None:
        positions = self._consumer.positions
        for tp in [tp for tp, offset in positions.items() if tp in self._ends and offset >= self._ends[tp]]:
            del positions[tp]


def check_ends(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> None:
    """Check that the logs of a consumer still reach ``ends``; the log of a topic that was created again may not.

    Raises: KafkaError OFFSET_OUT_OF_RANGE.
    """
    left = [tp for tp in consumer.positions if tp in ends]
    for tp, end in Admin(consumer.cluster).offsets_at(left, read_committed=consumer.read_committed).items():
        if end < ends[tp]:
            raise KafkaError(
                Errors.OFFSET_OUT_OF_RANGE,
                f"partition {tp[0]}-{tp[1]}: expected records up to offset {ends[tp] - 1}, the log ends at offset "
                f"{end}: read again if topic {tp[0]!r} was deleted and created again",
            )


def last_records(
    cluster: Cluster, partitions: Iterable[TopicPartition], count: int, *, read_committed: bool = False
) -> list[Record]:
    """Return the last ``count`` records of partitions together, the oldest first, by timestamp."""
    chosen = list(partitions)
    admin = Admin(cluster)
    ends = admin.offsets_at(chosen, read_committed=read_committed)
    starts = admin.offsets_at(chosen, EARLIEST)
    kept: dict[TopicPartition, list[Record]] = {}
    width = count
    while chosen:
        positions = {tp: max(starts[tp], ends[tp] - width) for tp in chosen}
        consumer = Consumer(cluster, positions, read_committed=read_committed, reset=EARLIEST)
        part = RecordRange(consumer, ends)
        kept.update({tp: [] for tp in chosen})
        while not part.is_ended:
            for record in part.poll():
                found = kept[record.topic, record.partition]
                found.append(record)
                if len(found) > 2 * count:
                    del found[:-count]
        chosen = [tp for tp in chosen if len(kept[tp]) < count and positions[tp] > starts[tp]]
        width *= _WIDER
    everything = sorted((r for records in kept.values() for r in records[-count:]), key=lambda r: r.timestamp_ms)
    return everything[-count:] if count else []
