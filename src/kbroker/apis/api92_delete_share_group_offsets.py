"""DeleteShareGroupOffsets: deletes the offsets of topics of a share group without members (KIP-932)."""

from __future__ import annotations

from uuid import UUID

from kbroker.apis.share_group_requests import are_enabled, refused_group
from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.topics import ZERO_ID
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Delete the offsets of each topic that the client may read; rows of refused topics come first, one per mention."""
    if not are_enabled(ctx):
        raise KafkaError(Errors.UNSUPPORTED_VERSION)
    group_id = body["GroupId"]
    check = checks.DELETE_SHARE_GROUP_OFFSETS
    ctx.auth.require(request, checks.DELETE_SHARE_GROUP_OFFSETS_GROUP, group_id)
    names = [topic["TopicName"] for topic in body["Topics"]]
    allowed = set(ctx.auth.allowed(request, check, names))
    if not group_id:
        raise KafkaError(Errors.INVALID_GROUP_ID)
    try:
        results = ctx.groups.share_groups.delete_offsets(group_id, [name for name in names if name in allowed])
    except KafkaError as error:
        return refused_group(error)
    rows = [_row(name, KafkaError(check.error)) for name in names if name not in allowed]
    rows += [_row(name, results[name]) for name in names if isinstance(results.get(name), KafkaError)]
    rows += [_row(name, found) for name, found in results.items() if isinstance(found, UUID)]
    return {**error_fields(None), "Responses": rows}


def _row(name: str, found: KafkaError | UUID) -> Body:
    if isinstance(found, UUID):
        return {"TopicName": name, "TopicId": found, **error_fields(None)}
    return {"TopicName": name, "TopicId": ZERO_ID, **error_fields(found)}
