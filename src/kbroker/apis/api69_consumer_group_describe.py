"""ConsumerGroupDescribe: epochs, state and members of consumer groups (KIP-848)."""

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
from kbroker.common.errors import Errors
from kbroker.common.feature_versions import GROUP_VERSION
from kbroker.coordinator.consumer_groups import DescribedConsumerMember
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each group, duplicates included; GROUP_ID_NOT_FOUND if it is not a consumer group."""
    if ctx.features.level(GROUP_VERSION) < 1 or not ctx.groups.consumer_groups.settings.is_enabled:
        return failure(body, Errors.UNSUPPORTED_VERSION, request)
    how = Description(checks.CONSUMER_GROUP_DESCRIBE_GROUP, lambda group_id: _describe(ctx, group_id))
    topics = Topics(
        checks.CONSUMER_GROUP_DESCRIBE, lambda group: assigned_topics(group, "Assignment", "TargetAssignment")
    )
    return describe_groups(ctx, body, request, how, topics)


def _describe(ctx: ApiContext, group_id: str) -> Body:
    group = ctx.groups.consumer_groups.describe(group_id)
    return {**group_row(group, [_member(ctx, one) for one in group.members]), "AssignorName": group.assignor}


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
        "Assignment": assignment_row(ctx, described.owned),
        "TargetAssignment": assignment_row(ctx, described.target),
        "MemberType": CLASSIC_MEMBER if member.uses_classic_protocol else CONSUMER_MEMBER,
    }
