"""ElectLeaders: one broker leads every partition, so none needs an election."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.response_room import ResponseRoom
from kbroker.security.authorizer import checks

PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED = "Leader election not needed for topic partition."


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return a result for each named partition; for null each topic without any, since none needs an election."""
    ctx.auth.require(request, checks.ELECT_LEADERS)
    kind = body.get("ElectionType", PREFERRED)
    if body["TopicPartitions"] == []:  # nothing to elect: Kafka ignores the type
        return {"ErrorCode": 0, "ReplicaElectionResults": []}
    if kind not in (PREFERRED, UNCLEAN):
        return _failed(body, Errors.INVALID_REQUEST, f"Unknown election type {kind}", request)
    if body["TopicPartitions"] is None:
        rest = [{"Topic": view.name, "PartitionResult": []} for view in ctx.topics.all()]
        return {"ErrorCode": 0, "ReplicaElectionResults": rest}
    room = ResponseRoom()  # for topic names, which are repeated by partition
    topics = []
    for topic in body["TopicPartitions"]:
        name, view = topic["Topic"], ctx.topics.get(topic["Topic"])
        rows = []
        for index in dict.fromkeys(topic["Partitions"]):
            if view is None:
                text = room.text(f"No such topic as {name}")
                rows.append(_response(index, Errors.UNKNOWN_TOPIC_OR_PARTITION, text))
            elif not 0 <= index < len(view.partitions):
                text = f"No such partition as {name}-{index}"
                rows.append(_response(index, Errors.UNKNOWN_TOPIC_OR_PARTITION, text))
            else:
                rows.append(_response(index, Errors.ELECTION_NOT_NEEDED, NOT_NEEDED))
        topics.append({"Topic": name, "PartitionResult": rows})
    return {"ErrorCode": 0, "ReplicaElectionResults": topics}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    return _failed(body, error, error.message, request)


def _failed(body: Body, error: Errors, text: str, request: RequestContext) -> Body:
    topics = []
    for topic in body["TopicPartitions"] or ():
        rows = [_response(index, error, text) for index in topic["Partitions"]]
        topics.append({"Topic": topic["Topic"], "PartitionResult": rows})
    response: Body = {"ReplicaElectionResults": topics}
    if request.api_version >= 1:  # v0 has no field for it
        response["ErrorCode"] = int(error)
    return response


def _response(index: int, error: Errors, text: str | None) -> Body:
    return {"PartitionId": index, "ErrorCode": int(error), "ErrorMessage": text}
