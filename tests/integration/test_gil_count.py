"""GIL acquisitions of a broker per request, counted by a preloaded library and limited."""

import mmap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import need, wire
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Body, Client
from tests.support.preloaded import preloaded

SOURCE = Path(__file__).parents[1] / "support" / "gil_count.c"
REQUESTS = 100
IDLE_PER_S = 40  # acquisitions by the broker's own threads, which no request causes


class CountedBroker:
    """Broker process and the count of its GIL acquisitions."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._file = folder / "count"
        self._file.write_bytes(bytes(8))
        wrapper = ["env", f"LD_PRELOAD={library}", f"GIL_COUNT_FILE={self._file}"]
        settings = {"group.initial.rebalance.delay.ms": "0"}
        self.process = BrokerProcess(folder / "data", settings, wrapper=wrapper)

    @property
    def count(self) -> int:
        with self._file.open("rb") as file, mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ) as memory:
            return int.from_bytes(memory[:8], "little")

    def per_request(self, act: Callable[[], object]) -> float:
        """Return the acquisitions per act, without those of an idle broker.

        The figure is the smallest of three, as a busy machine adds acquisitions by waits that time out.
        """
        for _ in range(20):
            act()
        return max(0.0, min(self._measured(act) for _ in range(3)))

    def _measured(self, act: Callable[[], object]) -> float:
        before, begun = self.count, time.monotonic()
        for _ in range(REQUESTS):
            act()
        return (self.count - before - IDLE_PER_S * (time.monotonic() - begun)) / REQUESTS


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountedBroker]:
    library = preloaded(SOURCE)
    if "/libpython" not in Path("/proc/self/maps").read_text(encoding="utf-8"):  # Debian's programs contain it
        need.lack("needs a Python with a shared library: calls inside its program cannot be counted")
    folder = tmp_path_factory.mktemp("counted")
    broker = CountedBroker(folder, library)
    with broker.process as process:
        with Client(process.bootstrap) as client:
            assert wire.first_topic_error(client.ask(wire.create_topic("t", 1))) == 0
        yield broker


@pytest.fixture
def client(counted: CountedBroker) -> Iterator[Client]:
    with Client(counted.process.bootstrap) as connection:
        yield connection


NATIVE = {
    "ApiVersions": wire.header(wire.API_VERSIONS, 0),
    "Produce": wire.produce("t", 0, wire.batch([b"v"])),
    "Produce acks=all": wire.produce("t", 0, wire.batch([b"v"]), acks=-1),
    "Fetch": wire.fetch("t"),
}


@pytest.mark.parametrize("name", NATIVE)
def test_native_requests_take_no_gil(counted: CountedBroker, client: Client, name: str) -> None:
    assert counted.per_request(lambda: client.ask(NATIVE[name])) < 0.02


def test_a_request_that_python_handles_is_counted(counted: CountedBroker, client: Client) -> None:
    """The library counts acquisitions, as a counter-check."""
    describe = wire.header(wire.DESCRIBE_CLUSTER, 0, 3, flexible=True) + b"\0\0"
    assert counted.per_request(lambda: client.ask(describe)) >= 0.9


def test_a_heartbeat_of_the_classic_protocol(counted: CountedBroker, client: Client) -> None:
    member = join(client)
    assert counted.per_request(lambda: succeed(client.call("Heartbeat", 3, member))) < 10.5


def test_a_heartbeat_of_the_consumer_protocol(counted: CountedBroker, client: Client) -> None:
    group = {"GroupId": "counted", "MemberId": "member-of-this-group-01", "RebalanceTimeoutMs": 60_000}

    def beat(epoch: int, body: Body) -> Body:
        return succeed(client.call("ConsumerGroupHeartbeat", 0, {**group, **body, "MemberEpoch": epoch}))

    epoch = ready(lambda: beat(0, {"SubscribedTopicNames": ["t"], "TopicPartitions": []}))["MemberEpoch"]
    assert counted.per_request(lambda: beat(epoch, {"RebalanceTimeoutMs": -1})) < 2.5


def test_a_committed_transaction(counted: CountedBroker, client: Client) -> None:
    """The limit includes the added partition, one batch, and the end of the transaction with its marker."""
    name = {"TransactionalId": "counted"}
    client.call("FindCoordinator", 2, {"Key": "counted", "KeyType": 1})  # creates the coordinator's topic
    made = ready(lambda: succeed(client.call("InitProducerId", 2, {**name, "TransactionTimeoutMs": 60_000})))
    producer_id, epoch, sequence = made["ProducerId"], made["ProducerEpoch"], 0
    who = {"ProducerId": producer_id, "ProducerEpoch": epoch}
    topics = {"V3AndBelowTopics": [{"Name": "t", "Partitions": [0]}]}
    add = {f"V3AndBelow{key}": value for key, value in {**name, **who}.items()} | topics

    def added() -> bool:
        (topic,) = client.call("AddPartitionsToTxn", 2, add)["ResultsByTopicV3AndBelow"]
        code: int = topic["ResultsByPartition"][0]["PartitionErrorCode"]
        assert code in (0, 51)  # the previous transaction is still being completed
        return code == 0

    def commit() -> None:
        nonlocal sequence
        while not added():
            pass
        data = wire.batch([b"v"], attributes=16, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        request = wire.produce("t", 0, data, acks=-1, transactional_id="counted")
        assert wire.produced(client.ask(request)).error_code == 0
        sequence += 1
        succeed(client.call("EndTxn", 2, {**name, **who, "Committed": True}))

    assert counted.per_request(commit) < 11.5


def succeed(response: Body) -> Body:
    assert response["ErrorCode"] == 0, response
    return response


def ready(ask: Callable[[], Body]) -> Body:
    """Return the first response without an error, as the coordinator loads its topic first."""
    found: list[Body] = []

    def responds() -> bool:
        try:
            found.append(ask())
        except AssertionError:
            return False
        return True

    wait_for("the coordinator serves", responds)
    return found[0]


def join(client: Client) -> Body:
    """Join a new group as its only member; return the body of its heartbeats."""
    protocols = {"ProtocolType": "consumer", "Protocols": [{"Name": "range", "Metadata": b""}]}
    group = {"GroupId": "classic", "SessionTimeoutMs": 30_000, "RebalanceTimeoutMs": 60_000, "MemberId": ""}
    joined = ready(lambda: succeed(client.call("JoinGroup", 3, {**group, **protocols})))
    member = {"GroupId": "classic", "GenerationId": joined["GenerationId"], "MemberId": joined["MemberId"]}
    shares = [{"MemberId": joined["MemberId"], "Assignment": b""}]
    succeed(client.call("SyncGroup", 2, {**member, "Assignments": shares}))
    return member
