"""Fixed load on a broker in this process, and the state that is certain after each response.

Each step is acknowledged, refused, or has an unknown outcome. After a stop, kill or power cut, `FolderContents` of
folder_contents.py is compared with `Expected`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from kbroker.broker import Broker
from kbroker.log._partition_log import PartitionLog
from tests.support import wire
from tests.support.broker import wait_for
from tests.support.client import Body, Client, more_partitions, new_topics, produce_body, set_configs
from tests.support.disk_calls import mark
from tests.support.wire import Closed

STORAGE_ERROR, TIMED_OUT = 56, 7
TIMEOUT_MS = 1000  # of a produce request whose sync fails
#: A coordinator or a partition is not served yet, or a transaction is being completed.
RETRIABLE = frozenset({14, 15, 16, 51, 3, 5})
TRANSACTIONAL = 0x10
TOGETHER = 4
UNKNOWN = -1000  # code of a step without a response
ACKED, REFUSED, UNCERTAIN = "acked", "refused", "uncertain"
TOPIC, BROKER, GROUP_TYPE = 2, 4, 32
BASE_MS = 1_700_000_000_000
#: Topics that exist before the load: name, number of partitions, configs. Their logs are rolled in each round.
TOPICS: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("plain", 2, {"segment.ms": "10000"}),
    ("exact", 2, {}),
    ("atomic", 2, {}),
    ("compacted", 1, {"cleanup.policy": "compact", "segment.ms": "10000", "min.cleanable.dirty.ratio": "0.01"}),
)
MOVED = ("plain", "compacted", "atomic")  # topics whose partition 0 is moved to the other log folder in each round
NEWER, SHARED = "newer", "shared"  # groups
NO_LIMIT = {"retention.ms": "-1", "message.timestamp.before.max.ms": str((1 << 63) - 1)}


def described(response: Body) -> str:
    """Return the only group of a ConsumerGroupDescribe response as text."""
    group = response["Groups"][0]
    members = [
        (one["MemberId"], one["MemberEpoch"], *_places(one["Assignment"]), *_places(one["TargetAssignment"]))
        for one in group["Members"]
    ]
    return f"{group['GroupState']} {group['GroupEpoch']} {group['AssignmentEpoch']} {sorted(members)}"


def _places(assignment: Body) -> list[tuple[str, list[int]]]:
    return [(topic["TopicName"], sorted(topic["Partitions"])) for topic in assignment["TopicPartitions"]]


class Sent(NamedTuple):
    """Record that was sent. ``offset``: the acknowledged offset, otherwise -1."""

    value: str
    outcome: str
    offset: int


class Expected:
    """State that is certain after the responses.

    Attributes:
        sent: by log ``topic-partition``, the records in the order of sending.
        facts: by name, the allowed values: a single value unless an outcome is uncertain.
        starts: by log, the minimum and maximum of its log start offset.
        flushed: by log, the offset below which a flush by time has made all records durable.
        codes: the error codes by step; ``number``: of the latest record.
    """

    def __init__(self) -> None:
        self.sent: dict[str, list[Sent]] = {}
        self.facts: dict[str, list[Any]] = {}
        self.starts: dict[str, tuple[int, int]] = {}
        self.flushed: dict[str, int] = {}
        self.codes: dict[str, list[int]] = {}
        self.number = 0

    def note(self, fact: str, value: object, outcome: str) -> None:
        """Record that the value of a fact was to be changed."""
        if outcome == ACKED:
            self.facts[fact] = [value]
        elif outcome == UNCERTAIN:
            self.facts[fact] = [*self.facts.get(fact, [None]), value]

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Expected:
        made = cls()
        vars(made).update(json.loads(text))
        made.sent = {log: [Sent(*one) for one in rows] for log, rows in made.sent.items()}
        return made

    def copy(self) -> Expected:
        return self.from_json(self.to_json())


class Load:
    """Client of the load.

    Args: ``broker``: running broker; ``expected``: state after an earlier load on the same folder; ``is_recorded``:
    write each change of ``expected`` to the record of system calls, as an index into ``states``; ``patience_s``: time
    to repeat requests with retriable errors.
    """

    def __init__(
        self, broker: Broker, expected: Expected | None = None, *, is_recorded: bool = False, patience_s: float = 5.0
    ) -> None:
        self.patience_s = patience_s
        self.broker = broker
        self.expected = Expected() if expected is None else expected
        self.states: list[Expected] = []  # the state after each mark
        self._is_recorded = is_recorded
        self._client: Client | None = None
        self._time_ms = BASE_MS
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}
        self._waiting: dict[int, tuple[bytes, str]] = {}  # batches that the idempotent producer sends again

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    # ------------------------------------------------------------ requests

    def _call(self, key: int | str, version: int, body: Body) -> Body | None:
        """Return the response, or None if the broker has closed the connection or stopped."""
        try:
            if self._client is None:
                self._client = Client(self.broker.bootstrap_servers, "load", timeout=15)
            return self._client.call(key, version, body)
        except (Closed, OSError, RuntimeError):
            self.close()
            return None

    def _until_served(self, step: str, request: Callable[[], int]) -> int:
        """Repeat a request while its error is retriable; record and return the last code."""
        deadline = time.monotonic() + self.patience_s
        code = request()
        while code in RETRIABLE and time.monotonic() < deadline:
            time.sleep(0.005)
            code = request()
        if code not in self.expected.codes.setdefault(step, []):
            self.expected.codes[step].append(code)
        return code

    def _mark(self) -> None:
        if self._is_recorded:
            mark(str(len(self.states)))
            self.states.append(self.expected.copy())

    def _first(self, key: int | str, version: int, body: Body, *path: Any, code: str = "ErrorCode") -> int:
        response: Any = self._call(key, version, body)
        if response is None:
            return UNKNOWN
        for name in path:
            response = response[name]
        return int(response[code])

    @staticmethod
    def _metadata_outcome(code: int) -> str:
        return ACKED if code == 0 else UNCERTAIN if code == UNKNOWN else REFUSED

    @staticmethod
    def _record_outcome(code: int) -> str:
        """Return the outcome of a record, which is uncertain after a failed write or sync."""
        return ACKED if code == 0 else UNCERTAIN if code in (UNKNOWN, STORAGE_ERROR, TIMED_OUT) else REFUSED

    # ------------------------------------------------------------ metadata

    def set_up(self) -> None:
        """Create the topics of the load."""
        for name, partitions, configs in TOPICS:
            self.create(name, partitions, {**NO_LIMIT, **configs})

    def create(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> int:
        body = new_topics(name, partitions=partitions, configs=configs)
        code = self._until_served("create", lambda: self._first(19, 7, body, "Topics", 0))
        if code != 36:  # exists: created by an earlier attempt without a response
            outcome = self._metadata_outcome(code)
            self.expected.note(f"topic {name}", partitions, outcome)
            for key, value in (configs or {}).items():
                self.expected.note(f"config {TOPIC} {name} {key}", value, outcome)
        self._mark()
        return code

    def delete(self, name: str) -> int:
        body = {"TopicNames": [name], "TimeoutMs": 9000}
        code = self._until_served("delete", lambda: self._first(20, 4, body, "Responses", 0))
        if code == 3 and None in self.expected.facts[f"topic {name}"]:
            code = 0  # the creation or an earlier deletion had an unknown outcome
            self.expected.codes["delete"].remove(3)
        self.expected.note(f"topic {name}", None, self._metadata_outcome(code))
        self._mark()
        return code

    def grow(self, name: str, count: int) -> int:
        body = more_partitions(name, count)
        code = self._until_served("grow", lambda: self._first(37, 3, body, "Results", 0))
        self.expected.note(f"topic {name}", count, self._metadata_outcome(code))
        self._mark()
        return code

    def configure(self, kind: int, name: str, key: str, value: str) -> int:
        body = set_configs(kind, name, {key: value})
        code = self._until_served("configure", lambda: self._first(44, 1, body, "Responses", 0))
        self.expected.note(f"config {kind} {name} {key}", value, self._metadata_outcome(code))
        self._mark()
        return code

    # ------------------------------------------------------------ records

    def _sent(self, topic: str, partition: int, value: str, code: int, offset: int = -1) -> None:
        rows = self.expected.sent.setdefault(f"{topic}-{partition}", [])
        rows.append(Sent(value, self._record_outcome(code), offset if code == 0 else -1))
        self._mark()

    def _produce(self, body: Body) -> tuple[int, int]:
        response = self._call("Produce", 7, {"TransactionalId": None, **body, "TimeoutMs": TIMEOUT_MS})
        if response is None:
            return UNKNOWN, -1
        row = response["Responses"][0]["PartitionResponses"][0]
        return row["ErrorCode"], row["BaseOffset"]

    def _produced(self, step: str, body: Body) -> tuple[int, int]:
        """Return the error code and the offset of the last attempt."""
        found = [-1]

        def request() -> int:
            code, found[0] = self._produce(body)
            return code

        return self._until_served(step, request), found[0]

    def produce(self, topic: str, partition: int, *, key: bytes | None = None, acks: int = -1) -> int:
        """Produce one record with its own value."""
        self.expected.number += 1
        value = f"{topic}-{self.expected.number}"
        records = wire.record(0, value.encode(), key=key)
        batch = wire.batch([b""], records=records, timestamp_ms=self._time_ms)
        code, offset = self._produced(f"produce {partition}", produce_body(topic, batch, acks, partition))
        self._sent(topic, partition, value, code, offset)
        return code

    def produce_exactly_once(self, partition: int) -> int:
        """Produce the next batch of the idempotent producer, or repeat a batch without an acknowledgement."""
        if self._producer is None:
            response = self._call(22, 4, {"TransactionalId": None, "TransactionTimeoutMs": 60_000})
            if response is None or response["ErrorCode"]:
                return UNKNOWN if response is None else int(response["ErrorCode"])
            self._producer = (response["ProducerId"], response["ProducerEpoch"])
        sequence = self._sequences.get(partition, 0)
        if partition not in self._waiting:
            self.expected.number += 1
            value = f"exact-{self.expected.number}"
            batch = wire.batch(
                [value.encode()], producer_id=self._producer[0], producer_epoch=self._producer[1],
                base_sequence=sequence, timestamp_ms=self._time_ms,
            )  # fmt: skip
            self._waiting[partition] = (batch, value)
        batch, value = self._waiting[partition]
        code, offset = self._produced(f"exactly once {partition}", produce_body("exact", batch, -1, partition))
        rows = self.expected.sent.setdefault(f"exact-{partition}", [])
        if rows and rows[-1].value == value:
            rows.pop()
        self._sent("exact", partition, value, code, offset)
        if code == 0:
            self._sequences[partition] = sequence + 1
            del self._waiting[partition]
        return code

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        row = {"PartitionIndex": partition, "Offset": offset}
        body = {"Topics": [{"Name": topic, "Partitions": [row]}], "TimeoutMs": 9000}
        code = self._until_served("delete records", lambda: self._first(21, 1, body, "Topics", 0, "Partitions", 0))
        log = f"{topic}-{partition}"
        low, high = self.expected.starts.get(log, (0, 0))
        self.expected.starts[log] = (offset, offset) if code == 0 else (low, max(high, offset))
        self._mark()
        return code

    def move(self, topic: str) -> int:
        """Move partition 0 to the other log folder, wait for the end of the move, and produce a record."""
        if not self.broker.is_running:
            return UNKNOWN
        hosted = self.broker.parts.logs._hosted.find((topic, 0))
        if hosted is None or hosted.log_dir is None:
            return STORAGE_ERROR
        _, *others = sorted(self.broker.parts.logs._dirs, key=lambda log_dir: log_dir is not hosted.log_dir)
        if not others:  # the other folder could not be used at the start
            return STORAGE_ERROR
        row = {"Path": str(others[0].path), "Topics": [{"Name": topic, "Partitions": [0]}]}
        where = ("Results", 0, "Partitions", 0)
        code = self._until_served("move", lambda: self._first(34, 2, {"Dirs": [row]}, *where))
        wait_for(f"the end of the move of {topic}-0", lambda: hosted.future is None, 5, 0.001)
        self._mark()
        if topic != "atomic":
            self.produce(topic, 0, key=b"same" if topic == "compacted" else None)
        return code

    # ------------------------------------------------------------ groups and transactions

    def commit_offset(self, group: str, offset: int) -> int:
        row = {"PartitionIndex": 0, "CommittedOffset": offset, "CommittedMetadata": None}
        facts = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "RetentionTimeMs": -1}
        body = {**facts, "Topics": [{"Name": "plain", "Partitions": [row]}]}

        def request() -> int:
            self._call(10, 3, {"Key": group, "KeyType": 0})
            return self._first(8, 2, body, "Topics", 0, "Partitions", 0)

        code = self._until_served("commit offset", request)
        self.expected.note(f"offset {group}", offset, ACKED if code == 0 else UNCERTAIN)
        self._mark()
        return code

    def heartbeat(self, member: str, epoch: int) -> int:
        """Join (epoch 0) or leave (-1) a consumer group, and note what the group is afterwards."""
        body: Body = {"GroupId": NEWER, "MemberId": member, "MemberEpoch": epoch, "RebalanceTimeoutMs": 60_000}
        body |= {"SubscribedTopicNames": ["exact"], "TopicPartitions": []}

        def request() -> int:
            code = self._first("ConsumerGroupHeartbeat", 1, body)
            return 0 if epoch < 0 and code in (25, 69) else code  # an earlier join was refused

        self._call(10, 3, {"Key": NEWER, "KeyType": 0})
        code = self._until_served("heartbeat", request)
        response = self._call("ConsumerGroupDescribe", 1, {"GroupIds": [NEWER]}) if code == 0 else None
        self.expected.facts.pop(f"group {NEWER}", None)
        if response is not None and response["Groups"][0]["ErrorCode"] == 0:
            self.expected.note(f"group {NEWER}", described(response), ACKED)
        self._mark()
        return code

    def alter_share_offset(self, offset: int) -> int:
        """Set the offset of a share group, which the coordinators of groups and of share partitions store."""
        row = {"PartitionIndex": 0, "StartOffset": offset}
        body = {"GroupId": SHARED, "Topics": [{"TopicName": "plain", "Partitions": [row]}]}

        def request() -> int:
            self._call(10, 3, {"Key": SHARED, "KeyType": 0})
            response = self._call("AlterShareGroupOffsets", 0, body)
            if response is None or response["ErrorCode"]:
                return UNKNOWN if response is None else int(response["ErrorCode"])
            return int(response["Responses"][0]["Partitions"][0]["ErrorCode"])

        code = self._until_served("alter share offset", request)
        self.expected.note(f"share {SHARED}", offset, ACKED if code == 0 else UNCERTAIN)
        self._mark()
        return code

    def transact(self, name: str, *, is_committed: bool) -> int:
        """Write a record to both partitions of ``atomic`` and an offset in a transaction; return the first error."""
        producer: list[int] = []

        def begin() -> int:
            self._call(10, 3, {"Key": name, "KeyType": 1})
            response = self._call(22, 4, {"TransactionalId": name, "TransactionTimeoutMs": 60_000})
            if response is None:
                return UNKNOWN
            producer[:] = [response["ProducerId"], response["ProducerEpoch"]]
            return int(response["ErrorCode"])

        code = self._until_served("init producer id", begin)
        if code:
            return code
        ids = {"TransactionalId": name, "ProducerId": producer[0], "ProducerEpoch": producer[1]}
        body = {
            "V3AndBelowTransactionalId": name, "V3AndBelowProducerId": producer[0],
            "V3AndBelowProducerEpoch": producer[1],
            "V3AndBelowTopics": [{"Name": "atomic", "Partitions": [0, 1]}],
        }  # fmt: skip
        where = ("ResultsByTopicV3AndBelow", 0, "ResultsByPartition", 0)
        code = self._until_served("add partitions", lambda: self._first(24, 3, body, *where, code="PartitionErrorCode"))
        if code:
            return code
        self.expected.number += 1
        value = f"atomic-{self.expected.number}"
        fact = f"transaction {value}"
        self.expected.facts[fact] = [False]
        for partition in (0, 1):
            batch = wire.batch(
                [value.encode()], attributes=TRANSACTIONAL, producer_id=producer[0], producer_epoch=producer[1],
                base_sequence=0, timestamp_ms=self._time_ms,
            )  # fmt: skip
            part = {**produce_body("atomic", batch, -1, partition), "TransactionalId": name}
            code, _ = self._produced("transactional produce", part)
            if code:
                return code
        code = self._commit_in_transaction(ids)
        if code:
            return code
        if is_committed:
            self.expected.facts[fact] = [False, True]
            self.expected.note(f"offset {name}", self.expected.number, UNCERTAIN)
            self._mark()
        code = self._until_served("end", lambda: self._first(26, 3, {**ids, "Committed": is_committed}))
        if code == 0:
            self.expected.facts[fact] = [is_committed]
            if is_committed:
                self.expected.note(f"offset {name}", self.expected.number, ACKED)
        self._mark()
        return code

    def _commit_in_transaction(self, ids: Body) -> int:
        """Commit the number of the latest record as offset of the group that has the name of the transactional id."""
        group = {**ids, "GroupId": ids["TransactionalId"]}
        code = self._until_served("add offsets", lambda: self._first("AddOffsetsToTxn", 3, group))
        row = {"PartitionIndex": 0, "CommittedOffset": self.expected.number, "CommittedMetadata": None}
        body = {**group, "Topics": [{"Name": "plain", "Partitions": [row]}]}
        where = ("Topics", 0, "Partitions", 0)
        return code or self._until_served(
            "commit in transaction", lambda: self._first("TxnOffsetCommit", 3, body, *where)
        )

    # ------------------------------------------------------------ the whole

    def round(self, number: int) -> None:
        """Run every step once. Args: ``number`` of the round, from 1."""
        self._time_ms = BASE_MS + number * 20_000
        name = f"new-{number}"
        for partition in (0, 1):
            self.produce("plain", partition, acks=1)
            self.produce("plain", partition)
            self.produce_exactly_once(partition)
        self.produce("compacted", 0, key=b"same")
        self.commit_offset("group", number)
        self.heartbeat(f"m-{number}", 0)
        self.heartbeat(f"m-{number - 1}", -1)
        self.alter_share_offset(number)
        if self.create(name, 1, NO_LIMIT) == 0:
            self.produce(name, 0)
            self.configure(TOPIC, name, "retention.ms", str(number + 1_000_000_000_000))
            self.grow(name, 2)
        self.transact("committing", is_committed=True)
        self.transact("aborting", is_committed=False)
        self.configure(BROKER, "", "message.max.bytes", str(1_000_000 + number))
        self.configure(GROUP_TYPE, "group", "consumer.session.timeout.ms", str(45_000 + number))
        self.configure_together(number)
        self.delete_records("plain", 0, number)
        self.maintain()
        self.produce_exactly_once(0)
        for topic in MOVED:
            self.move(topic)
        for topic in [fact.removeprefix("topic ") for fact in self.expected.facts if fact.startswith("topic new-")]:
            if topic != name and self.expected.facts[f"topic {topic}"] not in ([None], [None, None]):
                self.delete(topic)

    def configure_together(self, number: int) -> None:
        """Change the configs of several groups at the same time, so that the changes are stored together."""

        def run(index: int) -> None:
            configs = {"consumer.session.timeout.ms": str(45_000 + number)}
            with contextlib.suppress(Closed, OSError, RuntimeError), Client(self.broker.bootstrap_servers) as client:
                response = client.call(44, 1, set_configs(GROUP_TYPE, f"together-{index}", configs))
                codes[index] = response["Responses"][0]["ErrorCode"]

        codes = [UNKNOWN] * TOGETHER
        threads = [threading.Thread(target=run, args=(index,)) for index in range(TOGETHER)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.expected.codes.setdefault("together", []).extend(codes)
        for index, code in enumerate(codes):
            fact = f"config {GROUP_TYPE} together-{index} consumer.session.timeout.ms"
            self.expected.note(fact, str(45_000 + number), self._metadata_outcome(code))
        self._mark()

    def wait_for_flushes(self) -> None:
        """Wait until flushes by time have made all records durable, and record their end offsets."""
        logs = self.broker.parts.logs
        for (topic, partition), hosted in logs._hosted.items():
            end = hosted.log.log_end_offset
            wait_for("a flush by time", partial(_is_flushed, hosted.log, end), 5, 0.001)
            self.expected.flushed[f"{topic}-{partition}"] = end
        self._mark()

    def maintain(self) -> None:
        """Run the periodic tasks of a broker."""
        if not self.broker.is_running:
            return
        logs = self.broker.parts.logs
        tasks = logs.tasks
        for task in (
            tasks.flush_by_time, tasks.apply_retention, tasks.purge_deleted, tasks.write_checkpoints,
            tasks.failed_io.look, logs.cleaner.run_once,
        ):  # fmt: skip
            task()
        self._mark()

    def failing_steps(self, codes: Iterable[int] = (0,)) -> dict[str, list[int]]:
        """Return the steps that ended with codes other than these."""
        allowed = set(codes)
        return {step: found for step, found in self.expected.codes.items() if set(found) - allowed}


def _is_flushed(log: PartitionLog, end: int) -> bool:
    return log.flushed_offset >= end
