"""Metadata: this broker, its topics by name or id, and topics made on the way."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from kbroker.common.errors import Errors
from kbroker.common.java.java_text import replace_invalid_utf8
from kbroker.common.light_typing import Any
from kbroker.server.context import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    TOPIC_OPERATIONS,
    ApiContext,
    Body,
    RequestContext,
)
from kbroker.server.topic_rules import INTERNAL_TOPICS, invalid_name_reason
from kbroker.server.topics import ZERO_ID, TopicView


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe all topics (null; an empty list in v0), none (an empty list), those named, or those with the ids
    given.

    Ids count from v12, and then names beside them do not (as 4.3.1 does). A topic that the request creates is
    in its response: Kafka returns UNKNOWN_TOPIC_OR_PARTITION for another 40 to 350 ms, until its other parts know the
    topic, and a client that sees the error first and the topic next may miss the change (kafka-go).
    """
    asked = body["Topics"]
    version = request.api_version
    operations = TOPIC_OPERATIONS if body["IncludeTopicAuthorizedOperations"] else OPERATIONS_NOT_ASKED
    if asked is None or (version == 0 and not asked):
        topics = [_topic(ctx, view, operations) for view in ctx.topics.all()]
    else:
        ids = [row["TopicId"] for row in asked if row["TopicId"] != ZERO_ID]
        nameless = any(row["Name"] is None for row in asked)
        if version < 12 and (ids or nameless):
            return failure(body, Errors.INVALID_REQUEST, request)
        if nameless and not ids:
            return failure(body, Errors.UNKNOWN_SERVER_ERROR, request)
        if ids:
            topics = [_by_id(ctx, topic_id, operations) for topic_id in dict.fromkeys(ids)]
        else:
            names = dict.fromkeys(row["Name"] for row in asked)
            may_create = body["AllowAutoTopicCreation"] and ctx.config.boolean("auto.create.topics.enable")
            topics = _by_name(ctx, names, operations, may_create, request)
    endpoint = ctx.endpoint(request.listener)
    rack = ctx.config.text("broker.rack") or None
    response: Body = {
        "Brokers": [{"NodeId": ctx.node_id, "Host": endpoint.host, "Port": endpoint.port, "Rack": rack}],
        "ClusterId": ctx.cluster_id,
        "ControllerId": ctx.node_id,
        "Topics": topics,
    }
    if body["IncludeClusterAuthorizedOperations"]:
        response["ClusterAuthorizedOperations"] = CLUSTER_OPERATIONS
    return response


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """No brokers, and every topic asked for with the same error."""
    topics = [_unknown(row["Name"] or "", row["TopicId"], error) for row in body["Topics"] or ()]
    return {"Brokers": [], "ClusterId": None, "ControllerId": -1, "Topics": topics, "ErrorCode": int(error)}


def _by_name(
    ctx: ApiContext, names: Iterable[str], operations: int, may_create: bool, request: RequestContext
) -> list[Body]:
    topics: list[Body] = []
    missing: dict[str, int] = {}  # and where its row is
    for name in names:
        view = ctx.topics.get(name)
        if view is None and name in INTERNAL_TOPICS and may_create:
            ctx.topics.auto_create([name])  # Kafka's coordinator has made it before any client asks
            view = ctx.topics.get(name)
        if view is not None:
            topics.append(_topic(ctx, view, operations))
        elif invalid_name_reason(name) is not None:
            topics.append(_unknown(replace_invalid_utf8(name), ZERO_ID, Errors.INVALID_TOPIC_EXCEPTION))
        else:
            missing[name] = len(topics)
            topics.append(_unknown(name, ZERO_ID, Errors.UNKNOWN_TOPIC_OR_PARTITION))
    if missing and may_create:  # over the mutation quota a topic is not made, and nothing in the response shows it
        ctx.topics.auto_create(missing, ctx.mutation_quota(request, is_strict=True).record)
        for name, row in missing.items():
            view = ctx.topics.get(name)
            if view is not None:
                topics[row] = _topic(ctx, view, operations)
    return topics


def _by_id(ctx: ApiContext, topic_id: uuid.UUID, operations: int) -> Body:
    view = ctx.topics.get_by_id(topic_id)
    return _topic(ctx, view, operations) if view is not None else _unknown(None, topic_id, Errors.UNKNOWN_TOPIC_ID)


def _topic(ctx: ApiContext, view: TopicView, operations: int) -> Body:
    partitions = [_partition(ctx.node_id, index, log) for index, log in enumerate(view.partitions)]
    return {
        "ErrorCode": 0,
        "Name": view.name,
        "TopicId": view.topic_id,
        "IsInternal": view.is_internal,
        "Partitions": partitions,
        "TopicAuthorizedOperations": operations,
    }


def _partition(node: int, index: int, log: Any) -> Body:
    """One whose log could not be read has no leader, as with Kafka's offline folders."""
    offline = log is None
    return {
        "ErrorCode": int(Errors.LEADER_NOT_AVAILABLE if offline else Errors.NONE),
        "PartitionIndex": index,
        "LeaderId": -1 if offline else node,
        "LeaderEpoch": 0 if offline else log.leader_epoch,
        "ReplicaNodes": [node],
        "IsrNodes": [node],
        "OfflineReplicas": [node] if offline else [],
    }


def _unknown(name: str | None, topic_id: uuid.UUID, error: Errors) -> Body:
    return {"ErrorCode": int(error), "Name": name, "TopicId": topic_id}
