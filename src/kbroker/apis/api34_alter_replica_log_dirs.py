"""AlterReplicaLogDirs: with one log folder a partition can only be moved to where it is."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.apis.api35_describe_log_dirs import folder_path
from kbroker.common.errors import Errors
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Respond for each partition: done if the folder named is ours, LOG_DIR_NOT_FOUND if it is another."""
    ctx.auth.require(request, checks.ALTER_REPLICA_LOG_DIRS)
    ours = folder_path(ctx)

    def judge(path: str, name: str, index: int) -> Errors:
        if path != ours:
            return Errors.LOG_DIR_NOT_FOUND
        if ctx.topics.is_offline(name, index):
            return Errors.KAFKA_STORAGE_ERROR
        return Errors.UNKNOWN_TOPIC_OR_PARTITION if ctx.topics.partition(name, index) is None else Errors.NONE

    return _response(body, judge)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Every partition with the same error."""
    return _response(body, lambda path, name, index: error)


def _response(body: Body, judge: Callable[[str, str, int], Errors]) -> Body:
    topics: dict[str, dict[int, Body]] = {}
    for folder in body["Dirs"]:
        for topic in folder["Topics"]:
            rows = topics.setdefault(topic["Name"], {})
            for index in topic["Partitions"]:
                error = judge(folder["Path"], topic["Name"], index)
                rows[index] = {"PartitionIndex": index, "ErrorCode": int(error)}
    named = ((name, rows) for name, rows in topics.items() if rows)  # no row for a topic without partitions
    return {"Results": [{"TopicName": name, "Partitions": list(rows.values())} for name, rows in named]}
