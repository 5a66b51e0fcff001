"""ConsumerGroupDescribe: epochs, state and members of consumer groups (KIP-848)."""

from __future__ import annotations

from functools import partial

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.feature_versions import GROUP_VERSION
from kbroker.coordinator.consumer_group.member import Target
from kbroker.coordinator.consumer_groups import DescribedConsumerGroup, DescribedConsumerMember
from kbroker.requests.context import OPERATIONS_NOT_ASKED, ApiContext, Body, RequestContext
from kbroker.requests.response_room import NO_ROOM, NO_ROOM_TEXT, ResponseRoom
from kbroker.security.authorizer import checks

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each group, duplicates included; GROUP_ID_NOT_FOUND if it is not a consumer group.

    Groups that exceed the response's size limit have the error NO_ROOM.
    """
    if ctx.features.level(GROUP_VERSION) < 1 or not ctx.groups.consumer_groups.settings.is_enabled:
        return failure(body, Errors.UNSUPPORTED_VERSION, request)
    is_asked = body["IncludeAuthorizedOperations"]
    room = ResponseRoom()

    def described(group_id: str) -> Body:
        operations = ctx.auth.operations(request, checks.GROUP, group_id) if is_asked else OPERATIONS_NOT_ASKED
        return _describe(ctx, group_id, operations)

    groups = []
    for group_id in body["GroupIds"]:
        if ctx.auth.allows(request, checks.CONSUMER_GROUP_DESCRIBE_GROUP, group_id):
            found = room.described(group_id, partial(described, group_id))
            groups.append(_nothing(group_id, NO_ROOM, NO_ROOM_TEXT) if found is None else found)
        else:
            groups.append(_nothing(group_id, checks.CONSUMER_GROUP_DESCRIBE_GROUP.error, None))
    distinct = {id(group): group for group in groups}  # each with the rows of its members, which may be many
    topics = {key: _topics(group) for key, group in distinct.items()}
    allowed = set(ctx.auth.allowed(request, checks.CONSUMER_GROUP_DESCRIBE, set().union(*topics.values())))
    error = checks.CONSUMER_GROUP_DESCRIBE.error
    return {
        "Groups": [
            group if topics[id(group)] <= allowed else _nothing(group["GroupId"], error, HIDDEN_TOPICS)
            for group in groups
        ]
    }


def _topics(group: Body) -> set[str]:
    """Return the topics of a described group's current and target assignments."""
    return {
        row["TopicName"]
        for member in group["Members"]
        for kind in ("Assignment", "TargetAssignment")
        for row in member[kind]["TopicPartitions"]
    }


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every group with the same error."""
    return {"Groups": [_nothing(group_id, error, error.message) for group_id in body["GroupIds"]]}


def _describe(ctx: ApiContext, group_id: str, operations: int) -> Body:
    if not group_id:
        return _nothing(group_id, Errors.INVALID_GROUP_ID, None)
    try:
        found = ctx.groups.consumer_groups.describe(group_id)
    except KafkaError as error:  # of this group only: the others are described
        return _nothing(group_id, error.error, error.message)
    return _group(ctx, found, operations)


def _group(ctx: ApiContext, group: DescribedConsumerGroup, operations: int) -> Body:
    return {
        "ErrorCode": 0,
        "ErrorMessage": None,
        "GroupId": group.group_id,
        "GroupState": group.state.value,
        "GroupEpoch": group.epoch,
        "AssignmentEpoch": group.target_epoch,
        "AssignorName": group.assignor,
        "Members": [_member(ctx, one) for one in group.members],
        "AuthorizedOperations": operations,
    }


def _member(ctx: ApiContext, described: DescribedConsumerMember) -> Body:
    member = described.member
    return {
        "MemberId": member.member_id,
        "InstanceId": member.instance_id,
        "RackId": member.rack_id,
        "MemberEpoch": member.member_epoch,
        "ClientId": member.client_id,
        "ClientHost": member.client_host,
        "SubscribedTopicNames": sorted(member.topic_names),
        "SubscribedTopicRegex": member.topic_regex,
        "Assignment": _assignment(ctx, described.owned),
        "TargetAssignment": _assignment(ctx, described.target),
        "MemberType": CLASSIC_MEMBER if member.uses_classic_protocol else CONSUMER_MEMBER,
    }


def _assignment(ctx: ApiContext, partitions: Target) -> Body:
    """Return the partitions of the topics that still exist."""
    rows = []
    for topic_id, indexes in partitions.items():
        view = ctx.topics.get_by_id(topic_id)
        if view is not None:
            rows.append({"TopicId": topic_id, "TopicName": view.name, "Partitions": sorted(indexes)})
    return {"TopicPartitions": rows}


def _nothing(group_id: str, error: Errors, text: str | None) -> Body:
    return {
        "ErrorCode": int(error),
        "ErrorMessage": text,
        "GroupId": group_id,
        "GroupState": "",
        "GroupEpoch": 0,
        "AssignmentEpoch": 0,
        "AssignorName": "",
        "Members": [],
        "AuthorizedOperations": OPERATIONS_NOT_ASKED,
    }
