"""DescribeQuorum: the quorum of the metadata log: this node, or all nodes of an embedded cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.common.errors import Errors
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC
from kbroker.requests.cluster import controller_id
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import NOT_HOSTED
from kbroker.security.authorizer import checks

FIRST_WITH_NODES = 2


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe partition 0 of the metadata topic if the request names only that partition.

    For any other request, each partition has UNKNOWN_TOPIC_OR_PARTITION and the response has no nodes, as in Kafka.
    Java requires exactly one topic with one partition.
    """
    ctx.auth.require(request, checks.DESCRIBE_QUORUM)
    wanted = [(topic["TopicName"], [row["PartitionIndex"] for row in topic["Partitions"]]) for topic in body["Topics"]]
    is_known = wanted == [(CLUSTER_METADATA_TOPIC, [0])]
    topics = [
        {
            "TopicName": name,
            "Partitions": [_quorum(ctx, request.api_version) if is_known else _unknown(index) for index in indexes],
        }
        for name, indexes in wanted
    ]
    response: Body = {"ErrorCode": 0, "ErrorMessage": "", "Topics": topics}
    if request.api_version >= FIRST_WITH_NODES:
        nodes = _serving(ctx) if is_known else {}
        response["Nodes"] = [{"NodeId": node_id, "Listeners": rows} for node_id, rows in nodes.items()]
    return response


def _serving(ctx: ApiContext) -> dict[int, list[Body]]:
    """Return the listeners of each voter that serves: of this node, or of all nodes of an embedded cluster."""
    found: dict[int, Mapping[str, tuple[Any, ...]]] = {ctx.node_id: ctx.endpoints}
    if ctx.config.integer("kbroker.brokers") > 1:
        found |= {one.broker_id: one.listeners for one in ctx.image.brokers.values() if not one.is_fenced}
    return {
        node_id: [{"Name": name, "Host": at[0], "Port": at[1]} for name, at in listeners.items()]
        for node_id, listeners in sorted(found.items())
    }


def _quorum(ctx: ApiContext, version: int) -> Body:
    now_ms, end_offset = ctx.clock.wall_ms(), ctx.image.offset + 1
    live = _serving(ctx)
    voters = {*live, *(ctx.image.brokers if ctx.config.integer("kbroker.brokers") > 1 else ())}

    def voter(node_id: int) -> Body:
        serves = node_id in live
        row: Body = {
            "ReplicaId": node_id,
            "LogEndOffset": end_offset if serves else -1,
            "LastFetchTimestamp": now_ms if serves else -1,
            "LastCaughtUpTimestamp": now_ms if serves else -1,
        }
        if version >= FIRST_WITH_NODES:
            row["ReplicaDirectoryId"] = ctx.controller.directory_id
        return row

    return {
        "PartitionIndex": 0,
        "ErrorCode": 0,
        "ErrorMessage": "",
        "LeaderId": controller_id(ctx, live),
        "LeaderEpoch": ctx.controller.epoch,
        "HighWatermark": end_offset,
        "CurrentVoters": [voter(node_id) for node_id in sorted(voters)],
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
