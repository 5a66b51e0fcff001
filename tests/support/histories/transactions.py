"""Random requests of transactional producers that commit the offsets of groups."""

from typing import Any

from tests.support.histories.draw import Draw
from tests.support.histories.steps import ABSENT, TOPICS, Reference, Step, member_id, named

NO_PRODUCER = (-1, -1)
LABELS = ("tx-a", "tx-b")
LONG_METADATA = "n" * 4097  # one character more than Kafka accepts


def completed(body: dict[str, Any]) -> Step:
    """Return a request whose responses are equal after markers and state have been written."""
    return Step("DescribeTransactions", 0, {"TransactionalIds": [body["TransactionalId"]]})


def _producer_id(label: str) -> Reference:
    """Return the producer id of a transactional id, -1 before InitProducerId."""
    return Reference(
        f"producer id of {label}", lambda known: known.values.get(("producer", known.name(label)), NO_PRODUCER)[0]
    )


def _producer_epoch(label: str, change: int = 0) -> Reference:
    """Return the producer epoch of a transactional id plus a change, not below -1."""
    return Reference(
        f"producer epoch of {label} {change:+}",
        lambda known: max(known.values.get(("producer", known.name(label)), NO_PRODUCER)[1] + change, -1),
    )


def producer(draw: Draw) -> dict[str, Any]:
    label = draw.one(LABELS)
    change = draw.one([1, -1]) if draw.happens(0.08) else 0
    number = _producer_id(label) if draw.happens(0.98) else 999_999
    return {"TransactionalId": named(label), "ProducerId": number, "ProducerEpoch": _producer_epoch(label, change)}


def begin(draw: Draw) -> Step:
    version = draw.one([0, 1, 2, 3, 4, 4, 5, 5])
    body: dict[str, Any] = {"TransactionalId": named(draw.one(LABELS)), "ProducerId": -1, "ProducerEpoch": -1}
    if version >= 3 and draw.happens(0.35):  # continue as the producer that has the id
        body = producer(draw)
        if draw.happens(0.08):
            body[draw.one(["ProducerId", "ProducerEpoch"])] = -1
    body["TransactionTimeoutMs"] = 60_000 if draw.happens(0.95) else draw.one([0, -1, 2**31 - 1])
    return Step("InitProducerId", version, body, settled=completed(body))


def begin_all(draw: Draw) -> list[Step]:
    """Return steps that begin with every transactional id, mostly."""
    return [begin(draw) for _ in draw.rows(*[2 * len(LABELS)] * 3, 0)]


def add_offsets(draw: Draw) -> Step:
    body = producer(draw) | {"GroupId": draw.group()}
    return Step("AddOffsetsToTxn", draw.random.randint(0, 4), body)


def commit_offsets(draw: Draw) -> Step:
    group, version = draw.group(), draw.random.randint(0, 5)
    topics = [
        {"Name": name, "Partitions": [_offset(draw, p) for p in draw.random.sample([0, 1, 2], draw.one([1, 1, 2]))]}
        for name in draw.random.sample([*TOPICS, ABSENT], draw.one([1, 1, 2]))
    ]
    body = producer(draw) | {"GroupId": group, "Topics": topics}
    if version >= 3 and draw.happens(0.4):
        body |= {"GenerationIdOrMemberEpoch": draw.generation(group), "MemberId": member_id(draw.member(group))}
        body["GroupInstanceId"] = draw.instance(0.2)
    return Step("TxnOffsetCommit", version, body)


def _offset(draw: Draw, partition: int) -> dict[str, Any]:
    return {
        "PartitionIndex": partition,
        "CommittedOffset": draw.one([1, 5, 9]),
        "CommittedLeaderEpoch": -1,
        "CommittedMetadata": LONG_METADATA if draw.happens(0.05) else draw.one([None, "x"]),
    }


def end(draw: Draw) -> Step:
    body = producer(draw) | {"Committed": draw.happens(0.6)}
    return Step("EndTxn", draw.random.randint(0, 5), body, settled=completed(body))
