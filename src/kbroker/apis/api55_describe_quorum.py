"""DescribeQuorum: one voter, which leads the quorum of the metadata log."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

FIRST_WITH_NODES = 2
NOT_HOSTED = "This server does not host this topic-partition."


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe partition 0 of the metadata topic; other partitions return UNKNOWN_TOPIC_OR_PARTITION.

    Java requires exactly one topic with one partition (quirk 18).
    """
    ctx.auth.require(request, checks.DESCRIBE_QUORUM)
    topics = []
    for topic in body["Topics"]:
        rows = []
        for asked in topic["Partitions"]:
            index = asked["PartitionIndex"]
            if (topic["TopicName"], index) == (CLUSTER_METADATA_TOPIC, 0):
                rows.append(_quorum(ctx, request.api_version))
            else:
                rows.append(_unknown(index))
        topics.append({"TopicName": topic["TopicName"], "Partitions": rows})
    response: Body = {"ErrorCode": 0, "ErrorMessage": "", "Topics": topics}
    if request.api_version >= FIRST_WITH_NODES:
        listeners = [{"Name": name, "Host": at.host, "Port": at.port} for name, at in ctx.endpoints.items()]
        response["Nodes"] = [{"NodeId": ctx.node_id, "Listeners": listeners}]
    return response


def _quorum(ctx: ApiContext, version: int) -> Body:
    now_ms, end_offset = ctx.clock.wall_ms(), ctx.image.offset + 1
    voter: Body = {
        "ReplicaId": ctx.node_id,
        "LogEndOffset": end_offset,
        "LastFetchTimestamp": now_ms,
        "LastCaughtUpTimestamp": now_ms,
    }
    if version >= FIRST_WITH_NODES:
        voter["ReplicaDirectoryId"] = ctx.controller.directory_id
    return {
        "PartitionIndex": 0,
        "ErrorCode": 0,
        "ErrorMessage": "",
        "LeaderId": ctx.node_id,
        "LeaderEpoch": ctx.controller.epoch,
        "HighWatermark": end_offset,
        "CurrentVoters": [voter],
        "Observers": [],
    }


def _unknown(index: int) -> Body:
    return {
        "PartitionIndex": index,
        "ErrorCode": int(Errors.UNKNOWN_TOPIC_OR_PARTITION),
        "ErrorMessage": NOT_HOSTED,
        "LeaderId": 0,
        "LeaderEpoch": 0,
        "HighWatermark": 0,
        "CurrentVoters": [],
        "Observers": [],
    }
