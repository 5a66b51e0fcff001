"""AddPartitionsToTxn: partitions join a transaction. Producers send it up to version 3, brokers from version 4 on."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import INTERNAL_TOPICS, TopicPartition
from kbroker.coordinator.transaction.transaction_metadata import TV_0, TV_2
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import fenced_as_known
from kbroker.security.authorizer import checks

FIRST_OF_BROKERS = 4
FIRST_WITH_PRODUCER_FENCED = 2


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Add all partitions of a transaction or none, or only check which are in it (``VerifyOnly``)."""
    if request.api_version < FIRST_OF_BROKERS:
        ctx.auth.require(request, checks.ADD_PARTITIONS_TO_TXN_TRANSACTIONAL_ID, body["V3AndBelowTransactionalId"])
        transaction = _transaction(body)
        return {"ResultsByTopicV3AndBelow": _added(ctx, transaction, request)}
    ctx.auth.require(request, checks.ADD_PARTITIONS_TO_TXN_BROKERS)
    rows = [
        {"TransactionalId": one["TransactionalId"], "TopicResults": _added(ctx, one, request)}
        for one in body["Transactions"]
    ]
    return {"ErrorCode": 0, "ResultsByTransaction": rows}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error; from version 4 on one error for the request."""
    if request.api_version >= FIRST_OF_BROKERS:
        return {"ErrorCode": int(error), "ResultsByTransaction": []}
    transaction = _transaction(body)
    return {"ResultsByTopicV3AndBelow": _results(transaction, dict.fromkeys(_places(transaction), error))}


def _transaction(body: Body) -> Body:
    return {
        "TransactionalId": body["V3AndBelowTransactionalId"],
        "ProducerId": body["V3AndBelowProducerId"],
        "ProducerEpoch": body["V3AndBelowProducerEpoch"],
        "Topics": body["V3AndBelowTopics"],
        "VerifyOnly": False,
    }


def _places(transaction: Body) -> list[TopicPartition]:
    return [(topic["Name"], index) for topic in transaction["Topics"] for index in topic["Partitions"]]


def _added(ctx: ApiContext, transaction: Body, request: RequestContext) -> list[Body]:
    places = _places(transaction)
    allowed: Collection[str] = {topic for topic, _ in places}
    if request.api_version < FIRST_OF_BROKERS:
        others = [topic for topic, _ in places if topic not in INTERNAL_TOPICS]  # internal topics are not for producers
        allowed = ctx.auth.allowed(request, checks.ADD_PARTITIONS_TO_TXN, others)
    errors = {place: _refusal(ctx, place, allowed) for place in places}
    if any(error is not Errors.NONE for error in errors.values()):
        return _grouped({place: error or Errors.OPERATION_NOT_ATTEMPTED for place, error in errors.items()})
    who = transaction["TransactionalId"], transaction["ProducerId"], transaction["ProducerEpoch"]
    try:
        if transaction["VerifyOnly"]:
            return _grouped(ctx.transactions.verify_partitions(*who, places))
        version = TV_2 if request.api_version >= FIRST_OF_BROKERS else TV_0
        added = ctx.transactions.add_partitions(*who, places, version)
    except KafkaError as error:
        added = dict.fromkeys(places, error.error)
    known = {place: fenced_as_known(error, request, FIRST_WITH_PRODUCER_FENCED) for place, error in added.items()}
    return _results(transaction, known)


def _refusal(ctx: ApiContext, place: TopicPartition, allowed: Collection[str]) -> Errors:
    """Return the error for a partition that cannot join any transaction, else NONE."""
    topic, index = place
    if topic not in allowed:
        return checks.ADD_PARTITIONS_TO_TXN.error
    view = ctx.topics.get(topic)
    is_there = view is not None and 0 <= index < len(view.partitions)
    return Errors.NONE if is_there else Errors.UNKNOWN_TOPIC_OR_PARTITION


def _grouped(errors: Mapping[TopicPartition, Errors]) -> list[Body]:
    """Return each partition once, and no topic without partitions, as Kafka does where errors of partitions differ."""
    topics: dict[str, list[Body]] = {}
    for (topic, index), error in errors.items():
        topics.setdefault(topic, []).append({"PartitionIndex": index, "PartitionErrorCode": int(error)})
    return [{"Name": name, "ResultsByPartition": rows} for name, rows in topics.items()]


def _results(transaction: Body, errors: Mapping[TopicPartition, Errors]) -> list[Body]:
    """Return the topics and partitions as they were requested."""
    return [
        {
            "Name": topic["Name"],
            "ResultsByPartition": [
                {"PartitionIndex": index, "PartitionErrorCode": int(errors[topic["Name"], index])}
                for index in topic["Partitions"]
            ],
        }
        for topic in transaction["Topics"]
    ]
