"""OffsetFetch: how far groups have read; from v8 several groups at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.server.context import ApiContext, Body, RequestContext
from kbroker.server.topics import ZERO_ID

FIRST_WITH_GROUPS, FIRST_WITH_IDS = 8, 10

NOTHING = CommittedOffset(-1, -1, "", -1)


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """PendingResponse the partitions asked for, all that have an offset for null; one without offset is -1 and no
    error.

    RequireStable makes no difference while no transaction can hold an offset back.
    """
    if request.api_version >= FIRST_WITH_GROUPS:
        by_id = request.api_version >= FIRST_WITH_IDS
        return {"Groups": [_group(ctx, group, by_id) for group in body["Groups"]]}
    topics = _topics(ctx, body["GroupId"], body["Topics"], by_id=False)
    return {"ErrorCode": 0, "Topics": [{"Name": row["Name"], "Partitions": row["Partitions"]} for row in topics]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """The same error for every group; before v2 only partitions carry an error code."""
    if request.api_version >= FIRST_WITH_GROUPS:
        groups = [{"GroupId": row["GroupId"], "Topics": [], "ErrorCode": int(error)} for row in body["Groups"]]
        return {"Groups": groups}
    topics = []
    for topic in body["Topics"] or () if request.api_version < 2 else ():
        rows = [_partition(index, NOTHING, error) for index in topic["PartitionIndexes"]]
        topics.append({"Name": topic["Name"], "Partitions": rows})
    return {"ErrorCode": int(error), "Topics": topics}


def _group(ctx: ApiContext, group: Body, by_id: bool) -> Body:
    try:
        topics = _topics(ctx, group["GroupId"], group["Topics"], by_id)
    except KafkaError as error:  # of this group: the others have their responses
        return {"GroupId": group["GroupId"], "Topics": [], "ErrorCode": int(error.error)}
    return {"GroupId": group["GroupId"], "Topics": topics, "ErrorCode": 0}


def _topics(ctx: ApiContext, group_id: str, asked: Sequence[Body] | None, by_id: bool) -> list[Body]:
    if asked is None:
        return _all(ctx, ctx.groups.committed(group_id), by_id)
    named: list[tuple[str | None, Body]] = []
    for topic in asked:
        view = ctx.topics.get_by_id(topic["TopicId"]) if by_id else None
        named.append((view.name if view is not None else None if by_id else topic["Name"], topic))
    places = [(name, index) for name, topic in named if name is not None for index in topic["PartitionIndexes"]]
    found = ctx.groups.committed(group_id, places)
    topics = []
    for name, topic in named:
        error = Errors.UNKNOWN_TOPIC_ID if name is None else Errors.NONE
        indexes = topic["PartitionIndexes"]
        rows = [_partition(index, found.get((name or "", index), NOTHING), error) for index in indexes]
        topics.append({"Name": name or "", "TopicId": topic.get("TopicId", ZERO_ID), "Partitions": rows})
    return topics


def _all(ctx: ApiContext, found: Mapping[tuple[str, int], CommittedOffset], by_id: bool) -> list[Body]:
    by_topic: dict[str, list[Body]] = {}
    for (name, index), value in found.items():
        by_topic.setdefault(name, []).append(_partition(index, value, Errors.NONE))
    topics = []
    for name, rows in by_topic.items():
        view = ctx.topics.get(name) if by_id else None
        if by_id and view is None:
            continue  # deleted just now: it has no id any more
        topics.append({"Name": name, "TopicId": ZERO_ID if view is None else view.topic_id, "Partitions": rows})
    return topics


def _partition(index: int, value: CommittedOffset, error: Errors) -> Body:
    return {
        "PartitionIndex": index,
        "CommittedOffset": value.offset,
        "CommittedLeaderEpoch": value.leader_epoch,
        "Metadata": value.metadata,
        "ErrorCode": int(error),
    }
