"""InitProducerId: identities for idempotent producers. Transactional ones are refused until transactions exist."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.server.context import ApiContext, Body, RequestContext


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return a new producer id with epoch 0, whatever id the producer names; an id without an epoch, or an epoch
    without an id, is refused."""
    transactional_id = body["TransactionalId"]
    if (body.get("ProducerId", -1) == -1) != (body.get("ProducerEpoch", -1) == -1):
        return failure(body, Errors.INVALID_REQUEST, request)
    if transactional_id is None:
        return {"ErrorCode": 0, "ProducerId": ctx.store.next_producer_id(), "ProducerEpoch": 0}
    if transactional_id == "":
        return failure(body, Errors.INVALID_REQUEST, request)
    return failure(body, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, request)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """No identity."""
    return {"ErrorCode": int(error), "ProducerId": -1, "ProducerEpoch": -1}
