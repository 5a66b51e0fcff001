"""OffsetFetch: committed offsets of groups; from v8 of several groups at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.offset_metadata_manager import FetchedOffsets
from kbroker.metadata.topics import ZERO_ID
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.response_room import NO_ROOM, ResponseRoom
from kbroker.security.authorizer import checks

FIRST_WITH_GROUPS, FIRST_WITH_IDS = 8, 10

NOTHING = CommittedOffset(-1, -1, "", -1)


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return the named partitions, or for null all that have an offset; without an offset it is -1, with no error.

    With RequireStable a partition whose offset an open transaction may change has UNSTABLE_OFFSET_COMMIT. Groups, and
    partitions named again, that exceed the response's size limit have the error NO_ROOM.
    """
    require_stable = body.get("RequireStable", False)
    room = ResponseRoom()
    if request.api_version >= FIRST_WITH_GROUPS:
        groups = []
        for number, group in enumerate(body["Groups"]):
            group_id = group["GroupId"]
            # Named partitions are the client's own list; all partitions of a group are the same ones each time.
            key = number if group["Topics"] is not None else (group_id, group.get("MemberId"), group.get("MemberEpoch"))
            found = room.described(key, partial(_group, ctx, request, group, require_stable, room))
            groups.append({"GroupId": group_id, "Topics": [], "ErrorCode": int(NO_ROOM)} if found is None else found)
        return {"Groups": groups}
    topics = _topics(ctx, request, body["GroupId"], body["Topics"], require_stable, room)
    return {"ErrorCode": 0, "Topics": [{"Name": row["Name"], "Partitions": row["Partitions"]} for row in topics]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every group with the same error; before v2 only partitions have an error code."""
    if request.api_version >= FIRST_WITH_GROUPS:
        groups = [{"GroupId": row["GroupId"], "Topics": [], "ErrorCode": int(error)} for row in body["Groups"]]
        return {"Groups": groups}
    topics = []
    for topic in body["Topics"] or () if request.api_version < 2 else ():
        rows = [_partition(index, NOTHING, error) for index in topic["PartitionIndexes"]]
        topics.append({"Name": topic["Name"], "Partitions": rows})
    return {"ErrorCode": int(error), "Topics": topics}


def _group(ctx: ApiContext, request: RequestContext, group: Body, require_stable: bool, room: ResponseRoom) -> Body:
    try:
        member = group.get("MemberId"), group.get("MemberEpoch", -1)
        topics = _topics(ctx, request, group["GroupId"], group["Topics"], require_stable, room, *member)
    except KafkaError as error:  # concerns only this group: the others have their rows
        return {"GroupId": group["GroupId"], "Topics": [], "ErrorCode": int(error.error)}
    return {"GroupId": group["GroupId"], "Topics": topics, "ErrorCode": 0}


def _topics(
    ctx: ApiContext,
    request: RequestContext,
    group_id: str,
    asked: Sequence[Body] | None,
    require_stable: bool,
    room: ResponseRoom,
    member_id: str | None = None,
    member_epoch: int = -1,
) -> list[Body]:
    ctx.auth.require(request, checks.OFFSET_FETCH_GROUP, group_id)
    member = member_id, member_epoch
    by_id = request.api_version >= FIRST_WITH_IDS
    if asked is None:
        found = ctx.groups.offsets.fetch(group_id, None, require_stable, *member)
        return _all(ctx, request, found, by_id)
    named: list[tuple[str | None, Body]] = []
    for topic in asked:
        view = ctx.topics.get_by_id(topic["TopicId"]) if by_id else None
        named.append((view.name if view is not None else None if by_id else topic["Name"], topic))
    allowed = ctx.auth.allowed(request, checks.OFFSET_FETCH, [name for name, _ in named if name is not None])
    places = [
        (name, index)
        for name, topic in named
        if name is not None and name in allowed
        for index in topic["PartitionIndexes"]
    ]
    ids = {name: topic["TopicId"] for name, topic in named if name is not None} if by_id else {}
    found = ctx.groups.offsets.fetch(group_id, places, require_stable, *member, topic_ids=ids)
    topics = []
    seen: set[TopicPartition] = set()
    for name, topic in named:
        if name is None:
            rows = [_partition(index, NOTHING, Errors.UNKNOWN_TOPIC_ID) for index in topic["PartitionIndexes"]]
        elif name not in allowed:
            rows = [_partition(index, NOTHING, checks.OFFSET_FETCH.error) for index in topic["PartitionIndexes"]]
        else:
            rows = [_row(name, index, found, seen, room) for index in topic["PartitionIndexes"]]
        topics.append({"Name": name or "", "TopicId": topic.get("TopicId", ZERO_ID), "Partitions": rows})
    return topics


def _all(ctx: ApiContext, request: RequestContext, found: FetchedOffsets, by_id: bool) -> list[Body]:
    by_topic: dict[str, list[Body]] = {}
    for name, index in (*found.committed, *found.unstable):
        by_topic.setdefault(name, []).append(_fetched(name, index, found))
    allowed = ctx.auth.allowed(request, checks.OFFSET_FETCH_ALL, by_topic)
    topics = []
    for name, rows in by_topic.items():
        if name not in allowed:
            continue
        view = ctx.topics.get(name) if by_id else None
        if by_id and view is None:
            continue  # just deleted: it no longer has an id
        topics.append({"Name": name, "TopicId": ZERO_ID if view is None else view.topic_id, "Partitions": rows})
    return topics


def _row(topic: str, index: int, found: FetchedOffsets, seen: set[TopicPartition], room: ResponseRoom) -> Body:
    """Return the row of a named partition; the metadata of a duplicate counts against the response's size limit."""
    place = topic, index
    if place not in seen:
        seen.add(place)
    elif room.is_full:
        return _partition(index, NOTHING, NO_ROOM)
    else:
        room.take(found.committed.get(place, NOTHING).metadata)
    return _fetched(topic, index, found)


def _fetched(topic: str, index: int, found: FetchedOffsets) -> Body:
    error = Errors.UNSTABLE_OFFSET_COMMIT if (topic, index) in found.unstable else Errors.NONE
    return _partition(index, found.committed.get((topic, index), NOTHING), error)


def _partition(index: int, value: CommittedOffset, error: Errors) -> Body:
    return {
        "PartitionIndex": index,
        "CommittedOffset": value.offset,
        "CommittedLeaderEpoch": value.leader_epoch,
        "Metadata": value.metadata,
        "ErrorCode": int(error),
    }
