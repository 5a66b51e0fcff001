"""Transactions of librdkafka: committed records are read and aborted ones are not, even after kill -9."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support import need
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kafka.tools import TOOLS, run_tool
from tests.support.kill import create_topic

TOPIC, GROUP, NAME = "ledger", "readers", "transfers"
PARTITIONS = 3
TIMEOUT_S = 30.0

Start = Callable[..., BrokerProcess]


@pytest.fixture
def broker(start_broker: Start) -> BrokerProcess:
    broker = start_broker(group__initial__rebalance__delay__ms="0")
    create_topic(broker.bootstrap, TOPIC, PARTITIONS)
    return broker


def producer(broker: BrokerProcess, name: str = NAME, **settings: object) -> Producer:
    made = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, **settings})
    made.init_transactions(TIMEOUT_S)
    return made


def transact(producer: Producer, values: list[str], *, commit: bool = True, name: str = TOPIC) -> None:
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(name, value.encode(), partition=number % PARTITIONS)
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.flush(TIMEOUT_S)
        producer.abort_transaction(TIMEOUT_S)


def read(broker: BrokerProcess, count: int, isolation: str = "read_committed") -> list[str]:
    """Return the first ``count`` values and any that follow shortly after."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "any", "isolation.level": isolation})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: list[str] = []

    def take() -> bool:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        return len(found) >= count

    wait_for(f"{count} records", take, TIMEOUT_S, every=0)
    found += [one.value().decode() for one in consumer.consume(10, 0.5)]
    consumer.close()
    return sorted(found)


def values(number: int) -> list[str]:
    return [f"{number:03d}-{index}" for index in range(6)]


def test_commits_are_read_and_aborts_are_not(broker: BrokerProcess) -> None:
    """A read_committed consumer reads committed records only, and a second producer with the id fences the first."""
    first = producer(broker)
    for number in range(4):
        transact(first, values(number), commit=number % 2 == 0)
    assert read(broker, 12) == values(0) + values(2)
    second = producer(broker)
    with pytest.raises(KafkaException) as info:
        transact(first, values(7))
    assert info.value.args[0].fatal()
    transact(second, values(8))
    assert read(broker, 18) == values(0) + values(2) + values(8)


def test_offsets_are_part_of_a_transaction(broker: BrokerProcess) -> None:
    """Offsets in a transaction are committed with it, and not changed by an abort."""
    mine = producer(broker)
    transact(mine, values(0))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    place = TopicPartition(TOPIC, 0)
    for offset, commit in ((2, True), (1, False)):
        mine.begin_transaction()
        mine.produce(TOPIC, b"out", partition=1)
        there = TopicPartition(TOPIC, 0, offset)
        mine.send_offsets_to_transaction([there], consumer.consumer_group_metadata(), TIMEOUT_S)
        if commit:
            mine.commit_transaction(TIMEOUT_S)
        else:
            mine.abort_transaction(TIMEOUT_S)
        (found,) = consumer.committed([place], TIMEOUT_S)
        assert found.offset == 2
    consumer.close()


def test_kill_9_between_transactions_and_inside_one(broker: BrokerProcess) -> None:
    """Committed records are kept after each kill; an open transaction is aborted when its producer returns."""
    for number in range(5):
        mine = producer(broker)
        transact(mine, values(number))
        mine.begin_transaction()
        mine.produce(TOPIC, b"open", partition=0)
        mine.flush(TIMEOUT_S)
        broker.kill()
        broker.start()
        producer(broker)  # aborts the open transaction
        done = [one for count in range(number + 1) for one in values(count)]
        assert read(broker, len(done)) == done
    assert read(broker, 35, "read_uncommitted").count("open") == 5


def test_an_open_transaction_times_out(start_broker: Start) -> None:
    """The records of a transaction that timed out are never read, and later records are."""
    broker = start_broker(transaction__abort__timed__out__transaction__cleanup__interval__ms="100")
    create_topic(broker.bootstrap, TOPIC, PARTITIONS)
    slow = producer(broker, "slow", **{"transaction.timeout.ms": 1000})
    slow.begin_transaction()
    slow.produce(TOPIC, b"lost", partition=0)
    slow.flush(TIMEOUT_S)
    transact(producer(broker), values(0))
    assert read(broker, 6) == values(0)


@pytest.mark.slow
def test_kafka_reads_the_state(broker: BrokerProcess) -> None:
    """DumpLogSegments decodes every record of __transaction_state."""
    need.program("java", "mvn")
    mine = producer(broker)
    for number, commit in enumerate((True, False)):
        transact(mine, values(number), commit=commit)
    broker.stop()
    files = [path for path in _state_files(broker.folder) if path.stat().st_size]
    assert len(files) == 1
    done = run_tool(TOOLS + "DumpLogSegments", "--transaction-log-decoder", "--files", files[0])
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line for line in done.stdout.splitlines() if "payload:" in line]
    states = ("Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "Ongoing", "PrepareAbort", "CompleteAbort")
    numbers = {"Empty": 0, "Ongoing": 1, "PrepareCommit": 2, "PrepareAbort": 3, "CompleteCommit": 4, "CompleteAbort": 5}
    found = [row for row in rows if NAME in row]
    assert len(found) == len(rows)
    assert [_status(row) for row in found if _status(row) != 1] == [numbers[one] for one in states if one != "Ongoing"]


def _status(row: str) -> int:
    return int(row.split('"transactionStatus":')[1].split(",")[0])


def _state_files(folder: Path) -> Iterator[Path]:
    return folder.glob("**/__transaction_state-*/*.log")
