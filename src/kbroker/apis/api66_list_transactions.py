"""ListTransactions: transactional ids by state, producer id, age and name."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.linear_pattern import LinearPattern, PatternError
from kbroker.coordinator.transaction.transaction_coordinator import states_of
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """List the transactions that match every filter. Raises: KafkaError INVALID_REGULAR_EXPRESSION."""
    labels = body["StateFilters"]
    states, unknown = states_of(labels)
    pattern = body.get("TransactionalIdPattern")
    try:
        found = ctx.transactions.list_transactions(
            states if labels else None,
            frozenset(body["ProducerIdFilters"]),
            body.get("DurationFilter", -1),
            LinearPattern(pattern).matches if pattern else None,
        )
    except PatternError as error:
        raise KafkaError(Errors.INVALID_REGULAR_EXPRESSION, f"transactional id pattern: {error}") from error
    rows = [
        {
            "TransactionalId": one.transactional_id,
            "ProducerId": one.producer_id,
            "TransactionState": one.state.label,
        }
        for one in found
        if ctx.auth.allows(request, checks.LIST_TRANSACTIONS, one.transactional_id)
    ]
    return {"ErrorCode": 0, "UnknownStateFilters": unknown, "TransactionStates": rows}
