"""DeleteTopics: by name, and from v6 by id."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection

from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.topic_rules import FEW_PARTITIONS
from kbroker.metadata.topics import ZERO_ID
from kbroker.quota.mutation_quota import ThrottlingQuotaExceededError
from kbroker.requests.context import ApiContext, Body, LongWork, RequestContext
from kbroker.requests.rows import NOT_HOSTED
from kbroker.security.authorizer import checks

STRICT_FROM = 5  # first version whose clients support error 89

UNKNOWN_ID = "This server does not host this topic ID."
ALREADY_SUPPLIED = "The provided topic name maps to an ID that was already supplied."


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body | LongWork:
    """Delete each topic separately; a duplicate, by name or by id, is not deleted (INVALID_REQUEST).

    More than FEW_PARTITIONS in all are long work.
    """
    views = [
        ctx.topics.get_by_id(topic_id) if name is None else ctx.topics.get(name)
        for name, topic_id in _rows(body, request)
    ]
    if sum(len(view.partitions) for view in views if view is not None) > FEW_PARTITIONS:
        return _delete
    return _delete(ctx, body, request)


def _delete(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    if not ctx.config.boolean("delete.topic.enable"):
        disabled = Errors.TOPIC_DELETION_DISABLED if request.api_version >= 3 else Errors.INVALID_REQUEST
        return failure(body, disabled, request)
    responses: list[Body] = []
    names_given: Counter[str] = Counter()
    ids_given: Counter[uuid.UUID] = Counter()
    for name, topic_id in _rows(body, request):
        if name is None and topic_id == ZERO_ID:
            responses.append(_row(None, ZERO_ID, Errors.INVALID_REQUEST, "Neither topic name nor id were specified."))
        elif name is not None and topic_id != ZERO_ID:
            text = "You may not specify both topic name and topic id."
            responses.append(_row(name, topic_id, Errors.INVALID_REQUEST, text))
        elif name is not None:
            names_given[name] += 1
        else:
            ids_given[topic_id] += 1
    unique_names = dict.fromkeys(name for name, times in names_given.items() if times == 1)
    unique_ids = [topic_id for topic_id, times in ids_given.items() if times == 1]
    for name in names_given:
        if name not in unique_names:
            responses.append(_row(name, ZERO_ID, Errors.INVALID_REQUEST, "Duplicate topic name."))
    for topic_id in ids_given:
        if ids_given[topic_id] > 1:
            responses.append(_row(None, topic_id, Errors.INVALID_REQUEST, "Duplicate topic id."))
    names: list[str] = []
    views = {topic_id: view for topic_id in unique_ids if (view := ctx.topics.get_by_id(topic_id)) is not None}
    deletable: Collection[str] = {*unique_names, *(view.name for view in views.values())}
    describable = deletable
    if not ctx.auth.allows(request, checks.DELETE_TOPICS_ANY):
        describable = ctx.auth.allowed(request, checks.DELETE_TOPICS_DESCRIBE, deletable)
        deletable = ctx.auth.allowed(request, checks.DELETE_TOPICS, deletable)
    for topic_id in unique_ids:
        view = views.get(topic_id)
        if view is None:
            responses.append(_row(None, topic_id, Errors.UNKNOWN_TOPIC_ID, UNKNOWN_ID))
        elif view.name not in deletable:
            shown = view.name if view.name in describable else None
            responses.append(_unauthorized(shown, topic_id))
        elif view.name in unique_names:
            del unique_names[view.name]
            responses.append(_row(view.name, topic_id, Errors.INVALID_REQUEST, ALREADY_SUPPLIED))
        else:
            names.append(view.name)
    for name in unique_names:
        if name not in describable:
            responses.append(_unauthorized(name, ZERO_ID))
        elif name in deletable:
            view = ctx.topics.get(name)
            if view is not None and ids_given[view.topic_id] > 1:
                responses.append(_row(name, view.topic_id, Errors.INVALID_REQUEST, ALREADY_SUPPLIED))
            else:
                names.append(name)
        elif ctx.topics.get(name) is None:
            responses.append(_row(name, ZERO_ID, Errors.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED))
        else:
            responses.append(_unauthorized(name, ZERO_ID))
    quota = ctx.mutation_quota(request, request.api_version >= STRICT_FROM)
    known = {name: view.topic_id for name in names if (view := ctx.topics.get(name)) is not None}
    for name, deleted in zip(names, ctx.topics.delete_all(names, quota.record), strict=True):
        responses.append(_response(name, deleted, known.get(name, ZERO_ID)))
    return {"ThrottleTimeMs": quota.throttle_time_ms, "Responses": responses}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every topic with the same error."""
    return {"Responses": [_row(name, topic_id, error, error.message) for name, topic_id in _rows(body, request)]}


def _rows(body: Body, request: RequestContext) -> list[tuple[str | None, uuid.UUID]]:
    if request.api_version >= 6:
        return [(row["Name"], row["TopicId"]) for row in body["Topics"]]
    return [(name, ZERO_ID) for name in body["TopicNames"]]


def _response(name: str, deleted: uuid.UUID | KafkaError, topic_id: uuid.UUID) -> Body:
    if isinstance(deleted, uuid.UUID):
        return _row(name, deleted, Errors.NONE, None)
    if isinstance(deleted, ThrottlingQuotaExceededError):
        return _row(name, topic_id, deleted.error, None)
    text = NOT_HOSTED if deleted.error == Errors.UNKNOWN_TOPIC_OR_PARTITION else deleted.message
    return _row(name, ZERO_ID, deleted.error, text)


def _unauthorized(name: str | None, topic_id: uuid.UUID) -> Body:
    error = checks.DELETE_TOPICS.error
    return _row(name, topic_id, error, error.message)


def _row(name: str | None, topic_id: uuid.UUID, error: Errors, message: str | None) -> Body:
    return {"Name": name, "TopicId": topic_id, "ErrorCode": int(error), "ErrorMessage": message}
