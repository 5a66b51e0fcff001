"""AlterPartitionReassignments: other replicas of partitions. The nodes share their logs, so nothing is copied."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.partition_changes import PartitionChanges
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.response_room import ResponseRoom
from kbroker.requests.rows import each_partition
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Respond for each partition: an assignment to nodes that serve is complete at once; null cancels it."""
    ctx.auth.require(request, checks.ALTER_PARTITION_REASSIGNMENTS)
    if not body["Topics"]:
        return _response({}, Errors.NONE, "", [])  # not null: as in Kafka
    room = ResponseRoom()  # for topic names, which are repeated by partition
    changes = PartitionChanges(ctx.controller, ctx.node_id)
    may_change_factor = body.get("AllowReplicationFactorChange", True)
    topics = []
    for topic in body["Topics"]:
        rows = []
        for row in topic["Partitions"]:
            index = row["PartitionIndex"]
            try:
                changes.reassign(topic["Name"], index, row["Replicas"], may_change_factor=may_change_factor)
                rows.append(_row(index, Errors.NONE, None))
            except KafkaError as error:
                rows.append(_row(index, error.error, room.text(error.message) if error.message else None))
        topics.append({"Name": topic["Name"], "Partitions": rows})
    return _response(body, Errors.NONE, None, topics)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the error for the request and for every partition."""
    topics = each_partition(body, lambda index: _row(index, error, error.message))
    return _response({}, error, error.message, topics)


def _row(index: int, error: Errors, text: str | None) -> Body:
    return {"PartitionIndex": index, "ErrorCode": int(error), "ErrorMessage": text}


def _response(body: Body, error: Errors, text: str | None, topics: list[Body]) -> Body:
    """Return the response; ``AllowReplicationFactorChange`` is that of ``body``, true if it has none, as in Kafka."""
    return {
        "AllowReplicationFactorChange": body.get("AllowReplicationFactorChange", True),
        "ErrorCode": int(error),
        "ErrorMessage": text,
        "Responses": topics,
    }
