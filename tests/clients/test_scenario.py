"""Scenario of every client library: create, produce with each codec, consume by assignment and by time, delete.

KBROKER_TEST_BOOTSTRAP=host:port selects another broker; Apache Kafka passes.
"""

import itertools
import time

import pytest

from tests.clients.programs import CLIENTS, Kafkajs, make_client
from tests.clients.python_clients import Client, Confluent, Record
from tests.support import wire
from tests.support.broker import wait_for

pytestmark = pytest.mark.slow

RECORDS = 20
COUNTER = itertools.count()


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    return make_client(request.param, bootstrap)


@pytest.fixture
def reference(bootstrap: str) -> Confluent:
    return Confluent(bootstrap)


class Topic:
    """Topic of one test, created by the client if it can create topics."""

    def __init__(self, client: Client, reference: Confluent) -> None:
        self.name = f"{client.name}-{time.time_ns():x}-{next(COUNTER)}"
        self.partitions = 3 if client.can_choose_partition else 1
        self.partition = 1 if client.can_choose_partition else 0
        self.owner: Client = client if client.can_administrate else reference
        self.owner.create(self.name, self.partitions)
        bootstrap = client.bootstrap
        wait_for("the topic's leaders", lambda: wire.is_ready(bootstrap, self.name, self.partitions - 1))

    def codecs_on_the_log(self, bootstrap: str) -> set[int]:
        """Return the codecs of the stored batches."""
        with wire.Connection(bootstrap) as connection:
            response = wire.fetched(connection.ask(wire.fetch(self.name, (self.partition,))))
        assert response.error_code == 0
        return {codec for _, codec, _, _ in response.batches()}


@pytest.fixture
def topic(client: Client, reference: Confluent) -> Topic:
    return Topic(client, reference)


def values(count: int = RECORDS, note: str = "") -> list[Record]:
    """Return records of which a batch is smaller with any codec."""
    return [Record(f"{note}record {n} ".encode() + b"abc " * 30 + b"end") for n in range(count)]


def expected_codec(client: Client, codec: str) -> str:
    """Return the codec of stored batches: librdkafka uses LZ4 only with brokers that support FindCoordinator."""
    is_librdkafka = client.name in ("confluent-kafka", "kcat")
    if is_librdkafka and codec == "lz4" and wire.FIND_COORDINATOR not in wire.ranges(client.bootstrap):
        return "none"
    return codec


def test_create_and_delete(client: Client, reference: Confluent, topic: Topic) -> None:
    """A topic that the client creates is listed with its partitions, and not listed after its deletion."""
    assert topic.name in reference.topics()
    with wire.Connection(client.bootstrap) as connection:
        assert wire.produced(connection.ask(wire.produce(topic.name, topic.partitions, wire.batch()))).error_code == 3
    topic.owner.delete(topic.name)
    wait_for("the topic is deleted", lambda: topic.name not in reference.topics())


def test_produce_with_each_codec_and_consume(client: Client, reference: Confluent, topic: Topic) -> None:
    """Records of each supported codec are read in order at consecutive offsets, and are stored with their codec."""
    sent: list[Record] = []
    codecs_seen: set[int] = set()
    for codec in client.codecs:
        records = values(note=f"{codec} ")
        offsets = client.produce(topic.name, topic.partition, records, codec=codec, idempotent=True)
        if offsets is not None:
            assert offsets == list(range(len(sent), len(sent) + RECORDS))
        sent += records
        codecs_seen.add(wire.CODECS[expected_codec(client, codec)])
        assert topic.codecs_on_the_log(client.bootstrap) == codecs_seen
    for reader in (client, reference):
        if not reader.can_consume:
            continue
        found = reader.consume(topic.name, topic.partition, len(sent))
        assert [r.value for r in found] == [r.value for r in sent]
        assert [r.offset for r in found] == list(range(len(sent)))
        assert all(abs(r.timestamp_ms - time.time() * 1000) < 600_000 for r in found)


def test_produce_without_idempotence(client: Client, reference: Confluent, topic: Topic) -> None:
    """A producer without a producer id is served."""
    records = values()
    client.produce(topic.name, topic.partition, records, codec="none", idempotent=False)
    found = reference.consume(topic.name, topic.partition, RECORDS)
    assert [r.value for r in found] == [r.value for r in records]


def test_consume_by_timestamp(client: Client, reference: Confluent, topic: Topic) -> None:
    """A look-up by time returns the first record that is not older."""
    start = int(time.time() * 1000) - 3_600_000
    records = [Record(b"record %d" % n, start + 10 * n) for n in range(50)]
    producer = client if client.can_set_timestamps else reference
    for group in (records[:25], records[25:]):
        producer.produce(topic.name, topic.partition, group, codec="gzip", idempotent=True)
    for from_ms, first in ((start, 0), (start + 171, 18), (start + 250, 25), (start + 251, 26), (start + 490, 49)):
        if isinstance(client, Kafkajs):
            assert client.offsets(topic.name, from_ms)[topic.partition] == first
            continue
        if client.name == "java-console" and first not in (18, 26):
            continue  # each look-up starts two JVMs
        found = client.consume(topic.name, topic.partition, 50 - first, from_ms)
        assert [(r.offset, r.value, r.timestamp_ms) for r in found] == [
            (n, records[n].value, records[n].timestamp_ms) for n in range(first, 50)
        ]
