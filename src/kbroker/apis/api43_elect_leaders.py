"""ElectLeaders: the preferred leaders of partitions, or any leader for partitions without a leader."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.metadata.partition_changes import PartitionChanges
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.response_room import ResponseRoom
from kbroker.security.authorizer import checks

PREFERRED, UNCLEAN = 0, 1


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return a result for each named partition; for null each topic with the partitions that needed an election.

    Topics and partitions that the request repeats are repeated in the response, as in Kafka.
    """
    ctx.auth.require(request, checks.ELECT_LEADERS)
    kind = body.get("ElectionType", PREFERRED)
    if body["TopicPartitions"] == []:  # nothing to elect: Kafka ignores the type
        return {"ErrorCode": 0, "ReplicaElectionResults": []}
    if kind not in (PREFERRED, UNCLEAN):
        return _failed(body, Errors.INVALID_REQUEST, f"Unknown election type {kind}", request)
    named = body["TopicPartitions"]
    wanted = None
    if named is not None:
        wanted = dict.fromkeys((row["Topic"], index) for row in named for index in row["Partitions"])
    room = ResponseRoom()  # for topic names, which are repeated by partition
    found: dict[str, dict[int, Body]] = {}
    for one in PartitionChanges(ctx.controller, ctx.node_id).elect(wanted, is_unclean=kind == UNCLEAN):
        rows = found.setdefault(one.topic, {})
        if named is not None or one.error is not Errors.ELECTION_NOT_NEEDED:
            rows[one.partition] = _response(one.partition, one.error, one.message and room.text(one.message))
    if named is None:
        names = dict.fromkeys((*(view.name for view in ctx.topics.all()), *found))
        results = [{"Topic": name, "PartitionResult": list(found.get(name, {}).values())} for name in names]
    else:
        results = [
            {"Topic": row["Topic"], "PartitionResult": [found[row["Topic"]][index] for index in row["Partitions"]]}
            for row in named
        ]
    return {"ErrorCode": 0, "ReplicaElectionResults": results}


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
