"""Transactions of librdkafka: read_committed consumers receive complete transactions, in order, and no aborted ones."""

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support import wire
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kill import create_topic
from tests.support.topic_reader import read_to_end
from tests.support.wire import Connection


def producer(broker: BrokerProcess, name: str) -> Producer:
    client = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 60_000,
            "reconnect.backoff.max.ms": 200,
            "linger.ms": 0,
        }
    )
    client.init_transactions(30)
    return client


def transaction(client: Producer, topic: str, *values: str, partition: int = 0, commit: bool = True) -> None:
    client.begin_transaction()
    for value in values:
        client.produce(topic, value, partition=partition)
    if commit:
        client.commit_transaction(30)
    else:
        assert client.flush(30) == 0  # the records are in the log before the abort
        client.abort_transaction(30)


def values(broker: BrokerProcess, topic: str, *, isolation: str = "read_committed", partition: int = 0) -> list[str]:
    """Return the values from the start to the end that a consumer may read."""
    return [value for _, value in read_to_end(broker.bootstrap, topic, partition + 1, isolation)[partition]]


def test_committed_and_aborted(start_broker: Callable[..., BrokerProcess]) -> None:
    """A read_committed consumer reads up to the first record of an open transaction of another producer."""
    broker = start_broker()
    create_topic(broker.bootstrap, "t", 1)
    one, two = producer(broker, "one"), producer(broker, "two")
    transaction(one, "t", "a", "b")
    transaction(two, "t", "never", "never", commit=False)
    transaction(one, "t", "c")
    assert values(broker, "t") == ["a", "b", "c"]
    two.begin_transaction()
    two.produce("t", "held", partition=0)
    assert two.flush(30) == 0
    transaction(one, "t", "d")
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce("t", "plain", partition=0)
    assert plain.flush(30) == 0
    assert values(broker, "t") == ["a", "b", "c"]
    assert values(broker, "t", isolation="read_uncommitted") == [
        *("a", "b", "never", "never", "c", "held", "d", "plain")
    ]
    two.commit_transaction(30)
    assert values(broker, "t") == ["a", "b", "c", "held", "d", "plain"]


def test_many_aborted_transactions(start_broker: Callable[..., BrokerProcess]) -> None:
    """Over many segments and fetches, exactly the records of committed transactions are read."""
    broker = start_broker()
    create_topic(broker.bootstrap, "t", 2, segment_bytes=str(1 << 20), index_interval_bytes="1000")
    clients = [producer(broker, f"many-{number}") for number in range(3)]
    wanted: dict[int, list[str]] = {0: [], 1: []}
    for number in range(90):
        commit, partition = number % 3 != 1, number % 2
        rows = [f"{number}-{row}".ljust(30_000) for row in range(number % 5 + 1)]
        transaction(clients[number % 3 if number % 7 else 0], "t", *rows, partition=partition, commit=commit)
        if commit:
            wanted[partition] += rows
    for partition, rows in wanted.items():
        assert values(broker, "t", partition=partition) == rows


@pytest.mark.slow
def test_kill_in_mid_transaction(start_broker: Callable[..., BrokerProcess]) -> None:
    """After kill -9, an open transaction blocks readers and can be committed; one that is left open is aborted by the
    next producer with its id.
    """
    broker = start_broker()
    create_topic(broker.bootstrap, "t", 1)
    one, two = producer(broker, "one"), producer(broker, "two")
    transaction(one, "t", "a")
    transaction(two, "t", "never", commit=False)
    one.begin_transaction()
    one.produce("t", "b", partition=0)
    assert one.flush(30) == 0
    transaction(two, "t", "c")
    broker.kill()
    broker.start()
    wait_for("the topic", lambda: wire.is_ready(broker.bootstrap, "t"))
    assert values(broker, "t") == ["a"]
    one.produce("t", "d", partition=0)
    one.commit_transaction(60)
    assert values(broker, "t") == ["a", "b", "c", "d"]
    two.begin_transaction()
    two.produce("t", "left", partition=0)
    assert two.flush(30) == 0
    broker.kill()
    broker.start()
    wait_for("the topic", lambda: wire.is_ready(broker.bootstrap, "t"))
    heir = producer(broker, "two")
    with pytest.raises(KafkaException):
        two.commit_transaction(30)
    transaction(heir, "t", "e")
    assert values(broker, "t") == ["a", "b", "c", "d", "e"]


def test_latest_of_read_committed(start_broker: Callable[..., BrokerProcess]) -> None:
    """ListOffsets returns the end by isolation level while a transaction is open."""
    broker = start_broker()
    create_topic(broker.bootstrap, "t", 1)
    one = producer(broker, "one")
    transaction(one, "t", "a")
    one.begin_transaction()
    one.produce("t", "b", partition=0)
    assert one.flush(30) == 0
    for isolation, end in (("read_committed", 2), ("read_uncommitted", 3)):
        client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": isolation, "isolation.level": isolation})
        try:
            assert client.get_watermark_offsets(TopicPartition("t", 0), timeout=30) == (0, end)
        finally:
            client.close()
    one.abort_transaction(30)
    with Connection(broker.bootstrap):
        assert wire.end_offset(broker.bootstrap, "t") == 4
