"""FindCoordinator: the node that leads the key's partition of the coordinator's internal topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.cluster import Node, current_leader, live_nodes
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import MALFORMED
from kbroker.security.authorizer import checks

if TYPE_CHECKING:
    from kbroker.coordinator.runtime import CoordinatorRuntime

GROUP, TRANSACTION, SHARE = 0, 1, 2
NOWHERE = {"NodeId": -1, "Host": "", "Port": -1}
FIRST_WITH_SHARE = 6
_CHECKS = {GROUP: checks.FIND_COORDINATOR_GROUP, TRANSACTION: checks.FIND_COORDINATOR_TRANSACTIONAL_ID}


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return the coordinator of one key, or from v4 of each of several."""
    kind = body["KeyType"]
    keys = body["CoordinatorKeys"] if request.api_version >= 4 else [body["Key"]]
    check = _CHECKS.get(kind)
    allowed = keys if check is None else ctx.auth.allowed(request, check, keys)
    if kind == SHARE and request.api_version >= FIRST_WITH_SHARE:
        ctx.auth.require(request, checks.FIND_COORDINATOR_SHARE)
    elif kind == SHARE:
        return _nowhere(body, Errors.INVALID_REQUEST, "" if request.api_version >= 4 else MALFORMED, request)
    refused = Errors.NONE if check is None else check.error
    if check is not None and not allowed:
        return _nowhere(body, refused, "" if request.api_version >= 4 else refused.message, request)
    if kind in (GROUP, TRANSACTION, SHARE):
        _runtime(ctx, kind).prepare()  # creates the topic here, so that no group's first record waits for it
        nodes = live_nodes(ctx, request.listener)
        if request.api_version >= 4:
            places = [
                _place(ctx, kind, key, nodes) if key in allowed else {**NOWHERE, "ErrorCode": int(refused)}
                for key in keys
            ]
            rows = [{**one, "Key": key, "ErrorMessage": ""} for key, one in zip(keys, places, strict=True)]
            return {"Coordinators": rows}
        place = _place(ctx, kind, body["Key"], nodes)
        if place["ErrorCode"]:
            return failure(body, Errors.COORDINATOR_NOT_AVAILABLE, request)
        return {**place, "ErrorMessage": "NONE"}
    return _nowhere(body, Errors.INVALID_REQUEST, MALFORMED, request)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return no coordinator, for every key."""
    return _nowhere(body, error, error.message, request)


def _runtime(ctx: ApiContext, kind: int) -> CoordinatorRuntime[Any]:
    if kind == GROUP:
        return ctx.groups.runtime
    return ctx.transactions.runtime if kind == TRANSACTION else ctx.share.runtime


def _place(ctx: ApiContext, kind: int, key: str, nodes: Mapping[int, Node]) -> Body:
    """Return the address of a key's coordinator, or an error."""
    if kind == SHARE:
        from kbroker.coordinator.share.share_records import is_key_text

        if not is_key_text(key):
            return {**NOWHERE, "ErrorCode": int(Errors.INVALID_REQUEST)}
    runtime = _runtime(ctx, kind)
    is_mine = runtime.is_leader(key)
    node = nodes.get(ctx.node_id if is_mine else current_leader(ctx, runtime.name, runtime.index_of(key))[0])
    if node is None or (is_mine and not _is_known(runtime, key)):
        return {**NOWHERE, "ErrorCode": int(Errors.COORDINATOR_NOT_AVAILABLE)}
    return {"NodeId": node.node_id, "Host": node.host, "Port": node.port, "ErrorCode": 0}


def _is_known(runtime: CoordinatorRuntime[Any], key: str) -> bool:
    """Return whether the coordinator's partition can be read.

    This node is the coordinator even while the partition loads; other APIs then return COORDINATOR_LOAD_IN_PROGRESS,
    so that a client need not look for its coordinator again.
    """
    try:
        runtime.find(key)
    except KafkaError as error:
        return error.error is Errors.COORDINATOR_LOAD_IN_PROGRESS
    return True


def _nowhere(body: Body, error: Errors, text: str, request: RequestContext) -> Body:
    place = {**NOWHERE, "ErrorCode": int(error), "ErrorMessage": text}
    if request.api_version >= 4:
        return {"Coordinators": [{**place, "Key": key} for key in body["CoordinatorKeys"]]}
    return place
