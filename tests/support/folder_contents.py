"""Contents of a data folder as a started broker serves them, and their comparison with the expected contents."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.broker import Broker
from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.records import RecordBatch, iter_batches
from tests.support.client import Client
from tests.support.mixed_load import ACKED, REFUSED, RETRIABLE, TOPIC, Expected, Sent, described

SETTLED_S = 10.0
TRANSACTIONAL_IDS = ("committing", "aborting")


class Keeps(NamedTuple):
    """Guarantee of a folder. ``records``: all acknowledged records are kept, else those below ``up_to``."""

    records: bool
    up_to: Mapping[str, int]


KEEPS_ALL = Keeps(True, {})


class Lines(logging.Handler):
    """Lines of the broker's log of level WARNING and above. ``traces``: the records with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.traces: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if record.exc_info:
            self.traces.append(logging.Formatter().format(record))


@contextmanager
def captured() -> Iterator[Lines]:
    """Capture the broker's log."""
    handler, logger = Lines(), logging.getLogger("kbroker")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def settings_of(folder: Path, **more: object) -> dict[str, object]:
    """Return the settings of a small broker with two log folders and a separate folder for the metadata log."""
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": f"{folder}/a,{folder}/b",
        "metadata.log.dir": f"{folder}/m",
        "num.network.threads": 1,
        "num.io.threads": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "group.consumer.assignment.interval.ms": 0,
        "log.cleaner.threads": 1,
        **{name.replace("__", "."): value for name, value in more.items()},
    }


class FolderContents:
    """State of a broker that has started on a folder.

    Attributes: ``records``: by log, offset and value of each record that read_uncommitted returns, in order;
    ``committed``: by log, the values that read_committed returns; ``starts``: log start offsets; ``errors``: by log,
    the error of a read that failed before the end.
    """

    def __init__(self, broker: Broker) -> None:
        self.records: dict[str, list[tuple[int, str]]] = {}
        self.committed: dict[str, list[str]] = {}
        self.starts: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.errors: dict[str, int] = {}
        image = broker.context.image
        self.topics = {name: len(topic.partitions) for name, topic in image.topics.items()}
        self.configs: Mapping[Any, Mapping[str, str]] = {key: dict(values) for key, values in image.configs.items()}
        for name, count in self.topics.items():
            for partition in range(count):
                log = broker.parts.logs.partition(name, partition)
                key = f"{name}-{partition}"
                if log is None:
                    self.errors[key] = 56
                elif not name.startswith("__"):
                    self._read(key, log)

    def _read(self, key: str, log: PartitionLog) -> None:
        self.starts[key], self.ends[key] = log.log_start_offset, log.log_end_offset
        self.records[key] = [
            (offset, value.decode()) for batch, _ in self._batches(key, log, 0) for offset, value in _values(batch)
        ]
        self.committed[key] = [
            value.decode()
            for batch, is_aborted in self._batches(key, log, 1)
            if not is_aborted
            for _, value in _values(batch)
        ]

    def _batches(self, key: str, log: PartitionLog, isolation: int) -> Iterator[tuple[RecordBatch, bool]]:
        """Yield each batch and whether its transaction was aborted; record the error of a failed read."""
        offset = log.log_start_offset
        while True:
            found = log.read(offset, 1 << 20, isolation=isolation)
            if found.error:
                self.errors[key] = found.error
            if found.error or not found.records:
                return
            for batch in iter_batches(found.records):
                offset = batch.last_offset + 1
                is_aborted = batch.is_transactional and any(
                    one.producer_id == batch.producer_id and one.first_offset <= batch.base_offset <= one.last_offset
                    for one in found.aborted
                )
                yield batch, is_aborted


def _values(batch: RecordBatch) -> list[tuple[int, bytes]]:
    return [] if batch.is_control else [(offset, value or b"") for offset, _, _, value, _ in batch.records()]


def settle(broker: Broker) -> None:
    """Wait until the coordinators have completed or aborted the transactions that a kill interrupted."""
    deadline = time.monotonic() + SETTLED_S
    for name in TRANSACTIONAL_IDS:
        while True:
            with Client(broker.bootstrap_servers) as client:
                client.call(10, 3, {"Key": name, "KeyType": 1})
                response = client.call(22, 4, {"TransactionalId": name, "TransactionTimeoutMs": 60_000})
            if response["ErrorCode"] == 0:
                break
            assert response["ErrorCode"] in RETRIABLE, response
            assert time.monotonic() < deadline, f"the transaction of {name} is not completed: {response}"
            time.sleep(0.005)


def committed_offset(broker: Broker, group: str) -> int | None:
    """Return the committed offset of a group, or None."""
    deadline = time.monotonic() + SETTLED_S
    while True:
        with Client(broker.bootstrap_servers) as client:
            client.call(10, 3, {"Key": group, "KeyType": 0})
            body = {"GroupId": group, "Topics": [{"Name": "plain", "PartitionIndexes": [0]}]}
            response = client.call(9, 5, body)
        if response["ErrorCode"] == 0:
            offset = int(response["Topics"][0]["Partitions"][0]["CommittedOffset"])
            return offset if offset >= 0 else None
        assert response["ErrorCode"] in RETRIABLE, response
        assert time.monotonic() < deadline, f"the offsets of {group} are not loaded: {response}"
        time.sleep(0.005)


def group_of(broker: Broker, group: str) -> str:
    """Return a consumer group as `described` does."""
    with Client(broker.bootstrap_servers) as client:
        return described(client.call("ConsumerGroupDescribe", 1, {"GroupIds": [group]}))


def share_offset(broker: Broker, group: str) -> int | None:
    """Return the start offset of a share group, or None."""
    with Client(broker.bootstrap_servers) as client:
        body = {"Groups": [{"GroupId": group, "Topics": None}]}
        response = client.call("DescribeShareGroupOffsets", 0, body)
    topics = response["Groups"][0]["Topics"]
    return int(topics[0]["Partitions"][0]["StartOffset"]) if topics else None


#: Facts that are in the logs of coordinators.
GROUP_FACTS: dict[str, Callable[[Broker, str], object]] = {
    "offset": committed_offset, "group": group_of, "share": share_offset,
}  # fmt: skip


def differences(broker: Broker, expected: Expected, *, keeps: Keeps = KEEPS_ALL) -> list[str]:
    """Return the differences between a broker that has started on a folder and the certain facts."""
    if keeps.records and any(fact.startswith("transaction") for fact in expected.facts):
        settle(broker)
    contents = FolderContents(broker)
    found = [f"{log}: error {code}" for log, code in contents.errors.items()]
    for log, sent in expected.sent.items():
        topic = log.rpartition("-")[0]
        if contents.topics.get(topic) is not None and log in contents.records:
            found += _of_log(log, contents, sent, expected.starts.get(log, (0, 0)), keeps)
    for fact, allowed in expected.facts.items():
        kind, *names = fact.split(" ")
        if kind == "topic":
            value: object = contents.topics.get(names[0])
        elif kind == "config":
            topic_facts = expected.facts.get(f"topic {names[1]}", [0])
            if int(names[0]) == TOPIC and None in topic_facts:
                continue  # deleted
            value = contents.configs.get((int(names[0]), names[1]), {}).get(names[2])
        elif kind in GROUP_FACTS:
            if not keeps.records:
                continue
            value = GROUP_FACTS[kind](broker, names[0])
        else:
            shown = [names[0] in contents.committed.get(f"atomic-{partition}", ()) for partition in (0, 1)]
            value = shown[0]
            if keeps.records and shown[0] != shown[1]:
                found.append(f"{fact}: shown by partition {shown.index(True)} only")
            if not keeps.records:
                allowed = [*allowed, False]
        if value not in allowed:
            found.append(f"{fact}: expected {' or '.join(map(str, allowed))}, found {value}")
    return found


def _of_log(log: str, contents: FolderContents, sent: list[Sent], start: tuple[int, int], keeps: Keeps) -> list[str]:
    found = []
    shown = contents.records[log]
    values = [value for _, value in shown]
    order = [one.value for one in sent]
    if len(set(values)) < len(values):
        found.append(f"{log}: duplicates in {values}")
    places = [order.index(value) for value in values if value in order]
    if len(places) < len(values):
        found.append(f"{log}: records that were not sent: {sorted(set(values) - set(order))}")
    if places != sorted(places):
        found.append(f"{log}: not in the order in which they were sent: {values}")
    if not start[0] <= contents.starts[log] <= start[1]:
        found.append(f"{log}: expected a start of {start[0]} to {start[1]}, found {contents.starts[log]}")
    is_compacted = log.startswith("compacted")
    last = max((one.offset for one in sent if one.outcome == ACKED), default=-1)
    by_value = {value: offset for offset, value in shown}
    for one in sent:
        is_kept = contents.starts[log] <= one.offset and (not is_compacted or one.offset == last)
        if one.outcome == REFUSED and one.value in by_value:
            found.append(f"{log}: refused record {one.value} is at {by_value[one.value]}")
        if one.outcome == ACKED and one.value in by_value and by_value[one.value] != one.offset:
            found.append(f"{log}: {one.value} acknowledged at {one.offset} is at {by_value[one.value]}")
        if one.outcome == ACKED and one.value not in by_value and is_kept:
            if keeps.records or one.offset < min(keeps.up_to.get(log, 0), contents.ends[log] + (1 << 62)):
                found.append(f"{log}: acknowledged record {one.value} at {one.offset} is lost, the log has {shown}")
            elif one.offset < contents.ends[log]:
                found.append(f"{log}: record {one.value} at {one.offset} is lost, later ones are there: {shown}")
    return found
