"""StreamsGroupDescribe: epochs, state, topology and members of streams groups (KIP-1071)."""

from __future__ import annotations

from kbroker.apis.described_groups import EPOCHS, Description, Topics, describe_groups, empty_row, group_row
from kbroker.common.errors import Errors
from kbroker.common.feature_versions import STREAMS_VERSION
from kbroker.coordinator.streams_group.records import pairs, target_body
from kbroker.coordinator.streams_group.topology import described
from kbroker.coordinator.streams_groups import DescribedStreamsGroup, DescribedStreamsMember
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

WITH_TOPOLOGY: Body = {**EPOCHS, "Topology": None}
HIDDEN_TOPICS = "The described group uses topics that the client is not authorized to describe."


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each group, duplicates included; GROUP_ID_NOT_FOUND if it is not a streams group.

    Groups that exceed the response's size limit have the error NO_ROOM.
    """
    if ctx.features.level(STREAMS_VERSION) < 1 or not ctx.groups.streams_groups.settings.is_enabled:
        return failure(body, Errors.UNSUPPORTED_VERSION, request)
    how = Description(
        checks.STREAMS_GROUP_DESCRIBE_GROUP,
        lambda group_id: _group(ctx.groups.streams_groups.describe(group_id)),
        lambda error: error.message if error.error is Errors.GROUP_ID_NOT_FOUND else None,
        refused_first=True,
        own=WITH_TOPOLOGY,
    )
    return describe_groups(ctx, body, request, how, Topics(checks.STREAMS_GROUP_DESCRIBE, _topics, HIDDEN_TOPICS))


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every group with the same error."""
    return {"Groups": [empty_row(group_id, error, None, WITH_TOPOLOGY) for group_id in body["GroupIds"]]}


def _topics(group: Body) -> set[str]:
    """Return the topics of a described group's topology."""
    names: set[str] = set()
    for row in (group["Topology"] or {"Subtopologies": ()})["Subtopologies"]:
        names.update(row["SourceTopics"], row["RepartitionSinkTopics"])
        names.update(topic["Name"] for topic in (*row["RepartitionSourceTopics"], *row["StateChangelogTopics"]))
    return names


def _group(group: DescribedStreamsGroup) -> Body:
    topology = {"Epoch": group.topology_epoch, "Subtopologies": described(group.subtopologies)}
    return {**group_row(group, [_member(one) for one in group.members]), "Topology": topology}


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
        "Assignment": target_body(member.assigned.without_epochs),
        "TargetAssignment": target_body(one.target),
        "IsClassic": False,
    }
