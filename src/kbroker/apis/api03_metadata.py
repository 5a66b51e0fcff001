"""Metadata: the nodes of the cluster, topics by name or id, and automatically created topics."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping

from kbroker.common.errors import Errors
from kbroker.common.java.java_text import replace_invalid_utf8
from kbroker.common.topic_names import INTERNAL_TOPICS, invalid_name_reason
from kbroker.metadata.topics import ZERO_ID, TopicView
from kbroker.requests.cluster import controller_id, endpoint_rows, live_nodes, partition_state
from kbroker.requests.context import OPERATIONS_NOT_ASKED, ApiContext, Body, RequestContext
from kbroker.requests.forward import client_of
from kbroker.security.authorizer import checks

FIRST_WITH_LISTENER_ERROR = 6


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe all topics (null; an empty list in v0), none (an empty list), or those with the given names or ids.

    Ids count from v12; names besides them are then ignored (as in 4.3.1). A topic that the request creates is in its
    response: Kafka returns UNKNOWN_TOPIC_OR_PARTITION for another 40 to 350 ms, until the topic is in all its caches,
    and a client that sees the error first and the topic next may miss the change (kafka-go).
    """
    asked = body["Topics"]
    version = request.api_version
    nodes = live_nodes(ctx, request.listener)
    rows = _TopicRows(ctx, request, body["IncludeTopicAuthorizedOperations"], nodes)
    if asked is None or (version == 0 and not asked):
        views = ctx.topics.all()
        allowed = ctx.auth.allowed(request, checks.METADATA_ALL, (view.name for view in views))
        topics = [rows.topic(view) for view in views if view.name in allowed]
    else:
        ids = [row["TopicId"] for row in asked if row["TopicId"] != ZERO_ID]
        nameless = any(row["Name"] is None for row in asked)
        if version < 12 and (ids or nameless):
            return failure(body, Errors.INVALID_REQUEST, request)
        if nameless and not ids:
            return failure(body, Errors.UNKNOWN_SERVER_ERROR, request)
        if ids:
            topics = [rows.by_id(topic_id) for topic_id in dict.fromkeys(ids)]
        else:
            names = dict.fromkeys(row["Name"] for row in asked)
            may_create = body["AllowAutoTopicCreation"] and ctx.config.boolean("auto.create.topics.enable")
            topics = rows.by_name(names, may_create)
    response: Body = {
        "Brokers": endpoint_rows(nodes, nodes),
        "ClusterId": ctx.cluster_id,
        "ControllerId": controller_id(ctx, nodes),
        "Topics": topics,
    }
    if body["IncludeClusterAuthorizedOperations"]:
        may_see = ctx.auth.allows(request, checks.METADATA_CLUSTER)
        response["ClusterAuthorizedOperations"] = ctx.auth.operations(request, checks.CLUSTER) if may_see else 0
    return response


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return no brokers, and every named topic with the same error."""
    topics = [_unknown(row["Name"] or "", row["TopicId"], error) for row in body["Topics"] or ()]
    return {"Brokers": [], "ClusterId": None, "ControllerId": -1, "Topics": topics, "ErrorCode": int(error)}


class _TopicRows:
    """Builder of the rows of topics for one client.

    ``with_operations``: include the client's authorized operations. ``live``: nodes that serve clients.
    """

    def __init__(self, ctx: ApiContext, request: RequestContext, with_operations: bool, live: Collection[int]) -> None:
        self._ctx = ctx
        self._live = live
        self._request = request
        self._with_operations = with_operations

    def by_name(self, names: Iterable[str], may_create: bool) -> list[Body]:
        ctx = self._ctx
        allowed = ctx.auth.allowed(self._request, checks.METADATA, names)
        topics: list[Body] = []
        missing: dict[str, int] = {}  # name, and index of its row
        for name in names:
            if name not in allowed:  # checked first, to reveal nothing about the topic
                topics.append(_unknown(name, ZERO_ID, Errors.TOPIC_AUTHORIZATION_FAILED))
                continue
            view = ctx.topics.get(name)
            is_created_here = ctx.member is None and name in INTERNAL_TOPICS and may_create
            if view is None and is_created_here and self._creatable([name]):
                ctx.topics.auto_create([name])  # Kafka's coordinator has created it before any client requests it
                view = ctx.topics.get(name)
            if view is not None:
                topics.append(self.topic(view))
            else:
                missing[name] = len(topics)
                topics.append(self._missing(name))
        if missing and may_create:
            self._create(missing, topics)
        return topics

    def by_id(self, topic_id: uuid.UUID) -> Body:
        view = self._ctx.topics.get_by_id(topic_id)
        if view is None:
            return _unknown(None, topic_id, Errors.UNKNOWN_TOPIC_ID)
        if not self._ctx.auth.allows(self._request, checks.METADATA, view.name):
            return _unknown(None, topic_id, Errors.TOPIC_AUTHORIZATION_FAILED)  # the name stays unknown
        return self.topic(view)

    def _create(self, missing: Mapping[str, int], topics: list[Body]) -> None:
        """Create the topics that the client may create, and fill in their rows.

        Over the mutation quota a topic is not created, and the response does not show that. A member of a cluster
        requests the topics from the controller, and their rows stay UNKNOWN_TOPIC_OR_PARTITION, as in Kafka.
        """
        ctx, request = self._ctx, self._request
        creatable = self._creatable(missing)
        for name, row in missing.items():
            if name not in creatable:
                refused = _unknown(topics[row]["Name"], ZERO_ID, Errors.TOPIC_AUTHORIZATION_FAILED)
                topics[row] = {**refused, "IsInternal": name in INTERNAL_TOPICS}
        legal = [name for name in missing if name in creatable and invalid_name_reason(name) is None]
        if not legal:
            return
        if ctx.member is not None:
            ctx.member.topic_creation.create(legal, client_of(request), request.client_id, request.correlation_id)
            return
        ctx.topics.auto_create(legal, ctx.mutation_quota(request, is_strict=True).record)
        for name in legal:
            view = ctx.topics.get(name)
            if view is not None:
                topics[missing[name]] = self.topic(view)

    def _creatable(self, names: Iterable[str]) -> Collection[str]:
        auth = self._ctx.auth
        if auth.allows(self._request, checks.METADATA_CREATE_ANY):
            return frozenset(names)
        return auth.allowed(self._request, checks.METADATA_CREATE, names)

    def _missing(self, name: str) -> Body:
        if invalid_name_reason(name) is not None:
            row = _unknown(replace_invalid_utf8(name), ZERO_ID, Errors.INVALID_TOPIC_EXCEPTION)
        else:
            row = _unknown(name, ZERO_ID, Errors.UNKNOWN_TOPIC_OR_PARTITION)
        row["TopicAuthorizedOperations"] = self._operations(name)
        return row

    def _operations(self, name: str) -> int:
        if not self._with_operations:
            return OPERATIONS_NOT_ASKED
        return self._ctx.auth.operations(self._request, checks.TOPIC, name)

    def topic(self, view: TopicView) -> Body:
        partitions = [self._partition(view, index) for index in range(len(view.partitions))]
        return {
            "ErrorCode": 0,
            "Name": view.name,
            "TopicId": view.topic_id,
            "IsInternal": view.is_internal,
            "Partitions": partitions,
            "TopicAuthorizedOperations": self._operations(view.name),
        }

    def _partition(self, view: TopicView, index: int) -> Body:
        state = partition_state(self._ctx, view, index, self._live)
        error, replicas, isr = state.error, state.replicas, state.isr
        if error is Errors.LISTENER_NOT_FOUND and self._request.api_version < FIRST_WITH_LISTENER_ERROR:
            error = Errors.LEADER_NOT_AVAILABLE
        if self._request.api_version == 0:  # its clients expect an address for each replica
            replicas, isr = ([one for one in nodes if one in self._live] for nodes in (replicas, isr))
            if error is Errors.NONE and (len(replicas), len(isr)) != (len(state.replicas), len(state.isr)):
                error = Errors.REPLICA_NOT_AVAILABLE
        return {
            "ErrorCode": int(error),
            "PartitionIndex": index,
            "LeaderId": state.leader,
            "LeaderEpoch": state.leader_epoch,
            "ReplicaNodes": replicas,
            "IsrNodes": isr,
            "OfflineReplicas": state.offline,
        }


def _unknown(name: str | None, topic_id: uuid.UUID, error: Errors) -> Body:
    return {"ErrorCode": int(error), "Name": name, "TopicId": topic_id}
