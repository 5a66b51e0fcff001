"""DescribeProducers: the active producers of partitions, and the start of their open transactions."""

from __future__ import annotations

from functools import partial
from typing import Any

from kbroker.common.errors import Errors
from kbroker.common.topic_names import invalid_name_reason
from kbroker.log._partition_log import active_producers
from kbroker.requests.cluster import led_partition
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.response_room import NO_ROOM_TEXT, ResponseRoom
from kbroker.requests.rows import NOT_HOSTED
from kbroker.security.authorizer import checks

NO_ROOM = Errors.UNKNOWN_TOPIC_OR_PARTITION  # the only error after which Java's Admin always retries


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each partition separately, duplicates included.

    Partitions that exceed the response's size limit have the error NO_ROOM.
    """
    room = ResponseRoom()
    topics = []
    for topic in body["Topics"]:
        name = topic["Name"]
        reason = invalid_name_reason(name)
        invalid = f"Topic name is invalid: {reason}"
        is_allowed = reason is not None or ctx.auth.allows(request, checks.DESCRIBE_PRODUCERS, name)
        rows = []
        for index in topic["PartitionIndexes"]:
            if reason is not None:
                rows.append(_response(index, Errors.INVALID_TOPIC_EXCEPTION, room.text(invalid)))
            elif not is_allowed:
                refused = checks.DESCRIBE_PRODUCERS.error
                rows.append(_response(index, refused, refused.message))
            elif ctx.topics.get(name) is None:
                rows.append(_response(index, Errors.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED))
            else:
                found = room.described((name, index), partial(_describe, *led_partition(ctx, name, index), index))
                rows.append(_response(index, NO_ROOM, NO_ROOM_TEXT) if found is None else found)
        topics.append({"Name": name, "Partitions": rows})
    return {"Topics": topics}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    topics = []
    for topic in body["Topics"]:
        rows = [_response(index, error, error.message) for index in topic["PartitionIndexes"]]
        topics.append({"Name": topic["Name"], "Partitions": rows})
    return {"Topics": topics}


def _describe(log: Any, error: Errors, index: int) -> Body:
    if error is not Errors.NONE:
        return _response(index, error, None)
    response = _response(index, Errors.NONE, None)
    response["ActiveProducers"] = [
        {
            "ProducerId": one.producer_id,
            "ProducerEpoch": one.producer_epoch,
            "LastSequence": one.last_sequence,
            "LastTimestamp": one.last_timestamp_ms,
            "CoordinatorEpoch": one.coordinator_epoch,
            "CurrentTxnStartOffset": one.current_txn_first_offset,
        }
        for one in active_producers(log)
    ]
    return response


def _response(index: int, error: Errors, text: str | None) -> Body:
    return {"PartitionIndex": index, "ErrorCode": int(error), "ErrorMessage": text, "ActiveProducers": []}
