"""AddOffsetsToTxn: the partition of a group's offsets joins a transaction."""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.common.topic_names import OFFSETS_TOPIC
from kbroker.coordinator.transaction.transaction_metadata import TV_0
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import fenced_as_known
from kbroker.security.authorizer import checks

FIRST_WITH_PRODUCER_FENCED = 2


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Add the partition of the group's offsets to the transaction. Raises: KafkaError if the client may not."""
    ctx.auth.require(request, checks.ADD_OFFSETS_TO_TXN_TRANSACTIONAL_ID, body["TransactionalId"])
    ctx.auth.require(request, checks.ADD_OFFSETS_TO_TXN_GROUP, body["GroupId"])
    groups = ctx.groups
    groups.runtime.prepare()
    place = OFFSETS_TOPIC, groups.runtime.index_of(body["GroupId"])
    added = ctx.transactions.add_partitions(
        body["TransactionalId"], body["ProducerId"], body["ProducerEpoch"], [place], TV_0
    )
    return failure(body, added[place], request)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the error, or NONE, as a code that the client supports."""
    known = fenced_as_known(error, request, FIRST_WITH_PRODUCER_FENCED)
    return {"ErrorCode": int(known)}
