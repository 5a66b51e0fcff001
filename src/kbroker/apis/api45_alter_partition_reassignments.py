"""AlterPartitionReassignments: a partition can only be assigned to this broker, which already has it."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.topic_rules import check_assignment
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.response_room import ResponseRoom
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Respond for each partition: an assignment to this broker is done at once; null finds none to cancel."""
    ctx.auth.require(request, checks.ALTER_PARTITION_REASSIGNMENTS)
    room = ResponseRoom()  # for topic names, which are repeated by partition
    topics = []
    for topic in body["Topics"]:
        rows = []
        for row in topic["Partitions"]:
            index = row["PartitionIndex"]
            try:
                _reassign(ctx, topic["Name"], index, row["Replicas"])
                rows.append(_row(index, Errors.NONE, None))
            except KafkaError as error:
                rows.append(_row(index, error.error, room.text(error.message) if error.message else None))
        topics.append({"Name": topic["Name"], "Partitions": rows})
    return _response(body, Errors.NONE, None, topics)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the error for the request and for every partition."""
    topics = []
    for topic in body["Topics"]:
        rows = [_row(row["PartitionIndex"], error, error.message) for row in topic["Partitions"]]
        topics.append({"Name": topic["Name"], "Partitions": rows})
    return _response(body, error, error.message, topics)


def _reassign(ctx: ApiContext, name: str, index: int, replicas: Sequence[int] | None) -> None:
    view = ctx.topics.get(name)
    if view is None:
        raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < len(view.partitions):
        raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if replicas is None:
        raise KafkaError(Errors.NO_REASSIGNMENT_IN_PROGRESS, "")
    check_assignment(replicas, ctx.node_id)


def _row(index: int, error: Errors, text: str | None) -> Body:
    return {"PartitionIndex": index, "ErrorCode": int(error), "ErrorMessage": text}


def _response(body: Body, error: Errors, text: str | None, topics: list[Body]) -> Body:
    return {
        "AllowReplicationFactorChange": body.get("AllowReplicationFactorChange", True),
        "ErrorCode": int(error),
        "ErrorMessage": text,
        "Responses": topics,
    }
