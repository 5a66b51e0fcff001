"""Records of streams groups in ``__consumer_offsets``, in Kafka's formats.

A key begins with the number of its kind: 17 the group, 19 a member, 20 and 21 the target assignment, 22 a member's own
assignment, 23 the topology.
Source: ``StreamsGroup*Key.json``, ``StreamsGroup*Value.json``, ``StreamsCoordinatorRecordHelpers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.coordinator.modern_group.records import (
    Body,
    Format,
    Formats,
    GroupRecord,
    GroupRecords,
    RecordKey,
    epochs_of,
)
from kbroker.coordinator.streams_group.member import Endpoint, MemberState, StreamsGroupMember
from kbroker.coordinator.streams_group.tasks import AssignedTasks, TargetTasks, Tasks
from kbroker.coordinator.streams_group.topology import StreamsTopology

METADATA, MEMBER, TARGET_METADATA, TARGET_MEMBER, CURRENT_ASSIGNMENT, TOPOLOGY = 17, 19, 20, 21, 22, 23
NO_VALID_TOPOLOGY = -1


class GroupEpoch(NamedTuple):
    """The group epoch, the facts that it was last bumped for, and the settings of the assignor.

    ``validated_topology_epoch``: the topology whose topics exist as required; NO_VALID_TOPOLOGY without one.
    """

    epoch: int
    metadata_hash: int
    validated_topology_epoch: int
    assignment_configs: Mapping[str, str]


class CurrentAssignment(NamedTuple):
    """Current assignment of a member."""

    member_epoch: int
    previous_member_epoch: int
    state: MemberState
    assigned: AssignedTasks
    pending_revocation: AssignedTasks


RECORDS = GroupRecords(
    METADATA,
    MEMBER,
    TARGET_METADATA,
    TARGET_MEMBER,
    CURRENT_ASSIGNMENT,
    CurrentAssignment,
    own_kinds=(METADATA, TOPOLOGY),
)


def topology_record(group_id: str, topology: StreamsTopology) -> GroupRecord:
    """Return the record of the topology."""
    return GroupRecord(RecordKey(TOPOLOGY, group_id), topology)


# ------------------------------------------------------------ formats


def pairs(rows: Iterable[tuple[str, str]]) -> list[Body]:
    """Return keys and values as fields."""
    return [{"Key": key, "Value": value} for key, value in rows]


def tasks_body(tasks: Mapping[str, Iterable[int]]) -> list[Body]:
    """Return tasks as fields, sorted."""
    return [{"SubtopologyId": one, "Partitions": sorted(partitions)} for one, partitions in sorted(tasks.items())]


def tasks_of(rows: Iterable[Body]) -> Tasks:
    """Return the tasks of these fields; of two rows of one subtopology, the later one counts."""
    return {row["SubtopologyId"]: frozenset(row["Partitions"]) for row in rows}


def _group_body(value: GroupEpoch) -> Body:
    return {
        "Epoch": value.epoch,
        "MetadataHash": value.metadata_hash,
        "ValidatedTopologyEpoch": value.validated_topology_epoch,
        "LastAssignmentConfigs": pairs(sorted(value.assignment_configs.items())),
    }


def _group(name: str, body: Body) -> GroupEpoch:
    configs = {row["Key"]: row["Value"] for row in body["LastAssignmentConfigs"] or ()}
    return GroupEpoch(body["Epoch"], body["MetadataHash"], body["ValidatedTopologyEpoch"], configs)


def _member_body(member: StreamsGroupMember) -> Body:
    endpoint = member.endpoint
    return {
        "InstanceId": member.instance_id,
        "RackId": member.rack_id,
        "ClientId": member.client_id,
        "ClientHost": member.client_host,
        "RebalanceTimeoutMs": member.rebalance_timeout_ms,
        "TopologyEpoch": member.topology_epoch,
        "ProcessId": member.process_id,
        "UserEndpoint": None if endpoint is None else {"Host": endpoint.host, "Port": endpoint.port},
        "ClientTags": pairs(member.client_tags),
    }


def _member(name: str, body: Body) -> StreamsGroupMember:
    endpoint = body["UserEndpoint"]
    return StreamsGroupMember(
        name,
        instance_id=body["InstanceId"],
        rack_id=body["RackId"],
        client_id=body["ClientId"],
        client_host=body["ClientHost"],
        rebalance_timeout_ms=body["RebalanceTimeoutMs"],
        topology_epoch=body["TopologyEpoch"],
        process_id=body["ProcessId"],
        endpoint=None if endpoint is None else Endpoint(endpoint["Host"], endpoint["Port"]),
        client_tags=tuple(sorted((row["Key"], row["Value"]) for row in body["ClientTags"])),
    )


def target_body(target: TargetTasks) -> Body:
    """Return the tasks of all roles as fields."""
    return {
        "ActiveTasks": tasks_body(target.active),
        "StandbyTasks": tasks_body(target.standby),
        "WarmupTasks": tasks_body(target.warmup),
    }


def _target(name: str, body: Body) -> TargetTasks:
    return TargetTasks(*(tasks_of(body[role]) for role in ("ActiveTasks", "StandbyTasks", "WarmupTasks")))


def _current_body(value: CurrentAssignment) -> Body:
    body: Body = {
        "MemberEpoch": value.member_epoch,
        "PreviousMemberEpoch": value.previous_member_epoch,
        "State": int(value.state),
    }
    for suffix, tasks in (("", value.assigned), ("PendingRevocation", value.pending_revocation)):
        body[f"ActiveTasks{suffix}"] = [
            {"SubtopologyId": one, "Partitions": sorted(epochs), "AssignmentEpochs": _in_order(epochs)}
            for one, epochs in sorted(tasks.active.items())
        ]
        body[f"StandbyTasks{suffix}"] = _without_epochs(tasks.standby)
        body[f"WarmupTasks{suffix}"] = _without_epochs(tasks.warmup)
    return body


def _in_order(epochs: Mapping[int, int]) -> list[int]:
    return [epoch for _, epoch in sorted(epochs.items())]


def _without_epochs(tasks: Tasks) -> list[Body]:
    return [{**row, "AssignmentEpochs": None} for row in tasks_body(tasks)]


def _current(name: str, body: Body) -> CurrentAssignment:
    epoch = body["MemberEpoch"]
    tasks = [
        AssignedTasks(
            {row["SubtopologyId"]: epochs_of(row, epoch) for row in body[f"ActiveTasks{suffix}"]},
            tasks_of(body[f"StandbyTasks{suffix}"]),
            tasks_of(body[f"WarmupTasks{suffix}"]),
        )
        for suffix in ("", "PendingRevocation")
    ]
    return CurrentAssignment(epoch, body["PreviousMemberEpoch"], MemberState.of(body["State"]), *tasks)


FORMATS: Formats = {
    METADATA: Format("StreamsGroupMetadata", "", _group_body, _group),
    TOPOLOGY: Format("StreamsGroupTopology", "", lambda one: one.body, lambda name, body: StreamsTopology.of(body)),
    **RECORDS.formats(
        "StreamsGroup",
        member=(_member_body, _member),
        target=(target_body, _target),
        current=(_current_body, _current),
    ),
}
