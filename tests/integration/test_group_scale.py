"""Groups of 1,000 members, and the cost of 5,000 empty partitions."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kbroker.protocol import codec
from tests.support import need, wire
from tests.support.broker import BrokerProcess, rss_bytes, wait_for
from tests.support.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MEMBERS, PARTITIONS = 1000, 5000
REBALANCE_S, MAKE_S, CLEAN_START_S, START_AFTER_KILL_S, RSS_MIB = 5.0, 5.0, 2.0, 5.0, 60
SLACK = 2  # factor for machines that run other tests too; the measured figures are printed
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 5, 3, 3, 3
REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 27, 79
TOPIC, GROUP = "many", "crowd"


DELAY_MS = 500
SETTINGS = {
    "group.initial.rebalance.delay.ms": str(DELAY_MS),
    "socket.listen.backlog.size": str(MEMBERS),  # with Kafka's default of 50, the connections alone would take seconds
}


@pytest.fixture(scope="module")
def many_files() -> Iterator[None]:
    """Raise the limit of open files for the test process and the brokers that it starts."""
    with need.open_files(4 * MEMBERS):
        yield


@dataclass
class Made:
    """Broker with 5,000 empty partitions, and the seconds and memory that their creation took."""

    broker: BrokerProcess
    seconds: float
    mib: float


@pytest.fixture(scope="module")
def made(many_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with BrokerProcess(tmp_path_factory.mktemp("scale") / "data", SETTINGS) as broker:
        begun = time.monotonic()
        with wire.Connection(broker.bootstrap, timeout=180) as connection:
            assert wire.first_topic_error(connection.ask(wire.create_topic(TOPIC, PARTITIONS, 1, 180_000))) == 0
        wait_for("the last partition", lambda: wire.is_ready(broker.bootstrap, TOPIC, PARTITIONS - 1))
        yield Made(broker, time.monotonic() - begun, rss_bytes(broker.pid) / 2**20)


class Member:
    """Member of the group as requests over a connection."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.member_id = ""
        self.generation = -1
        self.joined: dict[str, object] = {}

    def send(self, key: int, version: int, body: dict[str, object]) -> None:
        self.client.begin(key, version, {"GroupId": GROUP, **body})

    def receive(self) -> dict[str, object]:
        return self.client.end()

    def send_join(self) -> None:
        topics = {"Topics": [TOPIC], "UserData": None}
        metadata = codec.encode_versioned("ConsumerProtocolSubscription", 0, topics)
        body = {
            "SessionTimeoutMs": 60_000,
            "RebalanceTimeoutMs": 60_000,
            "MemberId": self.member_id,
            "ProtocolType": "consumer",
            "Protocols": [{"Name": "range", "Metadata": metadata}],
        }
        self.send(JOIN_GROUP, JOIN_VERSION, body)

    def send_heartbeat(self) -> None:
        self.send(HEARTBEAT, HEARTBEAT_VERSION, {"GenerationId": self.generation, "MemberId": self.member_id})

    def send_sync(self, assignments: list[dict[str, object]]) -> None:
        body = {"GenerationId": self.generation, "MemberId": self.member_id, "Assignments": assignments}
        self.send(SYNC_GROUP, SYNC_VERSION, body)


def join_all(members: list[Member]) -> None:
    """Join with every member, twice if the first response has its id; then sync with an even assignment."""
    for member in members:
        member.send_join()
    for member in members:
        response = member.receive()
        if response["ErrorCode"] == MEMBER_ID_REQUIRED:
            member.member_id = str(response["MemberId"])
            member.send_join()
            response = {}
        member.joined = response
    for member in members:
        if not member.joined:
            member.joined = member.receive()
        assert member.joined["ErrorCode"] == 0
        member.generation = int(str(member.joined["GenerationId"]))
    sync_all(members)


def sync_all(members: list[Member]) -> None:
    assert len({member.generation for member in members}) == 1
    (leader,) = [member for member in members if member.joined["Leader"] == member.member_id]
    listed = leader.joined["Members"]
    assert isinstance(listed, list)
    ids = sorted(row["MemberId"] for row in listed)
    assert ids == sorted(member.member_id for member in members)
    rows: list[dict[str, object]] = []
    for number, member_id in enumerate(ids):
        partitions = list(range(number, PARTITIONS, len(ids)))
        body = {"AssignedPartitions": [{"Topic": TOPIC, "Partitions": partitions}], "UserData": None}
        rows.append(
            {"MemberId": member_id, "Assignment": codec.encode_versioned("ConsumerProtocolAssignment", 0, body)}
        )
    for member in members:
        member.send_sync(rows if member is leader else [])
    found: set[int] = set()
    for member in members:
        response = member.receive()
        assert response["ErrorCode"] == 0
        data = response["Assignment"]
        assert isinstance(data, bytes)
        (topic,) = codec.decode_versioned("ConsumerProtocolAssignment", data)[1]["AssignedPartitions"]
        found.update(topic["Partitions"])
    assert len(found) == PARTITIONS


def test_a_thousand_members_rebalance(made: Made) -> None:
    """1,000 members over 5,000 partitions join, and rebalance after a leave, within five seconds each."""
    broker = made.broker
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(broker.bootstrap, "crowd", 60)) for _ in range(MEMBERS)]
        members = [Member(client) for client in clients]
        begun = time.monotonic()
        join_all(members)
        first_s = time.monotonic() - begun
        begun = time.monotonic()
        leaver = members.pop()
        leaver.send(LEAVE_GROUP, LEAVE_VERSION, {"Members": [{"MemberId": leaver.member_id}]})
        assert leaver.receive()["ErrorCode"] == 0
        for member in members:
            member.send_heartbeat()
        for member in members:
            response = member.receive()
            assert response["ErrorCode"] == REBALANCE_IN_PROGRESS
        join_all(members)
        again_s = time.monotonic() - begun
        rss_mib = rss_bytes(broker.pid) / 2**20
    print(
        f"{MEMBERS} members over {PARTITIONS} partitions: first join {first_s:.2f} s with "
        f"its delay of {DELAY_MS / 1000} s, rebalance after a leave {again_s:.2f} s; broker {rss_mib:.0f} MiB"
    )
    assert first_s < SLACK * REBALANCE_S
    assert again_s < SLACK * REBALANCE_S


def test_empty_partitions_are_cheap(made: Made) -> None:
    """5,000 empty partitions are created within 5 s, need less than 60 MiB, and let a broker start within 2 s after a
    clean stop and within 5 s after kill -9.
    """
    broker = made.broker
    assert broker.stop(60) == 0, broker.tail()
    clean_s = broker.start(60)
    clean_mib = rss_bytes(broker.pid) / 2**20
    assert wire.is_ready(broker.bootstrap, TOPIC, PARTITIONS - 1)
    broker.kill()
    kill_s = broker.start(60)
    kill_mib = rss_bytes(broker.pid) / 2**20
    assert wire.is_ready(broker.bootstrap, TOPIC, PARTITIONS - 1)
    print(
        f"{PARTITIONS} partitions: made in {made.seconds:.2f} s, {made.mib:.0f} MiB then; start after a clean stop "
        f"{clean_s:.2f} s, {clean_mib:.0f} MiB; after kill -9 {kill_s:.2f} s, {kill_mib:.0f} MiB"
    )
    assert max(made.mib, clean_mib, kill_mib) < RSS_MIB
    assert made.seconds < SLACK * MAKE_S
    assert clean_s < SLACK * CLEAN_START_S
    assert kill_s < SLACK * START_AFTER_KILL_S
