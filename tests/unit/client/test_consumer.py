"""Consumer: positions, damage, transactions, resets."""

import struct
from typing import Any

import pytest

from kbroker.client.admin import EARLIEST, LATEST
from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.consumer import Consumer
from kbroker.client.record_range import RecordRange
from kbroker.client.request_records import topic_rows
from kbroker.common.errors import KafkaError
from kbroker.protocol.records import RecordBatchBuilder
from tests.support.fake_broker import Body, FakeBroker

FETCH, LIST_OFFSETS = 1, 2


def batch(base: int, *values: bytes, **settings: Any) -> bytes:
    builder = RecordBatchBuilder(base_offset=base, **settings)
    for value in values:
        builder.append(b"k", value, 1000 + base)
    return builder.build()


def marker(base: int, producer_id: int, kind: int) -> bytes:
    builder = RecordBatchBuilder(
        base_offset=base, producer_id=producer_id, producer_epoch=0, transactional=True, control=True
    )
    builder.append(struct.pack(">hh", 0, kind), b"\0" * 6, 1000)
    return builder.build()


def serve_log(
    broker: FakeBroker, data: bytes, *, code: int = 0, aborted: Any = None, start: int = 0, end: int = 100
) -> None:
    def fetch(version: int, body: Body) -> Body:
        parts = [
            {
                "PartitionIndex": p["Partition"],
                "ErrorCode": code if p["FetchOffset"] < start else 0,
                "HighWatermark": end,
                "AbortedTransactions": aborted,
                "Records": data if p["FetchOffset"] >= start or not code else b"",
            }
            for p in body["Topics"][0]["Partitions"]
        ]
        return {"Responses": [{"Topic": "t", "Partitions": parts}]}

    def offsets(version: int, body: Body) -> Body:
        (p,) = body["Topics"][0]["Partitions"]
        offset = {LATEST: end, EARLIEST: start}.get(p["Timestamp"], -1)
        response = {"PartitionIndex": p["PartitionIndex"], "ErrorCode": 0, "Offset": offset, "Timestamp": -1}
        return {"Topics": [{"Name": "t", "Partitions": [response]}]}

    broker.handlers[FETCH] = fetch
    broker.handlers[LIST_OFFSETS] = offsets


def test_records_before_the_position_and_a_cut_tail_are_dropped(broker: FakeBroker, cluster: Cluster) -> None:
    """Records below the position are dropped, and a truncated batch at the end does not move the position."""
    serve_log(broker, batch(10, b"a", b"b", b"c") + batch(13, b"d")[:-1])
    consumer = Consumer(cluster, {("t", 0): 11})
    assert [(r.offset, r.value, r.timestamp_ms) for r in consumer.poll()] == [(11, b"b", 1010), (12, b"c", 1010)]
    assert consumer.positions == {("t", 0): 13}


def test_a_range_of_a_topic_that_was_created_again_ends(broker: FakeBroker, cluster: Cluster) -> None:
    """A range up to the end of a former log does not wait for records that the new topic of that name never gets."""
    serve_log(broker, batch(0, b"a", b"b"), end=2)
    part = RecordRange(Consumer(cluster, {("t", 0): 0}), {("t", 0): 9})
    assert len(part.poll()) == 2
    with pytest.raises(KafkaError, match=r"t-0: expected records up to offset 8, the log ends at offset 2: .*'t'"):
        part.poll()
    awaited = RecordRange(Consumer(cluster, {("t", 0): 2}), {("t", 0): 9}, awaits_ends=True)
    assert awaited.poll() == []


def test_limits_of_a_fetch_are_those_of_the_consumer(broker: FakeBroker, cluster: Cluster) -> None:
    """A fetch has the consumer's limits; without any, a response has at most 16 MiB, and 1 MiB of a partition."""
    serve_log(broker, batch(0, b"a"))
    Consumer(cluster, {("t", 0): 0}).poll()
    Consumer(cluster, {("t", 0): 0}, max_wait_ms=3, min_bytes=4, max_bytes=5, max_partition_bytes=6).poll()
    limits = [
        (body["MaxWaitMs"], body["MinBytes"], body["MaxBytes"], body["Topics"][0]["Partitions"][0]["PartitionMaxBytes"])
        for _, body in broker.asked(FETCH)
    ]
    assert limits == [(500, 1, 16 << 20, 1 << 20), (3, 4, 5, 6)]


def test_empty_batch_moves_the_position(broker: FakeBroker, cluster: Cluster) -> None:
    """A batch that compaction emptied advances the position."""
    serve_log(broker, RecordBatchBuilder(base_offset=5).build(last_offset_delta=4))
    consumer = Consumer(cluster, {("t", 0): 5})
    assert consumer.poll() == []
    assert consumer.positions == {("t", 0): 10}


def test_wrong_checksum_is_reported_with_its_place(broker: FakeBroker, cluster: Cluster) -> None:
    """A batch with a wrong checksum is an error that names the offset."""
    data = bytearray(batch(10, b"a"))
    data[-1] ^= 1
    serve_log(broker, bytes(data))
    consumer = Consumer(cluster, {("t", 0): 10})
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE: partition t-0 at offset 10"):
        consumer.poll()


def test_records_before_damage_are_returned_first(broker: FakeBroker, cluster: Cluster) -> None:
    """The error of a damaged batch comes with the poll after the one that returns the records before it."""
    damaged = bytearray(batch(12, b"c"))
    damaged[-1] ^= 1
    serve_log(broker, batch(10, b"a", b"b") + bytes(damaged))
    consumer = Consumer(cluster, {("t", 0): 10})
    assert [record.value for record in consumer.poll()] == [b"a", b"b"]
    for _ in range(2):
        with pytest.raises(KafkaError, match="CORRUPT_MESSAGE: partition t-0 at offset 12"):
            consumer.poll()


def transactions() -> bytes:
    def data(base: int, producer_id: int, value: bytes) -> bytes:
        return batch(base, value, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)

    return b"".join(
        [
            data(0, 1, b"aborted"),
            data(1, 2, b"committed"),
            marker(2, 1, 0),
            data(3, 1, b"again"),
            marker(4, 2, 1),
            marker(5, 1, 1),
        ]
    )


def test_read_committed_leaves_out_exactly_the_aborted(broker: FakeBroker, cluster: Cluster) -> None:
    """Only batches of the aborted producer up to its marker are left out; control records are never returned."""
    serve_log(broker, transactions(), aborted=[{"ProducerId": 1, "FirstOffset": 0}])
    consumer = Consumer(cluster, {("t", 0): 0}, read_committed=True)
    assert [r.value for r in consumer.poll()] == [b"committed", b"again"]
    assert consumer.positions == {("t", 0): 6}
    assert [body["IsolationLevel"] for _, body in broker.asked(FETCH)] == [1]


def test_read_uncommitted_shows_all_but_control_records(broker: FakeBroker, cluster: Cluster) -> None:
    """Without read_committed aborted records are returned too."""
    serve_log(broker, transactions())
    assert [r.value for r in Consumer(cluster, {("t", 0): 0}).poll()] == [b"aborted", b"committed", b"again"]


def test_offset_out_of_range_raises_or_resets(broker: FakeBroker, cluster: Cluster) -> None:
    """A position outside the log is an error by default; with reset the consumer moves to the chosen end."""
    serve_log(broker, batch(50, b"a"), code=1, start=50)
    with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE: partition t-0 at offset 3"):
        Consumer(cluster, {("t", 0): 3}).poll()
    consumer = Consumer(cluster, {("t", 0): 3}, reset=EARLIEST)
    assert consumer.poll() == []
    assert [r.offset for r in consumer.poll()] == [50]


def test_a_seek_that_fails_moves_nothing(broker: FakeBroker, cluster: Cluster) -> None:
    """If an offset cannot be looked up, every partition stays at its position."""
    serve_log(broker, b"")
    consumer = Consumer(cluster, {("t", 0): 3})
    broker.handlers[LIST_OFFSETS] = lambda version, body: None
    with pytest.raises(BrokerConnectionError):
        consumer.seek({("t", 0): LATEST, ("t", 1): 7})
    assert consumer.positions == {("t", 0): 3}


def test_timestamp_after_the_last_record_means_the_end(broker: FakeBroker, cluster: Cluster) -> None:
    """A timestamp later than every record gives the end offset, as in the console tools."""
    serve_log(broker, b"", end=77)
    consumer = Consumer(cluster, {("t", 0): EARLIEST})
    assert consumer.positions == {("t", 0): 0}
    consumer.seek_to_timestamp(123)
    assert consumer.positions == {("t", 0): 77}


def test_a_request_log_ends_with_a_marker(broker: FakeBroker, cluster: Cluster) -> None:
    """Without --follow, the command ends at a marker before the end offset and does not wait for a record."""
    broker.partitions = {"t": 1}
    serve_log(broker, marker(0, 7, 1), end=1)
    assert list(topic_rows(cluster, "t", 10, follow=False)) == [[]]


def test_a_request_log_that_was_created_again_ends(broker: FakeBroker, cluster: Cluster) -> None:
    """The command does not wait for records that the new topic of that name never gets."""
    broker.partitions = {"t": 1}
    serve_log(broker, b"", end=9)
    found = topic_rows(cluster, "t", 10, follow=False)
    fetch = broker.handlers[FETCH]

    def fetch_of_new_topic(version: int, body: Body) -> Body | bytes | None:
        serve_log(broker, b"", end=2)
        return fetch(version, body)

    broker.handlers[FETCH] = fetch_of_new_topic
    with pytest.raises(KafkaError, match="t-0: expected records up to offset 8, the log ends at offset 2"):
        list(found)


@pytest.mark.parametrize("follow", [False, True])
def test_an_empty_poll_is_not_the_end_of_a_request_log(broker: FakeBroker, cluster: Cluster, follow: bool) -> None:
    """The first empty list ends the existing records; after an empty poll the command once printed the rest as new."""
    broker.partitions = {"t": 1}
    record = b'{"time": "2026-01-02T03:04:05Z"}'
    serve_log(broker, b"", end=2)

    def fetch(version: int, body: Body) -> Body:
        offset = body["Topics"][0]["Partitions"][0]["FetchOffset"]
        is_empty = offset > 1 or len(broker.asked(FETCH)) % 2
        data = b"" if is_empty else batch(offset, record)
        part = {"PartitionIndex": 0, "ErrorCode": 0, "HighWatermark": 2, "AbortedTransactions": None, "Records": data}
        return {"Responses": [{"Topic": "t", "Partitions": [part]}]}

    broker.handlers[FETCH] = fetch
    found = topic_rows(cluster, "t", 10, follow)
    assert [len(next(found)) for _ in range(3)] == [1, 1, 0]
