"""InitProducerId: identities for idempotent and for transactional producers."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import fenced_as_known
from kbroker.security.authorizer import checks

FIRST_WITH_PRODUCER_FENCED = 4


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return a new producer id with epoch 0, or the next epoch of a transactional id's producer.

    A producer id without an epoch, or an epoch without a producer id, is refused. Raises: KafkaError.
    """
    _authorize(ctx, body, request)
    producer_id, producer_epoch = body.get("ProducerId", -1), body.get("ProducerEpoch", -1)
    if (producer_id == -1) != (producer_epoch == -1):
        return failure(body, Errors.INVALID_REQUEST, request)
    transactional_id = body["TransactionalId"]
    if transactional_id is None:
        return {"ErrorCode": 0, "ProducerId": ctx.producer_ids.next(), "ProducerEpoch": 0}
    if not transactional_id:
        return failure(body, Errors.INVALID_REQUEST, request)
    given = ctx.transactions.init_producer_id(
        transactional_id,
        body["TransactionTimeoutMs"],
        None if producer_id == -1 else (producer_id, producer_epoch),
        enable_two_phase_commit=body.get("Enable2Pc", False),
        keep_prepared=body.get("KeepPreparedTxn", False),
    )
    return {"ErrorCode": 0, "ProducerId": given.producer_id, "ProducerEpoch": given.producer_epoch}


def _authorize(ctx: ApiContext, body: Body, request: RequestContext) -> None:
    """Check that the client may have a producer id. Raises: KafkaError."""
    transactional_id = body["TransactionalId"]
    if transactional_id is not None:
        ctx.auth.require(request, checks.INIT_PRODUCER_ID_TRANSACTIONAL_ID, transactional_id)
        if body.get("Enable2Pc", False):
            ctx.auth.require(request, checks.INIT_PRODUCER_ID_TWO_PHASE_COMMIT, transactional_id)
        return
    may_write = ctx.auth.allows(request, checks.INIT_PRODUCER_ID)
    if not may_write and not ctx.auth.allows_any(request, checks.PRODUCE.operation, checks.PRODUCE.kind):
        raise KafkaError(checks.INIT_PRODUCER_ID.error)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return a response with the error, without a producer id."""
    known = fenced_as_known(error, request, FIRST_WITH_PRODUCER_FENCED)
    return {"ErrorCode": int(known), "ProducerId": -1, "ProducerEpoch": -1}
