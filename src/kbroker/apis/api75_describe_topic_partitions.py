"""DescribeTopicPartitions: topics partition by partition, in pages."""

from __future__ import annotations

from collections.abc import Collection

from kbroker.common.errors import Errors
from kbroker.common.topic_names import INTERNAL_TOPICS, invalid_name_reason
from kbroker.metadata.topics import ZERO_ID, TopicView
from kbroker.requests.cluster import live_nodes, partition_state
from kbroker.requests.context import OPERATIONS_NOT_ASKED, ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe the named topics, or all, in the order of their names, from the cursor on, up to the partition limit."""
    cursor = body["Cursor"]
    asked = sorted({row["Name"] for row in body["Topics"]})
    if cursor is not None and (cursor["PartitionIndex"] < 0 or (asked and cursor["TopicName"] not in asked)):
        return failure(body, Errors.INVALID_REQUEST, request)
    names = asked or [view.name for view in ctx.topics.all()]
    if cursor is not None:
        names = [name for name in names if name >= cursor["TopicName"]]
    if "" in names:
        return failure(body, Errors.UNKNOWN_SERVER_ERROR, request)
    allowed = ctx.auth.allowed(request, checks.DESCRIBE_TOPIC_PARTITIONS, names)
    error = checks.DESCRIBE_TOPIC_PARTITIONS.error  # it does not reveal whether a topic exists
    refused = [_error(name, error) for name in names if asked and name not in allowed]
    names = [name for name in names if name in allowed]
    room = max(1, min(body["ResponsePartitionLimit"], ctx.config.integer("max.request.partition.size.limit")))
    live = live_nodes(ctx, request.listener)
    topics: list[Body] = []
    for name in names:
        if room <= 0:
            return {"Topics": topics + refused, "NextCursor": {"TopicName": name, "PartitionIndex": 0}}
        view = ctx.topics.get(name)
        if view is None:
            topics.append({**_unknown(name), "TopicAuthorizedOperations": _operations(ctx, request, name)})
            continue
        is_at_cursor = cursor is not None and name == cursor["TopicName"]
        first = min(cursor["PartitionIndex"] if is_at_cursor else 0, len(view.partitions))
        last = min(len(view.partitions), first + room)
        topics.append(_topic(ctx, view, range(first, last), _operations(ctx, request, name), live))
        if last < len(view.partitions):
            return {"Topics": topics + refused, "NextCursor": {"TopicName": name, "PartitionIndex": last}}
        room -= last - first
    return {"Topics": topics + refused, "NextCursor": None}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every topic with the same error."""
    return {"Topics": [_error(row["Name"], error) for row in body["Topics"]], "NextCursor": None}


def _operations(ctx: ApiContext, request: RequestContext, name: str) -> int:
    return ctx.auth.operations(request, checks.TOPIC, name)


def _topic(ctx: ApiContext, view: TopicView, indexes: range, operations: int, live: Collection[int]) -> Body:
    return {
        "ErrorCode": 0,
        "Name": view.name,
        "TopicId": view.topic_id,
        "IsInternal": view.is_internal,
        "Partitions": [_partition(ctx, view, index, live) for index in indexes],
        "TopicAuthorizedOperations": operations,
    }


def _partition(ctx: ApiContext, view: TopicView, index: int, live: Collection[int]) -> Body:
    state = partition_state(ctx, view, index, live)
    return {
        "ErrorCode": 0,  # even without a leader, as in Kafka
        "PartitionIndex": index,
        "LeaderId": state.leader,
        "LeaderEpoch": state.leader_epoch,
        "ReplicaNodes": state.replicas,
        "IsrNodes": state.isr,
        "EligibleLeaderReplicas": state.elr,
        "LastKnownElr": state.last_known_elr,
        "OfflineReplicas": state.offline,
    }


def _unknown(name: str) -> Body:
    bad = invalid_name_reason(name) is not None
    row = _error(name, Errors.INVALID_TOPIC_EXCEPTION if bad else Errors.UNKNOWN_TOPIC_OR_PARTITION)
    return {**row, "IsInternal": name in INTERNAL_TOPICS}


def _error(name: str, error: Errors) -> Body:
    return {
        "ErrorCode": int(error),
        "Name": name,
        "TopicId": ZERO_ID,
        "IsInternal": False,
        "Partitions": [],
        "TopicAuthorizedOperations": OPERATIONS_NOT_ASKED,
    }
