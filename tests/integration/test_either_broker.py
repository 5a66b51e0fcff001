"""One folder served by kbroker and Apache Kafka in turns, without a difference for clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import need, wire
from tests.support.broker import wait_for
from tests.support.client import Client
from tests.support.either_broker import LONG_MS, EitherBroker
from tests.support.everything import Everything
from tests.support.ledger import GROUP, Ledger, differences, take_ledger
from tests.support.share_member import ACCEPT, REJECT, RELEASE, ShareMember, start_offset
from tests.support.topic_reader import read_to_end
from tests.support.wire import Connection


def ledger_of(broker: EitherBroker, everything: Everything) -> Ledger:
    return take_ledger(broker.bootstrap, everything.alice, broker.sasl_bootstrap)


def check_same(before: Ledger, broker: EitherBroker, everything: Everything) -> None:
    """Check that clients see no difference when the coordinators have loaded."""
    found: list[str] = []

    def is_same() -> bool:
        changes = differences(before, ledger_of(broker, everything))
        found[:] = [change for change in changes if "prepared" not in change]
        return not found

    try:
        wait_for("what was there before", is_same, 20, 0.5)
    except AssertionError:
        pytest.fail("\n".join([*found, broker.tail()]), pytrace=False)


@pytest.mark.parametrize(
    "folders", [pytest.param(("data",), id="one", marks=pytest.mark.soak), pytest.param(("a", "b"), id="two")]
)
def test_kbroker_then_kafka_then_kbroker(tmp_path: Path, folders: tuple[str, ...]) -> None:
    """A folder that kbroker filled is served and extended by Apache Kafka, and served by kbroker again.

    Of two folders, the second one has the metadata log too, and partitions were moved to it; each broker starts from a
    snapshot of the other and the records after it.
    """
    need.program("java", "mvn")
    settings = {"metadata.log.dir": str(tmp_path / folders[-1])}
    has_snapshots = len(folders) > 1
    if has_snapshots:
        settings["metadata.log.max.record.bytes.between.snapshots"] = "1024"
    with EitherBroker(tmp_path, settings, folders) as broker:
        broker.start(broker.kbroker)
        everything = Everything(broker.bootstrap, broker.sasl_bootstrap)
        everything.fill()
        move_all(broker, ["plain", "transactions"])
        if has_snapshots:
            log = broker.log_dirs[-1] / "__cluster_metadata-0"
            is_made = lambda: [one for one in log.glob("*.checkpoint") if one.name[:20].strip("0")]  # noqa: E731
            wait_for("a snapshot", is_made, 20, 0.2)
        for _ in range(2):
            before = ledger_of(broker, everything)
            assert [subject for subject, found in before.items() if not found] == []
            broker.switch()
            check_same(before, broker, everything)
            everything.log_in(everything.by_token(everything.token))
            everything.write()
            everything.read("classic-group", "classic")
            everything.read("consumer-group", "consumer")
        everything.end_open()
        wait_for("the records of the open transaction", lambda: "left-open 1 2" in committed_in(broker, "transactions"))
        groups = ledger_of(broker, everything)["group offsets"]
        assert groups["pending-group"]["plain-0"]["CommittedOffset"] == 7


def test_a_share_group_and_a_streams_group_go_over(tmp_path: Path) -> None:
    """Both groups are continued by Apache Kafka, and by kbroker again."""
    need.program("java", "mvn")
    settings = {
        "share.coordinator.state.topic.num.partitions": "3",
        "group.streams.initial.rebalance.delay.ms": "0",
        "group.streams.assignment.interval.ms": "0",
        "group.streams.max.session.timeout.ms": LONG_MS,
        "group.streams.session.timeout.ms": LONG_MS,
    }
    with EitherBroker(tmp_path, settings) as broker:
        broker.start(broker.kbroker)
        lives = share_group(broker), streams_group(broker)
        for life in lives:
            next(life)
        for _ in range(2):
            broker.switch()
            for life in lives:
                next(life)


def share_group(broker: EitherBroker) -> Iterator[None]:
    """Check that each broker delivers the records that members at the other one did not accept, with their delivery
    count; the brokers are switched at each yield.
    """
    with Client(broker.bootstrap) as client:
        everything = Everything(broker.bootstrap, broker.sasl_bootstrap)
        everything.alter(client, GROUP, "g", {"share.auto.offset.reset": "earliest"})
    with Connection(broker.bootstrap) as connection:
        assert wire.first_topic_error(connection.ask(wire.create_topic("shared", 1))) == 0
    send(broker, 10)
    member = ShareMember(broker.bootstrap, "g", "shared")
    assert member.acquire(10) == dict.fromkeys(range(10), 1)
    member.acknowledge((0, 3, ACCEPT), (4, 5, RELEASE), (6, 6, REJECT))
    member.leave()
    wait_for("the stored release of 7 to 9", lambda: start_offset(broker.bootstrap, "g", "shared") == 4)
    left = {4: 2, 5: 2, 7: 2, 8: 2, 9: 2}  # delivery count of the next delivery
    for released in (14, 24):
        found = start_offset(broker.bootstrap, "g", "shared")
        yield
        assert start_offset(broker.bootstrap, "g", "shared") == found
        send(broker, 10)
        member = ShareMember(broker.bootstrap, "g", "shared")
        acquired = member.acquire(len(left) + 10)
        assert acquired == left | dict.fromkeys(range(released - 4, released + 6), 1)
        member.acknowledge(*((one, one, RELEASE if one == released else ACCEPT) for one in sorted(acquired)))
        member.leave()
        left = {released: 2}
    yield


def streams_group(broker: EitherBroker) -> Iterator[None]:
    """Check that at each broker a member continues at its epoch, and a new member receives half of its tasks; the
    brokers are switched at each yield.
    """
    with Connection(broker.bootstrap) as connection:
        for name in ("input", "changelog"):
            assert wire.first_topic_error(connection.ask(wire.create_topic(name, 4))) == 0
    assert beat(broker, "a", 0) == (2, [0, 1, 2, 3])
    for number, epoch in enumerate((2, 4)):
        before = described(broker)
        yield
        assert described(broker) == before
        assert beat(broker, "a", epoch) == (epoch, None)
        other = f"b{number}"
        assert beat(broker, other, 0) == (epoch + 1, [])
        _, kept = beat(broker, "a", epoch)
        assert kept is not None
        assert len(kept) == 2
        assert beat(broker, "a", epoch, kept) == (epoch + 1, None)
        assert beat(broker, other, epoch + 1) == (epoch + 1, sorted({0, 1, 2, 3} - set(kept)))
        assert beat(broker, other, -1) == (-1, None)
        assert beat(broker, "a", epoch + 1) == (epoch + 2, [0, 1, 2, 3])
    yield


def beat(
    broker: EitherBroker, member: str, epoch: int, active: list[int] | None = None
) -> tuple[int, list[int] | None]:
    """Send a heartbeat of a streams group; return the epoch and the active tasks, None if they are unchanged."""
    body: dict[str, Any] = {"GroupId": "app", "MemberId": member, "MemberEpoch": epoch}
    if epoch == 0:
        topic = {"Name": "changelog", "Partitions": 0, "ReplicationFactor": 0, "TopicConfigs": []}
        part = {
            "SubtopologyId": "0",
            "SourceTopics": ["input"],
            "SourceTopicRegex": [],
            "StateChangelogTopics": [topic],
        }
        part |= {"RepartitionSinkTopics": [], "RepartitionSourceTopics": [], "CopartitionGroups": []}
        body |= {"RebalanceTimeoutMs": 60_000, "ProcessId": member, "ClientTags": [], "ActiveTasks": []}
        body["Topology"] = {"Epoch": 0, "Subtopologies": [part]}
    elif active is not None:
        body["ActiveTasks"] = [{"SubtopologyId": "0", "Partitions": active}]
    if "ActiveTasks" in body:
        body |= {"StandbyTasks": [], "WarmupTasks": []}
    with Client(broker.bootstrap) as client:
        found = Everything.ask(client, "StreamsGroupHeartbeat", 0, body)
    tasks = found["ActiveTasks"]
    return found["MemberEpoch"], None if tasks is None else [index for row in tasks for index in row["Partitions"]]


def described(broker: EitherBroker) -> dict[str, Any]:
    """Return the description of the streams group without the topology, which the first heartbeat after a load
    restores.
    """
    found: dict[str, Any] = {}

    def is_loaded() -> bool:
        with Client(broker.bootstrap) as client:
            found.update(client.call("StreamsGroupDescribe", 0, {"GroupIds": ["app"]})["Groups"][0])
        return bool(found["ErrorCode"] == 0)

    wait_for("the streams group", is_loaded, 20, 0.2)
    return {name: value for name, value in found.items() if name != "Topology"}


def send(broker: EitherBroker, count: int) -> None:
    with Connection(broker.bootstrap) as connection:
        for _ in range(count):
            assert wire.produced(connection.ask(wire.produce("shared", 0, wire.batch([b"value"])))).error_code == 0


def move_all(broker: EitherBroker, topics: list[str]) -> None:
    """Move both partitions of each topic to the last folder."""
    target = str(broker.log_dirs[-1])
    rows = [{"Name": name, "Partitions": [0, 1]} for name in topics]
    with Client(broker.bootstrap) as client:
        Everything.ask(client, "AlterReplicaLogDirs", 2, {"Dirs": [{"Path": target, "Topics": rows}]})
        asked = [{"Topic": name, "Partitions": [0, 1]} for name in topics]

        def are_there() -> bool:
            response = Everything.ask(client, "DescribeLogDirs", 4, {"Topics": asked})
            found = [row for row in response["Results"] if row["Topics"]]
            return [row["LogDir"] for row in found] == [target]

        wait_for("the moves", are_there)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_alternations(tmp_path: Path) -> None:
    """200 topics with 200 MiB lose nothing when stops and kills alternate between both brokers."""
    need.program("java", "mvn")
    with EitherBroker(tmp_path) as broker:
        broker.start(broker.kbroker)
        everything = Everything(broker.bootstrap, broker.sasl_bootstrap, topics=180, records=52, value_bytes=1000)
        everything.fill()
        committed: set[str] = set()
        for number in range(10):
            before = ledger_of(broker, everything)
            committed.update(value.decode() for value in everything.prepare())
            broker.switch(kills=number % 4 in (1, 2))  # each broker is stopped and killed in turns
            check_same(before, broker, everything)
            wait_for("the markers of what was committed", lambda: committed.issubset(committed_in(broker, "prepared")))
            everything.log_in(everything.by_token(everything.token))
            everything.write()
            for protocol in ("classic", "consumer"):
                everything.read(f"{protocol}-group", protocol)
                everything.read(f"{protocol}-static", protocol, instance="static-1")


def committed_in(broker: EitherBroker, topic: str) -> set[str]:
    """Return the committed values of a topic with two partitions."""
    return {value for rows in read_to_end(broker.bootstrap, topic, 2).values() for _, value in rows}
