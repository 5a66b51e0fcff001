"""OffsetDelete: delete committed offsets of topics to which no member of the group is subscribed."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Delete offsets per partition; partitions of unknown topics are UNKNOWN_TOPIC_OR_PARTITION.

    A topic without partitions has no row.
    """
    ctx.auth.require(request, checks.OFFSET_DELETE_GROUP, body["GroupId"])
    allowed = ctx.auth.allowed(request, checks.OFFSET_DELETE, (topic["Name"] for topic in body["Topics"]))
    known: list[tuple[str, int]] = []
    for topic in body["Topics"]:
        view = ctx.topics.get(topic["Name"]) if topic["Name"] in allowed else None
        count = 0 if view is None else len(view.partitions)
        indexes = [row["PartitionIndex"] for row in topic["Partitions"]]
        known.extend((topic["Name"], index) for index in indexes if 0 <= index < count)
    results = ctx.groups.offsets.delete(body["GroupId"], known)
    topics = []
    for topic in body["Topics"]:
        rows = []
        for row in topic["Partitions"]:
            index = row["PartitionIndex"]
            error = results.get((topic["Name"], index), Errors.UNKNOWN_TOPIC_OR_PARTITION)
            if topic["Name"] not in allowed:
                error = checks.OFFSET_DELETE.error
            rows.append({"PartitionIndex": index, "ErrorCode": int(error)})
        if rows:
            topics.append({"Name": topic["Name"], "Partitions": rows})
    return {"ErrorCode": 0, "Topics": topics}
