"""ElectLeaders: the preferred leaders of partitions, or a leader for those without one."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.errors import Errors
from kbroker.metadata.partition_changes import PartitionChanges
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.response_room import ResponseRoom
from kbroker.security.authorizer import checks

PREFERRED, UNCLEAN = 0, 1


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return a result for each named partition; for null each topic with the partitions that needed an election."""
    ctx.auth.require(request, checks.ELECT_LEADERS)
    kind = body.get("ElectionType", PREFERRED)
    if body["TopicPartitions"] == []:  # nothing to elect: Kafka ignores the type
        return {"ErrorCode": 0, "ReplicaElectionResults": []}
    if kind not in (PREFERRED, UNCLEAN):
        return _failed(body, Errors.INVALID_REQUEST, f"Unknown election type {kind}", request)
    named = body["TopicPartitions"]
    wanted = None if named is None else [(row["Topic"], index) for row in named for index in _once(row)]
    room = ResponseRoom()  # for topic names, which are repeated by partition
    names = [view.name for view in ctx.topics.all()] if named is None else [row["Topic"] for row in named]
    topics: dict[str, list[Body]] = {name: [] for name in names}
    for one in PartitionChanges(ctx.controller, ctx.node_id).elect(wanted, is_unclean=kind == UNCLEAN):
        rows = topics.setdefault(one.topic, [])
        if named is not None or one.error is not Errors.ELECTION_NOT_NEEDED:
            rows.append(_response(one.partition, one.error, one.message and room.text(one.message)))
    results = [{"Topic": name, "PartitionResult": rows} for name, rows in topics.items()]
    return {"ErrorCode": 0, "ReplicaElectionResults": results}


def _once(row: Body) -> Iterable[int]:
    return dict.fromkeys(row["Partitions"])


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
