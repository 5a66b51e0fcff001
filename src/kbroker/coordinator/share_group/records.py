"""Records of share groups in ``__consumer_offsets``, in Kafka's formats.

A key begins with the number of its kind: 10 a member, 11 the group, 12 and 13 the target assignment, 14 a member's own
assignment, 15 the share partitions of the group.
Source: ``ShareGroup*Key.json``, ``ShareGroup*Value.json``, ``GroupCoordinatorRecordHelpers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.coordinator.modern_group.records import (
    GROUP_EPOCH,
    TARGET_PARTITIONS,
    Body,
    Format,
    Formats,
    GroupRecord,
    GroupRecords,
    Partitions,
    RecordKey,
    partition_rows,
    partitions_of,
)
from kbroker.coordinator.share_group.member import ShareGroupMember

MEMBER, METADATA, TARGET_METADATA, TARGET_MEMBER, CURRENT_ASSIGNMENT, STATE_PARTITIONS = 10, 11, 12, 13, 14, 15
STABLE = 0  # the only state of a member


class CurrentAssignment(NamedTuple):
    """Current assignment of a member."""

    member_epoch: int
    previous_member_epoch: int
    assigned: Partitions


RECORDS = GroupRecords(
    METADATA,
    MEMBER,
    TARGET_METADATA,
    TARGET_MEMBER,
    CURRENT_ASSIGNMENT,
    CurrentAssignment,
    own_kinds=(STATE_PARTITIONS, METADATA),
)


class TopicPartitions(NamedTuple):
    """Partitions of a topic. ``timestamp_ms``: time at which their initialization began, 0 if unknown."""

    name: str
    partitions: frozenset[int]
    timestamp_ms: int = 0


Topics = Mapping[UUID, TopicPartitions]
NO_TOPICS: Topics = MappingProxyType({})


class StatePartitions(NamedTuple):
    """The share partitions of a group in the share coordinator. ``deleting``: topics by id, with their names."""

    initializing: Topics = NO_TOPICS
    initialized: Topics = NO_TOPICS
    deleting: Mapping[UUID, str] = MappingProxyType({})


def state_partitions_record(group_id: str, value: StatePartitions) -> GroupRecord:
    """Return the record of the group's share partitions."""
    return GroupRecord(RecordKey(STATE_PARTITIONS, group_id), value)


# ------------------------------------------------------------ formats


def _member_body(member: ShareGroupMember) -> Body:
    return {
        "RackId": member.rack_id,
        "ClientId": member.client_id,
        "ClientHost": member.client_host,
        "SubscribedTopicNames": sorted(member.topic_names),
    }


def _member(member_id: str, body: Mapping[str, Any]) -> ShareGroupMember:
    names = frozenset(body["SubscribedTopicNames"])
    return ShareGroupMember(member_id, body["RackId"], body["ClientId"], body["ClientHost"], names)


def _assignment_body(value: CurrentAssignment) -> Body:
    return {
        "MemberEpoch": value.member_epoch,
        "PreviousMemberEpoch": value.previous_member_epoch,
        "State": STABLE,
        "AssignedPartitions": partition_rows(value.assigned),
    }


def _assignment(name: str, body: Mapping[str, Any]) -> CurrentAssignment:
    assigned = partitions_of(body["AssignedPartitions"])
    return CurrentAssignment(body["MemberEpoch"], body["PreviousMemberEpoch"], assigned)


def _state_body(value: StatePartitions) -> Body:
    return {
        "InitializingTopics": _topic_rows(value.initializing),
        "InitializedTopics": _topic_rows(value.initialized),
        "DeletingTopics": [{"TopicId": topic_id, "TopicName": name} for topic_id, name in value.deleting.items()],
    }


def _topic_rows(topics: Topics) -> list[Body]:
    return [
        {"TopicId": topic_id, "TopicName": one.name, "Partitions": sorted(one.partitions)}
        for topic_id, one in topics.items()
    ]


def _state(name: str, body: Mapping[str, Any]) -> StatePartitions:
    def topics(rows: Iterable[Mapping[str, Any]]) -> Topics:
        return {row["TopicId"]: TopicPartitions(row["TopicName"], frozenset(row["Partitions"])) for row in rows}

    deleting = {row["TopicId"]: row["TopicName"] for row in body["DeletingTopics"]}
    return StatePartitions(topics(body["InitializingTopics"]), topics(body["InitializedTopics"]), deleting)


FORMATS: Formats = {
    METADATA: Format("ShareGroupMetadata", "", *GROUP_EPOCH),
    STATE_PARTITIONS: Format("ShareGroupStatePartitionMetadata", "", _state_body, _state),
    **RECORDS.formats(
        "ShareGroup",
        member=(_member_body, _member),
        target=TARGET_PARTITIONS,
        current=(_assignment_body, _assignment),
    ),
}
