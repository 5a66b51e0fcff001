"""EndTxn: commit or abort. From version 5 on the producer gets its next epoch with the response (KIP-890)."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.coordinator.transaction.transaction_metadata import TV_0, TV_2
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import fenced_as_known
from kbroker.security.authorizer import checks

FIRST_WITH_PRODUCER_FENCED = 2
FIRST_WITH_EPOCH_BUMP = 5


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """End the transaction. Raises: KafkaError."""
    ctx.auth.require(request, checks.END_TXN, body["TransactionalId"])
    version = TV_2 if request.api_version >= FIRST_WITH_EPOCH_BUMP else TV_0
    producer = ctx.transactions.end_transaction(
        body["TransactionalId"], body["ProducerId"], body["ProducerEpoch"], body["Committed"], version
    )
    return {"ErrorCode": 0, "ProducerId": producer.producer_id, "ProducerEpoch": producer.producer_epoch}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the error as a code that the client supports."""
    known = fenced_as_known(error, request, FIRST_WITH_PRODUCER_FENCED)
    return {"ErrorCode": int(known), "ProducerId": -1, "ProducerEpoch": -1}
