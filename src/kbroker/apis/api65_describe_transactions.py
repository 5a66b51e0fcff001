"""DescribeTransactions: the state of transactional ids, and the partitions of their transactions."""

from __future__ import annotations

from functools import partial

from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.response_room import NO_ROOM, ResponseRoom
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe each id separately, duplicates included; ids beyond the response's size limit have the error NO_ROOM."""
    room = ResponseRoom()
    states = []
    for name in body["TransactionalIds"]:
        if ctx.auth.allows(request, checks.DESCRIBE_TRANSACTIONS, name):
            found = room.described(name, partial(_described, ctx, request, name))
            states.append(_refused(name, NO_ROOM) if found is None else found)
        else:
            states.append(_refused(name, checks.DESCRIBE_TRANSACTIONS.error))
    return {"TransactionStates": states}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every id with the same error."""
    return {"TransactionStates": [_refused(name, error) for name in body["TransactionalIds"]]}


def _described(ctx: ApiContext, request: RequestContext, name: str) -> Body:
    try:
        found = ctx.transactions.describe(name)
    except KafkaError as error:
        return _refused(name, error.error)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(found.partitions):
        topics.setdefault(topic, []).append(index)
    allowed = ctx.auth.allowed(request, checks.DESCRIBE_TRANSACTIONS_TOPIC, topics)
    return {
        "ErrorCode": 0,
        "TransactionalId": name,
        "TransactionState": found.state.label,
        "TransactionTimeoutMs": found.timeout_ms,
        "TransactionStartTimeMs": found.start_ms,
        "ProducerId": found.producer_id,
        "ProducerEpoch": found.producer_epoch,
        "Topics": [{"Topic": topic, "Partitions": indexes} for topic, indexes in topics.items() if topic in allowed],
    }


def _refused(name: str, error: Errors) -> Body:
    return {"ErrorCode": int(error), "TransactionalId": name}
