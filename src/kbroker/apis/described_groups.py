"""The description of several groups in one response: checks of the authorizer, errors, and the limit of its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.context import OPERATIONS_NOT_ASKED, ApiContext, Body, RequestContext
from kbroker.requests.response_room import NO_ROOM, NO_ROOM_TEXT, ResponseRoom
from kbroker.security.authorizer import checks
from kbroker.security.authorizer.checks import Check

if TYPE_CHECKING:
    from kbroker.coordinator.consumer_groups import DescribedConsumerGroup
    from kbroker.coordinator.share_groups import DescribedShareGroup
    from kbroker.coordinator.streams_groups import DescribedStreamsGroup

    DescribedGroup = DescribedConsumerGroup | DescribedShareGroup | DescribedStreamsGroup

WITH_ASSIGNOR: Body = {"AssignorName": ""}
HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


class Description(NamedTuple):
    """Description of groups of one kind.

    ``describe``: returns the row of a group, without its operations. Raises: KafkaError. ``topics``: returns the topics
    that a client must be allowed to see. ``hidden``: text of the error if it is not. ``text_of``: the text of another
    error. ``refused_first``: groups that the client must not describe precede the others. ``own``: further
    fields of an empty row.
    """

    group_check: Check
    topic_check: Check
    describe: Callable[[str], Body]
    topics: Callable[[Body], set[str]]
    hidden: str = HIDDEN_TOPICS
    text_of: Callable[[KafkaError], str | None] = lambda error: error.message
    refused_first: bool = False
    own: Body = WITH_ASSIGNOR


def describe_groups(ctx: ApiContext, body: Body, request: RequestContext, how: Description) -> Body:
    """Describe each group, duplicates included.

    Groups that exceed the response's size limit have the error NO_ROOM.
    """
    is_asked = body["IncludeAuthorizedOperations"]
    room = ResponseRoom()

    def described(group_id: str) -> Body:
        if not group_id:
            return empty_row(group_id, Errors.INVALID_GROUP_ID, None, how.own)
        operations = ctx.auth.operations(request, checks.GROUP, group_id) if is_asked else OPERATIONS_NOT_ASKED
        try:
            return {**how.describe(group_id), "AuthorizedOperations": operations}
        except KafkaError as error:  # of this group only: the others are described
            return empty_row(group_id, error.error, how.text_of(error), how.own)

    refused: list[Body] = []
    groups: list[Body] = []
    for group_id in body["GroupIds"]:
        if ctx.auth.allows(request, how.group_check, group_id):
            found = room.described(group_id, partial(described, group_id))
            groups.append(empty_row(group_id, NO_ROOM, NO_ROOM_TEXT, how.own) if found is None else found)
        else:
            row = empty_row(group_id, how.group_check.error, None, how.own)
            (refused if how.refused_first else groups).append(row)
    distinct = {id(group): group for group in groups}  # each with the rows of its members, which may be many
    topics = {key: how.topics(group) for key, group in distinct.items()}
    allowed = set(ctx.auth.allowed(request, how.topic_check, set().union(*topics.values())))
    error = how.topic_check.error
    visible = [
        group if topics[id(group)] <= allowed else empty_row(group["GroupId"], error, how.hidden, how.own)
        for group in groups
    ]
    return {"Groups": [*refused, *visible]}


def group_row(group: DescribedGroup, members: Sequence[Body]) -> Body:
    """Return the row of a group, without the field of its kind."""
    return {
        "ErrorCode": 0,
        "ErrorMessage": None,
        "GroupId": group.group_id,
        "GroupState": group.state.value,
        "GroupEpoch": group.epoch,
        "AssignmentEpoch": group.target_epoch,
        "Members": members,
    }


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every group with the same error."""
    return {"Groups": [empty_row(group_id, error, error.message) for group_id in body["GroupIds"]]}


def empty_row(group_id: str, error: Errors, text: str | None, own: Body = WITH_ASSIGNOR) -> Body:
    """Return the row of a group that is not described. Args: ``own``: the field of its kind."""
    return {
        "ErrorCode": int(error),
        "ErrorMessage": text,
        "GroupId": group_id,
        "GroupState": "",
        "GroupEpoch": 0,
        "AssignmentEpoch": 0,
        **own,
        "Members": [],
        "AuthorizedOperations": OPERATIONS_NOT_ASKED,
    }


def assignment_row(ctx: ApiContext, partitions: Mapping[UUID, frozenset[int]]) -> Body:
    """Return the partitions of the topics that still exist."""
    rows = []
    for topic_id, indexes in partitions.items():
        view = ctx.topics.get_by_id(topic_id)
        if view is not None:
            rows.append({"TopicId": topic_id, "TopicName": view.name, "Partitions": sorted(indexes)})
    return {"TopicPartitions": rows}


def assigned_topics(group: Body, *kinds: str) -> set[str]:
    """Return the topics of these assignments of a described group's members."""
    return {
        row["TopicName"] for member in group["Members"] for kind in kinds for row in member[kind]["TopicPartitions"]
    }
