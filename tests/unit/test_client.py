"""The synchronous client against a scripted broker: negotiation, routing, retries, and every way a socket fails."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.client.admin import EARLIEST, LATEST, Admin, NewTopic, ResourceType
from kbroker.client.cluster import Cluster, to_error
from kbroker.client.connection import (
    BrokerConnectionError,
    BrokerTimeoutError,
    Connection,
    format_address,
    parse_bootstrap,
)
from kbroker.client.consumer import Consumer
from kbroker.client.partitioner import StickyPartitions, murmur2, partition_of_key
from kbroker.client.producer import Delivery, Producer
from kbroker.common.errors import Errors, KafkaError
from kbroker.protocol.records import RecordBatchBuilder, iter_batches
from tests.support.fake_broker import Body, FakeBroker

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 19, 22


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    fake = FakeBroker()
    yield fake
    fake.close()


class FakeTime:
    """Moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def cluster(broker: FakeBroker, fake_time: FakeTime) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap, clock=fake_time.clock, sleep=fake_time.sleep, retry_timeout_s=5) as opened:
        yield opened


# ---- addresses


def test_bootstrap_lists():
    """A bootstrap list may name several hosts, IPv6 in brackets, and leave the port out."""
    assert parse_bootstrap("a:1, b,[::1]:2,[::2]") == [("a", 1), ("b", 9092), ("::1", 2), ("::2", 9092)]


@pytest.mark.parametrize(
    "text", ["", ",", "a:", "a:b", "a:0", "a:65536", ":1", "a:1:2", "[::1", "[::1]x", "a:-1", "a:٣"]
)
def test_malformed_bootstrap_list_is_refused(text):
    """A malformed bootstrap list is a ValueError, never an attempt to connect."""
    with pytest.raises(ValueError):
        parse_bootstrap(text)


def test_ipv6_addresses_are_shown_in_brackets():
    """An address in an error can be pasted back into an option."""
    assert (format_address(("::1", 9092)), format_address(("h", 1))) == ("[::1]:9092", "h:1")


# ---- one connection


def test_connection_refused_is_one_line_with_the_address():
    """A refused connection says which address refused it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(BrokerConnectionError) as caught:
        Connection(address)
    assert f"{format_address(address)}: connection refused" == str(caught.value)


def test_impossible_host_name_is_one_line():
    """A name that no resolver can take is a failed connection too, not a UnicodeError."""
    with pytest.raises(BrokerConnectionError, match=r"a\.\.b:1: not a host name"):
        Connection(("a..b", 1))


@contextlib.contextmanager
def raw_answer(data: bytes) -> Iterator[Connection]:
    """A connection whose peer sends fixed bytes, whatever it is asked."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        yield Connection(("fake", 1), open_stream=lambda address, timeout_s: ours, max_frame_bytes=1000)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the broker closed the connection"),
        (b"\0\0", "the broker closed the connection"),
        (struct.pack(">i", 100) + b"x", "the broker closed the connection"),
        (struct.pack(">i", -1), "an answer of -1 bytes was announced"),
        (struct.pack(">i", 3), "an answer of 3 bytes was announced"),
        (struct.pack(">i", 1001), "an answer of 1001 bytes was announced"),
        (b"HTTP/1.1 400 Bad Request", "is this a Kafka plaintext port?"),
        (struct.pack(">ii", 4, 99), "answer to request 99 where 1 was awaited"),
        (struct.pack(">ii", 4, 1), "undecodable answer to Metadata version 9"),
        (struct.pack(">iiB", 5, 1, 0xFF), "undecodable answer to Metadata version 9"),
    ],
)
def test_bad_answers_close_the_connection(data, message):
    """Whatever a peer sends instead of an answer ends in one error, and the connection is not used again."""
    with raw_answer(data) as connection:
        with pytest.raises(BrokerConnectionError) as caught:
            connection.request(METADATA, 9, {})
        assert message in str(caught.value)
        assert connection.closed
        with pytest.raises(BrokerConnectionError, match="connection is closed"):
            connection.request(METADATA, 9, {})


def test_silent_broker_times_out():
    """A broker that never answers ends in a timeout with its length, by the clock that was given."""
    ours, theirs = socket.socketpair()
    times = iter([0.0, 0.0, 31.0])
    with ours, theirs:
        connection = Connection(("fake", 1), open_stream=lambda address, timeout_s: ours, clock=lambda: next(times))
        with pytest.raises(BrokerTimeoutError, match="fake:1: no answer within 30 s"):
            connection.request(METADATA, 9, {}, timeout_s=30)
        assert connection.closed


# ---- versions


def test_versions_are_the_highest_both_know(broker, fake_time):
    """Each request goes out in the lower of the two maxima."""
    broker.ranges[METADATA] = (0, 7)
    with Cluster(broker.bootstrap) as cluster:
        cluster.fetch_metadata(None)
    assert [version for version, _ in broker.asked(METADATA)] == [7]


@pytest.mark.parametrize(("offered", "asked"), [((0, 5), [4]), ((0, 3), [4, 3]), ((0, 0), [4, 0])])
def test_api_versions_falls_back(broker, offered, asked):
    """Error 35 in the format of version 0 makes the client ask again with what the broker knows."""
    broker.ranges[API_VERSIONS] = offered
    Cluster(broker.bootstrap).close()
    assert asked == [version for version, _ in broker.asked(API_VERSIONS)]


def test_api_versions_refused_for_good(broker):
    """A broker that refuses every version of ApiVersions is an error, never a loop."""
    broker.ranges[API_VERSIONS] = (5, 5)
    broker.handlers[API_VERSIONS] = lambda version, body: {"ErrorCode": 35}
    with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
        Cluster(broker.bootstrap)
    assert [version for version, _ in broker.asked(API_VERSIONS)][:2] == [4, 3]
    assert len(broker.asked(API_VERSIONS)) <= 5


@pytest.mark.parametrize("theirs", [(99, 100), None])
def test_no_common_version_is_named(broker, cluster, theirs):
    """An API that the broker lacks, or has in versions nobody shares, is UNSUPPORTED_VERSION with the API's name."""
    broker.ranges.pop(METADATA)
    if theirs is not None:
        broker.ranges[METADATA] = theirs
    with Cluster(broker.bootstrap) as fresh, pytest.raises(KafkaError, match="of Metadata, we speak") as caught:
        fresh.fetch_metadata(None)
    assert Errors.UNSUPPORTED_VERSION is caught.value.error


def test_unknown_error_code_counts_as_unknown_server_error():
    """A code from a newer broker is treated as -1."""
    assert Errors.UNKNOWN_SERVER_ERROR is to_error(9999)


# ---- cluster


def test_second_bootstrap_server_is_tried(broker):
    """One dead bootstrap server does not matter while another answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = format_address(listener.getsockname())
    with Cluster(f"{dead},{broker.bootstrap}") as cluster:
        assert [t.name for t in cluster.fetch_metadata(None)] == ["t"]


def test_all_dead_bootstrap_servers_are_named_in_one_line():
    """When nobody answers, the one line names everybody asked."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        dead = [format_address(one.getsockname()), format_address(two.getsockname())]
    with pytest.raises(BrokerConnectionError) as caught:
        Cluster(",".join(dead))
    assert f"{dead[0]}: connection refused; {dead[1]}: connection refused" == str(caught.value)


def test_connection_closed_while_idle_is_replaced(broker, cluster):
    """A connection that the broker closed while it was idle costs no failed request."""
    cluster.fetch_metadata(None)
    for sock in broker.sockets:
        sock.shutdown(socket.SHUT_RDWR)
    assert [t.name for t in cluster.fetch_metadata(None)] == ["t"]


def test_throttled_answer_holds_back_the_next_request(broker, cluster, fake_time):
    """After an answer with ThrottleTimeMs the next request waits that long instead of timing out unread."""
    broker.handlers[METADATA] = lambda version, body: {**broker.metadata(version, body), "ThrottleTimeMs": 2500}
    cluster.fetch_metadata(None)
    assert fake_time.slept == []
    cluster.fetch_metadata(None)
    assert fake_time.slept == [2.5]


def test_unknown_topic_is_asked_for_a_while_then_reported(broker, cluster, fake_time):
    """A topic that does not exist is asked for about a second (it may just have been made), then named."""
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION: topic 'nope'"):
        cluster.topic("nope")
    assert 0.5 < sum(fake_time.slept) <= 1.0


def test_metadata_is_cached_until_forgotten(broker, cluster):
    """A known topic costs no second Metadata request."""
    for _ in range(3):
        assert cluster.leader("t", 1) == 7
    assert len(broker.asked(METADATA)) == 1
    cluster.forget("t")
    cluster.leader("t", 0)
    assert len(broker.asked(METADATA)) == 2


def test_retry_gives_up_at_once_on_a_final_error(cluster, fake_time):
    """A code that is not retriable is not tried twice."""
    calls = []

    def attempt() -> None:
        calls.append(1)
        raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION, "x")

    with pytest.raises(KafkaError):
        cluster.retry(attempt)
    assert (calls, fake_time.slept) == ([1], [])


# ---- admin


def test_create_topic_error_carries_the_brokers_text(broker, cluster):
    """A refused topic shows code, name and the broker's reason."""
    broker.handlers[CREATE_TOPICS] = lambda version, body: {
        "Topics": [{"Name": "t", "ErrorCode": 36, "ErrorMessage": "it is there"}]
    }
    with pytest.raises(KafkaError) as caught:
        Admin(cluster).create_topics([NewTopic("t")])
    assert str(caught.value) == "TOPIC_ALREADY_EXISTS: topic 't': it is there"


def test_not_controller_is_tried_again_with_fresh_metadata(broker, cluster, fake_time):
    """A controller that has moved is looked up again."""
    answers = iter([41, 0])
    broker.handlers[CREATE_TOPICS] = lambda version, body: {
        "Topics": [{"Name": "t", "ErrorCode": next(answers), "NumPartitions": 3}]
    }
    (made,) = Admin(cluster).create_topics([NewTopic("t")])
    assert (made.partitions, len(broker.asked(CREATE_TOPICS))) == (3, 2)


def test_default_partition_count_needs_a_version_that_has_it(broker):
    """-1 partitions is refused here, not misread there, by a broker before CreateTopics v4."""
    broker.ranges[CREATE_TOPICS] = (2, 3)
    with Cluster(broker.bootstrap) as cluster, pytest.raises(KafkaError, match="wants partitions"):
        Admin(cluster).create_topics([NewTopic("t")])


def test_describe_configs_names_the_failed_resource(broker, cluster):
    """An error of DescribeConfigs says which resource it concerns."""
    broker.handlers[32] = lambda version, body: {
        "Results": [{"ErrorCode": 3, "ErrorMessage": None, "ResourceType": 2, "ResourceName": "x", "Configs": []}]
    }
    with pytest.raises(KafkaError, match="topic 'x'"):
        Admin(cluster).describe_configs(ResourceType.TOPIC, "x")


def test_cluster_description_without_the_api(broker):
    """A broker without DescribeCluster is described from its metadata."""
    broker.ranges.pop(60)
    with Cluster(broker.bootstrap) as cluster:
        described = Admin(cluster).describe_cluster()
    assert (described.cluster_id, described.controller_id, [n.node_id for n in described.nodes]) == ("c", 7, [7])


# ---- producer


def take(broker: FakeBroker, codes: Iterator[int]) -> list[tuple[int, bytes]]:
    """Let the broker take batches, answering the next code each; returns what it gets as (partition, batch)."""
    taken: list[tuple[int, bytes]] = []

    def produce(version: int, body: Body) -> Body:
        topics = []
        for t in body["TopicData"]:
            answers = []
            for p in t["PartitionData"]:
                taken.append((p["Index"], bytes(p["Records"])))
                answers.append({"Index": p["Index"], "ErrorCode": next(codes, 0), "BaseOffset": 40})
            topics.append({"Name": t["Name"], "PartitionResponses": answers})
        return {"Responses": topics}

    broker.handlers[PRODUCE] = produce
    return taken


def test_records_gather_until_flush(broker, cluster):
    """Records of one partition travel in one batch, with keys, headers and times as given."""
    taken, deliveries = take(broker, iter(())), []
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


def test_full_batch_is_sent_unasked(broker, cluster):
    """What has gathered goes out before it grows over batch_size_bytes; the rest waits for flush."""
    taken = take(broker, iter(()))
    with Producer(cluster, batch_size_bytes=250) as producer:
        for _ in range(5):
            producer.send("t", bytes(100), partition=0)
        assert [next(iter_batches(data)).record_count for _, data in taken] == [2, 2]
    assert [next(iter_batches(data)).record_count for _, data in taken] == [2, 2, 1]


def test_records_without_key_change_partition_with_each_batch(broker, cluster):
    """Keyless records fill one batch, and the next batch goes to the next partition."""
    taken = take(broker, iter(()))
    producer = Producer(cluster)
    for _ in range(3):
        producer.send("t", b"a")
        producer.send("t", b"b")
        producer.flush()
    assert [(partition, next(iter_batches(data)).record_count) for partition, data in taken] == [(0, 2), (1, 2), (0, 2)]


def test_retriable_refusal_is_sent_again_unchanged(broker, cluster, fake_time):
    """The same bytes go out again after a retriable code; the partition that was taken does not."""
    taken = take(broker, iter([0, 6]))
    with Producer(cluster) as producer:
        producer.send("t", b"a", partition=0)
        producer.send("t", b"b", partition=1)
    assert [partition for partition, _ in taken] == [0, 1, 1]
    assert taken[1] == taken[2]


def test_final_refusal_names_the_partition(broker, cluster, fake_time):
    """A refused batch raises with the partition and code, without a second attempt."""
    taken = take(broker, iter([10]))
    producer = Producer(cluster)
    producer.send("t", b"a", partition=1)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE: partition t-1"):
        producer.flush()
    assert len(taken) == 1
    producer.flush()
    assert len(taken) == 1


def test_idempotent_batches_count_their_sequence(broker, cluster):
    """Sequences go on per partition; a failure takes a new producer id and begins at 0."""
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


def test_acks_0_waits_for_nothing(broker, cluster):
    """With acks=0 there is no answer to wait for, and no offset to tell."""
    received = threading.Event()

    def produce(version: int, body: Body) -> bytes:
        received.set()
        return b""

    broker.handlers[PRODUCE] = produce
    deliveries: list[Delivery] = []
    with Producer(cluster, acks=0, on_delivery=deliveries.append) as producer:
        producer.send("t", b"a", partition=0)
    assert [Delivery("t", 0, -1, 1)] == deliveries
    assert received.wait(5)


@pytest.mark.parametrize(
    "wrong", [{"acks": 2}, {"acks": 1, "idempotent": True}, {"codec": "rar"}, {"batch_size_bytes": 0}], ids=str
)
def test_wrong_producer_arguments(cluster, wrong):
    """Arguments that do not fit are refused before anything is sent."""
    with pytest.raises(ValueError):
        Producer(cluster, **wrong)


def test_partition_out_of_range_is_refused_before_sending(broker, cluster):
    """A partition that the topic does not have is a ValueError with the range."""
    with pytest.raises(ValueError, match="partitions 0 to 1, there is no 2"):
        Producer(cluster).send("t", b"", partition=2)


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
     (b"a-little-bit-longer-string", -1486304829), (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
     (b"abc", 479470107)],
)  # fmt: skip
def test_keys_hash_as_in_java(key, expected):
    """Keys go where Java's producer would put them (the vectors of Kafka's UtilsTest)."""
    assert expected & 0xFFFFFFFF == murmur2(key)
    assert (expected & 0x7FFFFFFF) % 7 == partition_of_key(key, 7)


def test_records_without_key_stay_until_a_batch_is_sent():
    """The sticky partition changes with each batch, and comes round."""
    sticky, seen = StickyPartitions(), []
    for _ in range(4):
        seen += [sticky.partition("t", 3), sticky.partition("t", 3)]
        sticky.rotate()
    assert seen == [0, 0, 1, 1, 2, 2, 0, 0]


# ---- consumer


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
        answer = {"PartitionIndex": p["PartitionIndex"], "ErrorCode": 0, "Offset": offset, "Timestamp": -1}
        return {"Topics": [{"Name": "t", "Partitions": [answer]}]}

    broker.handlers[FETCH] = fetch
    broker.handlers[LIST_OFFSETS] = offsets


def test_records_before_the_position_and_a_cut_tail_are_dropped(broker, cluster):
    """A batch that begins earlier gives only what was asked for; a cut batch behind it moves nothing."""
    serve_log(broker, batch(10, b"a", b"b", b"c") + batch(13, b"d")[:-1])
    consumer = Consumer(cluster, {("t", 0): 11})
    assert [(r.offset, r.value, r.timestamp_ms) for r in consumer.poll()] == [(11, b"b", 1010), (12, b"c", 1010)]
    assert consumer.positions == {("t", 0): 13}


def test_empty_batch_moves_the_position(broker, cluster):
    """A batch that compaction emptied still advances, or the consumer stands still for ever."""
    serve_log(broker, RecordBatchBuilder(base_offset=5).build(last_offset_delta=4))
    consumer = Consumer(cluster, {("t", 0): 5})
    assert consumer.poll() == []
    assert consumer.positions == {("t", 0): 10}


def test_wrong_checksum_is_reported_with_its_place(broker, cluster):
    """A batch whose bytes changed on the way is never handed out."""
    data = bytearray(batch(10, b"a"))
    data[-1] ^= 1
    serve_log(broker, bytes(data))
    consumer = Consumer(cluster, {("t", 0): 10})
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE: partition t-0 at offset 10"):
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


def test_read_committed_leaves_out_exactly_the_aborted(broker, cluster):
    """Only batches of the aborted producer up to its marker are left out; control records never show."""
    serve_log(broker, transactions(), aborted=[{"ProducerId": 1, "FirstOffset": 0}])
    consumer = Consumer(cluster, {("t", 0): 0}, read_committed=True)
    assert [r.value for r in consumer.poll()] == [b"committed", b"again"]
    assert consumer.positions == {("t", 0): 6}
    assert [body["IsolationLevel"] for _, body in broker.asked(FETCH)] == [1]


def test_read_uncommitted_shows_all_but_control_records(broker, cluster):
    """Without read_committed aborted records show too."""
    serve_log(broker, transactions())
    assert [r.value for r in Consumer(cluster, {("t", 0): 0}).poll()] == [b"aborted", b"committed", b"again"]


def test_offset_out_of_range_raises_or_resets(broker, cluster):
    """A position outside the log is an error by default, and the chosen end with reset."""
    serve_log(broker, batch(50, b"a"), code=1, start=50)
    with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE: partition t-0 at offset 3"):
        Consumer(cluster, {("t", 0): 3}).poll()
    consumer = Consumer(cluster, {("t", 0): 3}, reset=EARLIEST)
    assert consumer.poll() == []
    assert [r.offset for r in consumer.poll()] == [50]


def test_timestamp_after_the_last_record_means_the_end(broker, cluster):
    """A time nobody has written at yet waits at the end, as the console tools do."""
    serve_log(broker, b"", end=77)
    consumer = Consumer(cluster, {("t", 0): EARLIEST})
    assert consumer.positions == {("t", 0): 0}
    consumer.seek_to_timestamp(123)
    assert consumer.positions == {("t", 0): 77}
