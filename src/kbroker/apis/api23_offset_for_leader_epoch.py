"""OffsetForLeaderEpoch: end offsets of epochs, by which a client detects a truncated log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Any

from kbroker.common.errors import Errors
from kbroker.requests.cluster import led_partition
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import each_partition
from kbroker.security.authorizer import checks

UNKNOWN = -1


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Respond for each partition separately."""
    names = [topic["Topic"] for topic in body["Topics"]]
    allowed: Collection[str] = frozenset(names)
    if not ctx.auth.allows(request, checks.OFFSET_FOR_LEADER_EPOCH_ANY):
        allowed = ctx.auth.allowed(request, checks.OFFSET_FOR_LEADER_EPOCH, names)
    topics = []
    for topic in body["Topics"]:
        name = topic["Topic"]
        rows = []
        for row in topic["Partitions"]:
            index = row["Partition"]
            if name not in allowed:
                rows.append(_response(index, checks.OFFSET_FOR_LEADER_EPOCH.error))
            else:
                rows.append(_look_up(*led_partition(ctx, name, index, row["CurrentLeaderEpoch"]), row))
        topics.append({"Topic": name, "Partitions": rows})
    return {"Topics": topics}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    rows = each_partition(body, lambda index: _response(index, error), topic_name="Topic", index="Partition")
    return {"Topics": rows}


def epochs_from(epochs: Sequence[tuple[int, int]], log_start: int) -> Sequence[tuple[int, int]]:
    """Return the epochs of the records from the start of the log on.

    Source: ``LeaderEpochFileCache.truncateFromStartAsyncFlush``.
    """
    below = bisect_right(epochs, log_start, key=lambda entry: entry[1])
    return [(epochs[below - 1][0], log_start), *epochs[below:]] if below > 0 else epochs


def epoch_of_start(epochs: Sequence[tuple[int, int]], latest: int, log_start: int, log_end: int) -> int:
    """Return the epoch of the first record, or of the next one in a log without records; -1: unknown.

    Args: ``epochs``: pairs of epoch and first offset, rising; ``latest``: the leader's epoch, which is among them once
    it has records; ``log_end``: its end offset.
    Source: ``UnifiedLog.fetchOffsetByTimestamp``.
    """
    epoch, start = epochs_from(_with_latest(epochs, latest, log_end), log_start)[0]
    return epoch if start <= log_start else UNKNOWN


def _with_latest(epochs: Sequence[tuple[int, int]], latest: int, log_end: int) -> Sequence[tuple[int, int]]:
    """Add the leader's epoch if it has no records yet, as Kafka does at the election."""
    return epochs if epochs and epochs[-1][0] >= latest else [*epochs, (latest, log_end)]


def _look_up(log: Any, error: Errors, row: Body) -> Body:
    index = row["Partition"]
    if error is not Errors.NONE:
        return _response(index, error)
    epoch, end = log.end_of_epoch(row["LeaderEpoch"])
    return {"ErrorCode": 0, "Partition": index, "LeaderEpoch": epoch, "EndOffset": end}


def _response(index: int, error: Errors) -> Body:
    return {"ErrorCode": int(error), "Partition": index, "LeaderEpoch": UNKNOWN, "EndOffset": UNKNOWN}
