"""Member of a group in both protocols: assignments, offsets, rebalances, restarts."""

from typing import Any
from uuid import UUID

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.connection import Body, Connection
from kbroker.client.group_consumer import GroupConsumer
from kbroker.client.group_members import METADATA_MAX_AGE_S, assign_ranges
from kbroker.common.errors import Errors, KafkaError
from tests.support.fake_broker import FakeBroker
from tests.support.fake_log import FakeTime

FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 1, 2, 3, 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, CONSUMER_GROUP_HEARTBEAT = 11, 12, 13, 14, 68
TOPIC_ID = UUID(int=5)


@pytest.mark.parametrize(
    ("subscriptions", "counts", "expected"),
    [
        ({"a": ["t"]}, {"t": 3}, {"a": [0, 1, 2]}),
        ({"b": ["t"], "a": ["t"]}, {"t": 3}, {"a": [0, 1], "b": [2]}),
        ({"a": ["t"], "b": ["t"], "c": ["t"]}, {"t": 2}, {"a": [0], "b": [1], "c": []}),
        ({"a": ["t"], "b": []}, {"t": 2}, {"a": [0, 1], "b": []}),
        ({"a": ["t"]}, {"t": 0}, {"a": []}),
        ({"a": ["missing"]}, {}, {"a": []}),
    ],
)
def test_ranges_of_one_topic(
    subscriptions: dict[str, list[str]], counts: dict[str, int], expected: dict[str, list[int]]
) -> None:
    """The first members by id get one more partition, and members without the subscription get none."""
    found = assign_ranges(subscriptions, counts)
    assert {member: [p for _, p in mine] for member, mine in found.items()} == expected


def test_each_topic_is_divided_alone() -> None:
    """The first member gets the extra partition of every topic, as in Kafka."""
    found = assign_ranges({"a": ["x", "y"], "b": ["x", "y"], "c": ["y"]}, {"x": 3, "y": 4})
    assert found == {"a": [("x", 0), ("x", 1), ("y", 0), ("y", 1)], "b": [("x", 2), ("y", 2)], "c": [("y", 3)]}


class FakeGroup:
    """Coordinator of a classic group whose only member, the consumer under test, gets both partitions."""

    def __init__(self, broker: FakeBroker) -> None:
        self.unstable = 0  # first responses to OffsetFetch with UNSTABLE_OFFSET_COMMIT
        self.commit_errors: list[Errors] = []
        self.joins = 0
        host, port = broker.address
        coordinator = {"NodeId": 7, "Host": host, "Port": port}
        broker.handlers |= {
            LIST_OFFSETS: lambda version, body: {
                "Topics": [{"Name": "t", "Partitions": [_of(p, Offset=0) for p in (0, 1)]}]
            },
            FETCH: lambda version, body: {"Responses": []},
            OFFSET_COMMIT: self._commit,
            OFFSET_FETCH: self._committed,
            FIND_COORDINATOR: lambda version, body: {"Coordinators": [{"Key": "g", **coordinator}]},
            JOIN_GROUP: self._join,
            HEARTBEAT: lambda version, body: {},
            LEAVE_GROUP: lambda version, body: {},
            CONSUMER_GROUP_HEARTBEAT: lambda version, body: {"ErrorCode": int(Errors.UNSUPPORTED_VERSION)},
            SYNC_GROUP: lambda version, body: {"Assignment": body["Assignments"][0]["Assignment"]},
        }

    def _join(self, version: int, body: Body) -> Body:
        self.joins += 1
        member = {"MemberId": "m", "Metadata": body["Protocols"][0]["Metadata"]}
        return {"GenerationId": self.joins, "ProtocolName": "range", "Leader": "m", "MemberId": "m",
                "Members": [member]}  # fmt: skip

    def _committed(self, version: int, body: Body) -> Body:
        error = Errors.UNSTABLE_OFFSET_COMMIT if self.unstable > 0 else Errors.NONE
        self.unstable -= 1
        partitions = [_of(p, error, CommittedOffset=-1 if error else 40, Metadata="") for p in (0, 1)]
        return {"Groups": [{"GroupId": "g", "Topics": [{"Name": "t", "Partitions": partitions}]}]}

    def _commit(self, version: int, body: Body) -> Body:
        error = self.commit_errors.pop(0) if self.commit_errors else Errors.NONE
        return {"Topics": [{"Name": "t", "Partitions": [_of(0, error)]}]}


class FakeConsumerGroup(FakeGroup):
    """Coordinator of a group of the consumer protocol, with ``target`` as the partitions of the member under test."""

    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(broker)
        self.target = [0, 1]
        self.epoch = 0
        self.heartbeat_errors: list[Errors] = []
        broker.handlers[CONSUMER_GROUP_HEARTBEAT] = self._heartbeat

    def assign(self, *partitions: int) -> None:
        """Change the assignment: the next heartbeat gets these partitions and the next epoch."""
        self.target, self.epoch = list(partitions), self.epoch + 1

    def _heartbeat(self, version: int, body: Body) -> Body:
        error = self.heartbeat_errors.pop(0) if self.heartbeat_errors else Errors.NONE
        if body["MemberEpoch"] == 0:
            self.joins += 1
            self.epoch += 1
        is_news = body["MemberEpoch"] != self.epoch or body["TopicPartitions"] is not None
        assignment = {"TopicPartitions": [{"TopicId": TOPIC_ID, "Partitions": self.target}] if self.target else []}
        return {
            "ErrorCode": int(error),
            "MemberId": body["MemberId"],
            "MemberEpoch": self.epoch,
            "HeartbeatIntervalMs": 5000,
            "Assignment": assignment if is_news else None,
        }


def _of(partition: int, error: Errors = Errors.NONE, **fields: object) -> Body:
    return {"PartitionIndex": partition, "ErrorCode": int(error), **fields}


def test_offsets_that_a_transaction_commits_are_waited_for(
    broker: FakeBroker, cluster: Cluster, fake_time: FakeTime
) -> None:
    """The member waits as the Java consumer does, since older offsets would make it read records again."""
    group = FakeGroup(broker)
    group.unstable = 1
    with GroupConsumer(cluster, "g", "t") as member:
        member.poll()
        assert member._consumer.positions == {("t", 0): 40, ("t", 1): 40}
    assert [body["RequireStable"] for _, body in broker.asked(OFFSET_FETCH)] == [True, True]


def test_a_poll_after_one_that_could_not_look_up_offsets(
    broker: FakeBroker, cluster: Cluster, fake_time: FakeTime
) -> None:
    """The member looks up the offsets again, and reads its partitions, not those of an earlier assignment."""
    group = FakeGroup(broker)
    group.unstable = 10**6
    with GroupConsumer(cluster, "g", "t") as member:
        with pytest.raises(KafkaError, match="UNSTABLE_OFFSET_COMMIT"):
            member.poll()
        group.unstable = 0
        member.poll()
        assert member._consumer.positions == {("t", 0): 40, ("t", 1): 40}
    assert group.joins == 1


def test_a_commit_during_a_rebalance_is_none_and_the_member_rejoins(broker: FakeBroker, cluster: Cluster) -> None:
    """The member rejoins at its next poll, not at its next heartbeat."""
    group = FakeGroup(broker)
    with GroupConsumer(cluster, "g", "t") as member:
        member.poll()
        group.commit_errors = [Errors.REBALANCE_IN_PROGRESS]
        assert member.commit({("t", 0): 41}) is False
        member.poll()
        assert group.joins == 2
        assert member.commit({("t", 0): 41}) is True


def test_the_leader_outlives_a_broker_that_restarts_when_it_looks_for_new_partitions(
    broker: FakeBroker, cluster: Cluster, fake_time: FakeTime
) -> None:
    """The metadata request is repeated, and finds the new partitions."""
    group = FakeGroup(broker)

    def restarting(version: int, body: Body) -> None:
        broker.handlers[METADATA] = broker.metadata

    with GroupConsumer(cluster, "g", "t") as member:
        member.poll()
        fake_time.now += METADATA_MAX_AGE_S
        broker.partitions = {"t": 3}
        broker.handlers[METADATA] = restarting
        member.poll()
        assert group.joins == 2
        assert [partition for _, partition in member.assignment] == [0, 1, 2]


# ---------------------------------------------------------------- the consumer protocol


def test_heartbeats_alone_make_a_member(broker: FakeBroker, cluster: Cluster, fake_time: FakeTime) -> None:
    """The member sends its subscription, acknowledges the assignment, then sends only its epoch, and leaves."""
    FakeConsumerGroup(broker)
    with GroupConsumer(cluster, "g", "t") as member:
        member.poll()
        assert member.assignment == (("t", 0), ("t", 1))
        fake_time.now += 5
        member.poll()
    sent = [body for _, body in broker.asked(CONSUMER_GROUP_HEARTBEAT)]
    owned = [{"TopicId": TOPIC_ID, "Partitions": [0, 1]}]
    assert [(one["MemberEpoch"], one["SubscribedTopicNames"], one["TopicPartitions"]) for one in sent] == [
        (0, ["t"], []),
        (1, ["t"], owned),
        (1, None, None),
        (-1, None, None),
    ]
    assert len({one["MemberId"] for one in sent}) == 1
    assert not broker.asked(JOIN_GROUP)


def test_a_partition_is_given_up_after_its_commit(broker: FakeBroker, cluster: Cluster, fake_time: FakeTime) -> None:
    """The assignment changes only in a poll, which acknowledges the partitions left; commits have the new epoch."""
    group = FakeConsumerGroup(broker)
    with GroupConsumer(cluster, "g", "t") as member:
        member.poll()
        group.assign(1)
        before = member.assignment
        assert before == (("t", 0), ("t", 1))
        fake_time.now += 5
        member.poll()
        after = member.assignment
        assert after == (("t", 1),)
        assert broker.asked(CONSUMER_GROUP_HEARTBEAT)[-1][1]["TopicPartitions"] == [
            {"TopicId": TOPIC_ID, "Partitions": [1]}
        ]
        assert member.commit({("t", 0): 50}) is True
        assert not broker.asked(OFFSET_COMMIT)
        assert member.commit({("t", 1): 50}) is True
    assert broker.asked(OFFSET_COMMIT)[-1][1]["GenerationIdOrMemberEpoch"] == 2


def test_an_assignment_whose_acknowledgement_is_lost(broker: FakeBroker, cluster: Cluster, fake_time: FakeTime) -> None:
    """The next heartbeat acknowledges the assignment, and the member reads only the new partitions."""
    group = FakeConsumerGroup(broker)
    with GroupConsumer(cluster, "g", "t") as member:
        member.poll()
        group.assign(1)
        group.heartbeat_errors = [Errors.NONE, Errors.UNKNOWN_SERVER_ERROR]
        fake_time.now += 5
        with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
            member.poll()
        member.poll()
        assert broker.asked(CONSUMER_GROUP_HEARTBEAT)[-1][1]["TopicPartitions"] == [
            {"TopicId": TOPIC_ID, "Partitions": [1]}
        ]
        assert member._consumer.positions == {("t", 1): 40}


def test_a_fenced_member_joins_again(broker: FakeBroker, cluster: Cluster, fake_time: FakeTime) -> None:
    """The member rejoins at once with its id, after an error of a heartbeat or of a commit."""
    group = FakeConsumerGroup(broker)
    with GroupConsumer(cluster, "g", "t") as member:
        member.poll()
        group.heartbeat_errors = [Errors.FENCED_MEMBER_EPOCH]
        fake_time.now += 5
        member.poll()
        assert group.joins == 2
        group.commit_errors = [Errors.UNKNOWN_MEMBER_ID]
        assert member.commit({("t", 0): 41}) is False
        member.poll()
        assert group.joins == 3


def test_a_stale_epoch_is_renewed_by_a_heartbeat(broker: FakeBroker, cluster: Cluster) -> None:
    """The commit is repeated with the epoch of the heartbeat's response."""
    group = FakeConsumerGroup(broker)
    with GroupConsumer(cluster, "g", "t") as member:
        member.poll()
        group.assign(0, 1)
        group.commit_errors = [Errors.STALE_MEMBER_EPOCH]
        assert member.commit({("t", 0): 41}) is True
    epochs = [body["GenerationIdOrMemberEpoch"] for _, body in broker.asked(OFFSET_COMMIT)]
    assert epochs == [1, 2]


def test_partitions_that_others_give_up_are_waited_for(
    broker: FakeBroker, cluster: Cluster, fake_time: FakeTime
) -> None:
    """`join` waits for two heartbeat intervals at most; a member without partitions reads nothing until it gets one."""
    group = FakeConsumerGroup(broker)
    group.target = []
    with GroupConsumer(cluster, "g", "t") as member:
        before = fake_time.now
        member.join()
        assert (member.assignment, round(fake_time.now - before)) == ((), 10)
        group.assign(1)
        fake_time.now += 5
        member.poll()
        assert member.assignment == (("t", 1),)


@pytest.mark.parametrize("error", [Errors.UNSUPPORTED_VERSION, Errors.GROUP_ID_NOT_FOUND])
def test_a_broker_or_group_of_the_classic_protocol_alone(broker: FakeBroker, cluster: Cluster, error: Errors) -> None:
    """The member uses the classic protocol."""
    group = FakeConsumerGroup(broker)
    group.heartbeat_errors = [error]
    with GroupConsumer(cluster, "g", "t") as member:
        member.poll()
        assert member.assignment == (("t", 0), ("t", 1))
    assert len(broker.asked(JOIN_GROUP)) == len(broker.asked(LEAVE_GROUP)) == 1
    assert len(broker.asked(CONSUMER_GROUP_HEARTBEAT)) == 1


@pytest.mark.parametrize("silent", [FIND_COORDINATOR, CONSUMER_GROUP_HEARTBEAT])
def test_a_coordinator_that_does_not_respond_is_awaited_as_long_as_a_retry(
    broker: FakeBroker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    """A request to it has no longer time-out than all its retries together, for the caller has set a shorter limit."""
    FakeConsumerGroup(broker)
    limits = {}
    request = Connection.request

    def noted(connection: Connection, api_key: int, *args: Any, **settings: Any) -> Body | None:
        limits[api_key] = settings["timeout_s"]
        return request(connection, api_key, *args, **settings)

    monkeypatch.setattr(Connection, "request", noted)
    with GroupConsumer(cluster, "g", "t") as member:
        member.join()
    assert (cluster.request_timeout_s, limits[silent]) == (30, 5)
