"""Records of groups of the newer protocols in ``__consumer_offsets``: keys and values in Kafka's formats.

A key begins with the number of its kind, an int16. The kinds of consumer, share and streams groups are disjoint.
Source: ``CoordinatorRecordType``, ``GroupCoordinatorRecordHelpers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.protocol import codec

Body = dict[str, Any]
Partitions = Mapping[UUID, frozenset[int]]  # by topic id


class RecordKey(NamedTuple):
    """Key of a record. ``name``: its second field, such as the member id; "" for the group."""

    kind: int
    group_id: str
    name: str = ""


class GroupRecord(NamedTuple):
    """A change of a group; a value of None is a tombstone."""

    key: RecordKey
    value: Any


class GroupEpoch(NamedTuple):
    """The group epoch, and the hash of the topics at its last bump."""

    epoch: int
    metadata_hash: int


class TargetEpoch(NamedTuple):
    """The group epoch of the target assignment, and its time (0: unknown)."""

    epoch: int
    timestamp_ms: int


class GroupRecords(NamedTuple):
    """Records that groups of every newer protocol have: the numbers of their kinds, and the records of changes.

    ``assignment``: the class of a member's own assignment; its fields are fields of a member too. ``own_kinds``: those
    of the group itself, in the order of their tombstones.
    """

    metadata_kind: int
    member_kind: int
    target_epoch_kind: int
    target_kind: int
    current_kind: int
    assignment: type[Any]
    own_kinds: tuple[int, ...]

    def epoch(self, group_id: str, value: Any) -> GroupRecord:
        """Return the record of a new group epoch."""
        return GroupRecord(RecordKey(self.metadata_kind, group_id), value)

    def member(self, group_id: str, member: Any) -> GroupRecord:
        """Return the record of a member's subscription."""
        return GroupRecord(RecordKey(self.member_kind, group_id, member.member_id), member)

    def target(self, group_id: str, member_id: str, target: Any) -> GroupRecord:
        """Return the record of a member's target assignment."""
        return GroupRecord(RecordKey(self.target_kind, group_id, member_id), target)

    def target_epoch(self, group_id: str, epoch: int, timestamp_ms: int) -> GroupRecord:
        """Return the record of a complete target assignment."""
        return GroupRecord(RecordKey(self.target_epoch_kind, group_id), TargetEpoch(epoch, timestamp_ms))

    def current(self, group_id: str, member: Any) -> GroupRecord:
        """Return the record of a member's current assignment."""
        return GroupRecord(RecordKey(self.current_kind, group_id, member.member_id), self.assignment_of(member))

    def assignment_of(self, member: Any) -> Any:
        """Return a member's own assignment."""
        return self.assignment._make(_getter(self.assignment._fields)(member))

    def member_tombstones(self, group_id: str, member_id: str) -> list[GroupRecord]:
        """Return the tombstones of a member."""
        kinds = self.current_kind, self.target_kind, self.member_kind
        return [tombstone(kind, group_id, member_id) for kind in kinds]

    def group_tombstones(
        self, group_id: str, member_ids: Iterable[str], others: Iterable[GroupRecord] = ()
    ) -> list[GroupRecord]:
        """Return the tombstones of a whole group. Args: ``others``: tombstones before those of the group itself."""
        ids = list(member_ids)
        rows = [tombstone(self.current_kind, group_id, member_id) for member_id in ids]
        rows += [tombstone(self.target_kind, group_id, member_id) for member_id in ids]
        rows.append(tombstone(self.target_epoch_kind, group_id))
        rows += [tombstone(self.member_kind, group_id, member_id) for member_id in ids]
        return [*rows, *others, *(tombstone(kind, group_id) for kind in self.own_kinds)]

    def formats(self, prefix: str, *, member: Coding, target: Coding, current: Coding) -> dict[int, Format]:
        """Return the formats of these records except the group's. Args: ``prefix`` of the names of their messages."""
        return {
            self.member_kind: Format(prefix + "MemberMetadata", "MemberId", *member),
            self.target_epoch_kind: Format(prefix + "TargetAssignmentMetadata", "", *TARGET_EPOCH),
            self.target_kind: Format(prefix + "TargetAssignmentMember", "MemberId", *target),
            self.current_kind: Format(prefix + "CurrentMemberAssignment", "MemberId", *current),
        }


@lru_cache
def _getter(fields: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of these fields."""
    return attrgetter(*fields)


class Format(NamedTuple):
    """Format of one kind of record.

    ``name``: that of its messages, without Key and Value; ``second``: the second field of the key, "": none;
    ``body``: returns the fields of a value; ``value``: returns the value of the key's second field and these fields.
    """

    name: str
    second: str
    body: Callable[[Any], Body]
    value: Callable[[str, Body], Any]


Formats = Mapping[int, Format]
#: ``body`` and ``value`` of a format.
Coding = tuple[Callable[[Any], Body], Callable[[str, Body], Any]]


def _plain(kind: Callable[..., Any], *fields: str) -> Coding:
    """Return the coding of values that are stored as they are. Args: ``fields`` of a record, in their order."""
    return lambda value: dict(zip(fields, value, strict=True)), lambda name, body: kind(*(body[one] for one in fields))


GROUP_EPOCH = _plain(GroupEpoch, "Epoch", "MetadataHash")
TARGET_EPOCH = _plain(TargetEpoch, "AssignmentEpoch", "AssignmentTimestamp")


def partition_rows(partitions: Partitions) -> list[Body]:
    """Return partitions as they are in records."""
    return [{"TopicId": topic_id, "Partitions": sorted(indexes)} for topic_id, indexes in partitions.items()]


def partitions_of(rows: Iterable[Mapping[str, Any]]) -> Partitions:
    """Return the partitions of a record."""
    return {row["TopicId"]: frozenset(row["Partitions"]) for row in rows}


#: Coding of a target assignment of partitions.
TARGET_PARTITIONS: Coding = (
    lambda target: {"TopicPartitions": partition_rows(target)},
    lambda name, body: partitions_of(body["TopicPartitions"]),
)


def epochs_of(row: Mapping[str, Any], member_epoch: int) -> dict[int, int]:
    """Return the partitions of a row with their assignment epochs; for an older record, the member's epoch."""
    indexes, epochs = row["Partitions"], row.get("AssignmentEpochs")
    if epochs is None or len(epochs) != len(indexes):
        return dict.fromkeys(indexes, member_epoch)
    return dict(zip(indexes, epochs, strict=True))


def tombstone(kind: int, group_id: str, name: str = "") -> GroupRecord:
    """Return the tombstone of a key."""
    return GroupRecord(RecordKey(kind, group_id, name), None)


def encode(record: GroupRecord, formats: Formats) -> tuple[bytes, bytes | None]:
    """Return key and value in bytes, None for a tombstone. Raises: ProtocolError if the formats cannot hold them."""
    key, value = record
    form = formats[key.kind]
    fields = {"GroupId": key.group_id}
    if form.second:
        fields[form.second] = key.name
    raw = codec.encode_versioned(form.name + "Key", key.kind, fields)
    return raw, None if value is None else codec.encode_versioned(form.name + "Value", 0, form.body(value))


def decode_key(raw: bytes, formats: Formats) -> RecordKey | None:
    """Decode a key; return None for a kind without a format. Raises: ProtocolError."""
    kind = codec.key_version(raw)
    form = formats.get(kind)
    if form is None:
        return None
    fields = codec.decode_versioned(form.name + "Key", raw)[1]
    return RecordKey(kind, fields["GroupId"], fields[form.second] if form.second else "")


def decode_value(key: RecordKey, raw: bytes, formats: Formats) -> Any:
    """Decode the value of a record. Raises: ProtocolError."""
    form = formats[key.kind]
    return form.value(key.name, codec.decode_versioned(form.name + "Value", raw)[1])
