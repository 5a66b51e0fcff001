"""StreamsGroupDescribe: epochs, state, topology and members of streams groups (KIP-1071)."""

from __future__ import annotations

from functools import partial

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.feature_versions import STREAMS_VERSION
from kbroker.coordinator.streams_group.records import pairs, tasks_body
from kbroker.coordinator.streams_group.tasks import TargetTasks
from kbroker.coordinator.streams_group.topology import described
from kbroker.coordinator.streams_groups import DescribedStreamsGroup, DescribedStreamsMember
from kbroker.requests.context import OPERATIONS_NOT_ASKED, ApiContext, Body, RequestContext
from kbroker.requests.response_room import NO_ROOM, NO_ROOM_TEXT, ResponseRoom
from kbroker.security.authorizer import checks

HIDDEN_TOPICS = "The described group uses topics that the client is not authorized to describe."


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each group, duplicates included; GROUP_ID_NOT_FOUND if it is not a streams group.

    Groups that exceed the response's size limit have the error NO_ROOM.
    """
    if ctx.features.level(STREAMS_VERSION) < 1 or not ctx.groups.streams_groups.settings.is_enabled:
        return failure(body, Errors.UNSUPPORTED_VERSION, request)
    is_asked = body["IncludeAuthorizedOperations"]
    room = ResponseRoom()

    def describe(group_id: str) -> Body:
        operations = ctx.auth.operations(request, checks.GROUP, group_id) if is_asked else OPERATIONS_NOT_ASKED
        return _described(ctx, group_id, operations)

    refused, groups = [], []
    for group_id in body["GroupIds"]:
        if not ctx.auth.allows(request, checks.STREAMS_GROUP_DESCRIBE_GROUP, group_id):
            refused.append(_nothing(group_id, checks.STREAMS_GROUP_DESCRIBE_GROUP.error, None))
            continue
        found = room.described(group_id, partial(describe, group_id))
        groups.append(_nothing(group_id, NO_ROOM, NO_ROOM_TEXT) if found is None else found)
    distinct = {id(group): group for group in groups}
    topics = {key: _topics(group) for key, group in distinct.items()}
    allowed = set(ctx.auth.allowed(request, checks.STREAMS_GROUP_DESCRIBE, set().union(*topics.values())))
    error = checks.STREAMS_GROUP_DESCRIBE.error
    visible = [
        group if topics[id(group)] <= allowed else _nothing(group["GroupId"], error, HIDDEN_TOPICS) for group in groups
    ]
    return {"Groups": [*refused, *visible]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every group with the same error."""
    return {"Groups": [_nothing(group_id, error, None) for group_id in body["GroupIds"]]}


def _topics(group: Body) -> set[str]:
    """Return the topics of a described group's topology."""
    names: set[str] = set()
    for row in (group["Topology"] or {"Subtopologies": ()})["Subtopologies"]:
        names.update(row["SourceTopics"], row["RepartitionSinkTopics"])
        names.update(topic["Name"] for topic in (*row["RepartitionSourceTopics"], *row["StateChangelogTopics"]))
    return names


def _described(ctx: ApiContext, group_id: str, operations: int) -> Body:
    if not group_id:
        return _nothing(group_id, Errors.INVALID_GROUP_ID, None)
    try:
        group = ctx.groups.streams_groups.describe(group_id)
    except KafkaError as error:  # of this group only: the others are described
        text = error.message if error.error is Errors.GROUP_ID_NOT_FOUND else None
        return _nothing(group_id, error.error, text)
    return _group(group, operations)


def _group(group: DescribedStreamsGroup, operations: int) -> Body:
    return {
        "ErrorCode": 0,
        "ErrorMessage": None,
        "GroupId": group.group_id,
        "GroupState": group.state.value,
        "GroupEpoch": group.epoch,
        "AssignmentEpoch": group.target_epoch,
        "Topology": {"Epoch": group.topology_epoch, "Subtopologies": described(group.subtopologies)},
        "Members": [_member(one) for one in group.members],
        "AuthorizedOperations": operations,
    }


def _member(one: DescribedStreamsMember) -> Body:
    member = one.member
    endpoint = None if member.endpoint is None else {"Host": member.endpoint.host, "Port": member.endpoint.port}
    return {
        "MemberId": member.member_id,
        "MemberEpoch": member.member_epoch,
        "InstanceId": member.instance_id,
        "RackId": member.rack_id,
        "ClientId": member.client_id,
        "ClientHost": member.client_host,
        "TopologyEpoch": member.topology_epoch,
        "ProcessId": member.process_id,
        "UserEndpoint": endpoint,
        "ClientTags": pairs(member.client_tags),
        "TaskOffsets": [],
        "TaskEndOffsets": [],
        "Assignment": _tasks(member.assigned.without_epochs),
        "TargetAssignment": _tasks(one.target),
        "IsClassic": False,
    }


def _tasks(tasks: TargetTasks) -> Body:
    return {
        "ActiveTasks": tasks_body(tasks.active),
        "StandbyTasks": tasks_body(tasks.standby),
        "WarmupTasks": tasks_body(tasks.warmup),
    }


def _nothing(group_id: str, error: Errors, text: str | None) -> Body:
    return {
        "ErrorCode": int(error),
        "ErrorMessage": text,
        "GroupId": group_id,
        "GroupState": "",
        "GroupEpoch": 0,
        "AssignmentEpoch": 0,
        "Topology": None,
        "Members": [],
        "AuthorizedOperations": OPERATIONS_NOT_ASKED,
    }
