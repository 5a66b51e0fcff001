"""Fetch sessions (KIP-227) of read_committed consumers: incremental responses while transactions end."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kbroker.protocol.records import iter_records
from kbroker.testing import VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.support import wire
from tests.support.client import Body, Client

TRANSACTIONAL = 0x10
VERSIONS = [7, 11, 12, 13, 17]
UNCOMMITTED, COMMITTED = 0, 1


class Writer:
    """Transactional producer to partition 0 of t."""

    def __init__(self, broker: VirtualBroker, name: str) -> None:
        self._client = Client(broker.bootstrap_servers, name)
        self._name = name
        found = self._client.call("FindCoordinator", 4, {"KeyType": 1, "CoordinatorKeys": [name]})
        assert found["Coordinators"][0]["ErrorCode"] == 0
        who = self._client.call("InitProducerId", 4, {"TransactionalId": name, "TransactionTimeoutMs": 60_000})
        self.producer_id, self._epoch, self._sequence = who["ProducerId"], who["ProducerEpoch"], 0

    def write(self, value: bytes) -> None:
        batch = wire.batch(
            [value], attributes=TRANSACTIONAL, producer_id=self.producer_id, producer_epoch=self._epoch,
            base_sequence=self._sequence,
        )  # fmt: skip
        data = {"Name": "t", "PartitionData": [{"Index": 0, "Records": batch}]}
        body = {"TransactionalId": self._name, "Acks": -1, "TimeoutMs": 1000, "TopicData": [data]}
        (row,) = self._client.call("Produce", 12, body)["Responses"][0]["PartitionResponses"]
        assert row["ErrorCode"] == 0
        self._sequence += 1

    def end(self, *, commit: bool) -> None:
        ids = {"TransactionalId": self._name, "ProducerId": self.producer_id, "ProducerEpoch": self._epoch}
        ended = self._client.call("EndTxn", 5, {**ids, "Committed": commit})
        assert ended["ErrorCode"] == 0
        self.producer_id, self._epoch, self._sequence = ended["ProducerId"], ended["ProducerEpoch"], 0

    def close(self) -> None:
        self._client.close()


class Reader:
    """Fetch session over both partitions of t. ``version``: version of its Fetch requests."""

    def __init__(self, broker: VirtualBroker, version: int, isolation: int = COMMITTED) -> None:
        self._client = Client(broker.bootstrap_servers, "reader")
        view = broker.context.topics.get("t")
        assert view is not None
        self._topic: Body = {"TopicId": view.topic_id} if version >= 13 else {"Topic": "t"}
        self._version, self._isolation = version, isolation
        self._id = self._epoch = 0

    def begin(self, *, max_wait_ms: int = 0, **offsets: int) -> None:
        """Send a Fetch; ``p0``, ``p1``: fetch offsets of the partitions that are new or have moved."""
        rows = [
            {"Partition": int(name[1:]), "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
            for name, offset in offsets.items()
        ]
        body = {
            "ReplicaId": -1, "MaxWaitMs": max_wait_ms, "MinBytes": 1, "MaxBytes": 1 << 20,
            "IsolationLevel": self._isolation, "SessionId": self._id, "SessionEpoch": self._epoch,
            "Topics": [{**self._topic, "Partitions": rows}] if rows else [],
        }  # fmt: skip
        self._client.begin("Fetch", self._version, body)

    def end(self) -> dict[int, Body]:
        """Return the row of each partition in the response."""
        response = self._client.end()
        assert response["ErrorCode"] == 0
        self._id, self._epoch = response["SessionId"], self._epoch + 1
        assert self._id != 0
        return {row["PartitionIndex"]: row for topic in response["Responses"] for row in topic["Partitions"]}

    def fetch(self, **offsets: int) -> dict[int, Body]:
        self.begin(**offsets)
        return self.end()

    @property
    def has_response(self) -> bool:
        return self._client.has_response

    def close(self) -> None:
        self._client.close()


class Scene:
    """Broker and its clients, which are closed at the end."""

    def __init__(self, broker: VirtualBroker, clients: ExitStack) -> None:
        self.broker = broker
        self._clients = clients

    def writer(self, name: str = "one") -> Writer:
        writer = Writer(self.broker, name)
        self._clients.callback(writer.close)
        return writer

    def reader(self, version: int = 12, isolation: int = COMMITTED) -> Reader:
        reader = Reader(self.broker, version, isolation)
        self._clients.callback(reader.close)
        return reader


@pytest.fixture
def scene() -> Iterator[Scene]:
    with VirtualBroker() as broker, ExitStack() as clients:
        broker.create_topic("t", 2)
        yield Scene(broker, clients)


def seen(row: Body) -> tuple[Any, ...]:
    """Return the high watermark, last stable offset, aborted transactions and values of a partition's response."""
    assert row["ErrorCode"] == 0
    aborted = row["AbortedTransactions"]
    transactions = None if aborted is None else [(one["ProducerId"], one["FirstOffset"]) for one in aborted]
    records = row["Records"]
    values = [one.value for one in iter_records(memoryview(records), allow_truncated=True)] if records else []
    return row["HighWatermark"], row["LastStableOffset"], transactions, values


@pytest.mark.parametrize("version", VERSIONS)
def test_the_last_stable_offset_moves_between_two_fetches(scene: Scene, version: int) -> None:
    """A partition is in a response when its high watermark or last stable offset has moved."""
    one, two = scene.writer("one"), scene.writer("two")
    reader = scene.reader(version)
    one.write(b"a")  # offset 0
    assert {index: seen(row) for index, row in reader.fetch(p0=0, p1=0).items()} == {
        0: (1, 0, [], []), 1: (0, 0, [], []),
    }  # fmt: skip
    assert reader.fetch() == {}, "nothing has changed"
    two.write(b"b")  # offset 1
    found = reader.fetch()
    assert {index: seen(row) for index, row in found.items()} == {0: (2, 0, [], [])}, "the end alone has moved"
    aborted = one.producer_id
    one.end(commit=False)  # offset 2: the marker
    found = reader.fetch()
    assert {index: seen(row) for index, row in found.items()} == {0: (3, 1, [(aborted, 0)], [b"a"])}
    assert reader.fetch(p0=1) == {}, "all that is decided was read, and nothing is new"
    two.end(commit=True)  # offset 3: the marker
    found = reader.fetch()
    # the marker of the aborted transaction is read again
    assert {index: seen(row) for index, row in found.items()} == {0: (4, 4, [(aborted, 0)], [b"b"])}
    assert reader.fetch(p0=4) == {}


def test_offsets_of_aborted_transactions_are_those_of_what_is_read(scene: Scene) -> None:
    """A response lists the aborted transactions of the fetched offsets, even after a move of the fetch offset."""
    writer, reader = scene.writer(), scene.reader()
    aborted = []
    for number in range(3):  # offsets 0 and 1, 2 and 3, 4 and 5
        aborted.append((writer.producer_id, 2 * number))
        writer.write(b"%d" % number)
        writer.end(commit=False)
    assert seen(reader.fetch(p0=0)[0]) == (6, 6, aborted, [b"0", b"1", b"2"])
    assert seen(reader.fetch(p0=2)[0]) == (6, 6, aborted[1:], [b"1", b"2"])
    assert seen(reader.fetch(p0=5)[0])[2] == aborted[2:], "the marker's own transaction"
    assert reader.fetch(p0=6) == {}
    assert seen(reader.fetch(p0=0)[0])[2] == aborted


@pytest.mark.parametrize("commit", [True, False])
def test_a_fetch_that_waits_ends_with_the_transaction(scene: Scene, commit: bool) -> None:
    """Records of an open transaction do not complete a delayed incremental fetch; the marker does."""
    writer, reader = scene.writer(), scene.reader()
    assert reader.fetch(p0=0)[0]["LastStableOffset"] == 0
    reader.begin(max_wait_ms=30_000)
    scene.broker.wait_for_fetches()
    producer_id = writer.producer_id
    writer.write(b"a")
    scene.broker.wait_until_quiet()
    assert scene.broker.waiting_fetches == 1
    assert not reader.has_response
    writer.end(commit=commit)
    wait_until(lambda: reader.has_response)
    assert seen(reader.end()[0]) == (2, 2, [] if commit else [(producer_id, 0)], [b"a"])


def test_a_reader_of_everything_hears_of_no_transactions(scene: Scene) -> None:
    """A read_uncommitted session receives records at once, without a list of aborted transactions."""
    writer, reader = scene.writer(), scene.reader(isolation=UNCOMMITTED)
    writer.write(b"a")
    assert seen(reader.fetch(p0=0)[0])[2:] == (None, [b"a"])
    writer.end(commit=False)
    assert seen(reader.fetch(p0=1)[0])[2:] == (None, [])
    assert reader.fetch(p0=2) == {}
