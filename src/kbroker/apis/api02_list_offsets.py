"""ListOffsets: start and end offsets of a log, and the first record at or after a time."""

from __future__ import annotations

from typing import Any

from kbroker.apis.api23_offset_for_leader_epoch import epoch_of_start
from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.cluster import led_partition
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import each_partition
from kbroker.security.authorizer import checks

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6

#: First version with each special timestamp; in older ones the partition gets UNSUPPORTED_VERSION.
FIRST_VERSION = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
CONSUMER = -1  # replica id; others are brokers, and -2 a debugging consumer


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Look up each partition separately; a duplicate partition gets INVALID_REQUEST once (as in 4.3.1).

    A topic without partitions is not in the response. Raises: KafkaError for an unknown isolation level.
    """
    if body["IsolationLevel"] not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR)
    seen: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    for topic in body["Topics"]:
        for row in topic["Partitions"]:
            place = (topic["Name"], row["PartitionIndex"])
            (repeated if place in seen else seen).add(place)
    allowed = ctx.auth.allowed(request, checks.LIST_OFFSETS, (topic["Name"] for topic in body["Topics"]))
    topics: dict[str, dict[int, Body]] = {}
    for topic in body["Topics"]:
        rows = topics.setdefault(topic["Name"], {})
        for row in topic["Partitions"]:
            index = row["PartitionIndex"]
            if topic["Name"] not in allowed:
                rows[index] = _response(index, checks.LIST_OFFSETS.error)
            elif (topic["Name"], index) in repeated:
                rows[index] = _response(index, Errors.INVALID_REQUEST)
            else:
                found = led_partition(ctx, topic["Name"], index, row["CurrentLeaderEpoch"])
                rows[index] = _lookup(*found, row, body, request.api_version)
    return {"Topics": [{"Name": name, "Partitions": list(rows.values())} for name, rows in topics.items() if rows]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    return {"Topics": each_partition(body, lambda index: _response(index, error))}


def _lookup(log: Any, error: Errors, row: Body, body: Body, version: int) -> Body:
    """Look up a partition. Only consumers have an isolation level; for other clients LATEST is the log end."""
    index, timestamp = row["PartitionIndex"], row["Timestamp"]
    if timestamp < 0 and version < FIRST_VERSION.get(timestamp, 1 << 15):
        return _response(index, Errors.UNSUPPORTED_VERSION)
    if error is not Errors.NONE:
        return _response(index, error)
    is_committed = body["ReplicaId"] == CONSUMER and body["IsolationLevel"] == READ_COMMITTED
    end = log.last_stable_offset if is_committed else log.high_watermark
    if timestamp == LATEST:
        latest = end if body["ReplicaId"] == CONSUMER else log.log_end_offset
        return _found(index, -1, latest, log.leader_epoch, version)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _earliest(log, index, version)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _response(index, Errors.NONE)  # nothing is tiered
    try:
        found = log.offset_for_timestamp(timestamp, isolation=1 if is_committed else 0)
    except OSError:  # counted and logged as a failed read
        return _response(index, Errors.KAFKA_STORAGE_ERROR)
    except ValueError:  # just deleted
        return _response(index, Errors.UNKNOWN_TOPIC_OR_PARTITION)
    if found.offset < 0 or found.offset >= end:
        return _response(index, Errors.NONE)
    return _found(index, found.timestamp_ms, found.offset, found.leader_epoch, version)


def _earliest(log: Any, index: int, version: int) -> Body:
    """Return the start of the log, with the epoch of the first record, by which clients detect a truncated log."""
    start = log.log_start_offset
    epoch = epoch_of_start(log.leader_epochs(), log.leader_epoch, start, log.log_end_offset)
    return _found(index, -1, start, epoch, version)


def _found(index: int, timestamp: int, offset: int, leader_epoch: int, version: int) -> Body:
    response = _response(index, Errors.NONE)
    response.update(Timestamp=timestamp, Offset=offset)
    if version >= 4:
        response["LeaderEpoch"] = leader_epoch
    return response


def _response(index: int, error: Errors) -> Body:
    return {"PartitionIndex": index, "ErrorCode": int(error), "Timestamp": -1, "Offset": -1, "LeaderEpoch": -1}
