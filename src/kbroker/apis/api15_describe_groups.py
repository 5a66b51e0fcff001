"""DescribeGroups: state and members of each named group."""

from __future__ import annotations

from functools import partial

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.classic_group import GroupState
from kbroker.coordinator.group_coordinator import DescribedGroup
from kbroker.requests.context import OPERATIONS_NOT_ASKED, ApiContext, Body, RequestContext
from kbroker.requests.response_room import NO_ROOM, NO_ROOM_TEXT, ResponseRoom
from kbroker.security.authorizer import checks

FIRST_WITH_TEXT = 6  # first version with an error text, and an error for unknown groups


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each group, duplicates included; an unknown one is Dead, from v6 GROUP_ID_NOT_FOUND.

    Groups that exceed the response's size limit have the error NO_ROOM.
    """
    is_asked = body.get("IncludeAuthorizedOperations", False)
    room = ResponseRoom()
    no_room = NO_ROOM_TEXT if request.api_version >= FIRST_WITH_TEXT else None

    def described(group_id: str) -> Body:
        operations = ctx.auth.operations(request, checks.GROUP, group_id) if is_asked else OPERATIONS_NOT_ASKED
        return _describe(ctx, group_id, operations, request)

    groups = []
    for group_id in body["Groups"]:
        if ctx.auth.allows(request, checks.DESCRIBE_GROUPS, group_id):
            found = room.described(group_id, partial(described, group_id))
            groups.append(_nothing(group_id, NO_ROOM, no_room, "") if found is None else found)
        else:
            groups.append(_nothing(group_id, checks.DESCRIBE_GROUPS.error, None, ""))
    return {"Groups": groups}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every group with the same error."""
    return {"Groups": [_nothing(group_id, error, None, "") for group_id in body["Groups"]]}


def _describe(ctx: ApiContext, group_id: str, operations: int, request: RequestContext) -> Body:
    groups = ctx.groups
    text = f"Group {group_id} not found."
    try:
        found = groups.describe(group_id)
    except KafkaError as error:  # of this group only: the others are described
        if error.error is not Errors.GROUP_ID_NOT_FOUND:
            return _nothing(group_id, error.error, None, "")
        found, text = None, error.message or text
    if found is not None:
        return _group(found, operations)
    if request.api_version < FIRST_WITH_TEXT:
        response = _nothing(group_id, Errors.NONE, None, GroupState.DEAD.value)
        response["AuthorizedOperations"] = operations
        return response
    return _nothing(group_id, Errors.GROUP_ID_NOT_FOUND, text, GroupState.DEAD.value)


def _group(group: DescribedGroup, operations: int) -> Body:
    return {
        **_nothing(group.group_id, Errors.NONE, None, group.state.value),
        "ProtocolType": group.protocol_type,
        "ProtocolData": group.protocol_name,
        "Members": [
            {
                "MemberId": member.member_id,
                "GroupInstanceId": member.group_instance_id,
                "ClientId": member.client_id,
                "ClientHost": member.client_host,
                "MemberMetadata": member.metadata,
                "MemberAssignment": member.assignment,
            }
            for member in group.members
        ],
        "AuthorizedOperations": operations,
    }


def _nothing(group_id: str, error: Errors, text: str | None, state: str) -> Body:
    return {
        "ErrorCode": int(error),
        "ErrorMessage": text,
        "GroupId": group_id,
        "GroupState": state,
        "ProtocolType": "",
        "ProtocolData": "",
        "Members": [],
        "AuthorizedOperations": OPERATIONS_NOT_ASKED,
    }
