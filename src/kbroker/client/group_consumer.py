"""A synchronous member of a classic consumer group that reads one topic, and shares it with the other members.

It joins, heartbeats and rejoins inside `poll`, so a caller that stays away for longer than the session time-out is
out of the group until its next poll. Other members may be any client that offers the assignor "range".
Source: ``AbstractCoordinator``, ``ConsumerCoordinator`` and ``RangeAssignor`` of the Java consumer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

from kbroker.client.admin import LATEST, TopicPartition
from kbroker.client.cluster import Cluster, check, to_error
from kbroker.client.connection import Body, BrokerConnectionError
from kbroker.client.consumer import Consumer, Record
from kbroker.client.groups import Groups, by_topic
from kbroker.common.errors import Errors, KafkaError
from kbroker.protocol import codec

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
PROTOCOL_TYPE, ASSIGNOR = "consumer", "range"
SUBSCRIPTION_VERSION = 1
METADATA_MAX_AGE_S = 30.0
REJOINS = (Errors.REBALANCE_IN_PROGRESS, Errors.ILLEGAL_GENERATION, Errors.UNKNOWN_MEMBER_ID)


class GroupConsumer:
    """Reads the partitions of a topic that its group assigns to it, from the committed offsets on.

    Args:
        cluster: not owned.
        group_id: the group; it is made when it does not exist.
        topic: what is read.
        start: EARLIEST or LATEST, for a partition without a committed offset, and for one whose offset is deleted.
        read_committed: leave out aborted transactions, end at the last stable offset.
        max_wait_ms: how long one poll may wait for records.
        session_timeout_ms: after so long without a heartbeat the group goes on without this member.
        rebalance_timeout_ms: how long the group waits for a member to rejoin.
        heartbeat_interval_s: seconds between heartbeats.

    Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION, INCONSISTENT_GROUP_PROTOCOL when the other members do not offer
        "range", UNSUPPORTED_VERSION for a broker before Kafka 2.5, GROUP_AUTHORIZATION_FAILED ...

    Threads: as its Cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        topic: str,
        *,
        start: int = LATEST,
        read_committed: bool = False,
        max_wait_ms: int = 500,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 60_000,
        heartbeat_interval_s: float = 3.0,
    ) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self.topic = topic
        self.start = start
        self.read_committed = read_committed
        self.max_wait_ms = max_wait_ms
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.heartbeat_interval_s = heartbeat_interval_s
        self.assignment: tuple[TopicPartition, ...] = ()
        self._groups = Groups(cluster)
        self._consumer = Consumer(cluster, {}, max_wait_ms=max_wait_ms, read_committed=read_committed, reset=self.start)
        self._member_id = ""
        self._generation_id = -1
        self._is_joined = False
        self._heartbeat_at_s = self._refresh_at_s = 0.0
        self._partition_counts: dict[str, int] = {}  # of the leader alone: what it assigned
        cluster.topic(topic)

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- reading

    def join(self) -> None:
        """Be a member: join the group unless this one is in it. `poll` does so too; this waits for nothing else."""
        if not self._is_joined:
            self._join()

    def poll(self) -> list[Record]:
        """Records of one fetch; joins the group before it where that is due. May be empty.

        What was returned before a rebalance and not committed is returned again, here or by another member.
        """
        if self._is_joined and self.cluster.clock() >= self._heartbeat_at_s:
            self._beat()
        self.join()
        if not self.assignment:
            self.cluster.sleep(min(self.max_wait_ms / 1000, self.heartbeat_interval_s))
            return []
        return self._consumer.poll()

    def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit offsets: of each partition, that of the next record to read.

        Returns: False when the group has moved on without this member, which rejoins at the next poll; then nothing
            of this member counts any more.
        """
        mine = {tp: offset for tp, offset in offsets.items() if tp in self.assignment}
        if not self._is_joined or not mine:
            return self._is_joined
        try:
            self._groups.commit(self.group_id, mine, generation_id=self._generation_id, member_id=self._member_id)
        except KafkaError as failure:
            if failure.error not in REJOINS:
                raise
            self._forget_membership(failure.error)
            return False
        return True

    def close(self) -> None:
        """Leave the group, so that the others get the partitions at once. Idempotent."""
        if not self._member_id:
            return
        member_id, self._member_id, self._is_joined = self._member_id, "", False

        def body(version: int) -> Body:
            if version >= 3:
                return {"GroupId": self.group_id, "Members": [{"MemberId": member_id}]}
            return {"GroupId": self.group_id, "MemberId": member_id}

        try:
            node_id = self._groups.coordinator(self.group_id)
            self.cluster.request(LEAVE_GROUP, body, node_id=node_id)
        except (KafkaError, BrokerConnectionError):
            return  # the session time-out does it then

    # ---- membership

    def _beat(self) -> None:
        body = {"GroupId": self.group_id, "GenerationId": self._generation_id, "MemberId": self._member_id}

        def attempt() -> None:
            self._ask(HEARTBEAT, body)

        try:
            self.cluster.retry(attempt)
        except KafkaError as failure:
            if failure.error not in REJOINS:
                raise
            self._forget_membership(failure.error)
            return
        self._heartbeat_at_s = self.cluster.clock() + self.heartbeat_interval_s
        if self._partition_counts and self.cluster.clock() >= self._refresh_at_s:
            self._refresh_at_s = self.cluster.clock() + METADATA_MAX_AGE_S
            self._is_joined = self._counts(self._partition_counts) == self._partition_counts

    def _forget_membership(self, error: Errors) -> None:
        self._is_joined = False
        if error is Errors.UNKNOWN_MEMBER_ID:
            self._member_id = ""

    def _join(self) -> None:
        """Join, sync and look up where to read on, again until the group is stable."""
        while not self._is_joined:
            try:
                joined = self.cluster.retry(self._join_once)
                assignments: list[Body] = []
                self._partition_counts = {}
                if joined["Leader"] == self._member_id:
                    assignments = self._assign(joined["Members"])
                assigned = self.cluster.retry(lambda: self._sync_once(joined, assignments))  # noqa: B023  runs now
            except KafkaError as failure:
                if failure.error not in REJOINS:
                    raise
                self._forget_membership(failure.error)
                continue
            self._take(assigned)

    def _join_once(self) -> Body:
        subscription = codec.encode_versioned(
            "ConsumerProtocolSubscription",
            SUBSCRIPTION_VERSION,
            {"Topics": [self.topic], "UserData": None, "OwnedPartitions": []},
        )
        body = {
            "GroupId": self.group_id,
            "SessionTimeoutMs": self.session_timeout_ms,
            "RebalanceTimeoutMs": self.rebalance_timeout_ms,
            "MemberId": self._member_id,
            "ProtocolType": PROTOCOL_TYPE,
            "Protocols": [{"Name": ASSIGNOR, "Metadata": subscription}],
        }
        wait_s = self.rebalance_timeout_ms / 1000 + self.cluster.request_timeout_s
        response = self._request(JOIN_GROUP, body, wait_s)
        if to_error(response["ErrorCode"]) is Errors.MEMBER_ID_REQUIRED:
            body["MemberId"] = self._member_id = response["MemberId"]
            response = self._request(JOIN_GROUP, body, wait_s)
        check(response["ErrorCode"], f"group {self.group_id!r}")
        self._member_id, self._generation_id = response["MemberId"], response["GenerationId"]
        return response

    def _sync_once(self, joined: Body, assignments: list[Body]) -> bytes:
        body = {
            "GroupId": self.group_id,
            "GenerationId": self._generation_id,
            "MemberId": self._member_id,
            "ProtocolType": PROTOCOL_TYPE,
            "ProtocolName": joined["ProtocolName"],
            "Assignments": assignments,
        }
        wait_s = self.rebalance_timeout_ms / 1000 + self.cluster.request_timeout_s
        response = self._request(SYNC_GROUP, body, wait_s)
        check(response["ErrorCode"], f"group {self.group_id!r}")
        assignment: bytes = response["Assignment"]
        return assignment

    def _take(self, assignment: bytes) -> None:
        """Read what was assigned, from the committed offsets on."""
        topics: list[Body] = []
        if assignment:
            topics = codec.decode_versioned("ConsumerProtocolAssignment", assignment)[1]["AssignedPartitions"]
        mine = tuple((t["Topic"], p) for t in topics for p in t["Partitions"])
        # what a transaction of the group is about to commit is waited for: else its records would be read twice
        committed = self._groups.committed(self.group_id, mine, require_stable=True) if mine else {}
        consumer = Consumer(
            self.cluster, {}, max_wait_ms=self.max_wait_ms, read_committed=self.read_committed, reset=self.start
        )
        consumer.seek({tp: committed[tp].offset if tp in committed else self.start for tp in mine})
        self._consumer, self.assignment, self._is_joined = consumer, mine, True
        now_s = self.cluster.clock()
        self._heartbeat_at_s, self._refresh_at_s = now_s + self.heartbeat_interval_s, now_s + METADATA_MAX_AGE_S
        # kept at once: after a rebalance, LATEST would be a later place, and what came between would be left out
        self.commit({tp: consumer.positions[tp] for tp in mine if tp not in committed})

    # ---- the leader's part

    def _assign(self, members: list[Body]) -> list[Body]:
        """What each member reads, as the leader decides."""
        subscriptions: dict[str, list[str]] = {}
        for m in members:
            _, subscription = codec.decode_versioned("ConsumerProtocolSubscription", m["Metadata"])
            subscriptions[m["MemberId"]] = subscription["Topics"]
        topics = {topic for subscribed in subscriptions.values() for topic in subscribed}
        self._partition_counts = self._counts(topics)
        assigned = assign_ranges(subscriptions, self._partition_counts)
        return [
            {
                "MemberId": member_id,
                "Assignment": codec.encode_versioned(
                    "ConsumerProtocolAssignment",
                    SUBSCRIPTION_VERSION,
                    {
                        "AssignedPartitions": [
                            {"Topic": topic, "Partitions": list(partitions)}
                            for topic, partitions in by_topic(dict.fromkeys(mine)).items()
                        ],
                        "UserData": None,
                    },
                ),
            }
            for member_id, mine in assigned.items()
        ]

    def _counts(self, topics: set[str] | Mapping[str, int]) -> dict[str, int]:
        """Partitions of each topic; 0 of one that does not exist."""
        found = self.cluster.retry(lambda: self.cluster.fetch_metadata(sorted(topics))) if topics else []
        return {t.name: len(t.partitions) if t.error is Errors.NONE else 0 for t in found}

    # ---- the wire

    def _ask(self, api_key: int, body: Body) -> Body:
        response = self._request(api_key, body, None)
        check(response["ErrorCode"], f"group {self.group_id!r}")
        return response

    def _request(self, api_key: int, body: Body, timeout_s: float | None) -> Body:
        node_id = self._groups.coordinator(self.group_id)
        return self.cluster.request(api_key, body, node_id=node_id, timeout_s=timeout_s)


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Partitions of each member: of each topic a range of the same length, one more for the first members.

    Args: ``subscriptions``: topics by member id. ``partition_counts``: by topic.
    Source: ``RangeAssignor``, without racks.
    """
    assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in subscriptions}
    for topic in sorted(partition_counts):
        members = sorted(m for m, topics in subscriptions.items() if topic in topics)
        if not members:
            continue
        least, more = divmod(partition_counts[topic], len(members))
        first = 0
        for place, member_id in enumerate(members):
            length = least + (place < more)
            assigned[member_id] += [(topic, p) for p in range(first, first + length)]
            first += length
    return assigned
