"""Native handlers with a virtual clock: delayed operations, order of responses, throttles, errors."""

import struct
import uuid
from pathlib import Path
from typing import Any

import pytest

from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.protocol import codec
from kbroker.testing import VirtualBroker
from tests.support import wire
from tests.support.client import Client, fetch_body, row_of
from tests.support.fixtures import fixture_of
from tests.support.hostile import framed
from tests.support.throttling import SETTINGS, USER, charge_time
from tests.support.wire import Closed, Connection, batch, create_topic, fetch, fetched, produce, produced

FETCH = wire.FETCH
broker = fixture_of(VirtualBroker, topics={"t": 2})


def correlated(request: bytes, number: int) -> bytes:
    return request[:4] + struct.pack(">i", number) + request[8:]


def sequence_of(response: bytes) -> int:
    return int(struct.unpack_from(">i", response)[0])


def test_fetch_waits_exactly_its_time(broker: VirtualBroker) -> None:
    """A fetch below min_bytes completes at its time, and not a millisecond early."""
    with Connection(broker.bootstrap_servers) as one:
        one.send(fetch("t", max_wait_ms=500))
        broker.wait_for_fetches()
        broker.advance_ms(499)
        assert broker.waiting_fetches == 1
        broker.advance_ms(1)
        assert fetched(one.receive()).records == b""
        assert broker.waiting_fetches == 0


def test_produce_wakes_who_waits(broker: VirtualBroker) -> None:
    """An append completes the fetches of its partition only, with the new records."""
    with Connection(broker.bootstrap_servers) as reader, Connection(broker.bootstrap_servers) as other:
        reader.send(fetch("t", (0,), max_wait_ms=10_000))
        other.send(fetch("t", (1,), max_wait_ms=10_000))
        broker.wait_for_fetches(2)
        with Connection(broker.bootstrap_servers) as writer:
            assert produced(writer.ask(produce("t", 0, batch([b"wake"])))).base_offset == 0
        assert fetched(reader.receive()).batches()[0][0] == 0
        assert broker.waiting_fetches == 1


def test_a_commit_wakes_who_reads_the_offsets_topic(broker: VirtualBroker) -> None:
    """An append of the coordinator completes the fetches of its partition, as a Produce does."""
    groups = broker.context.groups
    groups.runtime.prepare()
    with Connection(broker.bootstrap_servers) as reader:
        reader.send(fetch("__consumer_offsets", (0,), max_wait_ms=10_000))
        broker.wait_for_fetches()
        groups.offsets.commit("g", "", None, -1, {("t", 0): CommittedOffset(7, -1, "", 5)})
        assert fetched(reader.receive()).batches()[0][0] == 0
        assert broker.waiting_fetches == 0


def test_a_topic_stored_in_zstd_is_served_to_old_clients(broker: VirtualBroker) -> None:
    """Fetch v4 to v9 returns batches in zstd without error 76, as Apache Kafka 4.3.1 does (measured)."""
    with Client(broker.bootstrap_servers) as one:
        broker.context.dynamic.replace(ConfigResourceType.TOPIC, "t", [("compression.type", "zstd")])
        one.ask(produce("t", 0, batch([b"plain"])))

        def ask(version: int) -> tuple[int, int, bytes]:
            found = row_of(one.call(FETCH, version, fetch_body("t")))
            return found["ErrorCode"], found["HighWatermark"], bytes(found["Records"])

        responses = [ask(version) for version in (4, 9, 10)]
        assert responses == [responses[0]] * 3
        assert responses[0][:2] == (0, 1)
        assert responses[0][2][22] & 7 == wire.CODECS["zstd"]


def test_min_bytes_adds_up_over_partitions(broker: VirtualBroker) -> None:
    """A fetch of two partitions completes when both together reach min_bytes."""
    size = len(batch([b"x" * 100]))
    with Connection(broker.bootstrap_servers) as reader, Connection(broker.bootstrap_servers) as writer:
        reader.send(fetch("t", (0, 1), max_wait_ms=10_000, min_bytes=size + 1))
        broker.wait_for_fetches()
        writer.ask(produce("t", 0, batch([b"x" * 100])))
        broker.wait_until_quiet()
        assert broker.waiting_fetches == 1
        writer.ask(produce("t", 1, batch([b"x" * 100])))
        reader.receive()
        assert broker.waiting_fetches == 0


def test_responses_keep_the_order_of_requests(broker: VirtualBroker) -> None:
    """A delayed fetch among pipelined requests delays the later responses, but not the earlier ones."""
    requests = [
        correlated(produce("t", 0, batch([b"a"])), 1),
        correlated(fetch("t", (1,), max_wait_ms=1000), 2),
        correlated(produce("t", 0, batch([b"b"])), 3),
        correlated(fetch("t", (0,), offset=0), 4),
    ]
    with Connection(broker.bootstrap_servers) as one:
        one.send_raw(b"".join(struct.pack(">i", len(r)) + r for r in requests))
        assert sequence_of(one.receive()) == 1
        broker.wait_for_fetches()
        broker.advance_ms(1000)
        assert [sequence_of(one.receive()) for _ in range(3)] == [2, 3, 4]
    with Connection(broker.bootstrap_servers) as two:
        assert len(fetched(two.ask(fetch("t", (0,)))).batches()) == 2


def test_deleted_topic_ends_the_wait(broker: VirtualBroker) -> None:
    """A delayed fetch completes with UNKNOWN_TOPIC_OR_PARTITION when its topic is deleted."""
    with Connection(broker.bootstrap_servers) as reader, Connection(broker.bootstrap_servers) as admin:
        reader.send(fetch("t", max_wait_ms=60_000))
        broker.wait_for_fetches()
        admin.ask(codec.encode_request_frame(20, 1, 7, "raw", {"TopicNames": ["t"], "TimeoutMs": 1000})[4:])
        assert fetched(reader.receive()).error_code == 3


def test_an_offline_partition_is_56_not_3(broker: VirtualBroker) -> None:
    """For a partition whose log could not be opened, Produce and Fetch return KAFKA_STORAGE_ERROR, as in Kafka."""
    topics = broker.context.topics
    view = topics.get("t")
    topics._swap({"t": view._replace(partitions=(None, view.partitions[1]))})
    with Client(broker.bootstrap_servers) as one:
        assert produced(one.ask(produce("t", 0, batch([b"x"])))).error_code == 56
        assert fetched(one.ask(fetch("t", (0,), max_wait_ms=10_000))).error_code == 56
        begin_fetch(one, view.topic_id)
        assert code_by_id(one) == (0, 56)
        assert produced(one.ask(produce("t", 2, batch([b"x"])))).error_code == 3
        assert fetched(one.ask(fetch("t", (2,)))).error_code == 3
        assert produced(one.ask(produce("t", 1, batch([b"x"])))).error_code == 0


def begin_fetch(
    client: Client, topic_id: uuid.UUID, session: tuple[int, int] = (0, -1), *, wait_ms: int = 0, is_named: bool = True
) -> None:
    """Send Fetch v13, by default outside a session; without ``is_named``, the session names the partitions."""
    body = fetch_body({"TopicId": topic_id}, max_wait_ms=wait_ms) | {
        "SessionId": session[0],
        "SessionEpoch": session[1],
    }
    client.begin(FETCH, 13, body if is_named else {**body, "Topics": []})


def code_by_id(client: Client) -> tuple[int, int]:
    """Return the session id and the partition's error code of a response."""
    body = client.end()
    return body["SessionId"], row_of(body)["ErrorCode"]


def test_a_topic_deleted_during_a_fetch_by_id_is_3_not_100(broker: VirtualBroker) -> None:
    """As in Kafka 4.3.1 (measured), waiting fetches and sessions that had found a deleted topic return error 3, all
    others error 100.
    """
    topics = broker.context.topics
    topic_id = topics.get("t").topic_id
    with Client(broker.bootstrap_servers) as waits, Client(broker.bootstrap_servers) as has_session:

        def ask(*args: Any, **options: Any) -> tuple[int, int]:
            begin_fetch(has_session, *args, **options)
            return code_by_id(has_session)

        session, code = ask(topic_id, (0, 0))
        assert (session > 0, code) == (True, 0)
        begin_fetch(waits, topic_id, wait_ms=60_000)
        broker.wait_for_fetches()
        topics.delete("t")
        assert code_by_id(waits) == (0, 3)
        assert ask(topic_id, (session, 1), is_named=False) == (session, 3)
        assert ask(topic_id, (session, 2)) == (session, 3), "named again"
        assert ask(topic_id) == (0, 100), "outside the session"
        session, code = ask(topic_id, (0, 0))
        assert code == 100, "a session that has never found the topic"
        assert ask(topic_id, (session, 1), is_named=False) == (session, 100)


def test_a_topic_deleted_while_a_session_waits_is_3(broker: VirtualBroker) -> None:
    """A delayed incremental fetch completes with error 3 when its topic is deleted."""
    topic_id = broker.context.topics.get("t").topic_id
    with Client(broker.bootstrap_servers) as one:
        begin_fetch(one, topic_id, (0, 0))
        session, _ = code_by_id(one)
        begin_fetch(one, topic_id, (session, 1), wait_ms=60_000, is_named=False)
        broker.wait_for_fetches()
        broker.context.topics.delete("t")
        assert code_by_id(one) == (session, 3)


def throttle_time_ms(response: bytes) -> int:
    return int(struct.unpack(">i", response[-4:])[0])


def test_frames_behind_a_throttled_one_are_not_executed(broker: VirtualBroker) -> None:
    """Near its quota, each request of a client is throttled before the next one is executed."""
    request = produce("t", 0, batch([b"x" * 4000]))
    # the third request of 4 kB in 10 s exceeds the quota
    broker.context.quotas.update("ANONYMOUS", None, "producer_byte_rate", 1000)
    log = broker.context.topics.get("t").partitions[0]
    with Connection(broker.bootstrap_servers) as one:
        one.send_raw(4 * framed(request))
        throttled = [throttle_time_ms(one.receive()) for _ in range(3)]
        assert throttled[:2] == [0, 0] < throttled[2:]
        assert log.log_end_offset == 3
        broker.advance_ms(throttled[2])
        assert throttle_time_ms(one.receive()) > 0
        assert log.log_end_offset == 4


def test_a_request_to_two_partitions_between_requests_to_one(broker: VirtualBroker) -> None:
    """Pipelined requests are appended together only if each is to one partition; all get their records into the log."""
    single, pair = produce("t", 0, batch([b"one"])), wire.produce_to("t", [0, 1], batch([b"both"]))
    with Connection(broker.bootstrap_servers) as one:
        one.send_raw(framed(pair) + framed(single) + framed(pair) + framed(single))
        assert [produced(one.receive()).base_offset for _ in range(4)] == [0, 1, 2, 3]
    assert [log.log_end_offset for log in broker.context.topics.get("t").partitions] == [4, 2]


def test_frames_of_another_client_id_have_its_quota(broker: VirtualBroker) -> None:
    """Requests after one of a client without a quota are throttled by the quota of their client id."""
    request = produce("t", 0, batch([b"x" * 4000]))
    other = request.replace(wire.text("raw"), wire.text("poor"), 1)
    broker.context.quotas.update(None, "poor", "producer_byte_rate", 100)
    log = broker.context.topics.get("t").partitions[0]
    with Connection(broker.bootstrap_servers) as one:
        one.send_raw(framed(request) + 2 * framed(other))
        throttled = [throttle_time_ms(one.receive()) for _ in range(2)]
        assert throttled[0] == 0 < throttled[1]
        assert log.log_end_offset == 2


def test_connections_of_one_client_share_its_headroom() -> None:
    """Requests of several connections in one append use at most half of their client's quota together."""
    with VirtualBroker(SETTINGS) as broker:
        broker.create_topic("t")
        quotas = broker.context.quotas
        log = broker.context.topics.get("t").partitions[0]
        clients = [Client(broker.bootstrap_servers) for _ in range(8)]
        quotas.update(USER, None, "request_percentage", 1)
        charge_time(broker, 1000)
        for one in clients:  # all throttles end at one time, so that the requests wait together
            one.call("ApiVersions", 0, {})
            one.send_raw(4 * framed(produce("t", 0, batch([b"x" * 900]))))
        quotas.update(USER, None, "request_percentage", None)
        quotas.update(USER, None, "producer_byte_rate", 1000)
        broker.advance_ms(1000)
        for one in clients:
            one.receive()
        broker.wait_until_quiet()
        assert 8 < log.log_end_offset < 20
        for one in clients:
            one.close()


def test_malformed_produce_appends_nothing(broker: VirtualBroker) -> None:
    """A request whose second partition is incomplete closes the connection, and nothing is appended."""
    good = batch([b"never"])
    body = (
        wire.header(wire.PRODUCE, 7)
        + wire.text(None)
        + struct.pack(">hii", 1, 1000, 1)
        + wire.text("t")
        + struct.pack(">iii", 2, 0, len(good))
        + good
        + struct.pack(">ii", 1, 1 << 20)
    )
    with Connection(broker.bootstrap_servers) as one:
        one.send(body)
        assert one.is_closed_within(5)
    with Connection(broker.bootstrap_servers) as two:
        assert fetched(two.ask(fetch("t"))).high_watermark == 0


@pytest.mark.parametrize("replica_state", [b"", bytes(3), bytes(12), bytes(14), bytes(12) + b"\1"])
def test_a_fetch_with_a_malformed_replica_state_closes_the_connection(
    broker: VirtualBroker, replica_state: bytes
) -> None:
    """A tagged ReplicaState that is cut off or too long does not make the client a replica."""
    body = {**fetch_body({"TopicId": uuid.UUID(int=1)}), "ReplicaState": {"ReplicaId": 7, "ReplicaEpoch": 1}}
    request = codec.encode_request_header(FETCH, 15, 1) + codec.encode_request(FETCH, 15, body)
    tag = b"\x01\x0d" + struct.pack(">iqb", 7, 1, 0)
    assert request.endswith(tag)
    with Connection(broker.bootstrap_servers) as one:
        assert one.ask(request)
        one.send(request.removesuffix(tag) + bytes([1, len(replica_state)]) + replica_state)
        assert one.is_closed_within(5)


def test_a_fetch_without_a_rack_closes_the_connection(broker: VirtualBroker) -> None:
    """RackId may be empty, but not null, as in Kafka."""
    request = codec.encode_request_header(FETCH, 11, 1) + codec.encode_request(FETCH, 11, fetch_body("t"))
    assert request.endswith(b"\0\0")
    for length in (-1, -2):
        with Connection(broker.bootstrap_servers) as one:
            assert one.ask(request)
            one.send(request.removesuffix(b"\0\0") + struct.pack(">h", length))
            assert one.is_closed_within(5)


def test_stop_completes_delayed_requests() -> None:
    """A stop of the broker completes delayed fetches with a response."""
    with VirtualBroker() as running:
        running.create_topic("t", 1)
        reader = Connection(running.bootstrap_servers)
        reader.send(fetch("t", max_wait_ms=60_000))
        running.wait_for_fetches()
    with reader:
        assert fetched(reader.receive()).error_code == 0


@pytest.mark.parametrize("flushed", [True, False], ids=["each-message", "never"])
def test_response_waits_for_the_disk(tmp_path: Path, flushed: bool) -> None:
    """With `log.flush.interval.messages=1`, the response is sent when the record is flushed; otherwise it may be
    earlier.
    """
    settings = {"log.dirs": str(tmp_path / "data")}
    if flushed:
        settings["log.flush.interval.messages"] = "1"
    with VirtualBroker(settings) as running, Connection(running.bootstrap_servers) as one:
        one.ask(create_topic("t", 1))
        assert produced(one.ask(produce("t", 0, batch([b"kept"]), acks=-1))).error_code == 0
        log = running.context.topics.get("t").partitions[0]
        assert log.high_watermark == 1
        assert log.flushed_offset == (1 if flushed else 0)


def test_no_produce_is_acknowledged_after_a_failure_that_stops_the_broker(broker: VirtualBroker) -> None:
    """After `refuse_produce`, a Produce request closes its connection, and other requests are served."""
    broker.parts.native_apis.refuse_produce()
    with Connection(broker.bootstrap_servers) as one:
        one.send_raw(2 * framed(produce("t", 0, batch([b"late"]))))
        with pytest.raises(Closed):
            one.receive()
    with Connection(broker.bootstrap_servers) as one:
        assert fetched(one.ask(fetch("t", max_wait_ms=0))).records == b""
