"""Administration of groups of any Kafka cluster: members, committed offsets and lag.

Requests for a group's coordinator look it up first, and again when it has moved.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kbroker.client.admin import Admin
from kbroker.client.cluster import BodyFor, Cluster, check, retried, to_error
from kbroker.client.connection import MAX_FRAME_BYTES, Body
from kbroker.client.coordinators import GROUP, find_coordinator
from kbroker.client.partitions import partition_rows, topic_rows
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.topic_names import TopicPartition
from kbroker.protocol import codec

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS = 15, 16, 42
CONSUMER_GROUP_DESCRIBE, SHARE_GROUP_DESCRIBE, STREAMS_GROUP_DESCRIBE = 69, 77, 89
NAMED_TOPICS_MAX_VERSION = 9  # of OffsetCommit and OffsetFetch: v10 identifies topics by id, which deleted topics lack
FIRST_STABLE, FIRST_WITH_GROUPS = 7, 8  # versions of OffsetFetch
DEAD, EMPTY = "Dead", "Empty"
CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
WITH_OFFSETS = (CLASSIC, CONSUMER, STREAMS)  # types of groups whose members commit offsets
CLASSIC_MEMBER = 0  # MemberType of ConsumerGroupDescribe 1


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One row of ListGroups; `state` is "" before v4, `group_type` "classic" before v5."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


Task = tuple[str, int]  # subtopology and partition


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of a member of a streams group, by role."""

    active: tuple[Task, ...]
    standby: tuple[Task, ...]
    warmup: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member and its assignment, which is empty for classic groups whose protocol type is not that of consumers.

    For consumer groups only: ``target``: the target assignment, reached when this member and the others have released
    partitions; ``regex``; ``protocol``: the member's own protocol. For streams groups only: ``process``, ``tasks``,
    ``target_tasks``; the assignment has the inputs of the active tasks. ``epoch``: None for classic groups.
    ``unread_bytes``: size of an assignment that is too large to be decoded.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None
    regex: str | None = None
    protocol: str = CLASSIC
    process: str | None = None
    tasks: Tasks | None = None
    target_tasks: Tasks | None = None
    unread_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members, by ascending member id; `assignor` is "" without one.

    For groups of the newer protocols only: ``epoch``; ``target_epoch``: epoch of the target assignment.
    """

    group_id: str
    group_type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[GroupMember, ...]
    epoch: int | None = None
    target_epoch: int | None = None

    @property
    def is_active(self) -> bool:
        """True if the group has members, which a commit by another client would disturb."""
        return self.state not in (EMPTY, DEAD)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Committed offset of a group: `offset` is the next to read, `leader_epoch` is -1 if unknown."""

    offset: int
    leader_epoch: int
    metadata: str


class Groups:
    """Requests about groups over a `Cluster`, which the caller owns.

    Args: ``assignment_bytes``: larger assignments of members of classic groups, chosen by clients, are not decoded.

    Every method raises KafkaError with the broker's code and text for the first item that failed,
    BrokerConnectionError when the cluster cannot be reached. Threads: as its Cluster.
    """

    def __init__(self, cluster: Cluster, *, assignment_bytes: int = MAX_FRAME_BYTES) -> None:
        self.cluster = cluster
        self._assignment_bytes = assignment_bytes

    @retried  # the whole method: a node may have left, and another may have its groups
    def list_groups(self) -> list[ListedGroup]:
        """Return the groups of all brokers, sorted by id."""
        self.cluster.fetch_metadata([])
        found: dict[str, ListedGroup] = {}
        for node_id in sorted(self.cluster.nodes):
            response = self.cluster.ask(LIST_GROUPS, {}, f"groups of node {node_id}", node_id=node_id)
            for g in response["Groups"]:
                group_type = (g.get("GroupType") or CLASSIC).lower()
                found[g["GroupId"]] = ListedGroup(
                    g["GroupId"], g["ProtocolType"], g.get("GroupState") or "", group_type
                )
        return [found[group_id] for group_id in sorted(found)]

    @retried
    def describe(self, group_id: str) -> GroupDescription:
        """Return state and members of a group of any type.

        Raises: KafkaError GROUP_ID_NOT_FOUND if the group does not exist.
        """
        what = f"group {group_id!r}"

        def ask(api_key: int, node_id: int) -> Body:
            body = {"Groups" if api_key == DESCRIBE_GROUPS else "GroupIds": [group_id]}
            (row,) = self.cluster.request(api_key, body, node_id=node_id)["Groups"]
            if to_error(row["ErrorCode"]) is not Errors.GROUP_ID_NOT_FOUND:
                check(row["ErrorCode"], what, row.get("ErrorMessage"))
            return dict(row)

        node_id = self.coordinator(group_id)
        for _ in range(2):  # the group may change its protocol between the two requests
            row = ask(DESCRIBE_GROUPS, node_id)
            if row["ErrorCode"] == 0 and row["GroupState"] != DEAD:
                return _classic(row, node_id, self._assignment_bytes)
            for api_key, kind in _NEWER.items():
                if self.cluster.supports(api_key, node_id):
                    newer = ask(api_key, node_id)
                    if newer["ErrorCode"] == 0:
                        return _streams(newer, node_id) if kind == STREAMS else _newer(newer, node_id, kind)
        raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"{what}: {Errors.GROUP_ID_NOT_FOUND.message}")

    def coordinator(self, group_id: str) -> int:
        """Return the node id of the group's coordinator, without retries.

        Raises: KafkaError, such as COORDINATOR_NOT_AVAILABLE, INVALID_GROUP_ID.
        """
        return find_coordinator(self.cluster, GROUP, group_id)

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group; none if it does not exist.

        Args: ``partitions``: the partitions; None for all. ``require_stable``: wait for open transactions that have
            committed offsets of ``partitions`` (Kafka 2.5); if None, Kafka leaves out partitions whose first offset
            was committed in such a transaction.
        """
        wanted = None if partitions is None else topic_rows(sorted({*partitions}), partitions="PartitionIndexes")

        def body(version: int) -> Body:
            stable = {"RequireStable": True} if require_stable else {}
            if require_stable and version < FIRST_STABLE:
                raise KafkaError(Errors.UNSUPPORTED_VERSION, "this broker is too old for stable offsets (Kafka 2.5)")
            if version >= FIRST_WITH_GROUPS:
                return {"Groups": [{"GroupId": group_id, "Topics": wanted}], **stable}
            if version < 2 and wanted is None:
                raise KafkaError(
                    Errors.UNSUPPORTED_VERSION, "this broker is too old to list all offsets of a group (Kafka 0.10.2)"
                )
            return {"GroupId": group_id, "Topics": wanted, **stable}

        def attempt() -> dict[TopicPartition, CommittedOffset]:
            response = self.ask(group_id, OFFSET_FETCH, body, NAMED_TOPICS_MAX_VERSION)
            rows = response.get("Groups")
            row = rows[0] if rows else response
            check(row["ErrorCode"], f"group {group_id!r}")
            for (topic, partition), p in partition_rows(row["Topics"]):
                check(p["ErrorCode"], f"partition {topic}-{partition}")
            return committed_offsets(row)

        return self.cluster.retry(attempt)

    @retried
    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, int], *, generation_id: int = -1, member_id: str = ""
    ) -> None:
        """Commit offsets, as a member or for a group without members; a group that does not exist is created.

        Args: ``generation_id``, ``member_id`` of the member; the defaults commit without one.
        Raises: KafkaError, such as UNKNOWN_MEMBER_ID if the group has members and this is not one of them,
            ILLEGAL_GENERATION, UNKNOWN_TOPIC_OR_PARTITION; offsets of other partitions may have been committed.
        """
        if not offsets:
            return
        topics = topic_rows(
            (topic, {"PartitionIndex": partition, "CommittedOffset": offset, "CommittedMetadata": ""})
            for (topic, partition), offset in sorted(offsets.items())
        )
        body = {
            "GroupId": group_id,
            "GenerationIdOrMemberEpoch": generation_id,
            "MemberId": member_id,
            "Topics": topics,
        }
        response = self.ask(group_id, OFFSET_COMMIT, body, NAMED_TOPICS_MAX_VERSION)
        for (topic, partition), p in partition_rows(response["Topics"]):
            check(p["ErrorCode"], f"group {group_id!r}, partition {topic}-{partition}")

    @retried
    def delete(self, group_id: str) -> None:
        """Delete a group without members, with its offsets.

        Raises: KafkaError, such as NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
        """
        for row in self.ask(group_id, DELETE_GROUPS, {"GroupsNames": [group_id]})["Results"]:
            check(row["ErrorCode"], f"group {group_id!r}", row.get("ErrorMessage"))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offsets of partitions, without those of deleted topics and those without a leader."""
        wanted = set(partitions)
        topics = self.cluster.fetch_metadata(sorted({topic for topic, _ in wanted})) if wanted else []
        led = {(t.name, p.partition) for t in topics for p in t.partitions if p.leader >= 0}
        return Admin(self.cluster).offsets_at(sorted(wanted & led))

    def ask(self, group_id: str, api_key: int, body: BodyFor, max_version: int | None = None) -> Body:
        """Send a request to the coordinator of a group, without retries, and return the response."""
        node_id, timeout_s = self.coordinator(group_id), self.cluster.coordinator_timeout_s
        return self.cluster.request(api_key, body, node_id=node_id, max_version=max_version, timeout_s=timeout_s)


def committed_offsets(group: Body) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets of a group in a response of OffsetFetch, without partitions that have none or an error."""
    return {
        tp: CommittedOffset(p["CommittedOffset"], p.get("CommittedLeaderEpoch", -1), p["Metadata"] or "")
        for tp, p in partition_rows(group["Topics"])
        if p["CommittedOffset"] >= 0 and not p["ErrorCode"]
    }


def _classic(row: Body, node_id: int, assignment_bytes: int) -> GroupDescription:
    members = []
    for m in row["Members"]:
        data = m["MemberAssignment"] if row["ProtocolType"] == CONSUMER else b""
        unread_bytes = len(data) if len(data) > assignment_bytes else 0
        assignment = () if unread_bytes else _assigned(data)
        names = m["MemberId"], m.get("GroupInstanceId"), m["ClientId"], m["ClientHost"]
        members.append(GroupMember(*names, assignment, unread_bytes=unread_bytes))
    return _described(row, CLASSIC, node_id, members, row["ProtocolType"], row["ProtocolData"])


def _described(
    row: Body, kind: str, node_id: int, members: Iterable[GroupMember], protocol_type: str, assignor: str
) -> GroupDescription:
    ordered = tuple(sorted(members, key=lambda m: m.member_id))
    epochs = row.get("GroupEpoch"), row.get("AssignmentEpoch")
    return GroupDescription(row["GroupId"], kind, row["GroupState"], protocol_type, assignor, node_id, ordered, *epochs)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment; empty bytes assign none. Raises: ProtocolError."""
    topics = codec.decode_versioned("ConsumerProtocolAssignment", data)[1]["AssignedPartitions"] if data else []
    return tuple((t["Topic"], p) for t in topics for p in t["Partitions"])


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a consumer's assignment; none if the bytes, chosen by a client, are malformed."""
    try:
        return tuple(sorted(decode_assignment(data)))
    except ProtocolError:
        return ()


_NEWER = {CONSUMER_GROUP_DESCRIBE: CONSUMER, SHARE_GROUP_DESCRIBE: SHARE, STREAMS_GROUP_DESCRIBE: STREAMS}


def _newer(row: Body, node_id: int, kind: str) -> GroupDescription:
    members = [
        GroupMember(
            m["MemberId"],
            m.get("InstanceId"),
            m["ClientId"],
            m["ClientHost"],
            _places(m["Assignment"]),
            m["MemberEpoch"],
            _places(m["TargetAssignment"]) if kind == CONSUMER else None,
            m.get("SubscribedTopicRegex") or None,
            CLASSIC if m.get("MemberType") == CLASSIC_MEMBER else kind,
        )
        for m in row["Members"]
    ]
    return _described(row, kind, node_id, members, kind, row["AssignorName"])


def _places(assignment: Body) -> tuple[TopicPartition, ...]:
    return tuple(sorted((t["TopicName"], p) for t in assignment["TopicPartitions"] for p in t["Partitions"]))


def _streams(row: Body, node_id: int) -> GroupDescription:
    inputs = {
        part["SubtopologyId"]: [*part["SourceTopics"], *(topic["Name"] for topic in part["RepartitionSourceTopics"])]
        for part in (row["Topology"] or {"Subtopologies": ()})["Subtopologies"]
    }
    members = []
    for m in row["Members"]:
        tasks = _tasks(m["Assignment"])
        places = {(topic, partition) for part, partition in tasks.active for topic in inputs.get(part, ())}
        members.append(
            GroupMember(
                m["MemberId"],
                m["InstanceId"],
                m["ClientId"],
                m["ClientHost"],
                tuple(sorted(places)),
                m["MemberEpoch"],
                process=m["ProcessId"],
                tasks=tasks,
                target_tasks=_tasks(m["TargetAssignment"]),
                protocol=CLASSIC if m["IsClassic"] else STREAMS,
            )
        )
    return _described(row, STREAMS, node_id, members, STREAMS, "")


def _tasks(assignment: Body) -> Tasks:
    def of(role: str) -> tuple[Task, ...]:
        return tuple(sorted((row["SubtopologyId"], p) for row in assignment[role] for p in row["Partitions"]))

    return Tasks(of("ActiveTasks"), of("StandbyTasks"), of("WarmupTasks"))
