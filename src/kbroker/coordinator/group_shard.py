"""The groups of one partition of ``__consumer_offsets``, and their replay from its records.

Source: ``GroupCoordinatorShard``, ``OffsetMetadataManager.replay``, ``GroupMetadataManager.replay``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import OFFSETS_TOPIC
from kbroker.coordinator import group_records
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.group_partition import OpenTransactions
from kbroker.coordinator.group_records import CommittedOffset, GroupKey, OffsetKey
from kbroker.coordinator.internal_topic import InternalTopic, UnreadableError, report_strangers
from kbroker.coordinator.modern_group import records
from kbroker.coordinator.modern_group.group import ModernGroup
from kbroker.coordinator.modern_group.records import Formats, GroupRecord, RecordKey
from kbroker.coordinator.partition_replay import PartitionReplay
from kbroker.coordinator.runtime import CoordinatorShard
from kbroker.coordinator.share_group.group import ShareGroup
from kbroker.coordinator.streams_group.group import StreamsGroup
from kbroker.protocol import codec

logger = get_logger(__name__)

Group = ClassicGroup | ModernGroup
Dismiss = Callable[[Group, Errors], None]
Key = OffsetKey | GroupKey | RecordKey

_MODERN: tuple[type[ModernGroup], ...] = (ConsumerGroup, ShareGroup, StreamsGroup)
_FORMATS: Formats = {kind: form for one in _MODERN for kind, form in one.FORMATS.items()}
_KINDS = {kind: one for one in _MODERN for kind in one.FORMATS}


class GroupShard(CoordinatorShard):
    """The groups of a partition. ``lock`` guards ``groups``; it is acquired under groups' locks, and is a leaf.

    Args: ``dismiss`` makes a group dead, under its lock; its delayed requests get the error.
    """

    def __init__(self, topic: InternalTopic, index: int, epoch: int, clock: BaseClock, dismiss: Dismiss) -> None:
        super().__init__(topic, index, epoch, clock)
        self.groups: dict[str, Group] = {}
        self.transactions = OpenTransactions()
        self._dismiss = dismiss

    def put(self, group: Group) -> None:
        """Add a group, or replace another one; the caller holds ``lock``."""
        group.shard = self
        self.groups[group.group_id] = group

    def replace(self, old: Group, new: Group) -> None:
        """Replace a group by another; no effect if the shard no longer has ``old``."""
        with self.lock:
            if self.groups.get(old.group_id) is old:
                self.put(new)

    def drop(self, group: Group, error: Errors) -> None:
        """Remove a group whose lock the caller holds; its delayed requests get ``error``."""
        if not group.is_dead:
            self._dismiss(group, error)
        with self.lock:
            if self.groups.get(group.group_id) is group:
                del self.groups[group.group_id]

    def retire(self) -> None:
        """Drop all groups; delayed requests get NOT_COORDINATOR. The records stay."""
        with self.transactions.lock, self.lock:
            self.is_active = False
            groups = list(self.groups.values())
        for group in groups:
            with group.lock:
                self.drop(group, Errors.NOT_COORDINATOR)

    def replay(self, replay: PartitionReplay, index_of: Callable[[str], int]) -> None:
        """Restore the groups of replayed records. Raises: UnreadableError for an offset that is malformed."""
        parts: dict[str, list[tuple[int, Key, Any]]] = {}  # records of the groups themselves
        strangers: set[str] = set()
        for raw_key, (offset, raw_value) in replay.values.items():
            key, value = (raw_value is not None and _decode(self.index, raw_key, raw_value)) or (None, None)
            if key is None or value is None:
                continue
            if index_of(key.group_id) != self.index:
                strangers.add(key.group_id)
            elif isinstance(key, OffsetKey) and isinstance(value, CommittedOffset):
                self._restored(key.group_id).offsets.restore((key.topic, key.partition), value, offset)
            else:
                parts.setdefault(key.group_id, []).append((offset, key, value))
        for rows in parts.values():
            self._restore(rows)
        for producer_id, pending in replay.pending.items():
            for raw_key, (offset, raw_value) in pending.items():
                key, value = _decode(self.index, raw_key, raw_value) or (None, None)
                if isinstance(key, OffsetKey) and isinstance(value, CommittedOffset):
                    group = self._restored(key.group_id)
                    group.offsets.commit_pending(producer_id, {(key.topic, key.partition): value}, offset)
                    self.transactions.add(producer_id, key.group_id)
        for group in self.groups.values():
            group.offsets.end_restore()
        report_strangers(OFFSETS_TOPIC, self.index, "groups", strangers)

    def _restored(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            self.put(group := ClassicGroup(group_id, is_known=True))
        return group

    def _restore(self, rows: list[tuple[int, Key, Any]]) -> None:
        """Restore a group from its records; if several kinds of records exist, the latest kind counts."""
        rows.sort(key=lambda row: row[0])
        present = self._restored(rows[0][1].group_id)
        _, last_key, latest = rows[-1]
        if not isinstance(last_key, RecordKey):
            if isinstance(present, ClassicGroup):
                present.restore(latest)
            return
        kind = _KINDS[last_key.kind]
        group = kind(present.group_id, offsets=present.offsets)
        for _, key, value in rows:
            if isinstance(key, RecordKey) and key.kind in kind.FORMATS:
                group.replay(GroupRecord(key, value))
        self.put(group)


def _decode(index: int, raw_key: bytes, raw_value: bytes) -> tuple[Key, Any] | None:
    """Decode a record; None if it is not of a group or is malformed. Raises: UnreadableError for a malformed offset.

    Without that offset its consumer would start at another one.
    """
    key: Key | None = None
    try:
        key = group_records.decode_key(raw_key) or records.decode_key(raw_key, _FORMATS)
        if isinstance(key, OffsetKey):
            return key, group_records.decode_offset(raw_value)
        if isinstance(key, GroupKey):
            return key, codec.decode_versioned("GroupMetadataValue", raw_value)[1]
        if key is not None:
            return key, records.decode_value(key, raw_value, _FORMATS)
    except ProtocolError as error:
        if isinstance(key, OffsetKey):
            reason = f"the offset of group {key.group_id} for {key.topic}-{key.partition} is malformed: {error}"
            raise UnreadableError(reason, "stop the broker, install the release that wrote this record") from error
        # no coordinator writes such a key; members of an unknown group join again
        logger.error("__consumer_offsets-%d: skipped a record that cannot be decoded: %s", index, error)
    return None
