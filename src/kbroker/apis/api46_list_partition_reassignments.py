"""ListPartitionReassignments: the partitions whose replicas are being changed."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.errors import Errors
from kbroker.metadata.image.image import TopicImage
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

_NO_REPLICAS: Body = {"Replicas": [], "AddingReplicas": [], "RemovingReplicas": []}


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return the named partitions with a reassignment in progress, or all of them for null."""
    ctx.auth.require(request, checks.LIST_PARTITION_REASSIGNMENTS)
    image = ctx.image
    if body["Topics"] is None:
        wanted: Iterable[tuple[str, Iterable[int]]] = [
            (one.name, range(len(one.partitions))) for one in image.topics.values()
        ]
    else:
        wanted = [(row["Name"], row["PartitionIndexes"]) for row in body["Topics"]]
    topics = []
    for name, indexes in wanted:
        topic = image.topics.get(name)
        rows = [] if topic is None else _rows(topic, indexes)
        if rows:
            topics.append({"Name": name, "Partitions": rows})
    return {"ErrorCode": 0, "ErrorMessage": None, "Topics": topics}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the error for the request, and each named partition without replicas."""
    topics = [
        {
            "Name": row["Name"],
            "Partitions": [{"PartitionIndex": index, **_NO_REPLICAS} for index in row["PartitionIndexes"]],
        }
        for row in body["Topics"] or ()
    ]
    return {"ErrorCode": int(error), "ErrorMessage": error.message, "Topics": topics}


def _rows(topic: TopicImage, indexes: Iterable[int]) -> list[Body]:
    rows = []
    for index in indexes:
        partition = topic.partitions[index] if 0 <= index < len(topic.partitions) else None
        if partition is not None and (partition.adding_replicas or partition.removing_replicas):
            rows.append(
                {
                    "PartitionIndex": index,
                    "Replicas": list(partition.replicas),
                    "AddingReplicas": list(partition.adding_replicas),
                    "RemovingReplicas": list(partition.removing_replicas),
                }
            )
    return rows
