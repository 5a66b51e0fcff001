"""The broker for tests, used by real clients: faults they survive, time that stands still, state that comes back."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka as ck
import pytest
from aiokafka import AIOKafkaProducer

from kbroker.common.errors import Errors, KafkaError
from kbroker.protocol import codec
from kbroker.protocol.records import build_batch
from kbroker.testing import EmbeddedBroker, VirtualBroker, wait_until

HOUR_MS = 3_600_000


@pytest.fixture
def broker():
    with EmbeddedBroker() as one:
        one.create_topic("t")
        yield one


def producer(broker, **settings):
    quiet = {"log_level": 0, "socket.timeout.ms": 3000, "retry.backoff.ms": 10, "reconnect.backoff.ms": 10}
    return ck.Producer({"bootstrap.servers": broker.bootstrap_servers, **quiet, **settings})


def produce(client, *values, topic="t"):
    """Send values and return the error of each, None where it was acknowledged."""
    ends = []
    for value in values:
        client.produce(topic, value, partition=0, on_delivery=lambda error, _: ends.append(error))
    assert client.flush(20) == 0
    return ends


def values(broker, topic="t"):
    return [record.value for record in broker.records(topic)]


class Raw:
    """One connection that speaks the protocol in the open."""

    def __init__(self, broker, client_id="raw"):
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self.client_id = client_id
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.asked = []

    def send(self, key, version, body):
        self.asked.append((key, version))
        self.socket.sendall(codec.encode_request_frame(key, version, len(self.asked), self.client_id, body))

    def exactly(self, size):
        data = b""
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionResetError:  # closed with something unread
                part = b""
            if not part:
                raise EOFError
            data += part
        return data

    def receive(self):
        """The next answer. Raises: EOFError when the broker has closed."""
        key, version = self.asked.pop(0)
        (size,) = struct.unpack(">i", self.exactly(4))
        return codec.decode_response_frame(key, version, self.exactly(size))[1]

    def ask(self, key, version, body):
        self.send(key, version, body)
        return self.receive()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def a_produce(value=b"v", acks=-1, size=1):
    records = build_batch([(None, value)] * size)
    part = {"Index": 0, "Records": records}
    return {"Acks": acks, "TimeoutMs": 1000, "TopicData": [{"Name": "t", "PartitionData": [part]}]}


def a_fetch(offset=0, max_wait_ms=0, **more):
    part = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
    topics = [{"Topic": "t", "Partitions": [part]}]
    return {"MaxWaitMs": max_wait_ms, "MinBytes": 1, "MaxBytes": 1 << 20, "Topics": topics, **more}


def row_of(answer, inner="Partitions"):
    (topic,) = answer["Responses"]
    (row,) = topic[inner]
    return row


# ---------------------------------------------------------------- faults, real clients


def test_librdkafka_retries_injected_errors(broker):
    """Two refusals, then the record is there once: the client retried, and what was refused was not appended."""
    with broker.faults.add("Produce", topic="t", error="NOT_LEADER_OR_FOLLOWER", count=2) as fault:
        assert produce(producer(broker), b"a") == [None]
    assert (fault.hits, fault.left, values(broker)) == (2, 0, [b"a"])


def test_an_error_that_is_not_retried_arrives(broker):
    """The application is told the injected code, and the record is not there."""
    with broker.faults.add("Produce", error=Errors.TOPIC_AUTHORIZATION_FAILED):
        (error,) = produce(producer(broker), b"a")
    assert error.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert values(broker) == []


@pytest.mark.parametrize("how", ["disconnect", "drop"])
def test_an_idempotent_producer_survives(broker, how):
    """A lost connection or a broker that hangs: sent again, and there once."""
    with broker.faults.add("Produce", **{how: True}):
        client = producer(broker, **{"enable.idempotence": True, "socket.timeout.ms": 1000})
        assert produce(client, b"a", b"b") == [None, None]
    assert values(broker) == [b"a", b"b"]


def test_a_consumer_survives_fetch_faults(broker):
    """Errors, lost connections and delays on Fetch: every record arrives once, in order."""
    sent = [b"%d" % number for number in range(50)]
    assert set(produce(producer(broker), *sent)) == {None}
    for fault in ({"error": "NOT_LEADER_OR_FOLLOWER", "count": 2}, {"disconnect": True}, {"delay_ms": 30}):
        with broker.faults.add("Fetch", topic="t", **fault):
            client = ck.Consumer(
                {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0,
                 "fetch.error.backoff.ms": 10, "reconnect.backoff.ms": 10, "enable.auto.commit": False}
            )  # fmt: skip
            client.assign([ck.TopicPartition("t", 0, 0)])
            got, end = [], time.monotonic() + 20
            while len(got) < len(sent) and time.monotonic() < end:
                got += [message.value() for message in client.consume(50, 0.2) if not message.error()]
            client.close()
        assert got == sent


def test_aiokafka_survives_every_kind(broker):
    """A refusal, a lost connection and a delay, one after the other; the delay is seen."""

    async def run():
        client = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=10, request_timeout_ms=5000
        )
        await client.start()
        try:
            for fault in ({"error": "NOT_LEADER_OR_FOLLOWER", "count": 2}, {"disconnect": True}, {"delay_ms": 200}):
                with broker.faults.add("Produce", topic="t", **fault):
                    start = time.monotonic()
                    await client.send_and_wait("t", b"x", partition=0)
                    took_s = time.monotonic() - start
        finally:
            await client.stop()
        return took_s

    assert asyncio.run(run()) >= 0.2
    assert len(values(broker)) == 3


def test_faults_of_python_apis(broker):
    """An API that Python serves fails and delays the same way: Metadata in trouble is asked again."""
    with (
        broker.faults.add("Metadata", topic="t", error="LEADER_NOT_AVAILABLE", count=2) as first,
        broker.faults.add("InitProducerId", delay_ms=50) as second,
    ):
        client = producer(broker, **{"enable.idempotence": True, "topic.metadata.refresh.fast.interval.ms": 20})
        assert produce(client, b"a") == [None]
    assert (first.hits, second.hits) == (2, 1)


# ---------------------------------------------------------------- faults, byte by byte


def test_only_the_named_client_suffers(broker):
    """Others are served although their API is being watched."""
    with (
        broker.faults.add("Produce", client_id="bad-*", error="CORRUPT_MESSAGE", count=-1) as fault,
        Raw(broker, "bad-1") as bad,
        Raw(broker, "good") as good,
    ):
        codes = [row_of(one.ask(0, 9, a_produce()), "PartitionResponses")["ErrorCode"] for one in (bad, good, bad)]
    assert (codes, fault.hits, len(values(broker))) == ([2, 0, 2], 2, 1)


def test_pipelined_requests_keep_their_order(broker):
    """Ten in flight on one connection, the fourth refused: ten answers in order, nine appended in order."""
    with broker.faults.add("Produce", error="NOT_LEADER_OR_FOLLOWER", skip=3), Raw(broker) as one:
        for number in range(10):
            one.send(0, 9, a_produce(b"%d" % number))
        rows = [row_of(one.receive(), "PartitionResponses") for _ in range(10)]
    assert [row["ErrorCode"] for row in rows] == [0, 0, 0, 6] + [0] * 6
    assert values(broker) == [b"%d" % number for number in range(10) if number != 3]


def test_a_delayed_request_is_served_afterwards(broker):
    """Later requests of the connection wait behind it; those of others do not; large payloads survive the wait."""
    large = b"x" * 200_000
    with broker.faults.add("Produce", delay_ms=200) as fault, Raw(broker) as slow, Raw(broker) as quick:
        slow.send(0, 9, a_produce(large))
        slow.send(0, 9, a_produce(b"behind"))
        fault.wait()
        assert row_of(quick.ask(0, 9, a_produce(b"quick")), "PartitionResponses")["ErrorCode"] == 0
        assert broker.faults.delayed == 1
        assert [row_of(slow.receive(), "PartitionResponses")["BaseOffset"] for _ in range(2)] == [1, 2]
    assert values(broker) == [b"quick", large, b"behind"]


def test_a_delay_before_an_error(broker):
    """Both: the answer comes late, and is the refusal."""
    with broker.faults.add("Produce", error="REQUEST_TIMED_OUT", delay_ms=100), Raw(broker) as one:
        start = time.monotonic()
        assert row_of(one.ask(0, 9, a_produce()), "PartitionResponses")["ErrorCode"] == 7
        assert time.monotonic() - start >= 0.1
    assert values(broker) == []


def test_a_dropped_request_gets_no_answer(broker):
    """The connection stays open and mute until the rule goes; then it is closed."""
    fault = broker.faults.add("Fetch", drop=True)
    with Raw(broker) as one:
        one.send(1, 12, a_fetch())
        one.send(18, 3, {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"})
        fault.wait()
        wait_until(lambda: broker.faults.dropped == 1)
        one.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            one.socket.recv(1)
        one.socket.settimeout(20)
        fault.remove()
        with pytest.raises(EOFError):
            one.receive()
    assert broker.faults.dropped == 0


@pytest.mark.parametrize("how", ["disconnect", "drop"])
def test_a_lost_answer_of_something_done(broker, how):
    """Idempotence is what keeps a record from being there twice when only its acknowledgement was lost."""
    short = {"socket.timeout.ms": 1000, "message.timeout.ms": 20_000}
    with broker.faults.add("Produce", execute=True, **{how: True}) as fault:
        client = producer(broker, **short, **{"enable.idempotence": True})
        assert produce(client, b"once") == [None]
        fault.assert_hit(1)
    assert values(broker) == [b"once"]
    with broker.faults.add("Produce", execute=True, **{how: True}):
        assert produce(producer(broker, **short), b"twice") == [None]
    assert values(broker) == [b"once", b"twice", b"twice"]


def test_a_lost_answer_byte_by_byte(broker):
    """Executed, natively or by Python, at once or after a wait; the connection stays mute until the rule goes."""
    creation = {"Topics": [{"Name": "made", "NumPartitions": 1, "ReplicationFactor": 1}], "timeoutMs": 1000}
    cases = (
        (0, 9, a_produce(), lambda: values(broker) == [b"v"]),
        (1, 12, a_fetch(max_wait_ms=30), lambda: True),
        (19, 5, creation, lambda: "made" in broker.topics),
        (10, 3, {"Key": "g", "KeyType": 0}, lambda: "__consumer_offsets" in broker.topics),
    )
    for key, version, body, is_done in cases:
        fault = broker.faults.add(key, drop=True, execute=True)
        with Raw(broker) as one:
            one.send(key, version, body)
            one.send(18, 3, {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"})
            wait_until(lambda: broker.faults.dropped == 1)
            assert is_done()
            one.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                one.socket.recv(1)
            one.socket.settimeout(20)
            fault.remove()
            with pytest.raises(EOFError):
                one.receive()
        assert (broker.faults.dropped, fault.lost.lost) == (0, 1)


def test_lost_answers_end_with_the_broker(broker):
    """A stop closes what is kept without waiting for anything; the rule goes on in the next life."""
    fault = broker.faults.add("Produce", drop=True, execute=True, count=3)
    with Raw(broker) as one, Raw(broker) as gone:
        one.send(0, 9, a_produce())
        gone.send(0, 9, a_produce())
        wait_until(lambda: broker.faults.dropped == 2)
        gone.socket.close()
        start = time.monotonic()
        broker.stop()
        assert time.monotonic() - start < 3
        with pytest.raises(EOFError):
            one.receive()
    broker.start()
    broker.create_topic("t")
    with Raw(broker) as one:
        one.send(0, 9, a_produce())
        wait_until(lambda: broker.faults.dropped == 1)
    assert (fault.hits, fault.left) == (3, 0)


def test_a_producer_without_acknowledgement_is_closed(broker):
    """acks=0 reads no answer: an error can only be a closed connection, as Kafka does it."""
    with broker.faults.add("Produce", error="NOT_LEADER_OR_FOLLOWER"), Raw(broker) as one:
        one.send(0, 9, a_produce(acks=0))
        with pytest.raises(EOFError):
            one.receive()
    assert values(broker) == []


def test_fetch_sessions_do_not_hide_topics(broker):
    """A fetch that only continues a session is sent back for its topics, then refused; without rules it goes on."""
    with Raw(broker) as one:
        session = one.ask(1, 12, a_fetch(SessionId=0, SessionEpoch=0))["SessionId"]
        assert session != 0
        going_on = {**a_fetch(SessionId=session, SessionEpoch=1), "Topics": []}
        with broker.faults.add("Fetch", topic="t", error="NOT_LEADER_OR_FOLLOWER") as fault:
            assert one.ask(1, 12, going_on)["ErrorCode"] == Errors.FETCH_SESSION_ID_NOT_FOUND
            assert fault.hits == 0
            refused = one.ask(1, 12, a_fetch(SessionId=0, SessionEpoch=0))
            assert (row_of(refused)["ErrorCode"], refused["SessionId"]) == (6, 0)
        assert one.ask(1, 12, going_on)["ErrorCode"] == 0


def test_a_rule_survives_a_restart(broker):
    """The same rule goes on counting in the broker's next life; requests it held are gone with their connections."""
    fault = broker.faults.add("Produce", drop=True, count=2)
    with Raw(broker) as one:
        one.send(0, 9, a_produce())
        fault.wait()
        broker.stop()
        with pytest.raises(EOFError):
            one.receive()
    broker.start()
    broker.create_topic("t")
    with Raw(broker) as one:
        one.send(0, 9, a_produce())
        fault.wait(2)
    assert fault.left == 0


def test_rules_come_and_go_under_load(broker):
    """Four clients produce while rules are added and removed all the time: every acknowledged record is there once."""
    stop, clients = threading.Event(), 4
    acknowledged = [[] for _ in range(clients)]

    def run(number):
        with Raw(broker, f"client-{number}") as one:
            count = 0
            while not stop.is_set():
                value = b"%d-%d" % (number, count)
                if row_of(one.ask(0, 9, a_produce(value)), "PartitionResponses")["ErrorCode"] == 0:
                    acknowledged[number].append(value)
                count += 1

    with ThreadPoolExecutor(clients) as pool:
        runs = [pool.submit(run, number) for number in range(clients)]
        hits = 0
        for turn in range(60):
            fault = broker.faults.add(
                ("Produce", None, "Produce")[turn % 3] or ("Produce", "Fetch"),
                client_id=f"client-{turn % clients}",
                **({"error": "NOT_LEADER_OR_FOLLOWER"} if turn % 2 else {"delay_ms": 1}),
                count=3,
            )
            fault.wait(3)
            hits += fault.hits
            fault.remove()
        stop.set()
        for one in runs:
            one.result(20)
    got = values(broker)
    assert hits == 180
    assert sorted(got) == sorted(value for part in acknowledged for value in part)
    for number, part in enumerate(acknowledged):
        assert [value for value in got if value.startswith(b"%d-" % number)] == part


# ---------------------------------------------------------------- virtual time


@pytest.fixture
def virtual():
    with VirtualBroker() as one:
        one.create_topic("t")
        yield one


def test_a_fetch_waits_until_the_test_says(virtual):
    """Half a minute of waiting passes in no time, and not a millisecond early."""
    with Raw(virtual) as one:
        one.send(1, 12, a_fetch(max_wait_ms=30_000))
        virtual.wait_for_fetches()
        virtual.advance_ms(29_999)
        assert virtual.waiting_fetches == 1
        virtual.advance_ms(1)
        assert virtual.waiting_fetches == 0
        assert row_of(one.receive())["ErrorCode"] == 0


def test_a_waiting_fetch_still_sees_records(virtual):
    """Time need not move for what does not wait for time."""
    with Raw(virtual) as one:
        one.send(1, 12, a_fetch(max_wait_ms=30_000))
        virtual.wait_for_fetches()
        assert produce(producer(virtual), b"a") == [None]
        assert row_of(one.receive())["HighWatermark"] == 1


def test_retention_runs_when_the_test_says(virtual):
    """Records older than retention.ms go with the next check, none before."""
    name = virtual.create_topic("short", configs={"retention.ms": str(HOUR_MS), "segment.ms": str(HOUR_MS // 2)})
    stamped = {"timestamp": virtual.now_ms}
    client = producer(virtual)
    client.produce(name, b"old", partition=0, **stamped)
    assert client.flush(20) == 0
    virtual.advance_ms(HOUR_MS - 1)
    assert values(virtual, name) == [b"old"]
    virtual.advance_ms(HOUR_MS)
    assert values(virtual, name) == []


def test_idle_connections_end_when_the_test_says():
    """connections.max.idle.ms by the broker's clock; the client sees the close."""
    with VirtualBroker({"connections.max.idle.ms": 60_000}) as virtual, Raw(virtual) as one:
        one.ask(18, 3, {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"})
        virtual.advance_ms(59_000)
        assert one.ask(3, 12, {"Topics": []})["ClusterId"] == virtual.cluster_id
        virtual.advance_ms(61_000)
        assert one.socket.recv(1) == b""


def test_delays_of_faults_follow_the_clock(virtual):
    """A minute of delay passes when the test says, with or without an error behind it."""
    with virtual.faults.add("Produce", delay_ms=60_000) as fault, Raw(virtual) as one:
        one.send(0, 9, a_produce())
        fault.wait()
        wait_until(lambda: virtual.faults.delayed == 1)
        virtual.advance_ms(59_999)
        assert virtual.faults.delayed == 1
        virtual.advance_ms(1)
        assert row_of(one.receive(), "PartitionResponses")["ErrorCode"] == 0


def test_group_sessions_end_when_the_test_says(virtual):
    """A member that shows no life is out when its session is over, and not a millisecond before."""
    joining = {"GroupId": "g", "SessionTimeoutMs": 10_000, "RebalanceTimeoutMs": 10_000, "ProtocolType": "consumer"}
    joining["Protocols"] = [{"Name": "range", "Metadata": b""}]
    with Raw(virtual) as one:
        member = one.ask(11, 5, {**joining, "MemberId": ""})["MemberId"]
        joined = one.ask(11, 5, {**joining, "MemberId": member})
        alive = {"GroupId": "g", "MemberId": member, "GenerationId": joined["GenerationId"]}
        assignments = [{"MemberId": member, "Assignment": b""}]
        assert one.ask(14, 3, {**alive, "Assignments": assignments})["ErrorCode"] == 0
        virtual.advance_ms(9_999)
        assert one.ask(12, 3, alive)["ErrorCode"] == 0
        virtual.advance_ms(10_000)
        assert one.ask(12, 3, alive)["ErrorCode"] == Errors.UNKNOWN_MEMBER_ID


def test_throttles_end_when_the_test_says():
    """Who connects faster than the broker allows waits for its clock, and for nothing else."""
    with VirtualBroker({"max.connection.creation.rate": 5, "quota.window.num": 2}) as virtual:
        hello = {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"}
        quick = [Raw(virtual) for _ in range(5)]
        assert {one.ask(18, 3, hello)["ErrorCode"] for one in quick} == {0}
        with Raw(virtual) as late:
            late.send(18, 3, hello)
            late.socket.settimeout(0.05)
            virtual.advance_ms(199)
            with pytest.raises(TimeoutError):
                late.socket.recv(1)
            late.socket.settimeout(20)
            virtual.advance_ms(1)
            assert late.receive()["ErrorCode"] == 0
        for one in quick:
            one.socket.close()


def test_virtual_brokers_stop_and_start(virtual):
    """No thread waits for a time that never comes; the clock goes on where it was."""
    virtual.advance_ms(5000)
    start = time.monotonic()
    virtual.stop()
    assert time.monotonic() - start < 3
    now = virtual.now_ms
    virtual.advance_ms(10)  # nobody to wait for
    virtual.start()
    assert virtual.now_ms == now + 10


# ---------------------------------------------------------------- state


def test_restore_brings_everything_back():
    """Topics with ids and configs, records, producer state; what came later is gone; the address stays."""
    with EmbeddedBroker(snapshots=True) as broker:
        broker.create_topic("t", 2, {"retention.ms": "1000000"})
        address, topic_id = broker.bootstrap_servers, broker.context.topics.get("t").topic_id
        client = producer(broker, **{"enable.idempotence": True})
        assert produce(client, b"a") == [None]
        kept = broker.snapshot()
        assert produce(producer(broker), b"b") == [None]
        broker.create_topic("later")
        for _ in range(2):
            broker.restore(kept)
            view = broker.context.topics.get("t")
            assert (broker.topics, values(broker)) == ({"t": 2}, [b"a"])
            assert (view.topic_id, view.configs, broker.bootstrap_servers) == (
                topic_id,
                {"retention.ms": "1000000"},
                address,
            )
        assert produce(client, b"c") == [None]  # the producer's sequence fits: it reconnects and goes on
        assert values(broker) == [b"a", b"c"]
        folder = broker.config.log_dir
    assert not folder.exists()
    kept.discard()
    assert not kept.folder.exists()


def test_a_snapshot_moves_to_another_broker(tmp_path):
    """Of a folder that is kept; the other broker is the same cluster then."""
    with EmbeddedBroker({"log.dirs": tmp_path / "one"}) as one:
        one.create_topic("t")
        assert produce(producer(one), b"a") == [None]
        kept = one.snapshot(tmp_path / "copy")
        cluster = one.cluster_id
        with pytest.raises(FileExistsError):
            one.snapshot(tmp_path / "copy")
        assert one.is_running
    with EmbeddedBroker(snapshots=True) as other:
        other.restore(kept)
        assert (other.cluster_id, values(other)) == (cluster, [b"a"])
    assert (tmp_path / "one" / "t-0").exists()


def test_memory_has_no_snapshots(broker):
    """Said with what to do instead; a discarded snapshot says so too."""
    with pytest.raises(RuntimeError, match=r"snapshots need a folder: EmbeddedBroker\(snapshots=True\)"):
        broker.snapshot()
    with EmbeddedBroker(snapshots=True) as other:
        kept = other.snapshot()
        kept.discard()
        with pytest.raises(FileNotFoundError, match="was discarded"):
            other.restore(kept)
        assert other.is_running


def test_what_is_in_the_log(broker):
    """records() gives keys, values and offsets of one or all partitions, more than one read long."""
    broker.create_topic("two", 2)
    client = producer(broker)
    large = b"x" * 700_000
    for number in range(4):
        client.produce("two", large, key=b"%d" % number, partition=number % 2)
    assert client.flush(20) == 0
    assert [(one.key, one.offset) for one in broker.records("two")] == [(b"0", 0), (b"2", 1), (b"1", 0), (b"3", 1)]
    assert [one.key for one in broker.records("two", 1)] == [b"1", b"3"]
    with pytest.raises(KeyError, match="two-2"):
        broker.records("two", 2)
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
        broker.create_topic("two")
