"""AlterReplicaLogDirs: moves partitions to other log folders; the response does not wait for the copying."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.cluster import is_replica
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import partition_row
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Begin to move each partition that is not yet in the folder."""
    ctx.auth.require(request, checks.ALTER_REPLICA_LOG_DIRS)

    def move(path: str, name: str, index: int) -> Errors:
        try:
            ctx.topics.move(name, index, path)
        except KafkaError as error:
            return error.error
        return Errors.NONE if is_replica(ctx, name, index) else Errors.NOT_LEADER_OR_FOLLOWER

    return _response(body, move)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    return _response(body, lambda path, name, index: error)


def _response(body: Body, judge: Callable[[str, str, int], Errors]) -> Body:
    topics: dict[str, dict[int, Body]] = {}
    for folder in body["Dirs"]:
        for topic in folder["Topics"]:
            rows = topics.setdefault(topic["Name"], {})
            for index in topic["Partitions"]:
                rows[index] = partition_row(index, judge(folder["Path"], topic["Name"], index))
    named = ((name, rows) for name, rows in topics.items() if rows)  # a topic without partitions has no row
    return {"Results": [{"TopicName": name, "Partitions": list(rows.values())} for name, rows in named]}
