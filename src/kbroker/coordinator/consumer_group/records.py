"""Records of consumer groups in ``__consumer_offsets``, in Kafka's formats.

A key begins with the number of its kind: 3 the group, 4 topic metadata (before 4.1; only deleted now), 5 a member,
6 and 7 the target assignment, 8 a member's own assignment, 16 the topics that match a regular expression.
Source: ``ConsumerGroup*Key.json``, ``ConsumerGroup*Value.json``, ``GroupCoordinatorRecordHelpers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.coordinator.consumer_group.member import (
    ClassicMetadata,
    ClassicProtocol,
    ConsumerGroupMember,
    MemberState,
    Owned,
)
from kbroker.coordinator.modern_group.records import (
    GROUP_EPOCH,
    TARGET_PARTITIONS,
    Body,
    Format,
    Formats,
    GroupRecord,
    GroupRecords,
    RecordKey,
    epochs_of,
    tombstone,
)

METADATA, PARTITION_METADATA, MEMBER, TARGET_METADATA, TARGET_MEMBER, CURRENT_ASSIGNMENT = 3, 4, 5, 6, 7, 8
REGULAR_EXPRESSION = 16


class CurrentAssignment(NamedTuple):
    """Current assignment of a member."""

    member_epoch: int
    previous_member_epoch: int
    state: MemberState
    assigned: Owned
    pending_revocation: Owned


RECORDS = GroupRecords(
    METADATA,
    MEMBER,
    TARGET_METADATA,
    TARGET_MEMBER,
    CURRENT_ASSIGNMENT,
    CurrentAssignment,
    own_kinds=(PARTITION_METADATA, METADATA),
)


class ResolvedRegex(NamedTuple):
    """The topics that match a regular expression. ``version``: that of the topics image at the time."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> GroupRecord:
    """Return the record of a regular expression's topics."""
    return GroupRecord(RecordKey(REGULAR_EXPRESSION, group_id, regex), resolved)


def group_tombstones(group_id: str, member_ids: Iterable[str], regexes: Iterable[str]) -> list[GroupRecord]:
    """Return the tombstones of a whole group."""
    resolved = (tombstone(REGULAR_EXPRESSION, group_id, regex) for regex in regexes)
    return RECORDS.group_tombstones(group_id, member_ids, resolved)


# ------------------------------------------------------------ formats


def _owned_rows(owned: Owned) -> list[dict[str, Any]]:
    return [
        {"TopicId": topic_id, "Partitions": list(epochs), "AssignmentEpochs": list(epochs.values())}
        for topic_id, epochs in owned.items()
    ]


def _owned(rows: Iterable[Mapping[str, Any]], member_epoch: int) -> Owned:
    return {row["TopicId"]: epochs_of(row, max(member_epoch, 0)) for row in rows}


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


def _current_body(value: CurrentAssignment) -> Body:
    return {
        "MemberEpoch": value.member_epoch,
        "PreviousMemberEpoch": value.previous_member_epoch,
        "State": int(value.state),
        "AssignedPartitions": _owned_rows(value.assigned),
        "PartitionsPendingRevocation": _owned_rows(value.pending_revocation),
    }


def _current(name: str, body: Body) -> CurrentAssignment:
    epoch = body["MemberEpoch"]
    return CurrentAssignment(
        epoch,
        body["PreviousMemberEpoch"],
        MemberState.of(body["State"]),
        _owned(body["AssignedPartitions"], epoch),
        _owned(body["PartitionsPendingRevocation"], epoch),
    )


def _regex_body(value: ResolvedRegex) -> Body:
    return {"Topics": sorted(value.topics), "Version": value.version, "Timestamp": value.timestamp_ms}


def _regex(name: str, body: Body) -> ResolvedRegex:
    return ResolvedRegex(frozenset(body["Topics"]), body["Version"], body["Timestamp"])


def _no_body(value: object) -> Body:
    return {}  # no record is written in this format any more


FORMATS: Formats = {
    METADATA: Format("ConsumerGroupMetadata", "", *GROUP_EPOCH),
    PARTITION_METADATA: Format("ConsumerGroupPartitionMetadata", "", _no_body, lambda name, body: {}),
    REGULAR_EXPRESSION: Format("ConsumerGroupRegularExpression", "RegularExpression", _regex_body, _regex),
    **RECORDS.formats(
        "ConsumerGroup",
        member=(_member_body, _member),
        target=TARGET_PARTITIONS,
        current=(_current_body, _current),
    ),
}
