"""DeleteRecords: moves the start of a log."""

from __future__ import annotations

from typing import Any

from kbroker.common.errors import Errors
from kbroker.requests.cluster import led_partition
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import each_partition
from kbroker.security.authorizer import checks

TO_THE_END = -1


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Move the log starts and respond for each partition at once, since there are no replicas to wait for.

    As in Kafka, a topic without partitions is not in the response, and if a partition is named twice, the last offset
    counts. The starts are on disk before the response; Kafka writes them once a minute and relies on replicas.
    """
    allowed = ctx.auth.allowed(request, checks.DELETE_RECORDS, (topic["Name"] for topic in body["Topics"]))
    wanted: dict[str, dict[int, int]] = {}
    for topic in body["Topics"]:
        for row in topic["Partitions"]:
            wanted.setdefault(topic["Name"], {})[row["PartitionIndex"]] = row["Offset"]
    topics: list[Body] = []
    for name, offsets in wanted.items():
        refused = _refused(ctx, name) if name in allowed else checks.DELETE_RECORDS.error
        rows = [_cut(*_found(ctx, name, index, refused), index, offset) for index, offset in offsets.items()]
        topics.append({"Name": name, "Partitions": rows})
    cut = [(topic["Name"], row) for topic in topics for row in topic["Partitions"] if row["LowWatermark"] > 0]
    unwritten = ctx.topics.write_log_starts((name, row["PartitionIndex"]) for name, row in cut)
    for name, row in cut:
        if (name, row["PartitionIndex"]) in unwritten:
            row.update(_response(row["PartitionIndex"], Errors.KAFKA_STORAGE_ERROR))
    return {"Topics": topics}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    return {"Topics": each_partition(body, lambda index: _response(index, error))}


def _refused(ctx: ApiContext, name: str) -> Errors | None:
    """Return the reason why records of the topic cannot be deleted, or None."""
    view = ctx.topics.get(name)
    if view is None:
        return Errors.UNKNOWN_TOPIC_OR_PARTITION
    if view.is_internal:
        return Errors.INVALID_TOPIC_EXCEPTION
    policy = ctx.config.topic_configs(view.configs)["cleanup.policy"]
    if isinstance(policy, tuple) and "compact" in policy and "delete" not in policy:
        return Errors.POLICY_VIOLATION
    return None


def _found(ctx: ApiContext, name: str, index: int, refused: Errors | None) -> tuple[Any, Errors]:
    """Return the log of a partition, or None and the error; ``refused``: error of all partitions that exist."""
    log, error = led_partition(ctx, name, index)
    if refused is None or (error is Errors.UNKNOWN_TOPIC_OR_PARTITION and refused is not checks.DELETE_RECORDS.error):
        return log, error
    return None, refused


def _cut(log: Any, error: Errors, index: int, offset: int) -> Body:
    if error is not Errors.NONE:
        return _response(index, error)
    if offset < TO_THE_END or offset > log.high_watermark:
        return _response(index, Errors.OFFSET_OUT_OF_RANGE)
    try:
        start = log.delete_records(offset)
    except ValueError:  # just deleted: a high watermark never decreases
        return _response(index, Errors.UNKNOWN_TOPIC_OR_PARTITION)
    return {"PartitionIndex": index, "LowWatermark": start, "ErrorCode": 0}


def _response(index: int, error: Errors) -> Body:
    return {"PartitionIndex": index, "LowWatermark": -1, "ErrorCode": int(error)}
