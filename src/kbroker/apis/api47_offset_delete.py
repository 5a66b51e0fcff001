"""OffsetDelete: deletes committed offsets of topics to which no member of the group is subscribed."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import TopicRows, merged_topics, partition_row
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Delete offsets per partition; partitions of unknown topics are UNKNOWN_TOPIC_OR_PARTITION.

    The response leaves out an existing topic that the request names without partitions.
    """
    ctx.auth.require(request, checks.OFFSET_DELETE_GROUP, body["GroupId"])
    allowed = ctx.auth.allowed(request, checks.OFFSET_DELETE, (topic["Name"] for topic in body["Topics"]))
    refused: TopicRows = []
    passed: list[tuple[str, list[int]]] = []
    for topic in body["Topics"]:
        name, indexes = topic["Name"], [row["PartitionIndex"] for row in topic["Partitions"]]
        view = ctx.topics.get(name) if name in allowed else None
        count = 0 if view is None else len(view.partitions)
        known = [index for index in indexes if 0 <= index < count]
        if known:
            passed.append((name, known))
        if view is None or len(known) < len(indexes):
            error = Errors.UNKNOWN_TOPIC_OR_PARTITION if name in allowed else checks.OFFSET_DELETE.error
            unknown = [index for index in indexes if not 0 <= index < count]
            refused.append(({"Name": name}, [partition_row(index, error) for index in unknown]))
    places = [(name, index) for name, indexes in passed for index in indexes]
    results = ctx.groups.offsets.delete(body["GroupId"], places)
    executed: TopicRows = [
        ({"Name": name}, [partition_row(index, results[name, index]) for index in indexes]) for name, indexes in passed
    ]
    return {"ErrorCode": 0, "Topics": merged_topics(refused, executed)}
