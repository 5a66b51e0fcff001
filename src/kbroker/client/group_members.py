"""Membership in a consumer group, by the consumer protocol (KIP-848) or, for brokers without it, the classic protocol.

A member of the consumer protocol sends heartbeats, and the broker assigns partitions. In the classic protocol the
members join and synchronize, and one of them, the leader, assigns ranges of partitions to all.
Source: ``ConsumerMembershipManager``, ``AbstractCoordinator`` and ``RangeAssignor`` of the Java consumer.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from uuid import uuid4

from kbroker.client.cluster import check, to_error
from kbroker.client.connection import Body, BrokerConnectionError
from kbroker.client.groups import Groups, decode_assignment
from kbroker.client.partitions import topic_rows
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.protocol import codec

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, CONSUMER_GROUP_HEARTBEAT = 11, 12, 13, 14, 68
JOIN_EPOCH, LEAVE_EPOCH = 0, -1
SUBSCRIPTION_VERSION = 1
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS, HEARTBEAT_INTERVAL_S = 45_000, 60_000, 3.0
METADATA_MAX_AGE_S = 30.0
FIRST_ASSIGNMENT_PAUSE_S = 0.2
#: Errors after which a member joins again.
REJOINS = frozenset(
    {
        Errors.REBALANCE_IN_PROGRESS,
        Errors.ILLEGAL_GENERATION,
        Errors.UNKNOWN_MEMBER_ID,
        Errors.FENCED_MEMBER_EPOCH,
        Errors.STALE_MEMBER_EPOCH,
        Errors.GROUP_ID_NOT_FOUND,
    }
)
#: Errors of a broker or group that only accepts members of the classic protocol.
CLASSIC_ONLY = frozenset({Errors.UNSUPPORTED_VERSION, Errors.GROUP_ID_NOT_FOUND})


class ConsumerMember:
    """A member of the consumer protocol that subscribes to one topic.

    ``member_id`` and ``epoch`` identify it in requests. ``assignment``: its current partitions.
    """

    def __init__(self, groups: Groups, group_id: str, topic: str) -> None:
        self.member_id = base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        self.epoch = JOIN_EPOCH
        self.assignment: tuple[TopicPartition, ...] = ()
        self.interval_s = HEARTBEAT_INTERVAL_S
        self._groups = groups
        self._cluster = groups.cluster
        self._group_id = group_id
        self.topic = topic
        self._owned: list[Body] = []
        self._has_news = True  # whether the broker lacks the subscription or the partitions

    def join(self) -> None:
        """Join the group and wait for the first assignment while other members may still have to release partitions.

        Raises: KafkaError, such as UNSUPPORTED_VERSION, or GROUP_ID_NOT_FOUND for a classic group that cannot be
            converted.
        """
        self.epoch, self._owned, self.assignment = JOIN_EPOCH, [], ()
        self.heartbeat()
        # Other members release partitions at their next heartbeat. With more members than partitions none may be left.
        end_s = self._cluster.clock() + 2 * self.interval_s
        while not self.assignment and self._cluster.clock() < end_s:
            self._cluster.sleep(FIRST_ASSIGNMENT_PAUSE_S)
            self.heartbeat()

    def heartbeat(self) -> bool:
        """Send a heartbeat, accept and acknowledge its assignment; return whether the assignment has changed.

        Raises: KafkaError of ``REJOINS`` if the group has removed this member.
        """
        is_changed = False
        self._has_news |= self.epoch == JOIN_EPOCH
        while True:
            response = self._cluster.retry(lambda: self._send(self._has_news))
            self._has_news = False
            self.epoch, self.interval_s = response["MemberEpoch"], response["HeartbeatIntervalMs"] / 1000
            if response["Assignment"] is None:
                return is_changed
            rows = sorted(response["Assignment"]["TopicPartitions"], key=lambda row: row["TopicId"].int)
            if rows == self._owned:
                return is_changed
            self._owned, is_changed, self._has_news = rows, True, True
            self.assignment = tuple((self.topic, p) for row in rows for p in sorted(row["Partitions"]))

    def leave(self) -> None:
        """Leave the group."""
        self.epoch = LEAVE_EPOCH
        self._send(False)

    def _send(self, is_news: bool) -> Body:
        """Send a heartbeat. Args: ``is_news``: include subscription and partitions, which the broker keeps."""
        body: Body = {"GroupId": self._group_id, "MemberId": self.member_id, "MemberEpoch": self.epoch}
        if is_news:
            body |= {
                "RebalanceTimeoutMs": REBALANCE_TIMEOUT_MS,
                "SubscribedTopicNames": [self.topic],
                "TopicPartitions": self._owned,
            }
        response = self._groups.ask(self._group_id, CONSUMER_GROUP_HEARTBEAT, body)
        check(response["ErrorCode"], f"group {self._group_id!r}", response["ErrorMessage"])
        return response


class ClassicMember:
    """A member of the classic protocol that subscribes to one topic; same interface as `ConsumerMember`.

    The other members may be any clients that support the assignor "range".
    """

    def __init__(self, groups: Groups, group_id: str, topic: str) -> None:
        self.member_id = ""
        self.epoch = -1
        self.assignment: tuple[TopicPartition, ...] = ()
        self.interval_s = HEARTBEAT_INTERVAL_S
        self._groups = groups
        self._cluster = groups.cluster
        self._group_id = group_id
        self.topic = topic
        self._counts: dict[str, int] = {}  # partition counts by topic that the leader has used
        self._counted_at_s = 0.0

    def join(self) -> None:
        """Join, assign partitions to all if this member is the leader, and synchronize.

        Raises: KafkaError of ``REJOINS``; INCONSISTENT_GROUP_PROTOCOL if the other members do not offer "range".
        """
        joined = self._cluster.retry(self._join_once)
        is_leader = joined["Leader"] == self.member_id
        assignments = self._assignments(joined["Members"]) if is_leader else []
        fields = {"ProtocolName": joined["ProtocolName"], "Assignments": assignments}
        synced = self._cluster.retry(lambda: self._send(SYNC_GROUP, fields, is_waiting=True))
        self.assignment = decode_assignment(synced["Assignment"])

    def heartbeat(self) -> bool:
        """Send a heartbeat; return False, as the assignment stays. Raises: KafkaError of REJOINS, or new partitions."""
        self._cluster.retry(lambda: self._send(HEARTBEAT, {}))
        is_due = self._counts and self._cluster.clock() >= self._counted_at_s + METADATA_MAX_AGE_S
        if is_due and self._partition_counts(self._counts) != self._counts:
            raise KafkaError(Errors.REBALANCE_IN_PROGRESS, f"group {self._group_id!r}: topics have new partitions")
        return False

    def leave(self) -> None:
        """Leave the group."""
        member, self.epoch = {"MemberId": self.member_id}, -1
        self._groups.ask(
            self._group_id,
            LEAVE_GROUP,
            lambda version: {"GroupId": self._group_id, **({"Members": [member]} if version >= 3 else member)},
        )

    def _join_once(self) -> Body:
        subscription = {"Topics": [self.topic], "UserData": None, "OwnedPartitions": []}
        metadata = codec.encode_versioned("ConsumerProtocolSubscription", SUBSCRIPTION_VERSION, subscription)
        fields = {
            "SessionTimeoutMs": SESSION_TIMEOUT_MS,
            "RebalanceTimeoutMs": REBALANCE_TIMEOUT_MS,
            "Protocols": [{"Name": "range", "Metadata": metadata}],
        }
        response = self._send(JOIN_GROUP, fields, is_waiting=True)
        if to_error(response["ErrorCode"]) is Errors.MEMBER_ID_REQUIRED:
            self.member_id = response["MemberId"]
            response = self._send(JOIN_GROUP, fields, is_waiting=True)
        self.member_id, self.epoch = response["MemberId"], response["GenerationId"]
        return response

    def _assignments(self, members: list[Body]) -> list[Body]:
        """Return the leader's assignment of each member; keep the numbers of partitions."""
        subscriptions = {
            m["MemberId"]: codec.decode_versioned("ConsumerProtocolSubscription", m["Metadata"])[1]["Topics"]
            for m in members
        }
        self._counts = self._partition_counts({topic for topics in subscriptions.values() for topic in topics})
        return [
            {"MemberId": member_id, "Assignment": encode_assignment(mine)}
            for member_id, mine in assign_ranges(subscriptions, self._counts).items()
        ]

    def _partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each topic, 0 if it does not exist; note the time of the count."""
        found = self._cluster.retry(lambda: self._cluster.fetch_metadata(sorted(topics))) if topics else []
        self._counted_at_s = self._cluster.clock()
        return {t.name: len(t.partitions) if t.error is Errors.NONE else 0 for t in found}

    def _send(self, api_key: int, fields: Body, is_waiting: bool = False) -> Body:
        """Send a request; UNKNOWN_MEMBER_ID clears the member id. Returns: the response, also with MEMBER_ID_REQUIRED.

        Args: ``is_waiting``: the broker responds when all members have joined. Raises: KafkaError for other errors.
        """
        member: Body = {"GroupId": self._group_id, "MemberId": self.member_id}
        if api_key != JOIN_GROUP:
            member["GenerationId"] = self.epoch
        if is_waiting:
            member["ProtocolType"] = "consumer"
        timeout_s = self._cluster.coordinator_timeout_s
        if is_waiting:
            timeout_s = REBALANCE_TIMEOUT_MS / 1000 + self._cluster.request_timeout_s
        node_id = self._groups.coordinator(self._group_id)
        response = self._cluster.request(api_key, {**member, **fields}, node_id=node_id, timeout_s=timeout_s)
        error = to_error(response["ErrorCode"])
        if error is Errors.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if error is not Errors.MEMBER_ID_REQUIRED:
            check(error, f"group {self._group_id!r}")
        return response


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return the bytes of an assignment to a member of the classic protocol."""
    fields = {"AssignedPartitions": topic_rows(sorted({*partitions}), "Topic"), "UserData": None}
    return codec.encode_versioned("ConsumerProtocolAssignment", SUBSCRIPTION_VERSION, fields)


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each member: a range of each topic, of equal lengths, one more for the first members.

    Args: ``subscriptions``: topics by member id. ``partition_counts``: by topic.
    Source: ``RangeAssignor``, without racks.
    """
    assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in subscriptions}
    for topic in sorted(partition_counts):
        members = sorted(m for m, topics in subscriptions.items() if topic in topics)
        first = 0
        for index, member_id in enumerate(members):
            length = partition_counts[topic] // len(members) + (index < partition_counts[topic] % len(members))
            assigned[member_id] += [(topic, p) for p in range(first, first + length)]
            first += length
    return assigned


def leave_quietly(member: ConsumerMember | ClassicMember) -> None:
    """Leave the group, so that the others get the partitions at once; ignore failures: the session expires anyway."""
    with suppress(KafkaError, BrokerConnectionError):
        member.leave()
