"""`kbroker transactions` against a scripted broker: requests, output and errors."""

import json
from typing import Any

from click.testing import Result

from kbroker._core.clock import VirtualClock
from tests.support import cli
from tests.support.fake_broker import Body, FakeBroker
from tests.support.fixtures import fixture_of

FIND_COORDINATOR, INIT_PRODUCER_ID, WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS = 10, 22, 27, 61
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66
NOW_MS = 100 * 60_000
NOT_FOUND, CONCURRENT = 105, 51


def producer(producer_id: int, epoch: int, start: int, last_ms: int = 0, coordinator_epoch: int = 4) -> Body:
    return {
        "ProducerId": producer_id,
        "ProducerEpoch": epoch,
        "LastSequence": 9,
        "LastTimestamp": last_ms,
        "CoordinatorEpoch": coordinator_epoch,
        "CurrentTxnStartOffset": start,
    }


class TransactionBroker(FakeBroker):
    """Broker with a topic `t` of two partitions.

    The transaction "busy" is open in t-0, "idle" is complete, and producer 70 hangs in t-1 without a coordinator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states = {"busy": ("Ongoing", 7, [("t", [0])]), "idle": ("CompleteCommit", 8, [])}
        self.producers = {0: [producer(7, 1, 5), producer(8, 2, -1)], 1: [producer(70, 3, 33, coordinator_epoch=-1)]}
        self.codes = {INIT_PRODUCER_ID: [0], WRITE_TXN_MARKERS: [0], LIST_TRANSACTIONS: [0]}
        self.handlers |= {
            FIND_COORDINATOR: self.find_coordinator,
            LIST_TRANSACTIONS: self.list_transactions,
            DESCRIBE_TRANSACTIONS: self.describe_transactions,
            DESCRIBE_PRODUCERS: self.describe_producers,
            WRITE_TXN_MARKERS: self.write_markers,
            INIT_PRODUCER_ID: self.init_producer_id,
        }

    def code(self, key: int) -> int:
        """Return the next code of an API; the last code repeats."""
        codes = self.codes[key]
        return codes.pop(0) if len(codes) > 1 else codes[0]

    def find_coordinator(self, version: int, body: Body) -> Body:
        row = {"NodeId": 7, "Host": self.address[0], "Port": self.address[1], "ErrorCode": 0}
        assert body["KeyType"] == 1
        return {"Coordinators": [{"Key": key, **row} for key in body["CoordinatorKeys"]]}

    def list_transactions(self, version: int, body: Body) -> Body:
        wanted = body["ProducerIdFilters"]
        rows = [
            {"TransactionalId": name, "ProducerId": producer_id, "TransactionState": state}
            for name, (state, producer_id, _) in self.states.items()
            if not wanted or producer_id in wanted
        ]
        unknown = [one for one in body["StateFilters"] if one == "Nonsense"]
        return {"ErrorCode": self.code(LIST_TRANSACTIONS), "UnknownStateFilters": unknown, "TransactionStates": rows}

    def describe_transactions(self, version: int, body: Body) -> Body:
        (name,) = body["TransactionalIds"]
        if name not in self.states:
            return {"TransactionStates": [{"ErrorCode": NOT_FOUND, "TransactionalId": name, "Topics": []}]}
        state, producer_id, topics = self.states[name]
        row = {
            "ErrorCode": 0,
            "TransactionalId": name,
            "TransactionState": state,
            "TransactionTimeoutMs": 60_000,
            "TransactionStartTimeMs": NOW_MS - 5000 if topics else -1,
            "ProducerId": producer_id,
            "ProducerEpoch": 1,
            "Topics": [{"Topic": topic, "Partitions": indexes} for topic, indexes in topics],
        }
        return {"TransactionStates": [row]}

    def describe_producers(self, version: int, body: Body) -> Body:
        topics = []
        for topic in body["Topics"]:
            rows = [
                {"PartitionIndex": index, "ErrorCode": 0, "ActiveProducers": self.producers[index]}
                for index in topic["PartitionIndexes"]
            ]
            topics.append({"Name": topic["Name"], "Partitions": rows})
        return {"Topics": topics}

    def write_markers(self, version: int, body: Body) -> Body:
        (marker,) = body["Markers"]
        (topic,) = marker["Topics"]
        code = self.code(WRITE_TXN_MARKERS)
        rows = [{"PartitionIndex": index, "ErrorCode": code} for index in topic["PartitionIndexes"]]
        topics = [{"Name": topic["Name"], "Partitions": rows}]
        return {"Markers": [{"ProducerId": marker["ProducerId"], "Topics": topics}]}

    def init_producer_id(self, version: int, body: Body) -> Body:
        return {"ErrorCode": self.code(INIT_PRODUCER_ID), "ProducerId": 9, "ProducerEpoch": 5}


broker = fixture_of(TransactionBroker)


def run(broker: FakeBroker, *arguments: str) -> Result:
    return cli.run(broker, "transactions", *arguments, obj=VirtualClock(NOW_MS))


def out(broker: FakeBroker, *arguments: str) -> str:
    return cli.printed(broker, "transactions", *arguments, obj=VirtualClock(NOW_MS))


def parsed(broker: FakeBroker, *arguments: str) -> Any:
    return json.loads(out(broker, *arguments, "--json"))


def test_list(broker: TransactionBroker) -> None:
    """Transactions are ordered by id and have their coordinator; the broker applies the filters."""
    assert out(broker, "list") == (
        "TRANSACTIONAL ID  COORDINATOR  PRODUCER ID  STATE\n"
        "busy                        7            7  Ongoing\n"
        "idle                        7            8  CompleteCommit\n"
    )
    assert parsed(broker, "list")[0] == {
        "transactional_id": "busy",
        "coordinator": 7,
        "producer_id": 7,
        "state": "Ongoing",
    }
    options = [
        "--state", "Ongoing", "--producer-id", "7", "--duration-filter", "5", "--transactional-id-pattern", "b.*",
    ]  # fmt: skip
    assert [row["transactional_id"] for row in parsed(broker, "list", *options)] == ["busy"]
    _, sent = broker.asked(LIST_TRANSACTIONS)[-1]
    assert (sent["StateFilters"], sent["ProducerIdFilters"]) == (["Ongoing"], [7])
    assert (sent["DurationFilter"], sent["TransactionalIdPattern"]) == (5, "b.*")


def test_an_older_broker_knows_fewer_filters(broker: TransactionBroker) -> None:
    """An unsupported filter is an error; a request without filters is sent to an old broker."""
    broker.ranges[LIST_TRANSACTIONS] = (0, 0)
    assert "busy" in out(broker, "list")
    for option in (["--duration-filter", "5"], ["--transactional-id-pattern", "b"]):
        result = run(broker, "list", *option)
        assert (result.exit_code, result.stderr.count("UNSUPPORTED_VERSION")) == (1, 1)
        assert "the broker has 0" in result.stderr


def test_a_state_that_no_broker_knows(broker: TransactionBroker) -> None:
    """A misspelt state is an error, not an empty list."""
    result = run(broker, "list", "--state", "Nonsense")
    assert (result.exit_code, "which broker 7 has, got Nonsense" in result.stderr) == (1, True)


def test_describe(broker: TransactionBroker) -> None:
    """Start times are the coordinator's, durations use the local clock, and idle transactions have a dash."""
    assert out(broker, "describe", "busy", "idle") == (
        "TRANSACTIONAL ID  COORDINATOR  PRODUCER ID  EPOCH  STATE           TIMEOUT    START  DURATION  PARTITIONS\n"
        "busy                        7            7      1  Ongoing           60000  5995000      5000  t-0\n"
        "idle                        7            8      1  CompleteCommit    60000        -         -  -\n"
    )
    (row,) = parsed(broker, "describe", "busy")
    assert row == {
        "transactional_id": "busy",
        "coordinator": 7,
        "producer_id": 7,
        "producer_epoch": 1,
        "state": "Ongoing",
        "timeout_ms": 60_000,
        "start_time_ms": NOW_MS - 5000,
        "duration_ms": 5000,
        "partitions": [{"topic": "t", "partition": 0}],
    }
    result = run(broker, "describe", "absent")
    assert (result.exit_code, "TRANSACTIONAL_ID_NOT_FOUND: transactional id 'absent'" in result.stderr) == (1, True)


def test_describe_producers(broker: TransactionBroker) -> None:
    """The producers of one partition are listed, with a dash if no transaction is open."""
    assert out(broker, "describe-producers", "t", "0") == (
        "PRODUCER ID  EPOCH  COORDINATOR EPOCH  LAST SEQUENCE  LAST TIMESTAMP  START OFFSET\n"
        "          7      1                  4              9               0             5\n"
        "          8      2                  4              9               0             -\n"
    )
    assert [row["start_offset"] for row in parsed(broker, "describe-producers", "t", "0")] == [5, None]
    result = run(broker, "describe-producers", "t", "9")
    assert (result.exit_code, "expected a partition from 0 to 1, got 9" in result.stderr) == (1, True)


def test_find_hanging(broker: TransactionBroker) -> None:
    """Producers without a transactional id hang, and so do those with a transaction that lacks the partition."""
    assert out(broker, "find-hanging") == (
        "TOPIC  PARTITION  PRODUCER ID  EPOCH  COORDINATOR EPOCH  START OFFSET  LAST TIMESTAMP  DURATION\n"
        "t              1           70      3                 -1            33               0       100\n"
    )
    assert [row["producer_id"] for row in parsed(broker, "find-hanging", "--topic", "t")] == [70]
    assert parsed(broker, "find-hanging", "--topic", "t", "--partition", "0") == []
    assert parsed(broker, "find-hanging", "--broker-id", "8") == []
    broker.states["busy"] = ("Ongoing", 7, [("t", [1])])
    assert [row["producer_id"] for row in parsed(broker, "find-hanging")] == [7, 70]
    del broker.states["busy"]
    assert [row["producer_id"] for row in parsed(broker, "find-hanging")] == [7, 70]
    assert parsed(broker, "find-hanging", "--max-transaction-timeout", "100") == []
    assert run(broker, "find-hanging", "--partition", "0").exit_code == 2


def test_abort_by_start_offset(broker: TransactionBroker) -> None:
    """The producer is looked up by the offset, and an unknown coordinator epoch is sent as 0."""
    assert out(broker, "abort", "t", "1", "--start-offset", "33") == "aborted the transaction of producer 70 in t-1\n"
    _, sent = broker.asked(WRITE_TXN_MARKERS)[-1]
    assert sent["Markers"] == [
        {
            "ProducerId": 70,
            "ProducerEpoch": 3,
            "TransactionResult": False,
            "Topics": [{"Name": "t", "PartitionIndexes": [1]}],
            "CoordinatorEpoch": 0,
            "TransactionVersion": 0,
        }
    ]
    result = run(broker, "abort", "t", "0", "--start-offset", "6")
    assert "no transaction that is open in t-0 starts at offset 6" in result.stderr
    assert (result.exit_code, len(broker.asked(WRITE_TXN_MARKERS))) == (1, 1)


def test_abort_by_producer(broker: TransactionBroker) -> None:
    """Brokers that do not describe producers need the producer id, the epoch and the coordinator epoch."""
    numbers = ["--producer-id", "7", "--producer-epoch", "1", "--coordinator-epoch", "4"]
    assert parsed(broker, "abort", "t", "0", *numbers) == {
        "topic": "t",
        "partition": 0,
        "producer_id": 7,
        "producer_epoch": 1,
    }
    broker.codes[WRITE_TXN_MARKERS] = [47]
    result = run(broker, "abort", "t", "0", *numbers)
    assert (result.exit_code, "INVALID_PRODUCER_EPOCH: aborting producer 7 in t-0" in result.stderr) == (1, True)
    for wrong in ([], numbers[:2], [*numbers, "--start-offset", "5"]):
        assert run(broker, "abort", "t", "0", *wrong).exit_code == 2


def test_force_terminate(broker: TransactionBroker) -> None:
    """InitProducerId is sent, and repeated while the abort is in progress."""
    broker.codes[INIT_PRODUCER_ID] = [CONCURRENT, 0]
    assert out(broker, "force-terminate", "busy") == "terminated busy\n"
    asked = broker.asked(INIT_PRODUCER_ID)
    assert [body["TransactionalId"] for _, body in asked] == ["busy", "busy"]
    assert {body.get("ProducerId", -1) for _, body in asked} == {-1}
    assert parsed(broker, "force-terminate", "busy") == {"transactional_id": "busy", "terminated": True}


def test_a_misspelled_id_is_not_terminated(broker: TransactionBroker) -> None:
    """An id that does not exist is an error; earlier, such an id was created and reported as terminated."""
    found = run(broker, "force-terminate", "bussy")
    assert (found.exit_code, "TRANSACTIONAL_ID_NOT_FOUND" in found.stderr) == (1, True)
    assert broker.asked(INIT_PRODUCER_ID) == []


def test_coordinators_that_load_are_asked_again(broker: TransactionBroker) -> None:
    """A coordinator that loads is retried, so that the list includes its transactions."""
    broker.codes[LIST_TRANSACTIONS] = [14, 0]
    assert [row["transactional_id"] for row in parsed(broker, "list")] == ["busy", "idle"]
