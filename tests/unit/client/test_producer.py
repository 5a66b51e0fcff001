"""Producer: batching, partitions, retries, sequences."""

import contextlib
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.producer import Delivery, Producer, StickyPartitions
from kbroker.common.errors import KafkaError
from kbroker.protocol._arrow_rows import murmur2, partition_of_key
from kbroker.protocol.records import iter_batches
from tests.support.fake_broker import Body, FakeBroker
from tests.support.fake_log import FakeTime

PRODUCE, INIT_PRODUCER_ID = 0, 22


def take(broker: FakeBroker, codes: Iterator[int]) -> list[tuple[int, bytes]]:
    """Make the broker accept batches with the next code each, and return its list of (partition, batch)."""
    taken: list[tuple[int, bytes]] = []

    def produce(version: int, body: Body) -> Body:
        topics = []
        for t in body["TopicData"]:
            responses = []
            for p in t["PartitionData"]:
                taken.append((p["Index"], bytes(p["Records"])))
                responses.append({"Index": p["Index"], "ErrorCode": next(codes, 0), "BaseOffset": 40})
            topics.append({"Name": t["Name"], "PartitionResponses": responses})
        return {"Responses": topics}

    broker.handlers[PRODUCE] = produce
    return taken


def test_records_gather_until_flush(broker: FakeBroker, cluster: Cluster) -> None:
    """Records of one partition are sent in one batch, with the given keys, headers and times."""
    taken = take(broker, iter(()))
    deliveries: list[Delivery] = []
    producer = Producer(cluster, on_delivery=deliveries.append)
    producer.send("t", b"one", b"k", partition=1, timestamp_ms=5, headers=[("h", b"x")])
    producer.send("t", None, partition=1, timestamp_ms=7)
    assert taken == []
    producer.flush()
    ((partition, data),) = taken
    (batch,) = iter_batches(data)
    assert partition == 1
    assert batch.records() == [(0, 5, b"k", b"one", [("h", b"x")]), (1, 7, None, None, [])]
    assert [Delivery("t", 1, 40, 2)] == deliveries


def test_a_record_that_cannot_be_added_leaves_no_batch(broker: FakeBroker, cluster: Cluster) -> None:
    """A record that cannot be added leaves no batch: an empty one would be refused by the broker."""
    taken = take(broker, iter(()))
    producer = Producer(cluster)
    with pytest.raises(TypeError):
        producer.send("t", cast("bytes", "text"), partition=0)
    producer.send("t", b"x", partition=1)
    producer.flush()
    assert [partition for partition, _ in taken] == [1]


def test_full_batch_is_sent_unasked(broker: FakeBroker, cluster: Cluster) -> None:
    """A batch is sent before it exceeds batch_size_bytes; the rest waits for flush."""
    taken = take(broker, iter(()))
    with Producer(cluster, batch_size_bytes=250) as producer:
        for _ in range(5):
            producer.send("t", bytes(100), partition=0)
        assert [next(iter_batches(data)).record_count for _, data in taken] == [2, 2]
    assert [next(iter_batches(data)).record_count for _, data in taken] == [2, 2, 1]


def test_records_without_key_change_partition_with_each_batch(broker: FakeBroker, cluster: Cluster) -> None:
    """Keyless records fill one batch, and the next batch goes to the next partition."""
    taken = take(broker, iter(()))
    producer = Producer(cluster)
    for _ in range(3):
        producer.send("t", b"a")
        producer.send("t", b"b")
        producer.flush()
    assert [(partition, next(iter_batches(data)).record_count) for partition, data in taken] == [(0, 2), (1, 2), (0, 2)]


def test_retriable_refusal_is_sent_again_unchanged(broker: FakeBroker, cluster: Cluster, fake_time: FakeTime) -> None:
    """After a retriable error the same bytes are sent again, but not to the partition that succeeded."""
    taken = take(broker, iter([0, 6]))
    with Producer(cluster) as producer:
        producer.send("t", b"a", partition=0)
        producer.send("t", b"b", partition=1)
    assert [partition for partition, _ in taken] == [0, 1, 1]
    assert taken[1] == taken[2]


def test_final_refusal_names_the_partition(broker: FakeBroker, cluster: Cluster, fake_time: FakeTime) -> None:
    """A batch with a final error raises it with the partition, without a second attempt."""
    taken = take(broker, iter([10]))
    producer = Producer(cluster)
    producer.send("t", b"a", partition=1)
    text = (
        "MESSAGE_TOO_LARGE: partition t-1: expected a batch of at most max.message.bytes of the topic, found 69 bytes "
        "with 1 record; send smaller ones, or raise that config"
    )
    with pytest.raises(KafkaError, match=text):
        producer.flush()
    assert len(taken) == 1
    producer.flush()
    assert len(taken) == 1


def test_idempotent_batches_count_their_sequence(broker: FakeBroker, cluster: Cluster) -> None:
    """Sequences continue per partition; a failure requests a new producer id, which starts at 0."""
    taken = take(broker, iter([0, 0, 87]))
    ids = iter([11, 12])
    broker.handlers[INIT_PRODUCER_ID] = lambda version, body: {
        "ErrorCode": 0,
        "ProducerId": next(ids),
        "ProducerEpoch": 0,
    }
    producer = Producer(cluster, idempotent=True)
    for fails in (False, False, True, False):
        producer.send("t", b"x", partition=0)
        producer.send("t", b"y", partition=0)
        with pytest.raises(KafkaError) if fails else contextlib.nullcontext():
            producer.flush()
    seen = [next(iter_batches(data)) for _, data in taken]
    assert [(b.producer_id, b.base_sequence) for b in seen] == [(11, 0), (11, 2), (11, 4), (12, 0)]


def test_acks_0_waits_for_nothing(broker: FakeBroker, cluster: Cluster) -> None:
    """With acks=0 there is no response to wait for and no offset to report."""
    received = threading.Event()

    def produce(version: int, body: Body) -> bytes:
        received.set()
        return b""

    broker.handlers[PRODUCE] = produce
    deliveries: list[Delivery] = []
    with Producer(cluster, acks=0, on_delivery=deliveries.append) as producer:
        producer.send("t", b"a", partition=0)
    assert [Delivery("t", 0, -1, 1)] == deliveries
    assert received.wait(60)


@pytest.mark.parametrize(
    "wrong", [{"acks": 2}, {"acks": 1, "idempotent": True}, {"codec": "rar"}, {"batch_size_bytes": 0}], ids=str
)
def test_wrong_producer_arguments(cluster: Cluster, wrong: dict[str, int | str | bool]) -> None:
    """Invalid arguments are rejected before anything is sent."""
    with pytest.raises(ValueError):
        Producer(cluster, **wrong)  # type: ignore[arg-type]


def test_partition_out_of_range_is_refused_before_sending(broker: FakeBroker, cluster: Cluster) -> None:
    """A partition that the topic does not have is a ValueError with the range."""
    with pytest.raises(ValueError, match="expected a partition from 0 to 1, got 2"):
        Producer(cluster).send("t", b"", partition=2)


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
     (b"a-little-bit-longer-string", -1486304829), (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
     (b"abc", 479470107)],
)  # fmt: skip
def test_keys_hash_as_in_java(key: bytes, expected: int) -> None:
    """Keys have the partition of Java's producer (the vectors of Kafka's UtilsTest)."""
    assert expected & 0xFFFFFFFF == murmur2(key)
    assert (expected & 0x7FFFFFFF) % 7 == partition_of_key(key, 7)


def test_records_without_key_stay_until_a_batch_is_sent() -> None:
    """The sticky partition changes with each batch and repeats after the last one."""
    sticky, seen = StickyPartitions(), []
    for _ in range(4):
        seen += [sticky.partition("t", 3), sticky.partition("t", 3)]
        sticky.rotate()
    assert seen == [0, 0, 1, 1, 2, 2, 0, 0]
