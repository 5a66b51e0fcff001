"""DescribeGroups: state and members of each named group."""

from __future__ import annotations

from kbroker.apis.described_groups import Description, describe_each, empty_row
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.classic_group import GroupState
from kbroker.coordinator.group_coordinator import DescribedGroup
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.response_room import NO_ROOM_TEXT
from kbroker.security.authorizer import checks

FIRST_WITH_TEXT = 6  # first version with an error text, and an error for unknown groups
WITH_PROTOCOL: Body = {"ProtocolType": "", "ProtocolData": ""}


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each group, duplicates included; an unknown group is Dead, from v6 GROUP_ID_NOT_FOUND."""
    how = Description(
        checks.DESCRIBE_GROUPS,
        lambda group_id: _describe(ctx, group_id, request.api_version),
        lambda _: None,
        own=WITH_PROTOCOL,
        no_room=NO_ROOM_TEXT if request.api_version >= FIRST_WITH_TEXT else None,
        is_id_required=False,
    )
    return {"Groups": describe_each(ctx, body["Groups"], body.get("IncludeAuthorizedOperations", False), request, how)}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every group with the same error."""
    return {"Groups": [empty_row(group_id, error, None, WITH_PROTOCOL) for group_id in body["Groups"]]}


def _describe(ctx: ApiContext, group_id: str, version: int) -> Body:
    text = f"Group {group_id} not found."
    try:
        found = ctx.groups.describe(group_id)
    except KafkaError as error:
        if error.error is not Errors.GROUP_ID_NOT_FOUND:
            raise
        found, text = None, error.message or text
    if found is None and version >= FIRST_WITH_TEXT:
        row = empty_row(group_id, Errors.GROUP_ID_NOT_FOUND, text, WITH_PROTOCOL)
        return {**row, "GroupState": GroupState.DEAD.value}
    group = found or DescribedGroup(group_id, GroupState.DEAD, "", "", [])
    return {
        "ErrorCode": 0,
        "ErrorMessage": None,
        "GroupId": group.group_id,
        "GroupState": group.state.value,
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
    }
