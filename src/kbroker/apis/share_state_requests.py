"""Rows of the requests about the state of share partitions, which brokers send to a share coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import each_partition as partition_rows
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer.checks import Check

Run = Callable[[ShareCoordinator, SharePartitionKey, Body], dict[str, Any] | None]


def each_partition(
    ctx: ApiContext, body: Body, request: RequestContext, check: Check, run: Run, *, omits_empty_topics: bool = False
) -> Body:
    """Return a row for each partition with the fields that ``run`` returns, or with an error.

    The response is empty without a group id, or if a topic has no partitions. With ``omits_empty_topics`` it omits
    topics without partitions instead, as Kafka's InitializeShareGroupState does.
    """
    if not ctx.auth.allows(request, check):
        return failure(body, check.error, request)
    topics = [topic for topic in body["Topics"] if topic["Partitions"]]
    if not body["GroupId"] or (len(topics) < len(body["Topics"]) and not omits_empty_topics):
        return {"Results": []}
    coordinator = ctx.share

    def result(topic_id: Any, row: Body) -> Body:
        key = SharePartitionKey(body["GroupId"], topic_id, row["Partition"])
        try:
            return {"Partition": row["Partition"], **error_fields(None), **(run(coordinator, key, row) or {})}
        except KafkaError as error:
            return {"Partition": row["Partition"], **error_fields(error)}

    rows: dict[Any, dict[int, Body]] = {}  # a topic or partition that is repeated has one row
    for topic in topics:
        of_topic = rows.setdefault(topic["TopicId"], {})
        for row in topic["Partitions"]:
            of_topic[row["Partition"]] = result(topic["TopicId"], row)
    return {"Results": [{"TopicId": one, "Partitions": list(found.values())} for one, found in rows.items()]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    fields = error_fields(KafkaError(error))
    rows = partition_rows(body, lambda index: {"Partition": index, **fields}, topic_name="TopicId", index="Partition")
    return {"Results": rows}
