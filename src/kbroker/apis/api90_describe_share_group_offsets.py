"""DescribeShareGroupOffsets: start offsets and lags of share groups (KIP-932, KIP-1226)."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from kbroker.apis.share_group_requests import are_enabled
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.share.persister import UNINITIALIZED_OFFSET, ShareState
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.metadata.topics import ZERO_ID
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.peers import share_of
from kbroker.requests.response_room import NO_ROOM, NO_ROOM_TEXT, ResponseRoom
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks

UNKNOWN_LAG = -1


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each group: the topics that the request names, or all of the group.

    Groups with all their topics that exceed the response's size limit have the error NO_ROOM.
    """
    room = ResponseRoom()

    def described(group: Body) -> Body:
        if group["Topics"] is not None:
            return _group(ctx, group, request)
        found = room.described(group["GroupId"], lambda: _group(ctx, group, request))
        return _failed(group, NO_ROOM, NO_ROOM_TEXT) if found is None else found

    return {"Groups": [described(group) for group in body["Groups"]]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every group with the same error."""
    return {"Groups": [_failed(group, error, error.message) for group in body["Groups"]]}


def _group(ctx: ApiContext, group: Body, request: RequestContext) -> Body:
    group_id, wanted = group["GroupId"], group["Topics"]
    if not are_enabled(ctx):
        return _failed(group, Errors.UNSUPPORTED_VERSION, None)
    if not ctx.auth.allows(request, checks.DESCRIBE_SHARE_GROUP_OFFSETS_GROUP, group_id):
        return _failed(group, checks.DESCRIBE_SHARE_GROUP_OFFSETS_GROUP.error, None)
    try:
        topics = _all_topics(ctx, group_id, request) if wanted is None else _named(ctx, group_id, wanted, request)
    except KafkaError as error:
        return _failed(group, error.error, error.error.message)
    return {"GroupId": group_id, "Topics": topics, "ErrorCode": 0, "ErrorMessage": None}


def _all_topics(ctx: ApiContext, group_id: str, request: RequestContext) -> list[Body]:
    names: dict[str, tuple[UUID, Iterable[int]]] = {}
    for topic_id, indexes in ctx.groups.share_groups.initialized(group_id).items():
        view = ctx.topics.get_by_id(topic_id)
        if view is not None:
            names[view.name] = topic_id, sorted(indexes)
    allowed = set(ctx.auth.allowed(request, checks.DESCRIBE_SHARE_GROUP_OFFSETS_ALL, names))
    return [_topic(ctx, group_id, name, *rest) for name, rest in names.items() if name in allowed]


def _named(ctx: ApiContext, group_id: str, wanted: list[Body], request: RequestContext) -> list[Body]:
    """Return the named topics: those of the group, then those that do not exist, then those that are refused."""
    check = checks.DESCRIBE_SHARE_GROUP_OFFSETS
    allowed = set(ctx.auth.allowed(request, check, (topic["TopicName"] for topic in wanted)))
    known, unknown, refused = [], [], []
    for topic in wanted:
        name, indexes = topic["TopicName"], topic["Partitions"]
        view = ctx.topics.get(name)
        if name not in allowed:
            rows = [{**_uninitialized(index), **error_fields(KafkaError(check.error))} for index in indexes]
            refused.append(_row(name, ZERO_ID, rows))
        elif view is None:
            unknown.append(_row(name, ZERO_ID, [_uninitialized(index) for index in indexes]))
        else:
            known.append(_topic(ctx, group_id, name, view.topic_id, indexes))
    return [*known, *unknown, *refused]


def _topic(ctx: ApiContext, group_id: str, name: str, topic_id: UUID, indexes: Iterable[int]) -> Body:
    ctx.share.prepare()
    rows = []
    for index in indexes:
        try:
            key = SharePartitionKey(group_id, topic_id, index)
            state = share_of(ctx, key).summary(key)
        except KafkaError:  # as for offsets of other groups: absence of data, not an error
            state = ShareState()
        rows.append(_partition(ctx, name, index, state))
    return _row(name, topic_id, rows)


def _partition(ctx: ApiContext, name: str, index: int, state: ShareState) -> Body:
    row = {**_uninitialized(index), "StartOffset": state.start_offset, "LeaderEpoch": state.leader_epoch}
    if state.lag(0) is None:
        return row
    log = ctx.topics.partition(name, index)
    if log is None:
        return {**_uninitialized(index), "StartOffset": 0, **error_fields(KafkaError(Errors.KAFKA_STORAGE_ERROR))}
    return {**row, "Lag": state.lag(log.high_watermark)}


def _uninitialized(index: int) -> Body:
    return {
        "PartitionIndex": index,
        "StartOffset": UNINITIALIZED_OFFSET,
        "LeaderEpoch": 0,
        "Lag": UNKNOWN_LAG,
        "ErrorCode": 0,
        "ErrorMessage": None,
    }


def _row(name: str, topic_id: UUID, partitions: list[Body]) -> Body:
    return {"TopicName": name, "TopicId": topic_id, "Partitions": partitions}


def _failed(group: Body, error: Errors, text: str | None) -> Body:
    return {"GroupId": group["GroupId"], "Topics": [], "ErrorCode": int(error), "ErrorMessage": text}
