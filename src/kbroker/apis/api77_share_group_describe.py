"""ShareGroupDescribe: epochs, state and members of share groups (KIP-932)."""

from __future__ import annotations

from kbroker.apis.described_groups import (
    Description,
    Topics,
    assigned_topics,
    assignment_row,
    describe_groups,
    failure,
    group_row,
)
from kbroker.apis.share_group_requests import are_enabled
from kbroker.common.configs.config_share import SIMPLE_ASSIGNOR
from kbroker.common.errors import Errors
from kbroker.coordinator.share_group.member import ShareGroupMember
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each group, duplicates included; GROUP_ID_NOT_FOUND if it is not a share group."""
    if not are_enabled(ctx):
        return failure(body, Errors.UNSUPPORTED_VERSION, request)
    how = Description(checks.SHARE_GROUP_DESCRIBE_GROUP, lambda group_id: _describe(ctx, group_id))
    topics = Topics(checks.SHARE_GROUP_DESCRIBE, lambda group: assigned_topics(group, "Assignment"))
    return describe_groups(ctx, body, request, how, topics)


def _describe(ctx: ApiContext, group_id: str) -> Body:
    group = ctx.groups.share_groups.describe(group_id)
    return {**group_row(group, [_member(ctx, one) for one in group.members]), "AssignorName": SIMPLE_ASSIGNOR}


def _member(ctx: ApiContext, member: ShareGroupMember) -> Body:
    return {
        "MemberId": member.member_id,
        "RackId": member.rack_id,
        "MemberEpoch": member.member_epoch,
        "ClientId": member.client_id,
        "ClientHost": member.client_host,
        "SubscribedTopicNames": sorted(member.topic_names),
        "Assignment": assignment_row(ctx, member.assigned),
    }
