"""Records of groups of the newer protocols in ``__consumer_offsets``: keys and values in Kafka's formats.

A key begins with the number of its kind, an int16. The kinds of consumer, share and streams groups are disjoint.
Source: ``CoordinatorRecordType``, ``GroupCoordinatorRecordHelpers``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.common.errors import ProtocolError
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

    def body(self) -> Body:
        """Return the fields of the record's value."""
        return {"Epoch": self.epoch, "MetadataHash": self.metadata_hash}

    @classmethod
    def of(cls, name: str, body: Mapping[str, Any]) -> GroupEpoch:
        """Return the value of a record's fields."""
        return cls(body["Epoch"], body["MetadataHash"])


class TargetEpoch(NamedTuple):
    """The group epoch of the target assignment, and its time (0: unknown)."""

    epoch: int
    timestamp_ms: int

    def body(self) -> Body:
        """Return the fields of the record's value."""
        return {"AssignmentEpoch": self.epoch, "AssignmentTimestamp": self.timestamp_ms}

    @classmethod
    def of(cls, name: str, body: Mapping[str, Any]) -> TargetEpoch:
        """Return the value of a record's fields."""
        return cls(body["AssignmentEpoch"], body["AssignmentTimestamp"])


class Format(NamedTuple):
    """Format of one kind of record.

    ``name``: of its messages, without Key and Value; ``second``: the second field of the key, "" without one;
    ``body``: returns the fields of a value; ``value``: returns the value of the key's second field and these fields.
    """

    name: str
    second: str
    body: Callable[[Any], Body]
    value: Callable[[str, Body], Any]


Formats = Mapping[int, Format]


def partition_rows(partitions: Partitions) -> list[Body]:
    """Return partitions as they are in records."""
    return [{"TopicId": topic_id, "Partitions": sorted(indexes)} for topic_id, indexes in partitions.items()]


def partitions_of(rows: Iterable[Mapping[str, Any]]) -> Partitions:
    """Return the partitions of a record."""
    return {row["TopicId"]: frozenset(row["Partitions"]) for row in rows}


def tombstone(kind: int, group_id: str, name: str = "") -> GroupRecord:
    """Return the tombstone of a key."""
    return GroupRecord(RecordKey(kind, group_id, name), None)


def encode(record: GroupRecord, formats: Formats) -> tuple[bytes, bytes | None]:
    """Return key and value in bytes. Raises: ProtocolError for values that the formats cannot hold."""
    key, value = record
    form = formats[key.kind]
    fields = {"GroupId": key.group_id}
    if form.second:
        fields[form.second] = key.name
    raw = codec.encode_versioned(form.name + "Key", key.kind, fields)
    return raw, None if value is None else codec.encode_versioned(form.name + "Value", 0, form.body(value))


def decode_key(raw: bytes, formats: Formats) -> RecordKey | None:
    """Decode a key; return None for a kind without a format. Raises: ProtocolError."""
    if len(raw) < 2:
        raise ProtocolError("record key without a version")
    (kind,) = struct.unpack_from(">h", raw)
    form = formats.get(kind)
    if form is None:
        return None
    fields = codec.decode_versioned(form.name + "Key", raw)[1]
    return RecordKey(kind, fields["GroupId"], fields[form.second] if form.second else "")


def decode_value(key: RecordKey, raw: bytes, formats: Formats) -> Any:
    """Decode the value of a record. Raises: ProtocolError."""
    form = formats[key.kind]
    return form.value(key.name, codec.decode_versioned(form.name + "Value", raw)[1])
