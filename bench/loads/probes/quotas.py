"""Probes of client quotas, set by the API and measured by a client."""

import contextlib
import time
from collections.abc import Iterator

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.loads.probes.place import Lacking, Place, Probe, expect
from kbroker.client.quotas import QuotaClient
from kbroker.common.errors import KafkaError
from kbroker.common.quotas import QuotaEntity
from tests.support import wire
from tests.support.client import Client

CREATE_TOPICS = 19
THROTTLING_QUOTA_EXCEEDED = 89
RATE_BYTES = 200_000  # per second
RECORD_BYTES = 10_000
MEASURED_S = 12.0  # servers measure over 3 s if this can be set, by default over 10 s
NEAR = (0.7, 1.5)  # an idle client may use a whole window at once


@contextlib.contextmanager
def quota(place: Place, names: dict[str, str | None], key: str, value: float) -> Iterator[None]:
    """Set a quota for the duration of the block."""
    entity = QuotaEntity.of(dict(names))
    with place.cluster() as cluster:
        quotas = QuotaClient(cluster)

        def set_to(value: float | None) -> None:
            failure = quotas.alter({entity: {key: value}})[entity]
            if failure is not None:
                raise failure

        set_to(value)
        try:
            deadline = time.monotonic() + 5
            while key not in quotas.of(entity):
                expect(time.monotonic() < deadline, "the quota that was set is not described")
                time.sleep(0.1)
            yield
        finally:
            with contextlib.suppress(KafkaError):
                set_to(None)


def judge(used_bytes: int, seconds: float, throttles_ms: list[float]) -> str:
    """Return the used share of the quota if it is about 1 and the responses had throttle times. Raises: Lacking."""
    ratio = used_bytes / seconds / RATE_BYTES
    expect(
        max(throttles_ms, default=0) > 0, f"the quota is taken and described, and no client is throttled: {ratio:.1f} x"
    )
    expect(NEAR[0] <= ratio <= NEAR[1], f"throttled, but to {ratio:.2f} of the quota")
    return f"yes (x {ratio:.2f})"


def produce_rate(place: Place) -> str:
    """A producer at full speed gets its quota."""
    topic = place.create("produce-quota")
    throttles: list[float] = []
    used = 0

    def count(error: object, message: object) -> None:
        nonlocal used
        used += RECORD_BYTES if error is None else 0

    with quota(place, {"client-id": topic}, "producer_byte_rate", RATE_BYTES):
        one_by_one = {"linger.ms": 0, "batch.num.messages": 1, "max.in.flight.requests.per.connection": 1}
        callback = {"throttle_cb": lambda event: throttles.append(event.throttle_time)}
        limit = {"queue.buffering.max.messages": 100}
        producer = Producer(place.config({"client.id": topic, **one_by_one, **callback, **limit}))
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < MEASURED_S:
            try:
                producer.produce(topic, b"x" * RECORD_BYTES, partition=0, on_delivery=count)
            except BufferError:
                producer.poll(0.05)
        sent = used
        producer.purge()
        producer.flush(5)
    return judge(sent, passed, throttles)


def fetch_rate(place: Place) -> str:
    """A consumer at full speed gets its quota."""
    topic = place.create("fetch-quota")
    place.send(topic, [b"x" * RECORD_BYTES] * 600, {"batch.num.messages": 5})
    throttles: list[float] = []
    used = 0
    with quota(place, {"client-id": topic}, "consumer_byte_rate", RATE_BYTES):
        small = {"max.partition.fetch.bytes": 5 * RECORD_BYTES, "queued.max.messages.kbytes": 100}
        callback = {"throttle_cb": lambda event: throttles.append(event.throttle_time)}
        consumer = Consumer(place.config({"client.id": topic, "group.id": topic, **small, **callback}))
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            begun = time.monotonic()
            while (passed := time.monotonic() - begun) < MEASURED_S:
                found = [message for message in consumer.consume(10, 0.1) if message.error() is None]
                used += RECORD_BYTES * len(found)
                if found and found[-1].offset() == 599:
                    break
        finally:
            consumer.close()
    return judge(used, passed, throttles)


def request_time(place: Place) -> None:
    """A client that sends continuously is throttled for its request time, and not read until the throttle ends."""
    client_id, longest_ms, waited_ms = place.topic("request-time"), 0, 0.0
    with (
        quota(place, {"client-id": client_id}, "request_percentage", 1.0),
        Client(place.bootstrap, client_id) as client,
    ):
        deadline, count = time.monotonic() + 8, 0
        while time.monotonic() < deadline and longest_ms < 200:
            delay_ms = client.call("Metadata", 8, {"Topics": None}).get("ThrottleTimeMs", 0)
            if delay_ms > longest_ms:
                begun = time.monotonic()
                client.call("ApiVersions", 2, {})
                longest_ms, waited_ms = delay_ms, (time.monotonic() - begun) * 1000
            count += 1
    expect(longest_ms > 0, f"{count} requests in 8 s and no throttle under a quota of 1 percent")
    expect(
        waited_ms > 0.8 * longest_ms, f"throttled for {longest_ms} ms, and the response came after {waited_ms:.0f} ms"
    )


def mutations(place: Place) -> None:
    """Topics that are created too fast are refused with error 89 and a throttle time, and then created."""
    client_id = place.topic("mutations")
    with (
        quota(place, {"client-id": client_id}, "controller_mutation_rate", 2.0),
        place.cluster(client_id) as cluster,
    ):
        codes = []
        for _ in range(12):
            begun = time.monotonic()
            topic = {"Name": place.topic("storm"), "NumPartitions": 5, "ReplicationFactor": 1}
            controller = cluster.controller()
            body = {"Topics": [{**topic, "Assignments": [], "Configs": []}], "timeoutMs": 10_000}
            response = cluster.request(CREATE_TOPICS, body, node_id=controller, max_version=7, timeout_s=30)
            codes.append(response["Topics"][0]["ErrorCode"])
            if codes[-1] == THROTTLING_QUOTA_EXCEEDED:
                expect(response["ThrottleTimeMs"] > 0, "error 89 without a time to wait")
                return
            expect(codes[-1] == 0, f"error {codes[-1]}")
            expect(time.monotonic() - begun < 20, "one request took 20 s")
    raise Lacking(f"{len(codes)} topics of 5 partitions are made at once under a quota of 2 partitions a second")


def connection_rate(place: Place) -> None:
    """Connections of a burst above the rate are not served."""

    def burst() -> int:
        served = 0
        for _ in range(60):
            with contextlib.suppress(OSError, wire.Closed), wire.Connection(place.bootstrap, timeout=0.3) as one:
                one.ask(wire.header(wire.API_VERSIONS, 0))
                served += 1
        return served

    before = burst()
    expect(before == 60, f"{before} of 60 connections are served without a quota")
    with quota(place, {"ip": "127.0.0.1"}, "connection_creation_rate", 2):
        begun = time.monotonic()
        during = burst()
        seconds = time.monotonic() - begun
    expect(during < 50, f"{during} of 60 connections are served in {seconds:.1f} s under a quota of 2 a second")


PROBES = [
    Probe("producer quota: throttle time reported, rate near it", produce_rate, 60),
    Probe("consumer quota: the same", fetch_rate, 60, short=False),
    Probe("request-time quota throttles", request_time, 60, short=False),
    Probe("mutation quota refuses with error 89", mutations, 60, short=False),
    Probe("connection-rate quota of an address", connection_rate, 60, short=False),
]
