"""Rows of responses that several requests have: errors, and one row for each partition of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common.errors import Errors, KafkaError

if TYPE_CHECKING:
    from kbroker.requests.context import Body, RequestContext

#: Kafka's text for an unknown type of a resource or a coordinator.
MALFORMED = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)

NOT_HOSTED = "This server does not host this topic-partition."


def error_fields(error: KafkaError | None) -> Body:
    """Return the code and the text of a row: NONE and null without an error."""
    if error is None:
        return {"ErrorCode": 0, "ErrorMessage": None}
    return {"ErrorCode": int(error.error), "ErrorMessage": error.message}


def partition_row(index: int, error: Errors) -> Body:
    """Return the row of a partition with nothing but its error code."""
    return {"PartitionIndex": index, "ErrorCode": int(error)}


def resource_row(resource: Body, error: Errors, message: str | None) -> Body:
    """Return the row of a resource in a response about configs, with the type and name in the request."""
    return {
        "ErrorCode": int(error),
        "ErrorMessage": message,
        "ResourceType": resource["ResourceType"],
        "ResourceName": resource["ResourceName"],
    }


def each_partition(
    body: Body, row: Callable[[int], Body], *, topic_name: str = "Name", index: str = "PartitionIndex"
) -> list[Body]:
    """Return the topics of a request with a row for each of their partitions. Args: names of fields of the request."""
    return [
        {topic_name: topic[topic_name], "Partitions": [row(one[index]) for one in topic["Partitions"]]}
        for topic in body["Topics"]
    ]


#: Fields that identify a topic, and rows of its partitions.
TopicRows = list[tuple["Body", list["Body"]]]


def merged_topics(refused: TopicRows, executed: TopicRows) -> list[Body]:
    """Return the topics of a response: those of refused partitions first, then the others.

    A topic that a request repeats has one row in a response with a refused partition or unknown topic, as in Kafka.
    """
    if not refused:
        return [{**topic, "Partitions": rows} for topic, rows in executed]
    merged: dict[tuple[object, ...], Body] = {}
    for topic, rows in (*refused, *executed):
        merged.setdefault(tuple(topic.values()), {**topic, "Partitions": []})["Partitions"].extend(rows)
    return list(merged.values())


def fenced_as_known(error: Errors, request: RequestContext, first_version: int) -> Errors:
    """Return the error; INVALID_PRODUCER_EPOCH for PRODUCER_FENCED in a request before ``first_version``."""
    is_unknown = error is Errors.PRODUCER_FENCED and request.api_version < first_version
    return Errors.INVALID_PRODUCER_EPOCH if is_unknown else error
