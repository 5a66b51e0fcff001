"""DeleteGroups: deletes groups without members, with their offsets."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Delete each group separately, duplicates once."""
    rows = []
    for group_id in _unique(body):
        if not ctx.auth.allows(request, checks.DELETE_GROUPS, group_id):
            rows.append(_row(group_id, checks.DELETE_GROUPS.error, None))
            continue
        try:
            ctx.groups.delete(group_id)
            rows.append(_row(group_id, Errors.NONE, None))
        except KafkaError as error:
            rows.append(_row(group_id, error.error, error.message))
    return {"Results": rows}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every group with the same error."""
    return {"Results": [_row(group_id, error, error.message) for group_id in _unique(body)]}


def _unique(body: Body) -> Iterable[str]:
    return dict.fromkeys(body["GroupsNames"])


def _row(group_id: str, error: Errors, text: str | None) -> Body:
    return {"GroupId": group_id, "ErrorCode": int(error), "ErrorMessage": text}
