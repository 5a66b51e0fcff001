"""Loads groups, their offsets and their open transactions from partitions of ``__consumer_offsets``.

Source: ``CoordinatorLoaderImpl``, ``OffsetMetadataManager.replay``, ``GroupMetadataManager.replay``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from kbroker.common.errors import ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.coordinator import group_records
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.consumer_group import records
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.records import ConsumerGroupKey, GroupRecord
from kbroker.coordinator.group_map import Group
from kbroker.coordinator.group_records import CommittedOffset, GroupKey, OffsetKey, StoredGroup
from kbroker.coordinator.internal_topic import InternalTopic, UnreadableError, partition_of
from kbroker.coordinator.partition_replay import PartitionReplay

logger = get_logger(__name__)


Key = OffsetKey | GroupKey | ConsumerGroupKey


class Remembered(NamedTuple):
    """The last record of an offset, a group or a part of one. ``record_offset``: its place in the log."""

    key: Key
    value: CommittedOffset | StoredGroup | records.Value
    record_offset: int

    @property
    def timestamp_ms(self) -> int:
        """When it was committed, or the group came into its state; 0 for a part of a consumer group."""
        value = self.value
        if isinstance(value, StoredGroup):
            return value.state_timestamp_ms
        return value.commit_timestamp_ms if isinstance(value, CommittedOffset) else 0


class Pending(NamedTuple):
    """An offset that waits for the end of its transaction."""

    producer_id: int
    key: OffsetKey
    value: CommittedOffset
    record_offset: int


class Loaded(NamedTuple):
    """What was loaded. ``open_transactions``: by partition, then producer id: the groups with pending offsets.

    ``unreadable``: partitions that cannot be read to their end, with the reason; their groups are not in ``groups``.
    """

    groups: dict[str, Group]
    open_transactions: dict[int, dict[int, set[str]]]
    unreadable: dict[int, UnreadableError]


class OffsetsLoader:
    """Loads partitions. Threads: one at a time."""

    def __init__(self, topic: InternalTopic) -> None:
        self._topic = topic
        # partition of a group to those with records of it from when the topic had fewer
        self._sources: dict[int, set[int]] = {}

    def load(self, indexes: Collection[int]) -> Loaded:
        """Load the groups of some partitions."""
        count = self._topic.partition_count
        loaded = Loaded({}, {}, {})
        moved: dict[Key, Remembered] = {}
        of_groups: dict[str, list[Remembered]] = {}  # records of the groups themselves
        moved_pending: list[tuple[int, Pending]] = []
        sources = {source for index in indexes for source in self._sources.get(index, ())}
        for index in [*indexes, *sorted(sources.difference(indexes))]:
            is_wanted = index in indexes
            try:
                remembered, pending = self._read(index)
            except UnreadableError as error:
                if is_wanted:
                    loaded.unreadable[index] = error
                continue
            group_ids = {one.key.group_id for one in remembered} | {one.key.group_id for one in pending}
            homes = {group_id: partition_of(group_id, count) for group_id in group_ids}
            for waiting in pending:
                home = homes[waiting.key.group_id]
                if home == index and is_wanted:
                    _restore_pending(loaded, index, waiting)
                elif home != index and home in indexes:
                    moved_pending.append((index, waiting))
            for one in remembered:
                home = homes[one.key.group_id]
                if home == index:
                    if is_wanted:
                        _restore(loaded, of_groups, one)
                    continue
                self._sources.setdefault(home, set()).add(index)
                if home in indexes:
                    present = moved.get(one.key)
                    if present is None or present.timestamp_ms <= one.timestamp_ms:
                        moved[one.key] = one._replace(record_offset=-1)
        for one in self._not_written_again(loaded, moved, count):
            _restore(loaded, of_groups, one)
        for group_id, parts in of_groups.items():
            _restore_group(loaded, group_id, parts)
        for index, waiting in moved_pending:
            if partition_of(waiting.key.group_id, count) not in loaded.unreadable:
                _restore_pending(loaded, index, waiting._replace(record_offset=-1))
        for group in loaded.groups.values():
            group.offsets.end_restore()
        return loaded

    def _read(self, index: int) -> tuple[list[Remembered], list[Pending]]:
        """Replay a partition. Raises: UnreadableError, for an offset that is malformed too."""
        replay = PartitionReplay().read(self._topic.partition(index))
        remembered: list[Remembered] = []
        pending: list[Pending] = []
        for raw_key, (record_offset, raw_value) in replay.values.items():
            if raw_value is not None:
                one = _decode(index, raw_key, raw_value)
                if one is not None:
                    remembered.append(Remembered(one[0], one[1], record_offset))
        for producer_id, rows in replay.pending.items():
            for raw_key, (record_offset, raw_value) in rows.items():
                one = _decode(index, raw_key, raw_value)
                if one is not None and isinstance(one[0], OffsetKey) and isinstance(one[1], CommittedOffset):
                    pending.append(Pending(producer_id, one[0], one[1], record_offset))
        return remembered, pending

    def _not_written_again(self, loaded: Loaded, moved: Mapping[Key, Remembered], count: int) -> Iterator[Remembered]:
        """Yield records from when the topic had fewer partitions, unless their key was written again since."""
        homes = {key: partition_of(key.group_id, count) for key in moved}
        for index in sorted(set(homes.values()).difference(loaded.unreadable)):
            try:
                since = PartitionReplay().read(self._topic.partition(index)).values
            except UnreadableError as error:
                loaded.unreadable[index] = error
                continue
            yield from (one for key, one in moved.items() if homes[key] == index and _raw(key) not in since)


def _restore(loaded: Loaded, of_groups: dict[str, list[Remembered]], one: Remembered) -> None:
    """Take over an offset, or lay aside a record of a group itself."""
    if isinstance(one.key, OffsetKey) and isinstance(one.value, CommittedOffset):
        group = loaded.groups.setdefault(one.key.group_id, ClassicGroup(one.key.group_id))
        group.offsets.restore((one.key.topic, one.key.partition), one.value, one.record_offset)
    else:
        of_groups.setdefault(one.key.group_id, []).append(one)


def _restore_group(loaded: Loaded, group_id: str, parts: list[Remembered]) -> None:
    """Make a group of its records; of records of both kinds those of the later kind count."""
    parts.sort(key=_place)
    present = loaded.groups.get(group_id)
    if isinstance(parts[-1].value, StoredGroup):
        classic = present if isinstance(present, ClassicGroup) else ClassicGroup(group_id)
        classic.restore(parts[-1].value)
        loaded.groups[group_id] = classic
        return
    group = ConsumerGroup(group_id, offsets=None if present is None else present.offsets)
    for one in parts:
        if isinstance(one.key, ConsumerGroupKey) and not isinstance(one.value, (StoredGroup, CommittedOffset)):
            group.replay(GroupRecord(one.key, one.value))
    loaded.groups[group_id] = group


def _place(one: Remembered) -> int:
    return one.record_offset


def _restore_pending(loaded: Loaded, index: int, one: Pending) -> None:
    group = loaded.groups.setdefault(one.key.group_id, ClassicGroup(one.key.group_id))
    group.offsets.commit_pending(one.producer_id, {(one.key.topic, one.key.partition): one.value}, one.record_offset)
    producers = loaded.open_transactions.setdefault(index, {})
    producers.setdefault(one.producer_id, set()).add(group.group_id)


def _decode(
    index: int, raw_key: bytes, raw_value: bytes
) -> tuple[Key, CommittedOffset | StoredGroup | records.Value] | None:
    """Decode a record; None for one that belongs to others. Raises: UnreadableError for a malformed offset.

    Its consumer would start elsewhere.
    """
    key: Key | None = None
    try:
        key = group_records.decode_key(raw_key) or records.decode_key(raw_key)
        if isinstance(key, OffsetKey):
            return key, group_records.decode_offset(raw_value)
        if isinstance(key, GroupKey):
            return key, group_records.decode_group(raw_value)
        if key is not None:
            return key, records.decode_value(key, raw_value)
    except ProtocolError as error:
        if isinstance(key, OffsetKey):
            what = f"the offset of group {key.group_id} for {key.topic}-{key.partition} is malformed: {error}"
            raise UnreadableError(what, "stop the broker, install the release that wrote this record") from error
        # no coordinator writes such a key; members of an unknown group join again
        logger.error("__consumer_offsets-%d: skipped a record that cannot be decoded: %s", index, error)
    return None


def _raw(key: Key) -> bytes:
    if isinstance(key, ConsumerGroupKey):
        return records.encode_key(key)
    if isinstance(key, OffsetKey):
        return group_records.offset_key(key.group_id, key.topic, key.partition)
    return group_records.group_key(key.group_id)
