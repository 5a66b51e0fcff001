"""Transactional producer: the order of its requests, and its behaviour after an error."""

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.producer import Delivery
from kbroker.client.transactional_producer import TransactionalProducer, is_fenced
from kbroker.common.errors import Errors, KafkaError
from kbroker.protocol.records import iter_batches
from tests.support.fake_broker import Body, FakeBroker

PRODUCE, FIND, INIT, ADD, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 10, 22, 24, 25, 26, 28
NAMES = {PRODUCE: "produce", INIT: "init", ADD: "add", ADD_OFFSETS: "offsets", END: "end", COMMIT_OFFSETS: "commit"}


class Coordinator:
    """Scripted responses of leader and coordinator; ``codes`` has the first errors of each API."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.codes: dict[int, list[Errors]] = {}
        self.epoch = -1
        broker.handlers |= {
            FIND: lambda version, body: {
                "Coordinators": [
                    {"Key": key, "NodeId": 7, "Host": "", "Port": 0, "ErrorCode": 0} for key in body["CoordinatorKeys"]
                ]
            },
            INIT: self.init,
            ADD: self.add,
            ADD_OFFSETS: lambda version, body: {"ErrorCode": self.code(ADD_OFFSETS)},
            END: lambda version, body: {"ErrorCode": self.code(END)},
            PRODUCE: self.produce,
            COMMIT_OFFSETS: self.commit,
        }

    def code(self, api_key: int) -> int:
        left = self.codes.get(api_key)
        return int(left.pop(0)) if left else 0

    def init(self, version: int, body: Body) -> Body:
        code = self.code(INIT)
        self.epoch += not code
        return {"ErrorCode": code, "ProducerId": -1 if code else 9, "ProducerEpoch": -1 if code else self.epoch}

    def add(self, version: int, body: Body) -> Body:
        return {
            "ResultsByTopicV3AndBelow": [
                {
                    "Name": topic["Name"],
                    "ResultsByPartition": [
                        {"PartitionIndex": index, "PartitionErrorCode": self.code(ADD)} for index in topic["Partitions"]
                    ],
                }
                for topic in body["V3AndBelowTopics"]
            ]
        }

    def produce(self, version: int, body: Body) -> Body:
        code = self.code(PRODUCE)
        return {
            "Responses": [
                {
                    "Name": topic["Name"],
                    "PartitionResponses": [
                        {"Index": one["Index"], "ErrorCode": code, "BaseOffset": 3} for one in topic["PartitionData"]
                    ],
                }
                for topic in body["TopicData"]
            ]
        }

    def commit(self, version: int, body: Body) -> Body:
        return {
            "Topics": [
                {
                    "Name": topic["Name"],
                    "Partitions": [
                        {"PartitionIndex": one["PartitionIndex"], "ErrorCode": self.code(COMMIT_OFFSETS)}
                        for one in topic["Partitions"]
                    ],
                }
                for topic in body["Topics"]
            ]
        }

    def order(self) -> list[str]:
        return [NAMES[key] for key, _, _ in self.broker.seen if key in NAMES]


@pytest.fixture
def coordinator(broker: FakeBroker) -> Coordinator:
    return Coordinator(broker)


def test_one_transaction(coordinator: Coordinator, cluster: Cluster) -> None:
    """Each partition is added once before its records, then offsets, then the end; sequences continue afterwards."""
    taken: list[Delivery] = []
    producer = TransactionalProducer(cluster, "x", on_delivery=taken.append, transaction_timeout_ms=5000)
    producer.init_transactions()
    for _ in range(2):
        producer.begin_transaction()
        producer.send("t", b"1", partition=0)
        producer.flush()
        producer.send("t", b"2", partition=0)
        producer.send_offsets("g", {("in", 3): (17, "note")})
        producer.commit_transaction()
    assert coordinator.order() == ["init", *["add", "produce", "offsets", "commit", "produce", "end"] * 2]
    broker = coordinator.broker
    ((_, init),) = broker.asked(INIT)
    assert (init["TransactionalId"], init["TransactionTimeoutMs"]) == ("x", 5000)
    batches = [
        next(iter_batches(body["TopicData"][0]["PartitionData"][0]["Records"])) for _, body in broker.asked(PRODUCE)
    ]
    assert [batch.base_sequence for batch in batches] == [0, 1, 2, 3]
    assert all(batch.is_transactional and (batch.producer_id, batch.producer_epoch) == (9, 0) for batch in batches)
    assert {body["TransactionalId"] for _, body in broker.asked(PRODUCE)} == {"x"}
    (topic,) = broker.asked(COMMIT_OFFSETS)[0][1]["Topics"]
    (row,) = topic["Partitions"]
    assert (topic["Name"], row["PartitionIndex"], row["CommittedOffset"], row["CommittedMetadata"]) == (
        "in",
        3,
        17,
        "note",
    )
    assert [body["Committed"] for _, body in broker.asked(END)] == [True, True]
    assert len(taken) == 4
    classic = {PRODUCE: 11, ADD: 3, ADD_OFFSETS: 3, END: 4, COMMIT_OFFSETS: 4}
    assert {key: max(version for version, _ in broker.asked(key)) for key in classic} == classic


def test_what_passes_is_asked_again(coordinator: Coordinator, cluster: Cluster) -> None:
    """CONCURRENT_TRANSACTIONS and a moved coordinator are retried."""
    coordinator.codes = {
        INIT: [Errors.CONCURRENT_TRANSACTIONS, Errors.NOT_COORDINATOR],
        ADD: [Errors.CONCURRENT_TRANSACTIONS],
        END: [Errors.COORDINATOR_NOT_AVAILABLE],
    }
    producer = TransactionalProducer(cluster, "x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"1", partition=0)
    producer.commit_transaction()
    assert coordinator.order() == ["init"] * 3 + ["add", "add", "produce", "end", "end"]


def test_after_an_error_the_transaction_can_only_be_aborted(coordinator: Coordinator, cluster: Cluster) -> None:
    """A rejected batch fails the transaction; the next transaction has a new epoch and sequence 0."""
    producer = TransactionalProducer(cluster, "x")
    producer.init_transactions()
    producer.begin_transaction()
    coordinator.codes[PRODUCE] = [Errors.MESSAGE_TOO_LARGE]
    producer.send("t", b"1", partition=0)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        producer.flush()
    with pytest.raises(ValueError, match="abort_transaction"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("t", b"2", partition=0)
    producer.commit_transaction()
    assert coordinator.order() == ["init", "add", "produce", "end", "init", "add", "produce", "end"]
    broker = coordinator.broker
    assert [(body["Committed"], body["ProducerEpoch"]) for _, body in broker.asked(END)] == [(False, 0), (True, 1)]
    last = next(iter_batches(broker.asked(PRODUCE)[-1][1]["TopicData"][0]["PartitionData"][0]["Records"]))
    assert (last.producer_epoch, last.base_sequence) == (1, 0)


@pytest.mark.parametrize("error", [Errors.PRODUCER_FENCED, Errors.INVALID_PRODUCER_EPOCH])
def test_a_fenced_producer_says_so(coordinator: Coordinator, cluster: Cluster, error: Errors) -> None:
    """The error identifies a fenced producer, and no second request is sent."""
    producer = TransactionalProducer(cluster, "x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"1", partition=0)
    coordinator.codes[END] = [error]
    with pytest.raises(KafkaError) as raised:
        producer.commit_transaction()
    assert is_fenced(raised.value)
    assert coordinator.order() == ["init", "add", "produce", "end"]


def test_calls_out_of_order(coordinator: Coordinator, cluster: Cluster) -> None:
    """A call out of order is rejected with the expected call; an empty transaction sends no request."""
    with pytest.raises(ValueError, match="must not be empty"):
        TransactionalProducer(cluster, "")
    producer = TransactionalProducer(cluster, "x")
    with pytest.raises(ValueError, match="init_transactions"):
        producer.begin_transaction()
    producer.init_transactions()
    with pytest.raises(ValueError, match="begin_transaction"):
        producer.commit_transaction()
    producer.begin_transaction()
    producer.commit_transaction()
    assert coordinator.order() == ["init"]


@pytest.mark.parametrize("state", ["new", "ready", "failed"])
def test_a_record_outside_a_transaction_is_refused(broker: FakeBroker, cluster: Cluster, state: str) -> None:
    """A record outside a transaction is refused, not sent with a past epoch or in the next transaction."""
    coordinator = Coordinator(broker)
    producer = TransactionalProducer(cluster, "x")
    if state != "new":
        producer.init_transactions()
    if state == "failed":
        producer.begin_transaction()
        coordinator.codes[ADD_OFFSETS] = [Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        with pytest.raises(KafkaError):
            producer.send_offsets("g", {("t", 0): (1, "")})
    with pytest.raises(ValueError, match="expected a call of"):
        producer.send("t", b"v", partition=0)
    assert not producer._pending


@pytest.mark.parametrize("committed", [True, False])
def test_another_producer_ends_the_transaction(coordinator: Coordinator, cluster: Cluster, committed: bool) -> None:
    """A producer object that takes over an open transaction ends it with the id and epoch of the one that began it."""
    first, second = (TransactionalProducer(cluster, "t") for _ in range(2))
    first.init_transactions()
    first.begin_transaction()
    first.send("t", b"1", partition=0)
    first.flush()
    first.send_offsets("g", {("in", 3): (17, "note")})
    assert first.identity == (9, 0)
    second.take_over(*first.identity)
    if committed:
        second.commit_transaction()
    else:
        second.abort_transaction()
    ((_, end),) = coordinator.broker.asked(END)
    assert (end["TransactionalId"], end["ProducerId"], end["ProducerEpoch"]) == ("t", 9, 0)
    assert end["Committed"] is committed
    with pytest.raises(ValueError, match="expected a call of begin_transaction"):
        second.take_over(9, 0)
