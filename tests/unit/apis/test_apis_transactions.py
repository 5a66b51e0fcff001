"""Transaction APIs through the codec, in cases without a recorded response of Kafka."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.coordinator.internal_topic import EndMarker
from kbroker.coordinator.transaction_service import PartitionMarkers
from kbroker.requests.context import Body
from tests.support.groups import Groups
from tests.support.server import Bench, make_bench
from tests.support.transactions import FakeMarkers, Transactions


@dataclass
class FakeService:
    """Replacement of ``TransactionService`` for tests."""

    transactions: Transactions
    markers: FakeMarkers = field(default_factory=FakeMarkers)

    @property
    def coordinator(self) -> object:
        return self.transactions.coordinator


@dataclass
class Asked:
    """Handlers over a coordinator on a virtual clock, with a topic t of two partitions."""

    bench: Bench
    service: FakeService

    def __call__(self, name: str, version: int, body: Body) -> Body:
        return self.bench.ask(name, version, body)

    def init(self, name: str = "x", version: int = 4) -> Body:
        return self("InitProducerId", version, {"TransactionalId": name, "TransactionTimeoutMs": 60_000})


@pytest.fixture
def ask() -> Asked:
    bench = make_bench()
    bench.create("t", 2)
    service = FakeService(Transactions())
    bench.ctx.transaction_service.started = service  # type: ignore[assignment]
    return Asked(bench, service)


def who(epoch: int = 0, name: str = "x", producer_id: int = 1000) -> Body:
    return {"TransactionalId": name, "ProducerId": producer_id, "ProducerEpoch": epoch}


def classic(fields: Body, *indexes: int, topic: str = "t") -> Body:
    return {f"V3AndBelow{name}": value for name, value in fields.items()} | {
        "V3AndBelowTopics": [{"Name": topic, "Partitions": list(indexes)}]
    }


def batched(fields: Body, *indexes: int, verify: bool = False) -> Body:
    return {**fields, "VerifyOnly": verify, "Topics": [{"Name": "t", "Partitions": list(indexes)}]}


def codes(rows: list[Body]) -> dict[int, int]:
    (topic,) = rows
    return {row["PartitionIndex"]: row["PartitionErrorCode"] for row in topic["ResultsByPartition"]}


def test_the_coordinator_is_found(ask: Asked) -> None:
    """FindCoordinator creates the topic of transactions, and each of several keys has a row."""
    assert ask("FindCoordinator", 3, {"Key": "x", "KeyType": 1})["ErrorCode"] == 0
    rows = ask("FindCoordinator", 6, {"KeyType": 1, "CoordinatorKeys": ["x", "y"]})["Coordinators"]
    assert [(row["Key"], row["ErrorCode"], row["Port"]) for row in rows] == [("x", 0, 9092), ("y", 0, 9092)]
    coordinator: Any = ask.service.coordinator
    coordinator.runtime.unload(coordinator.runtime.index_of("x"), 1)
    rows = ask("FindCoordinator", 6, {"KeyType": 1, "CoordinatorKeys": ["x"]})["Coordinators"]
    assert [(row["ErrorCode"], row["NodeId"]) for row in rows] == [(15, -1)]


def test_the_coordinator_is_found_while_it_loads(ask: Asked) -> None:
    """FindCoordinator names the broker, and other requests get COORDINATOR_LOAD_IN_PROGRESS, as in Kafka."""
    assert ask.init()["ErrorCode"] == 0
    coordinator: Any = ask.service.coordinator
    index = coordinator.runtime.index_of("x")
    topic = coordinator.runtime._topic
    coordinator.runtime.unload(index, 1)
    original, seen = topic.partition, []

    def look(number: int) -> object:
        topic.partition = original
        for version, body in ((3, {"Key": "x", "KeyType": 1}), (6, {"KeyType": 1, "CoordinatorKeys": ["x"]})):
            found = ask("FindCoordinator", version, body)
            seen.append(found["Coordinators"][0]["ErrorCode"] if version >= 4 else found["ErrorCode"])
        seen.append(ask.init()["ErrorCode"])
        return original(number)

    topic.partition = look
    coordinator.runtime.load(index, 2)
    assert seen == [0, 0, 14]
    assert ask.init()["ErrorCode"] == 0


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC])
def test_an_internal_topic_is_in_no_transaction(ask: Asked, topic: str) -> None:
    """An internal topic is rejected whether it exists or not."""
    ask.init()
    response = ask("AddPartitionsToTxn", 3, classic(who(), 0, topic=topic))
    assert codes(response["ResultsByTopicV3AndBelow"]) == {0: Errors.TOPIC_AUTHORIZATION_FAILED}
    assert ask.service.transactions.state() == "Empty"


def test_partitions_of_brokers(ask: Asked) -> None:
    """A request holds several transactions with a result each, some of them only for verification."""
    ask.init()
    ask.init("y")
    other = who(name="y", producer_id=1001)
    body = {"Transactions": [batched(who(), 0), batched(other, 0, verify=True), batched(who(name="z"), 1)]}
    response = ask("AddPartitionsToTxn", 5, body)
    rows = {row["TransactionalId"]: codes(row["TopicResults"]) for row in response["ResultsByTransaction"]}
    assert rows == {"x": {0: 0}, "y": {0: Errors.TRANSACTION_ABORTABLE}, "z": {1: Errors.INVALID_PRODUCER_ID_MAPPING}}


@pytest.mark.parametrize("version", [3, 4])
def test_partitions_as_they_were_requested(ask: Asked, version: int) -> None:
    """If all partitions have one result, the response repeats the request; otherwise it has each partition once."""
    ask.init()

    def results(*indexes: int, verify: bool = False) -> list[tuple[str, list[int]]]:
        if version < 4:
            rows = ask("AddPartitionsToTxn", version, classic(who(), *indexes))["ResultsByTopicV3AndBelow"]
        else:
            body = {"Transactions": [batched(who(), *indexes, verify=verify)]}
            rows = ask("AddPartitionsToTxn", version, body)["ResultsByTransaction"][0]["TopicResults"]
        return [(row["Name"], [one["PartitionIndex"] for one in row["ResultsByPartition"]]) for row in rows]

    assert results(0, 0) == [("t", [0, 0])]
    assert results() == [("t", [])]
    assert results(9, 0, 9) == [("t", [9, 0])]
    if version >= 4:
        assert results(0, 1, 0, verify=True) == [("t", [0, 1])]
        assert results(verify=True) == []


def test_a_group_is_added(ask: Asked) -> None:
    """The partition that holds the group's offsets is added to the transaction."""
    groups = Groups()
    ask.bench.serve_groups(groups.coordinator)
    ask.init()
    assert ask("AddOffsetsToTxn", 4, {**who(), "GroupId": "g"})["ErrorCode"] == 0
    place = (OFFSETS_TOPIC, groups.coordinator.runtime.index_of("g"))
    assert ask.service.transactions.see().partitions == {place}


@pytest.mark.parametrize("version", [1, 2])
def test_markers(ask: Asked, version: int) -> None:
    """The response has a row for each producer id, and an error for each partition."""
    ask.service.markers.errors["t", 1] = Errors.INVALID_PRODUCER_EPOCH
    marker = {"ProducerId": 7, "ProducerEpoch": 2, "TransactionResult": False, "CoordinatorEpoch": 3}
    topics = [{"Name": "t", "PartitionIndexes": [0, 1]}]
    again = {**marker, "Topics": [{"Name": "u", "PartitionIndexes": [0]}]}
    if version == 2:
        marker["TransactionVersion"] = 2
    response = ask("WriteTxnMarkers", version, {"Markers": [{**marker, "Topics": topics}, again]})
    (row,) = response["Markers"]
    found = {
        (topic["Name"], one["PartitionIndex"]): one["ErrorCode"]
        for topic in row["Topics"]
        for one in topic["Partitions"]
    }
    assert found == {("t", 0): 0, ("t", 1): 47, ("u", 0): 0}
    assert ask.service.markers.written[0] == (("t", 0), 7, 2, 3, False, 2 if version == 2 else 0)
    assert ask("WriteTxnMarkers", version, {"Markers": []}) == {"Markers": []}
    nowhere = {**marker, "Topics": [{"Name": "t", "PartitionIndexes": []}]}
    assert ask("WriteTxnMarkers", version, {"Markers": [nowhere]}) == {"Markers": []}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"ProducerId": -1}, Errors.UNKNOWN_SERVER_ERROR),
        ({"ProducerEpoch": -1}, Errors.UNKNOWN_SERVER_ERROR),
        ({"CoordinatorEpoch": -1}, Errors.NONE),
    ],
)
def test_markers_with_impossible_numbers(ask: Asked, wrong: Body, error: Errors) -> None:
    """Markers with impossible numbers get Kafka's errors, and the valid markers of the request are written."""
    marker = {"ProducerId": 7, "ProducerEpoch": 2, "TransactionResult": False, "CoordinatorEpoch": 3}
    good = {**marker, "ProducerId": 8, "Topics": [{"Name": "t", "PartitionIndexes": [0]}]}
    bad = {**marker, **wrong, "Topics": [{"Name": "t", "PartitionIndexes": [0, 2]}]}
    rows = ask("WriteTxnMarkers", 2, {"Markers": [bad, good]})["Markers"]
    found = [[one["ErrorCode"] for one in row["Topics"][0]["Partitions"]] for row in rows]
    assert found == ([[0, 0], [0]] if error is Errors.NONE else [[error, Errors.UNKNOWN_TOPIC_OR_PARTITION], [0]])


def test_a_pattern_that_costs_too_much_is_refused(ask: Asked) -> None:
    assert ask("ListTransactions", 2, {"TransactionalIdPattern": "(a{1000}){1000}"})["ErrorCode"] == 128


def test_a_repeated_filter_is_one_filter(ask: Asked) -> None:
    """An unknown state is returned once, in the place of its first mention."""
    body = {"StateFilters": ["x", "Empty", "y", "x"]}
    assert ask("ListTransactions", 2, body)["UnknownStateFilters"] == ["x", "y"]


@pytest.mark.parametrize(
    ("name", "version", "body"),
    [
        ("AddPartitionsToTxn", 0, classic(who(), 0)),
        ("AddPartitionsToTxn", 5, {"Transactions": [batched(who(), 0)]}),
        ("AddOffsetsToTxn", 1, {**who(), "GroupId": "g"}),
        ("EndTxn", 5, {**who(), "Committed": True}),
        ("WriteTxnMarkers", 1, {"Markers": []}),
        ("DescribeTransactions", 0, {"TransactionalIds": ["x"]}),
        ("ListTransactions", 2, {}),
    ],
)
def test_failures_can_be_sent(ask: Asked, name: str, version: int, body: Body) -> None:
    """The response to a failure has the fields of its version."""
    assert ask.bench.failed(name, version, body, Errors.UNKNOWN_SERVER_ERROR)


# ---- destinations of markers


class Groupless:
    """Group coordinator that raises the given error."""

    def __init__(self, error: Errors) -> None:
        self.error = error
        self.rows: list[tuple[object, ...]] = []
        self.offsets = self

    def complete_transaction(self, *row: object) -> None:
        self.rows.append(row)
        if self.error is not Errors.NONE:
            raise KafkaError(self.error)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        (Errors.NONE, Errors.NONE),
        (Errors.NOT_COORDINATOR, Errors.NOT_LEADER_OR_FOLLOWER),
        (Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.NOT_LEADER_OR_FOLLOWER),
        (Errors.INVALID_PRODUCER_EPOCH, Errors.INVALID_PRODUCER_EPOCH),
    ],
)
def test_markers_of_offsets_go_to_the_groups(bench: Bench, said: Errors, written: Errors) -> None:
    """A group coordinator that cannot write is reported as a partition without a leader."""
    bench.create(OFFSETS_TOPIC, 1)
    groups = Groupless(said)
    markers = PartitionMarkers(bench.ctx.topics, lambda index: groups)  # type: ignore[arg-type, return-value]
    assert markers.write((OFFSETS_TOPIC, 0), EndMarker(7, 1, 2, True, 2)) is written
    assert groups.rows == [(0, (7, 1, 2, True, 2))]


def test_markers_of_partitions_that_are_not_there(bench: Bench) -> None:
    bench.create("t", 1)
    none: Callable[[], object] = object
    markers = PartitionMarkers(bench.ctx.topics, none)  # type: ignore[arg-type]
    for place in (("absent", 0), ("t", 1), ("t", -1)):
        assert markers.write(place, EndMarker(7, 1, 2, True, 2)) is Errors.UNKNOWN_TOPIC_OR_PARTITION
