"""ShareFetch and ShareAcknowledge over connections: sessions, delayed fetches, limits, closed connections."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kbroker.broker.broker import Broker
from kbroker.common.errors import Errors
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.replica._topics import partition_key
from tests.support import wire
from tests.support.broker import wait_for
from tests.support.client import Body, Client, produce_body, set_configs

pytestmark = pytest.mark.timeout(60)
ACCEPT, RELEASE, RENEW = 1, 2, 4
OPEN: list[Client] = []


@pytest.fixture(autouse=True)
def closed_clients() -> Iterator[None]:
    yield
    for client in OPEN:
        client.close()
    OPEN.clear()


class Member:
    """Member of group g with its own connection, without heartbeats, as a share fetch needs only a session."""

    def __init__(self, broker: Broker, group: str = "g") -> None:
        self.broker = broker
        self.group = group
        self.client = Client(broker.bootstrap_servers)
        OPEN.append(self.client)
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.throttle_ms = 0
        view = broker.context.topics.get("t")
        assert view is not None
        self.topic_id = view.topic_id
        self.log = view.partitions[0]

    def topics(self, partitions: Sequence[int], acks: dict[int, list[tuple[int, int, int]]]) -> list[Body]:
        rows = [
            {
                "PartitionIndex": index,
                "AcknowledgementBatches": [
                    {"FirstOffset": first, "LastOffset": last, "AcknowledgeTypes": [type_]}
                    for first, last, type_ in acks.get(index, [])
                ],
            }
            for index in sorted({*partitions, *acks})
        ]
        return [{"TopicId": self.topic_id, "Partitions": rows}] if rows else []

    def begin(self, *partitions: int, acks: dict[int, list[tuple[int, int, int]]] | None = None, **fields: Any) -> None:
        body = {
            "GroupId": self.group,
            "MemberId": self.member_id,
            "ShareSessionEpoch": self.epoch,
            "MaxWaitMs": 0,
            "MinBytes": 0,
            "MaxBytes": 1 << 20,
            "MaxRecords": 500,
            "BatchSize": 500,
            "ShareAcquireMode": 0,
            "IsRenewAck": False,
            "Topics": self.topics(partitions, acks or {}),
            "ForgottenTopicsData": [],
            **fields,
        }
        self.client.begin("ShareFetch", 2, body)
        self.epoch = self.epoch + 1 if self.epoch >= 0 else self.epoch

    def end(self) -> tuple[int, dict[int, Body]]:
        """Return the error code, and the rows of the partitions by number."""
        body = self.client.end()
        self.throttle_ms = body["ThrottleTimeMs"]
        return body["ErrorCode"], {row["PartitionIndex"]: row for one in body["Responses"] for row in one["Partitions"]}

    def fetch(self, *partitions: int, **fields: Any) -> tuple[int, dict[int, Body]]:
        self.begin(*partitions, **fields)
        return self.end()

    def acquired(self, *partitions: int, **fields: Any) -> list[tuple[int, int, int]]:
        """Fetch; return the acquired records of partition 0."""
        error, rows = self.fetch(*partitions, **fields)
        assert error == 0
        return acquired(rows[0]) if 0 in rows else []

    def acknowledge(self, **batches: Any) -> tuple[int, dict[int, Body]]:
        acks = {int(name[1:]): rows for name, rows in batches.items()}
        body = {
            "GroupId": self.group,
            "MemberId": self.member_id,
            "ShareSessionEpoch": self.epoch,
            "IsRenewAck": any(type_ == RENEW for rows in acks.values() for *_, type_ in rows),
            "Topics": self.topics((), acks),
        }
        response = self.client.call("ShareAcknowledge", 2, body)
        self.epoch += 1
        rows = {row["PartitionIndex"]: row for one in response["Responses"] for row in one["Partitions"]}
        return response["ErrorCode"], rows


def acquired(row: Body) -> list[tuple[int, int, int]]:
    return [(one["FirstOffset"], one["LastOffset"], one["DeliveryCount"]) for one in row["AcquiredRecords"]]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.context.topics.auto_create(["t"])
        view = broker.context.topics.get("t")
        assert view is not None
        broker.context.share.prepare()
        for group in ("g", "h"):
            broker.context.share.initialize(SharePartitionKey(group, view.topic_id, 0), 1, 0)
        yield broker


def produce(broker: Broker, count: int = 1) -> None:
    client = Client(broker.bootstrap_servers)
    for _ in range(count):
        client.produce("t", 10)
        client.end()
    client.close()


def test_records_are_acquired_and_acknowledged(broker: Broker) -> None:
    produce(broker, 3)
    member = Member(broker)
    error, rows = member.fetch(0)
    assert (error, acquired(rows[0]), len(rows[0]["Records"])) == (0, [(0, 2, 1)], len(member.log.read(0).records))
    error, rows = member.fetch(acks={0: [(0, 0, ACCEPT), (1, 2, RELEASE)]})
    assert (error, rows[0]["AcknowledgeErrorCode"], acquired(rows[0])) == (0, 0, [(1, 2, 2)])
    assert member.acknowledge(p0=[(1, 2, ACCEPT)])[1][0]["ErrorCode"] == 0
    assert member.acknowledge(p0=[(1, 2, ACCEPT)])[1][0]["ErrorCode"] == 0  # before the start offset
    produce(broker)
    assert member.acquired() == [(3, 3, 1)]
    assert member.acknowledge(p0=[(3, 9, ACCEPT)])[1][0]["ErrorCode"] == Errors.INVALID_REQUEST


def test_a_fetch_waits_for_an_append_and_for_a_release(broker: Broker) -> None:
    member, other = Member(broker), Member(broker)
    member.fetch(0)
    other.fetch(0)
    member.begin(MaxWaitMs=30_000, MinBytes=1)
    produce(broker)
    assert acquired(member.end()[1][0]) == [(0, 0, 1)]
    other.begin(MaxWaitMs=30_000, MinBytes=1)
    assert member.acknowledge(p0=[(0, 0, RELEASE)])[1][0]["ErrorCode"] == 0
    assert acquired(other.end()[1][0]) == [(0, 0, 2)]


def test_a_closed_connection_releases_its_records(broker: Broker) -> None:
    produce(broker)
    member, other = Member(broker), Member(broker)
    assert member.acquired(0) == [(0, 0, 1)]
    other.fetch(0)
    other.begin(MaxWaitMs=30_000, MinBytes=1)
    member.client.close()
    assert acquired(other.end()[1][0]) == [(0, 0, 2)]
    sessions = broker.context.share_partitions.sessions
    assert (len(sessions), sessions.evictions) == (1, 1)
    other.client.close()
    wait_for("no share partition", lambda: not broker.context.share_partitions.partitions())  # the group has no session


def test_the_waits_of_reset_connections_end_and_cost_no_delivery(broker: Broker) -> None:
    manager = broker.context.share_partitions
    live = Member(broker)
    live.fetch(0)
    gone = [Member(broker) for _ in range(6)]  # more than the limit of deliveries
    for member in gone:
        member.begin(0, MaxWaitMs=2**31 - 1, MinBytes=1)
    wait_for("the fetches wait", lambda: manager.purgatory.delayed == len(gone))
    for member in gone:
        member.client.reset()
    wait_for("no fetch waits", lambda: manager.purgatory.delayed == 0)
    produce(broker)
    assert live.acquired() == [(0, 0, 1)]


def test_the_final_epoch_ends_the_session(broker: Broker) -> None:
    produce(broker, 2)
    member, other = Member(broker), Member(broker)
    assert member.acquired(0) == [(0, 1, 1)]
    member.epoch = -1
    error, rows = member.fetch(acks={0: [(0, 0, ACCEPT)]})
    assert (error, rows[0]["AcknowledgeErrorCode"]) == (0, 0)
    assert other.acquired(0, MaxWaitMs=30_000, MinBytes=1) == [(1, 1, 2)]
    assert member.fetch()[0] == Errors.SHARE_SESSION_NOT_FOUND


def test_share_partitions_are_seen(broker: Broker) -> None:
    """The X-ray and the metrics have the records in flight, the locks and the waiting fetches."""
    produce(broker, 3)
    member = Member(broker)
    assert member.acquired(0) == [(0, 2, 1)]
    member.fetch(acks={0: [(1, 1, ACCEPT)]})
    member.begin(MaxWaitMs=30_000, MinBytes=1)
    wait_for("a waiting fetch", lambda: broker.context.share_partitions.purgatory.delayed)
    found = broker.xray()
    (shown,) = found["share_partitions"]["shown"]
    assert 0 < shown.pop("next_lock_expires_ms") <= 30_000
    assert shown == {
        "group": "g", "topic": "t", "partition": 0, "state": "active", "start_offset": 0, "end_offset": 2,
        "in_flight": 3, "max_in_flight": 2000, "batches": 1, "available": 0, "acquired": 2, "members": 1,
    }  # fmt: skip
    (waiting,) = next(one for one in found["purgatories"] if one["name"] == "ShareFetch")["operations"]
    assert waiting["operation"] == "DelayedShareFetch"
    lines = broker.exposition.text()[0].decode().splitlines()
    assert 'kafka_server_share_partition_in_flight_message_count{group="g",partition="0",topic="t"} 3.0' in lines
    produce(broker)
    assert acquired(member.end()[1][0]) == [(3, 3, 1)]


def test_many_members_share_one_partition(broker: Broker) -> None:
    members = [Member(broker) for _ in range(100)]
    for member in members:
        member.fetch(0, MaxRecords=1)
    for member in members:
        member.begin(MaxWaitMs=30_000, MinBytes=1, MaxRecords=1)
    produce(broker, 100)
    found = [acquired(member.end()[1][0]) for member in members]
    assert sorted(offset for rows in found for first, last, _ in rows for offset in range(first, last + 1)) == [
        *range(100)
    ]
    assert all(rows for rows in found)


def test_a_renewal_keeps_the_lock_and_fetches_nothing(broker: Broker) -> None:
    produce(broker, 2)
    member = Member(broker)
    assert member.acquired(0, MaxRecords=1) == [(0, 0, 1)]
    nothing = {"MaxBytes": 0, "MaxRecords": 0, "IsRenewAck": True}
    error, rows = member.fetch(acks={0: [(0, 0, RENEW)]}, **nothing)
    assert (error, rows[0]["AcknowledgeErrorCode"], acquired(rows[0])) == (0, 0, [])
    assert member.fetch(acks={0: [(0, 0, RENEW)]}, IsRenewAck=True)[0] == Errors.INVALID_REQUEST
    member.epoch -= 1  # the refused request did not change the epoch
    assert member.acknowledge(p0=[(0, 0, RENEW)])[1][0]["ErrorCode"] == 0


def test_sessions_are_limited() -> None:
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "kbroker.in.memory": True, "group.share.max.size": 1,
                 "group.share.max.share.sessions": 1}) as broker:  # fmt: skip
        broker.context.topics.auto_create(["t"])
        Member(broker).fetch(0)
        begun = time.monotonic()
        assert Member(broker).fetch(0, MaxWaitMs=200)[0] == Errors.SHARE_SESSION_LIMIT_REACHED
        assert time.monotonic() - begun > 0.15  # clients repeat the request at once


def test_a_throttled_response_has_its_records(broker: Broker) -> None:
    """The fetch quota limits the bytes of a response, and throttles the connection after the response."""
    produce(broker, 30)
    member = Member(broker)
    broker.context.quotas.update(None, "client", "consumer_byte_rate", 100)
    found = member.acquired(0)
    assert 1 <= found[-1][1] < 29  # within the window of the quota: 1,000 bytes
    assert member.throttle_ms == 0
    assert member.acquired() != []
    assert member.throttle_ms > 0
    broker.context.quotas.update(None, "client", "consumer_byte_rate", None)


def test_records_that_were_deleted_are_passed(broker: Broker) -> None:
    produce(broker, 3)
    member = Member(broker)
    assert member.acquired(0, MaxRecords=1) == [(0, 0, 1)]
    view = broker.context.topics.get("t")
    assert view is not None
    view.partitions[0].delete_records(2)
    member.fetch()  # moves the start offset
    assert member.acquired() == [(2, 2, 1)]


def test_an_append_and_a_closed_connection_end_their_watches(broker: Broker) -> None:
    member = Member(broker)
    member.fetch(0, MinBytes=1)
    signal = broker.context.share_partitions._signal
    assert [*broker.context.share_partitions._appends] == [partition_key(member.log)]
    assert signal.watched == 2
    produce(broker)
    member.client.close()
    wait_for("no watch", lambda: signal.watched == 0)


@pytest.mark.parametrize(
    ("reset", "first"), [("earliest", 0), ("latest", None), ("by_duration:PT1H", 1), ("by_duration:PT0S", None)]
)
def test_the_first_start_offset(broker: Broker, reset: str, first: int | None) -> None:
    """A new share partition begins where share.auto.offset.reset says, with later records only by default."""
    now_ms = broker.context.clock.epoch_ms()
    client = Client(broker.bootstrap_servers)
    OPEN.append(client)
    for age_s in (7200, 1800):
        stamp_ms = now_ms - age_s * 1000
        (row,) = client.call(
            "Produce", 7, produce_body("t", wire.batch(timestamp_ms=stamp_ms, max_timestamp_ms=stamp_ms))
        )["Responses"]
        assert row["PartitionResponses"][0]["ErrorCode"] == 0
    group = f"new-{reset}"
    (done,) = client.call("IncrementalAlterConfigs", 1, set_configs(32, group, {"share.auto.offset.reset": reset}))[
        "Responses"
    ]
    assert done["ErrorCode"] == 0
    member = Member(broker, group)
    broker.context.share.initialize(SharePartitionKey(group, member.topic_id, 0), 1, -1)
    wanted = [] if first is None else [(first, 1, 1)]
    assert member.acquired(0, MaxWaitMs=0) == wanted
    produce(broker)
    assert member.acquired() == [(2, 2, 1)]


def test_another_leader_or_a_disabled_feature_ends_deliveries(broker: Broker) -> None:
    """After an election the stored state is read again; without the feature there is no session and no delivery."""
    produce(broker, 2)
    member = Member(broker)
    assert member.acquired(0) == [(0, 1, 1)]
    manager = broker.context.share_partitions
    (before,) = manager.partitions()
    manager.elected(member.topic_id, 0)
    assert manager.partitions() == []
    assert member.acknowledge(p0=[(0, 0, ACCEPT)])[1][0]["ErrorCode"] == Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert member.acquired() == [(0, 1, 1)]  # nothing of the first delivery was stored
    (after,) = manager.partitions()
    assert after is not before
    assert member.acknowledge(p0=[(0, 0, ACCEPT)])[1][0]["ErrorCode"] == 0
    manager.disable()
    assert manager.partitions() == []
    assert member.fetch()[0] == Errors.SHARE_SESSION_NOT_FOUND
    assert Member(broker).acquired(0) == [(1, 1, 1)]
