"""The offsets of one group: committed ones, and those pending until the end of a transaction. No clock, no log.

Threads: guarded by the group's lock.
Source: ``OffsetMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from uuid import UUID

from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.internal_topic import NOTHING_WRITTEN


class GroupOffsets:
    """Committed offsets by topic-partition, and pending ones by producer id.

    Of two offsets for one topic-partition, that of the later record counts, whichever was committed first: compaction
    too keeps the last record of a key. ``record_offset`` is the offset of a record in its log. ``deletion``: the latest
    tombstones of offsets.
    """

    __slots__ = ("_pending", "_record_offsets", "committed", "deletion")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.deletion = NOTHING_WRITTEN
        self._pending: dict[int, dict[TopicPartition, tuple[int, CommittedOffset]]] = {}
        self._record_offsets: dict[TopicPartition, int] = {}  # of offsets committed while transactions were open

    def __bool__(self) -> bool:
        return bool(self.committed or self._pending)

    @property
    def has_pending(self) -> bool:
        """True if an open transaction has offsets of the group."""
        return bool(self._pending)

    def is_pending(self, place: TopicPartition) -> bool:
        """Return whether an open transaction has an offset for this topic-partition."""
        return any(place in offsets for offsets in self._pending.values())

    @property
    def places(self) -> list[TopicPartition]:
        """The topic-partitions with a committed or a pending offset."""
        found = dict.fromkeys(self.committed)
        for offsets in self._pending.values():
            found.update(dict.fromkeys(offsets))
        return list(found)

    def of_topics(self, topic_ids: Set[UUID | None]) -> set[TopicPartition]:
        """Return the topic-partitions with a committed or a pending offset that names one of these topics' ids."""
        found = {place for place, value in self.committed.items() if value.topic_id in topic_ids}
        for offsets in self._pending.values():
            found.update(place for place, (_, value) in offsets.items() if value.topic_id in topic_ids)
        return found

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], record_offset: int) -> None:
        """Commit offsets outside a transaction.

        Args: ``record_offset``: offset of the first record; the other records follow it.
        """
        self.committed.update(offsets)
        if self._pending:
            self._record_offsets.update(zip(offsets, range(record_offset, record_offset + len(offsets)), strict=True))

    def commit_pending(
        self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset], record_offset: int
    ) -> None:
        """Keep offsets until the producer's transaction ends.

        Args: ``record_offset``: offset of the first record; the other records follow it.
        """
        rows = self._pending.setdefault(producer_id, {})
        for number, (place, value) in enumerate(offsets.items(), record_offset):
            rows[place] = (number, value)

    def restore(self, place: TopicPartition, value: CommittedOffset, record_offset: int) -> None:
        """Restore a committed offset from the log; call ``end_restore`` after the last one."""
        self.committed[place] = value
        self._record_offsets[place] = record_offset

    def end_restore(self) -> None:
        """End the restoration."""
        self._forget_order()

    def complete(self, producer_id: int, commit: bool) -> None:
        """Commit or drop the pending offsets of a producer, by its end marker."""
        for place, (record_offset, value) in self._pending.pop(producer_id, {}).items():
            if commit and record_offset >= self._record_offsets.get(place, -1):
                self.committed[place] = value
                self._record_offsets[place] = record_offset
        self._forget_order()

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Remove the offsets of these topic-partitions, pending ones too: a later marker does not restore them."""
        for place in places:
            self.committed.pop(place, None)
            self._record_offsets.pop(place, None)
            for offsets in self._pending.values():
                offsets.pop(place, None)
        self._pending = {producer_id: offsets for producer_id, offsets in self._pending.items() if offsets}
        self._forget_order()

    def _forget_order(self) -> None:
        if not self._pending:  # the next commit is later than all of these
            self._record_offsets.clear()
