"""The description of several groups in one response: checks of the authorizer, errors, and the limit of its size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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

EPOCHS: Body = {"GroupEpoch": 0, "AssignmentEpoch": 0}
WITH_ASSIGNOR: Body = {**EPOCHS, "AssignorName": ""}
HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


class Description(NamedTuple):
    """Description of groups of one kind.

    ``describe``: returns the row of a group; its operations are added if it has none. Raises: KafkaError. ``text_of``:
    the text of an error. ``refused_first``: groups that the client must not describe precede the others. ``own``:
    further fields of an empty row. ``no_room``: text of NO_ROOM. ``is_id_required``: whether an empty id is an error.
    """

    group_check: Check
    describe: Callable[[str], Body]
    text_of: Callable[[KafkaError], str | None] = lambda error: error.message
    refused_first: bool = False
    own: Body = WITH_ASSIGNOR
    no_room: str | None = NO_ROOM_TEXT
    is_id_required: bool = True


class Topics(NamedTuple):
    """Topics that a client must be allowed to see. ``of``: topics of a group; ``hidden``: text of the refusal."""

    check: Check
    of: Callable[[Body], set[str]]
    hidden: str = HIDDEN_TOPICS


def describe_each(
    ctx: ApiContext, group_ids: Iterable[str], is_asked: bool, request: RequestContext, how: Description
) -> list[Body]:
    """Return the row of each group, duplicates included. Args: ``is_asked``: add the authorized operations.

    Groups that exceed the response's size limit have the error NO_ROOM.
    """
    room = ResponseRoom()

    def described(group_id: str) -> Body:
        if how.is_id_required and not group_id:
            return empty_row(group_id, Errors.INVALID_GROUP_ID, None, how.own)
        operations = ctx.auth.operations(request, checks.GROUP, group_id) if is_asked else OPERATIONS_NOT_ASKED
        try:
            return {"AuthorizedOperations": operations, **how.describe(group_id)}
        except KafkaError as error:  # concerns only this group: the others are described
            return empty_row(group_id, error.error, how.text_of(error), how.own)

    refused: list[Body] = []
    groups: list[Body] = []
    for group_id in group_ids:
        if ctx.auth.allows(request, how.group_check, group_id):
            found = room.described(group_id, partial(described, group_id))
            groups.append(empty_row(group_id, NO_ROOM, how.no_room, how.own) if found is None else found)
        else:
            row = empty_row(group_id, how.group_check.error, None, how.own)
            (refused if how.refused_first else groups).append(row)
    return [*refused, *groups]


def describe_groups(ctx: ApiContext, body: Body, request: RequestContext, how: Description, seen: Topics) -> Body:
    """Describe each group, except those whose topics the client must not see."""
    groups = describe_each(ctx, body["GroupIds"], body["IncludeAuthorizedOperations"], request, how)
    distinct = {id(group): group for group in groups}  # each with the rows of its members, which may be many
    topics = {key: seen.of(group) for key, group in distinct.items()}
    allowed = set(ctx.auth.allowed(request, seen.check, set().union(*topics.values())))
    error = seen.check.error
    visible = [
        group if topics[id(group)] <= allowed else empty_row(group["GroupId"], error, seen.hidden, how.own)
        for group in groups
    ]
    return {"Groups": visible}


def group_row(group: DescribedGroup, members: Sequence[Body]) -> Body:
    """Return the row of a group, without the fields that only its kind has."""
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
    """Return the row of a group that is not described. Args: ``own``: the fields of its kind."""
    return {
        "ErrorCode": int(error),
        "ErrorMessage": text,
        "GroupId": group_id,
        "GroupState": "",
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
