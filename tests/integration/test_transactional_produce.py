"""Transactional batches: verified once, appended by native handlers, and read by read_committed consumers."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from kbroker.common.configs.config_resource import ConfigChange
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.protocol import codec
from kbroker.testing import VirtualBroker, wait_until
from tests.support.fixtures import fixture_of
from tests.support.wire import Connection, batch, create_topic, fetch, fetched

TRANSACTIONAL = 16
PRODUCE, ALL = 0, range(3, 14)


class Coordinator:
    """Coordinator that returns the given errors and keeps the requests."""

    def __init__(self, *responses: Errors | Exception) -> None:
        self.responses = list(responses)
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.before: Callable[[], object] = lambda: None

    def _respond(self, kind: str, *question: Any) -> dict[TopicPartition, Errors]:
        self.asked.append((kind, question))
        self.before()
        response = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        if isinstance(response, Exception):
            raise response
        return dict.fromkeys(question[3], response)

    def add_partitions(self, *question: Any) -> dict[TopicPartition, Errors]:
        return self._respond("add", *question)

    def verify_partitions(self, *question: Any) -> dict[TopicPartition, Errors]:
        return self._respond("verify", *question)


broker = fixture_of(VirtualBroker, topics={"t": 3})


@pytest.fixture
def connection(broker: VirtualBroker) -> Iterator[Connection]:
    with Connection(broker.bootstrap_servers) as one:
        yield one


def use(broker: VirtualBroker, coordinator: Coordinator) -> Coordinator:
    broker.context.add_partitions_to_txn._coordinator_of = lambda _: cast(TransactionCoordinator, coordinator)
    return coordinator


def declined(broker: VirtualBroker) -> int:
    return broker.parts.native_apis.declined


def of_transaction(sequence: int = 0, *, producer_id: int = 77, epoch: int = 0, **options: Any) -> bytes:
    options.setdefault("attributes", TRANSACTIONAL)
    return batch([b"v"], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **options)


def request(
    broker: VirtualBroker,
    version: int,
    rows: dict[int, bytes],
    *,
    name: str | None = "tx",
    acks: int = -1,
    topic: str = "t",
) -> bytes:
    view = broker.context.topics.get("t")
    data: dict[str, Any] = {"PartitionData": [{"Index": index, "Records": records} for index, records in rows.items()]}
    data |= {"TopicId": view.topic_id} if version >= 13 else {"Name": topic}
    body = {"TransactionalId": name, "Acks": acks, "TimeoutMs": 1000, "TopicData": [data]}
    return codec.encode_request_frame(PRODUCE, version, 1, "me", body)[4:]


def rows_of(version: int, response: bytes) -> list[dict[str, Any]]:
    (topic,) = codec.decode_response_frame(PRODUCE, version, response)[1]["Responses"]
    return list(topic["PartitionResponses"])


def put(broker: VirtualBroker, connection: Connection, version: int, data: bytes, **options: Any) -> dict[str, Any]:
    (row,) = rows_of(version, connection.ask(request(broker, version, {0: data}, **options)))
    return row


@pytest.mark.parametrize("version", ALL)
def test_only_the_first_batch_is_asked_about(broker: VirtualBroker, connection: Connection, version: int) -> None:
    """Only the first batch of a transaction in a partition is verified, from version 12 on by adding the partition."""
    coordinator = use(broker, Coordinator(Errors.NONE))
    before = declined(broker)
    for sequence in range(5):
        row = put(broker, connection, version, of_transaction(sequence))
        assert (row["ErrorCode"], row["BaseOffset"]) == (0, sequence)
    assert coordinator.asked == [("add" if version >= 12 else "verify", ("tx", 77, 0, (("t", 0),)))]
    assert declined(broker) == before + 1
    broker.context.topics.partition("t", 0).append_end_marker(77, 0, 0, True)
    assert put(broker, connection, version, of_transaction(5))["BaseOffset"] == 6
    assert len(coordinator.asked) == 2


def test_partitions_of_one_request_are_asked_about_together(broker: VirtualBroker, connection: Connection) -> None:
    coordinator = use(broker, Coordinator(Errors.NONE))
    put(broker, connection, 12, of_transaction())
    rows = rows_of(
        12, connection.ask(request(broker, 12, {0: of_transaction(1), 2: of_transaction(), 1: of_transaction()}))
    )
    assert [(row["Index"], row["ErrorCode"], row["BaseOffset"]) for row in rows] == [(0, 0, 1), (2, 0, 0), (1, 0, 0)]
    assert coordinator.asked[1][1][3] == (("t", 2), ("t", 1))


TEXT = "Unable to verify the partition has been added to the transaction. Underlying error: "
NOT_ADDED = "Partition was not added to the transaction"


@pytest.mark.parametrize(
    ("error", "version", "code", "text"),
    [
        (Errors.TRANSACTION_ABORTABLE, 10, 48, NOT_ADDED),
        (Errors.TRANSACTION_ABORTABLE, 11, 120, None),
        (Errors.TRANSACTION_ABORTABLE, 12, 120, None),
        (Errors.INVALID_TXN_STATE, 12, 48, NOT_ADDED),
        (Errors.PRODUCER_FENCED, 9, 47, None),
        (Errors.PRODUCER_FENCED, 13, 47, None),
        (Errors.INVALID_PRODUCER_ID_MAPPING, 11, 49, None),
        (Errors.CONCURRENT_TRANSACTIONS, 11, 19, TEXT + "CONCURRENT_TRANSACTIONS"),
        (Errors.NETWORK_EXCEPTION, 12, 19, TEXT + "NETWORK_EXCEPTION"),
        (Errors.COORDINATOR_LOAD_IN_PROGRESS, 12, 19, TEXT + "COORDINATOR_LOAD_IN_PROGRESS"),
        (Errors.NOT_COORDINATOR, 8, 19, TEXT + "NOT_COORDINATOR"),
        (KafkaError(Errors.COORDINATOR_NOT_AVAILABLE), 12, 19, TEXT + "COORDINATOR_NOT_AVAILABLE"),
        (ZeroDivisionError(), 12, -1, None),
    ],
)
def test_errors_by_version(
    broker: VirtualBroker, connection: Connection, error: Errors | Exception, version: int, code: int, text: str | None
) -> None:
    """Each error has the form for its version, nothing is appended, and a retry is verified again."""
    coordinator = use(broker, Coordinator(error))
    row = put(broker, connection, version, of_transaction())
    assert (row["ErrorCode"], row["BaseOffset"], row["LogStartOffset"], row["ErrorMessage"]) == (code, -1, -1, text)
    log = broker.context.topics.partition("t", 0)
    assert (log.log_end_offset, log.last_stable_offset) == (0, 0)
    coordinator.responses = [Errors.NONE]
    assert put(broker, connection, version, of_transaction())["ErrorCode"] == 0


def test_transaction_that_is_still_ending_is_tried_again(broker: VirtualBroker, connection: Connection) -> None:
    """After CONCURRENT_TRANSACTIONS, the broker retries the verification every 20 ms for 100 ms.

    The error is returned afterwards. Other requests of the connection wait, those of other connections do not.
    """
    coordinator = use(broker, Coordinator(Errors.CONCURRENT_TRANSACTIONS))
    connection.send(request(broker, 12, {0: of_transaction()}))
    for asked in range(1, 7):
        wait_until(lambda asked=asked: len(coordinator.asked) == asked)  # type: ignore[misc]
        broker.wait_until_quiet()
        with Connection(broker.bootstrap_servers) as other:
            assert put(broker, other, 12, batch([b"plain"]), name=None)["ErrorCode"] == 0
        broker.advance_ms(20)
    assert rows_of(12, connection.receive())[0]["ErrorCode"] == 51
    assert len(coordinator.asked) == 6


def test_try_after_the_marker_succeeds(broker: VirtualBroker, connection: Connection) -> None:
    """After the end marker of the previous transaction, a retry of the verification succeeds."""
    log = broker.context.topics.partition("t", 0)
    coordinator = use(broker, Coordinator(Errors.NONE))
    put(broker, connection, 12, of_transaction(epoch=1))
    coordinator.responses = [Errors.CONCURRENT_TRANSACTIONS, Errors.NONE]
    connection.send(request(broker, 12, {0: of_transaction(epoch=2)}))
    wait_until(lambda: len(coordinator.asked) == 2)
    broker.wait_until_quiet()
    assert log.append_end_marker(77, 2, 0, True, transaction_version=2).error == 0
    broker.advance_ms(20)
    (row,) = rows_of(12, connection.receive())
    assert (row["ErrorCode"], row["BaseOffset"]) == (0, 2)
    assert log.last_stable_offset == 2


def test_marker_between_response_and_append(broker: VirtualBroker, connection: Connection) -> None:
    """A batch whose transaction was aborted during the verification is refused."""
    log = broker.context.topics.partition("t", 0)
    coordinator = use(broker, Coordinator(Errors.NONE))
    coordinator.before = lambda: log.append_end_marker(77, 0, 0, False)
    assert put(broker, connection, 11, of_transaction())["ErrorCode"] == 48
    assert log.last_stable_offset == log.log_end_offset == 1


def test_partition_that_is_made_meanwhile(broker: VirtualBroker, connection: Connection) -> None:
    """A partition that is created during the verification is refused, as it was not verified."""
    coordinator = use(broker, Coordinator(Errors.NONE))

    def create() -> None:
        with Connection(broker.bootstrap_servers) as admin:
            admin.ask(create_topic("late", 1))

    coordinator.before = create
    rows = {name: [{"Index": 0, "Records": of_transaction()}] for name in ("t", "late")}
    data = [{"Name": name, "PartitionData": partitions} for name, partitions in rows.items()]
    body: dict[str, Any] = {"TransactionalId": "tx", "Acks": -1, "TimeoutMs": 1000, "TopicData": data}
    response = connection.ask(codec.encode_request_frame(PRODUCE, 12, 1, "me", body)[4:])
    topics = codec.decode_response_frame(PRODUCE, 12, response)[1]["Responses"]
    assert {topic["Name"]: topic["PartitionResponses"][0]["ErrorCode"] for topic in topics} == {"t": 0, "late": 48}
    assert coordinator.asked[0][1][3] == (("t", 0),)
    assert broker.context.topics.partition("late", 0).log_end_offset == 0


def test_who_may_write_what(broker: VirtualBroker, connection: Connection) -> None:
    """Transactional batches need a transactional id and one producer; other batches are not verified."""
    coordinator = use(broker, Coordinator(Errors.NONE))
    assert put(broker, connection, 9, of_transaction(), name=None)["ErrorCode"] == 53
    assert put(broker, connection, 9, of_transaction(attributes=0))["ErrorCode"] == 0
    two = request(broker, 12, {0: of_transaction(), 1: of_transaction(producer_id=78)})
    assert [row["ErrorCode"] for row in rows_of(12, connection.ask(two))] == [49, 49]
    epochs = request(broker, 12, {0: of_transaction(), 1: of_transaction(epoch=1)})
    assert [row["ErrorCode"] for row in rows_of(12, connection.ask(epochs))] == [49, 49]
    assert coordinator.asked == []
    mixed = request(broker, 12, {1: of_transaction(), 2: of_transaction(attributes=0)})
    assert [row["ErrorCode"] for row in rows_of(12, connection.ask(mixed))] == [0, 0]
    assert coordinator.asked[0][1][3] == (("t", 1),)
    assert put(broker, connection, 12, batch([b"v"], attributes=TRANSACTIONAL))["ErrorCode"] == 0  # no producer id


def test_plain_write_inside_a_transaction(broker: VirtualBroker, connection: Connection) -> None:
    use(broker, Coordinator(Errors.NONE))
    assert put(broker, connection, 12, of_transaction())["ErrorCode"] == 0
    assert put(broker, connection, 12, of_transaction(1, attributes=0))["ErrorCode"] == 48


def test_partitions_that_are_not_there_are_not_asked_about(broker: VirtualBroker, connection: Connection) -> None:
    coordinator = use(broker, Coordinator(Errors.NONE))
    rows = rows_of(12, connection.ask(request(broker, 12, {0: of_transaction(), 3: of_transaction(), 1: b""})))
    assert [row["ErrorCode"] for row in rows] == [0, 3, 87]
    assert coordinator.asked[0][1][3] == (("t", 0),)


def test_malformed_batches_are_not_asked_about(broker: VirtualBroker, connection: Connection) -> None:
    """Two batches for a partition are refused before the transaction is verified."""
    coordinator = use(broker, Coordinator(Errors.TRANSACTION_ABORTABLE))
    rows = rows_of(
        12, connection.ask(request(broker, 12, {0: of_transaction() + of_transaction(1), 1: of_transaction()}))
    )
    assert [row["ErrorCode"] for row in rows] == [87, 120]
    assert coordinator.asked[0][1][3] == (("t", 1),)


def test_bytes_that_are_not_a_batch_refuse_the_request(broker: VirtualBroker, connection: Connection) -> None:
    """Invalid bytes before the first transactional batch refuse the request, later ones a partition, as in Kafka."""
    use(broker, Coordinator(Errors.NONE))
    garbage = of_transaction(magic=3)
    rows = rows_of(12, connection.ask(request(broker, 12, {0: batch([b"v"]), 9: batch([b"v"]), 1: garbage})))
    assert [(row["ErrorCode"], row["LogStartOffset"]) for row in rows] == [(2, -1)] * 3
    rows = rows_of(12, connection.ask(request(broker, 12, {0: of_transaction(), 1: garbage})))
    assert [row["ErrorCode"] for row in rows] == [0, 2]
    assert put(broker, connection, 12, garbage, name=None)["ErrorCode"] == 2


def test_older_epoch_is_refused_without_a_question(broker: VirtualBroker, connection: Connection) -> None:
    coordinator = use(broker, Coordinator(Errors.NONE))
    put(broker, connection, 12, of_transaction(epoch=2))
    row = put(broker, connection, 12, of_transaction(epoch=1))
    assert (row["ErrorCode"], row["LogStartOffset"]) == (47, -1)
    assert len(coordinator.asked) == 1


def test_first_sequence(broker: VirtualBroker, connection: Connection) -> None:
    """With transaction version 2, the first sequence number is 0; for older clients it is arbitrary."""
    use(broker, Coordinator(Errors.NONE))
    assert put(broker, connection, 12, of_transaction(5))["ErrorCode"] == 45
    assert put(broker, connection, 11, of_transaction(5, producer_id=78))["ErrorCode"] == 0


def test_verification_can_be_switched_off(broker: VirtualBroker, connection: Connection) -> None:
    """Without verification, clients below version 12 are not verified, and later ones still add their partitions."""
    coordinator = use(broker, Coordinator(Errors.NONE))
    switch(broker, "false")
    assert put(broker, connection, 11, of_transaction())["ErrorCode"] == 0
    assert coordinator.asked == []
    assert put(broker, connection, 12, of_transaction(producer_id=78))["ErrorCode"] == 0
    assert [kind for kind, _ in coordinator.asked] == ["add"]
    switch(broker, "true")
    assert put(broker, connection, 11, of_transaction(producer_id=79))["ErrorCode"] == 0
    assert [kind for kind, _ in coordinator.asked] == ["add", "verify"]


def switch(broker: VirtualBroker, value: str) -> None:
    broker.context.dynamic.alter(4, "", [ConfigChange("transaction.partition.verification.enable", 0, value)])


@pytest.mark.parametrize("acks", [0, 1])
def test_acks(broker: VirtualBroker, connection: Connection, acks: int) -> None:
    """With acks=0 there is no response, and an error closes the connection."""
    use(broker, Coordinator(Errors.NONE))
    data = request(broker, 12, {0: of_transaction()}, acks=acks)
    if acks:
        assert rows_of(12, connection.ask(data))[0]["ErrorCode"] == 0
        return
    connection.send(data)
    assert put(broker, connection, 12, of_transaction(1))["BaseOffset"] == 1
    use(broker, Coordinator(Errors.INVALID_TXN_STATE))
    connection.send(request(broker, 12, {1: of_transaction()}, acks=0))
    assert connection.is_closed_within(5)


def test_read_committed_waits_for_the_marker(broker: VirtualBroker, connection: Connection) -> None:
    """A delayed read_committed fetch counts bytes up to the last stable offset, and the marker completes it."""
    use(broker, Coordinator(Errors.NONE))
    log = broker.context.topics.partition("t", 0)
    with Connection(broker.bootstrap_servers) as reader, Connection(broker.bootstrap_servers) as other:
        reader.send(fetch("t", max_wait_ms=10_000, isolation=1))
        broker.wait_for_fetches()
        put(broker, connection, 12, of_transaction())
        broker.wait_until_quiet()
        assert broker.waiting_fetches == 1
        other.send(fetch("t", max_wait_ms=10_000, isolation=1, min_bytes=1 << 20))
        broker.wait_for_fetches(2)
        log.append_end_marker(77, 1, 0, False, transaction_version=2)
        got = fetched(reader.receive())
        assert len(got.batches()) == 2
        assert broker.waiting_fetches == 1


def test_with_the_coordinator(broker: VirtualBroker, connection: Connection) -> None:
    """With the broker's coordinator, a commit and an abort move the last stable offset; the abort is in the index."""
    transactions = broker.context.transactions
    transactions.runtime.prepare()
    producer = transactions.init_producer_id("tx", 60_000)
    for commit in (True, False):
        data = of_transaction(producer_id=producer.producer_id, epoch=producer.producer_epoch)
        assert put(broker, connection, 12, data)["ErrorCode"] == 0
        log = broker.context.topics.partition("t", 0)
        assert log.last_stable_offset == log.log_end_offset - 1
        producer = transactions.end_transaction("tx", *producer, commit)
        assert log.last_stable_offset == log.log_end_offset
    got = log.read(0, isolation=1)
    assert [(row.first_offset, row.last_offset) for row in got.aborted] == [(2, 3)]


def test_late_transactions_are_counted(broker: VirtualBroker, connection: Connection) -> None:
    """A transaction is counted as late after transaction.max.timeout.ms and five minutes."""
    use(broker, Coordinator(Errors.NONE))

    late = broker.parts.logs.tasks.late_transactions
    data = of_transaction(timestamp_ms=broker.clock.wall_ms())
    assert put(broker, connection, 12, data)["ErrorCode"] == 0
    broker.advance_ms(900_000 + 300_000)
    assert late() == 0
    broker.advance_ms(1)
    assert late() == 1
    broker.context.topics.partition("t", 0).append_end_marker(77, 1, 0, False, transaction_version=2)
    assert late() == 0


def test_a_response_that_waits_for_a_sync_frees_the_verification_once() -> None:
    """The verification is freed once, although the response may be sent before the appending thread continues."""
    count = 3000
    with VirtualBroker({"log.flush.interval.messages": 1, "num.io.threads": 2}) as broker:
        broker.create_topic("t", 1)
        use(broker, Coordinator(Errors.NONE))
        with Connection(broker.bootstrap_servers) as connection:
            for number in range(count):
                connection.send(request(broker, 9, {0: of_transaction(producer_id=number)}))
                if number >= 5:
                    assert rows_of(9, connection.receive())[0]["ErrorCode"] == 0
