"""Records of consumer groups in ``__consumer_offsets``, in Kafka's formats.

A key begins with the number of its kind: 3 the group, 4 topic metadata (before 4.1; only deleted now), 5 a member,
6 and 7 the target assignment, 8 a member's own assignment, 16 the topics that match a regular expression.
Source: ``ConsumerGroup*Key.json``, ``ConsumerGroup*Value.json``, ``GroupCoordinatorRecordHelpers``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.common.errors import ProtocolError
from kbroker.coordinator.consumer_group.member import (
    ClassicMetadata,
    ClassicProtocol,
    ConsumerGroupMember,
    MemberState,
    Owned,
    Target,
)
from kbroker.protocol import codec

METADATA, PARTITION_METADATA, MEMBER, TARGET_METADATA, TARGET_MEMBER, CURRENT_ASSIGNMENT = 3, 4, 5, 6, 7, 8
REGULAR_EXPRESSION = 16

_NAMES = {
    METADATA: "ConsumerGroupMetadata",
    PARTITION_METADATA: "ConsumerGroupPartitionMetadata",
    MEMBER: "ConsumerGroupMemberMetadata",
    TARGET_METADATA: "ConsumerGroupTargetAssignmentMetadata",
    TARGET_MEMBER: "ConsumerGroupTargetAssignmentMember",
    CURRENT_ASSIGNMENT: "ConsumerGroupCurrentMemberAssignment",
    REGULAR_EXPRESSION: "ConsumerGroupRegularExpression",
}
KINDS = frozenset(_NAMES)
_OF_MEMBERS = frozenset({MEMBER, TARGET_MEMBER, CURRENT_ASSIGNMENT})


class ConsumerGroupKey(NamedTuple):
    """Key of a record. ``name``: the member id or the regular expression; "" for the group."""

    kind: int
    group_id: str
    name: str = ""


class GroupEpoch(NamedTuple):
    """The group epoch, and the hash of the topics at its last bump."""

    epoch: int
    metadata_hash: int


class TargetEpoch(NamedTuple):
    """The group epoch of the target assignment, and its time (0: unknown)."""

    epoch: int
    timestamp_ms: int


class CurrentAssignment(NamedTuple):
    """Current assignment of a member."""

    member_epoch: int
    previous_member_epoch: int
    state: MemberState
    assigned: Owned
    pending_revocation: Owned


class ResolvedRegex(NamedTuple):
    """The topics that match a regular expression. ``version``: of the topics then."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


Value = GroupEpoch | TargetEpoch | CurrentAssignment | ResolvedRegex | ConsumerGroupMember | dict[UUID, frozenset[int]]


class GroupRecord(NamedTuple):
    """A change of a consumer group; a value of None is a tombstone.

    The value of a member has only what its own record holds. PARTITION_METADATA has no value of use: ``{}``.
    """

    key: ConsumerGroupKey
    value: Value | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """Return key and value in bytes. Raises: ProtocolError for values that the formats cannot hold."""
        return encode_key(self.key), None if self.value is None else _encode_value(self.key.kind, self.value)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    """Return the record of a new group epoch."""
    return GroupRecord(ConsumerGroupKey(METADATA, group_id), GroupEpoch(epoch, metadata_hash))


def member_record(group_id: str, member: ConsumerGroupMember) -> GroupRecord:
    """Return the record of a member's subscription."""
    return GroupRecord(ConsumerGroupKey(MEMBER, group_id, member.member_id), member)


def target_record(group_id: str, member_id: str, target: Target) -> GroupRecord:
    """Return the record of a member's target assignment."""
    return GroupRecord(ConsumerGroupKey(TARGET_MEMBER, group_id, member_id), dict(target))


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> GroupRecord:
    """Return the record of a complete target assignment."""
    return GroupRecord(ConsumerGroupKey(TARGET_METADATA, group_id), TargetEpoch(epoch, timestamp_ms))


def current_record(group_id: str, member: ConsumerGroupMember) -> GroupRecord:
    """Return the record of a member's current assignment."""
    value = CurrentAssignment(
        member.member_epoch, member.previous_member_epoch, member.state, member.assigned, member.pending_revocation
    )
    return GroupRecord(ConsumerGroupKey(CURRENT_ASSIGNMENT, group_id, member.member_id), value)


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> GroupRecord:
    """Return the record of a regular expression's topics."""
    return GroupRecord(ConsumerGroupKey(REGULAR_EXPRESSION, group_id, regex), resolved)


def tombstone(kind: int, group_id: str, name: str = "") -> GroupRecord:
    """Return the tombstone of a key."""
    return GroupRecord(ConsumerGroupKey(kind, group_id, name), None)


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """Return the tombstones of a member."""
    return [tombstone(kind, group_id, member_id) for kind in (CURRENT_ASSIGNMENT, TARGET_MEMBER, MEMBER)]


def group_tombstones(group_id: str, member_ids: Iterable[str], regexes: Iterable[str]) -> list[GroupRecord]:
    """Return the tombstones of a whole group."""
    ids = list(member_ids)
    rows = [tombstone(CURRENT_ASSIGNMENT, group_id, member_id) for member_id in ids]
    rows += [tombstone(TARGET_MEMBER, group_id, member_id) for member_id in ids]
    rows.append(tombstone(TARGET_METADATA, group_id))
    rows += [tombstone(MEMBER, group_id, member_id) for member_id in ids]
    rows += [tombstone(REGULAR_EXPRESSION, group_id, regex) for regex in regexes]
    rows.append(tombstone(PARTITION_METADATA, group_id))
    rows.append(tombstone(METADATA, group_id))
    return rows


# ------------------------------------------------------------ formats


def encode_key(key: ConsumerGroupKey) -> bytes:
    """Encode a key. Raises: ProtocolError."""
    body = {"GroupId": key.group_id}
    if key.kind in _OF_MEMBERS:
        body["MemberId"] = key.name
    elif key.kind == REGULAR_EXPRESSION:
        body["RegularExpression"] = key.name
    return codec.encode_versioned(_NAMES[key.kind] + "Key", key.kind, body)


def decode_key(key: bytes) -> ConsumerGroupKey | None:
    """Decode a key; return None for another kind of record. Raises: ProtocolError."""
    if len(key) < 2:
        raise ProtocolError("record key without a version")
    (kind,) = struct.unpack_from(">h", key)
    if kind not in KINDS:
        return None
    body = codec.decode_versioned(_NAMES[kind] + "Key", key)[1]
    return ConsumerGroupKey(kind, body["GroupId"], body.get("MemberId") or body.get("RegularExpression", ""))


def decode_value(key: ConsumerGroupKey, data: bytes) -> Value:
    """Decode the value of a record. Raises: ProtocolError."""
    body = codec.decode_versioned(_NAMES[key.kind] + "Value", data)[1]
    if key.kind == METADATA:
        return GroupEpoch(body["Epoch"], body["MetadataHash"])
    if key.kind == MEMBER:
        return _member(key.name, body)
    if key.kind == TARGET_METADATA:
        return TargetEpoch(body["AssignmentEpoch"], body["AssignmentTimestamp"])
    if key.kind == TARGET_MEMBER:
        return {row["TopicId"]: frozenset(row["Partitions"]) for row in body["TopicPartitions"]}
    if key.kind == CURRENT_ASSIGNMENT:
        epoch = body["MemberEpoch"]
        return CurrentAssignment(
            epoch,
            body["PreviousMemberEpoch"],
            MemberState.of(body["State"]),
            _owned(body["AssignedPartitions"], epoch),
            _owned(body["PartitionsPendingRevocation"], epoch),
        )
    if key.kind == REGULAR_EXPRESSION:
        return ResolvedRegex(frozenset(body["Topics"]), body["Version"], body["Timestamp"])
    return {}


def _encode_value(kind: int, value: Value) -> bytes:
    return codec.encode_versioned(_NAMES[kind] + "Value", 0, _body(value))


def _body(value: Value) -> dict[str, Any]:
    if isinstance(value, ConsumerGroupMember):
        return _member_body(value)
    if isinstance(value, CurrentAssignment):
        return {
            "MemberEpoch": value.member_epoch,
            "PreviousMemberEpoch": value.previous_member_epoch,
            "State": int(value.state),
            "AssignedPartitions": _owned_rows(value.assigned),
            "PartitionsPendingRevocation": _owned_rows(value.pending_revocation),
        }
    if isinstance(value, GroupEpoch):
        return {"Epoch": value.epoch, "MetadataHash": value.metadata_hash}
    if isinstance(value, TargetEpoch):
        return {"AssignmentEpoch": value.epoch, "AssignmentTimestamp": value.timestamp_ms}
    if isinstance(value, ResolvedRegex):
        return {"Topics": sorted(value.topics), "Version": value.version, "Timestamp": value.timestamp_ms}
    return {"TopicPartitions": [{"TopicId": one, "Partitions": sorted(indexes)} for one, indexes in value.items()]}


def _owned_rows(owned: Owned) -> list[dict[str, Any]]:
    return [
        {"TopicId": topic_id, "Partitions": list(epochs), "AssignmentEpochs": list(epochs.values())}
        for topic_id, epochs in owned.items()
    ]


def _owned(rows: Iterable[Mapping[str, Any]], member_epoch: int) -> Owned:
    """Return partitions with their epochs; records from before 4.3 imply the member's epoch."""
    owned: dict[UUID, Mapping[int, int]] = {}
    for row in rows:
        indexes, epochs = row["Partitions"], row.get("AssignmentEpochs")
        if epochs is None or len(epochs) != len(indexes):
            epochs = [max(member_epoch, 0)] * len(indexes)
        owned[row["TopicId"]] = dict(zip(indexes, epochs, strict=True))
    return owned


def _member_body(member: ConsumerGroupMember) -> dict[str, Any]:
    classic = None
    if member.classic is not None:
        protocols = [{"Name": one.name, "Metadata": one.metadata} for one in member.classic.protocols]
        classic = {"SessionTimeoutMs": member.classic.session_timeout_ms, "SupportedProtocols": protocols}
    return {
        "InstanceId": member.instance_id,
        "RackId": member.rack_id,
        "ClientId": member.client_id,
        "ClientHost": member.client_host,
        "SubscribedTopicNames": sorted(member.topic_names),
        "SubscribedTopicRegex": member.topic_regex,
        "RebalanceTimeoutMs": member.rebalance_timeout_ms,
        "ServerAssignor": member.server_assignor,
        "ClassicMemberMetadata": classic,
    }


def _member(member_id: str, body: Mapping[str, Any]) -> ConsumerGroupMember:
    found = body["ClassicMemberMetadata"]
    classic = None
    if found is not None and found["SupportedProtocols"]:
        protocols = tuple(ClassicProtocol(row["Name"], bytes(row["Metadata"])) for row in found["SupportedProtocols"])
        classic = ClassicMetadata(found["SessionTimeoutMs"], protocols)
    return ConsumerGroupMember(
        member_id,
        instance_id=body["InstanceId"],
        rack_id=body["RackId"],
        client_id=body["ClientId"],
        client_host=body["ClientHost"],
        topic_names=frozenset(body["SubscribedTopicNames"]),
        topic_regex=body["SubscribedTopicRegex"],
        rebalance_timeout_ms=body["RebalanceTimeoutMs"],
        server_assignor=body["ServerAssignor"],
        classic=classic,
    )
