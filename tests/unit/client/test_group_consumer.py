"""A member of a group: the ranges that a leader assigns, as Kafka's RangeAssignor; offsets, rebalances, restarts."""

from __future__ import annotations

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.connection import Body
from kbroker.client.group_consumer import METADATA_MAX_AGE_S, GroupConsumer, assign_ranges
from kbroker.common.errors import Errors
from tests.support.fake_broker import FakeBroker
from tests.unit.client.conftest import FakeTime

FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 1, 2, 3, 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14


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
    """The first members, by id, get one more; who does not subscribe gets none."""
    found = assign_ranges(subscriptions, counts)
    assert {member: [p for _, p in mine] for member, mine in found.items()} == expected


def test_each_topic_is_divided_alone() -> None:
    """The first member gets the extra partition of every topic, as in Kafka."""
    found = assign_ranges({"a": ["x", "y"], "b": ["x", "y"], "c": ["y"]}, {"x": 3, "y": 4})
    assert found == {
        "a": [("x", 0), ("x", 1), ("y", 0), ("y", 1)],
        "b": [("x", 2), ("y", 2)],
        "c": [("y", 3)],
    }


class FakeGroup:
    """The coordinator of a group whose only member is the consumer under test: it assigns both partitions to it."""

    def __init__(self, broker: FakeBroker) -> None:
        self.unstable = 0  # answers to OffsetFetch that say so first
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


def _of(partition: int, error: Errors = Errors.NONE, **fields: object) -> Body:
    return {"PartitionIndex": partition, "ErrorCode": int(error), **fields}


def test_offsets_that_a_transaction_commits_are_waited_for(
    broker: FakeBroker, cluster: Cluster, fake_time: FakeTime
) -> None:
    """As the Java consumer does: what was committed before would have records read twice."""
    group = FakeGroup(broker)
    group.unstable = 1
    with GroupConsumer(cluster, "g", "t") as member:
        member.poll()
        assert member._consumer.positions == {("t", 0): 40, ("t", 1): 40}
    assert [body["RequireStable"] for _, body in broker.asked(OFFSET_FETCH)] == [True, True]


def test_a_commit_during_a_rebalance_is_none_and_the_member_rejoins(broker: FakeBroker, cluster: Cluster) -> None:
    """At its next poll, not at its next heartbeat."""
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
    """The look is repeated, and finds the new partitions."""
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
