"""Request bodies for every version, and preparations that several situations share."""

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.conformance.batches import TRANSACTIONAL, batch
from tests.conformance.codec import Body
from tests.conformance.talk import CONCURRENT_TRANSACTIONS, COORDINATOR_ERRORS, Stuck, Talk, Topic
from tests.support.wire import text

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
MEMBER_ID_REQUIRED = 79
SUBSCRIBED_TO_NOTHING = struct.pack(">hii", 0, 0, -1)
RANGE = [{"Name": "range", "Metadata": SUBSCRIBED_TO_NOTHING}]
STRANGE_ID = uuid.UUID(int=0x1234)

# ---- records


def named(topic: Topic | str, field: str = "Name") -> Body:
    """Return the field that names a topic, and its id for versions that have ids."""
    return {field: topic} if isinstance(topic, str) else {field: topic.name, "TopicId": topic.id}


def produce(
    *rows: tuple[Topic | str, int, bytes | None],
    acks: int = -1,
    timeout_ms: int = 5000,
    transactional_id: str | None = None,
) -> Body:
    """Return a Produce request with batches for (topic, partition)."""
    topics: dict[Topic | str, Body] = {}
    for topic, partition, records in rows:
        row = topics.setdefault(topic, {**named(topic), "PartitionData": []})
        row["PartitionData"].append({"Index": partition, "Records": records})
    return {"TransactionalId": transactional_id, "Acks": acks, "TimeoutMs": timeout_ms, "TopicData": [*topics.values()]}


def put(talk: Talk, topic: Topic, records: bytes, *, partition: int = 0, transactional_id: str | None = None) -> None:
    """Append records without recording the response."""
    body = produce((topic, partition, records), transactional_id=transactional_id)
    row = talk.quietly("Produce", 12, body)["Responses"][0]["PartitionResponses"][0]
    if row["ErrorCode"]:
        raise Stuck(f"Produce to prepare: error {row['ErrorCode']}")


def fill(
    talk: Talk, topic: Topic, *, batches: int = 1, records: int = 1, value_bytes: int = 4, partition: int = 0
) -> None:
    """Append batches of ``records`` records each."""
    for number in range(batches):
        values = [f"{number}.{index}".encode().ljust(value_bytes, b"_") for index in range(records)]
        put(talk, topic, batch(*values, time_ms=talk.at()), partition=partition)


def fetch(*rows: tuple[Topic | str, int, int], partition_bytes: int = 1 << 20, **fields: Any) -> Body:
    """Return a Fetch request for (topic, partition, offset) in order. Args: ``fields`` of the request."""
    topics: list[Body] = []
    for topic, partition, offset in rows:
        row = {**named(topic, "Topic"), "Partitions": []}
        if not topics or topics[-1]["Topic"] != row["Topic"]:
            topics.append(row)
        entry = {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": partition_bytes}
        topics[-1]["Partitions"].append(entry)
    return {"ReplicaId": -1, "MaxWaitMs": 100, "MinBytes": 0, "MaxBytes": 1 << 20, "Topics": topics, **fields}


def forgotten(topic: Topic, *partitions: int) -> list[Body]:
    return [{**named(topic, "Topic"), "Partitions": list(partitions)}]


def read_back(talk: Talk, topic: Topic, note: str = "", *, committed: bool = False, **fields: Any) -> None:
    """Record a fetch of partition 0 from its start."""
    talk.also("Fetch", 12, fetch((topic, 0, 0), IsolationLevel=int(committed), **fields), note)


def list_offsets(topic: Topic | str, *times: int, isolation: int = 0, leader_epoch: int = -1) -> Body:
    """Return a ListOffsets request, in which the nth timestamp is that of partition n."""
    rows = [
        {"PartitionIndex": n, "Timestamp": each, "CurrentLeaderEpoch": leader_epoch} for n, each in enumerate(times)
    ]
    name = topic if isinstance(topic, str) else topic.name
    return {
        "ReplicaId": -1,
        "IsolationLevel": isolation,
        "TimeoutMs": 5000,
        "Topics": [{"Name": name, "Partitions": rows}],
    }


def delete_records(talk: Talk, topic: Topic, before: int) -> None:
    rows = [{"PartitionIndex": 0, "Offset": before}]
    talk.quietly("DeleteRecords", 1, {"TimeoutMs": 5000, "Topics": [{"Name": topic.name, "Partitions": rows}]})


# ---- groups


def group(talk: Talk, label: str = "g") -> str:
    """Return the name of a new group whose coordinator is ready."""
    name = talk.name(label)
    await_group(talk, name)
    return name


def await_group(talk: Talk, name: str) -> None:
    talk.until(
        f"the coordinator of {name}",
        lambda: (
            talk.quietly("FindCoordinator", 2, {"Key": name, "KeyType": 0})["ErrorCode"] == 0
            and talk.quietly("OffsetFetch", 2, {"GroupId": name, "Topics": None})["ErrorCode"] not in COORDINATOR_ERRORS
        ),
        30,
    )


def join(
    group_id: str, member: str = "", *, instance: str | None = None, protocols: list[Body] | None = None, **fields: Any
) -> Body:
    return {
        "GroupId": group_id,
        "SessionTimeoutMs": 30_000,
        "RebalanceTimeoutMs": 5000,
        "MemberId": member,
        "GroupInstanceId": instance,
        "ProtocolType": "consumer",
        "Protocols": RANGE if protocols is None else protocols,
        **fields,
    }


def sync(group_id: str, generation: int, member: str, parts: dict[str, bytes] | None = None, **fields: Any) -> Body:
    """Return a SyncGroup request with the protocol of `join`, for versions that have it."""
    rows = [{"MemberId": each, "Assignment": part} for each, part in (parts or {}).items()]
    body = {"GroupId": group_id, "GenerationId": generation, "MemberId": member, "Assignments": rows}
    return {**body, "ProtocolType": "consumer", "ProtocolName": "range", **fields}


def heartbeat(group_id: str, generation: int, member: str, instance: str | None = None) -> Body:
    return {"GroupId": group_id, "GenerationId": generation, "MemberId": member, "GroupInstanceId": instance}


def leave(version: int, group_id: str, member: str) -> Body:
    """Return a LeaveGroup request of one member, which is in a list from version 3 on."""
    if version < 3:
        return {"GroupId": group_id, "MemberId": member}
    return {"GroupId": group_id, "Members": [{"MemberId": member, "Reason": "the script says so"}]}


@dataclass(frozen=True)
class Member:
    id: str
    generation: int


def lone_member(talk: Talk, group_id: str, *, is_synced: bool = True, on: str = "ground", **how: Any) -> Member:
    """Join an empty group without recording the responses. Args: ``how``: arguments of `join`."""
    response = talk.quietly("JoinGroup", 5, join(group_id, **how), on=on)
    if response["ErrorCode"] == MEMBER_ID_REQUIRED:
        response = talk.quietly("JoinGroup", 5, join(group_id, response["MemberId"], **how), on=on)
    member = Member(response["MemberId"], response["GenerationId"])
    if is_synced:
        body = sync(group_id, member.generation, member.id, {member.id: b"a part"}, GroupInstanceId=how.get("instance"))
        talk.quietly("SyncGroup", 3, body, on=on)
    return member


def commit(
    group_id: str,
    topic: Topic | str,
    offset: int = 5,
    *,
    partition: int = 0,
    metadata: str | None = "a note",
    leader_epoch: int = -1,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
) -> Body:
    row = {"PartitionIndex": partition, "CommittedOffset": offset, "CommittedMetadata": metadata}
    row["CommittedLeaderEpoch"] = leader_epoch
    who = {"GenerationIdOrMemberEpoch": generation, "MemberId": member, "GroupInstanceId": instance}
    return {"GroupId": group_id, **who, "Topics": [{**named(topic), "Partitions": [row]}]}


def committed(version: int, group_id: str, rows: Sequence[tuple[Topic | str, list[int]]] | None, **fields: Any) -> Body:
    """Return an OffsetFetch request for (topic, partitions) or all. Args: ``fields`` of the group, or ``stable``."""
    topics = None if rows is None else [{**named(topic), "PartitionIndexes": indexes} for topic, indexes in rows]
    stable = {"RequireStable": fields.pop("stable", False)}
    if version >= 8:
        return {"Groups": [{"GroupId": group_id, "Topics": topics, **fields}], **stable}
    by_name = None if topics is None else [{k: v for k, v in row.items() if k != "TopicId"} for row in topics]
    return {"GroupId": group_id, "Topics": by_name, **stable}


def subscription(*topics: str, version: int = 0) -> bytes:
    """Return a consumer's metadata with subscribed topics, of version 0 to 3."""
    later = (struct.pack(">i", 0), struct.pack(">i", 1), struct.pack(">h", -1))  # owned partitions, generation, rack
    names = b"".join(text(each) for each in topics)
    return b"".join((struct.pack(">hi", version, len(topics)), names, struct.pack(">i", -1), *later[:version]))


def assignment(topic: str, *indexes: int) -> bytes:
    """Return a classic member's assignment of partitions of one topic, of version 0."""
    rows = struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
    return b"".join((struct.pack(">hi", 0, 1), text(topic), rows, struct.pack(">i", -1)))


# ---- producers and transactions


@dataclass(frozen=True)
class Producer:
    id: int
    epoch: int
    transactional_id: str | None = None

    @property
    def who(self) -> Body:
        """Fields that most transactional requests have."""
        return {"TransactionalId": self.transactional_id, "ProducerId": self.id, "ProducerEpoch": self.epoch}

    def batch(self, *records: Any, sequence: int, is_transactional: bool | None = None, **how: Any) -> bytes:
        """Return a batch of this producer."""
        is_in = self.transactional_id is not None if is_transactional is None else is_transactional
        bits = how.pop("attributes", 0) | (TRANSACTIONAL if is_in else 0)
        return batch(
            *records, producer_id=self.id, epoch=how.pop("epoch", self.epoch), sequence=sequence, attributes=bits, **how
        )


def init(transactional_id: str | None, *, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1) -> Body:
    body = {"TransactionalId": transactional_id, "TransactionTimeoutMs": timeout_ms}
    return {**body, "ProducerId": producer_id, "ProducerEpoch": epoch}


def producer(talk: Talk, transactional_id: str | None = None) -> Producer:
    """Return a producer with a new producer id, without recording the responses."""
    if transactional_id is not None:  # the request creates the coordinator's topic, once
        body = {"Key": transactional_id, "KeyType": 1}
        talk.until("a coordinator", lambda: talk.quietly("FindCoordinator", 2, body)["ErrorCode"] == 0, 30)

    def given() -> Body | None:
        response = talk.quietly("InitProducerId", 4, init(transactional_id))
        return None if response["ErrorCode"] in {*COORDINATOR_ERRORS, CONCURRENT_TRANSACTIONS} else response

    response = talk.until("a producer id", given, 30)
    if response["ErrorCode"]:
        raise Stuck(f"InitProducerId to prepare: error {response['ErrorCode']}")
    return Producer(response["ProducerId"], response["ProducerEpoch"], transactional_id)


def add_partitions(version: int, who: Body, topic: Topic | str, *partitions: int, only_verify: bool = False) -> Body:
    """Return an AddPartitionsToTxn request, which from version 4 on has a list of transactions."""
    topics = [{"Name": topic if isinstance(topic, str) else topic.name, "Partitions": list(partitions) or [0]}]
    if version < 4:
        return {**{f"V3AndBelow{name}": value for name, value in who.items()}, "V3AndBelowTopics": topics}
    return {"Transactions": [{**who, "VerifyOnly": only_verify, "Topics": topics}]}


def open_transaction(talk: Talk, topic: Topic, label: str = "tx") -> Producer:
    """Begin a transaction with one record in partition 0, as clients do before transaction version 2."""
    made = producer(talk, talk.name(label))
    talk.quietly("AddPartitionsToTxn", 3, add_partitions(3, made.who, topic))
    records = made.batch("in a transaction", sequence=0, time_ms=talk.at())
    put_in(talk, topic, records, made)
    return made


def put_in(talk: Talk, topic: Topic, records: bytes, made: Producer) -> None:
    """Append by Produce 11, which does not add the partition to the transaction."""
    body = produce((topic, 0, records), transactional_id=made.transactional_id)
    row = talk.quietly("Produce", 11, body)["Responses"][0]["PartitionResponses"][0]
    if row["ErrorCode"]:
        raise Stuck(f"Produce to prepare: error {row['ErrorCode']}")


def end_transaction(talk: Talk, made: Producer, is_commit: bool) -> None:
    """End a transaction and wait until its markers are written."""
    talk.quietly("EndTxn", 3, {**made.who, "Committed": is_commit})
    await_state(talk, made, "CompleteCommit" if is_commit else "CompleteAbort")


def await_state(talk: Talk, made: Producer, state: str) -> None:
    def is_there() -> bool:
        response = talk.quietly("DescribeTransactions", 0, {"TransactionalIds": [made.transactional_id]})
        return bool(response["TransactionStates"][0]["TransactionState"] == state)

    talk.until(f"the state {state}", is_there)
