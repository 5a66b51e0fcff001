"""Real clients against a broker with quotas and a request log, and the clients' own counts."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from kbroker.common.quotas import CLIENT_ID, USER, QuotaEntity
from kbroker.quota.verdict import Verdict
from kbroker.testing import EmbeddedBroker
from kbroker.testing.waiting import wait_until
from tests.support.client import Body, Client, new_topics

LOG = "__request_log"
USER_NAME = "ANONYMOUS"
SAMPLES = 2  # of one second each, so that a client exceeds its quota soon and briefly
SETTINGS = {
    "num.network.threads": 1,  # so that the last record is of the last request
    "quota.window.num": SAMPLES,
    "controller.quota.window.num": SAMPLES,
    "kbroker.request.log.topic": LOG,
    "kbroker.request.log.partitions": 2,
}


def entity(**names: str | None) -> QuotaEntity:
    return QuotaEntity.of({kind.replace("_", "-"): name for kind, name in names.items()})


QUOTAS: dict[QuotaEntity, dict[str, float]] = {
    entity(client_id="writer"): {"producer_byte_rate": 20_000.0},
    entity(client_id="raw-writer"): {"producer_byte_rate": 9_000.0, "request_percentage": 0.2},
    entity(client_id="reader"): {"consumer_byte_rate": 30_000.0},
    entity(client_id="raw-reader"): {"consumer_byte_rate": 20_000.0},
    entity(client_id="busy"): {"request_percentage": 0.1},
    entity(user=USER_NAME): {"controller_mutation_rate": 10.0},
}


#: Shadow quotas that are exceeded too; none of their verdicts may count as a throttle.
SHADOWS: dict[QuotaEntity, dict[str, float]] = {
    entity(user=USER_NAME): {"shadow.producer_byte_rate": 3_000.0, "shadow.controller_mutation_rate": 1.0},
    entity(client_id="raw-reader"): {"shadow.consumer_byte_rate": 5_000.0},
    entity(client_id="busy"): {"shadow.request_percentage": 0.01},
}


def set_quotas(broker: EmbeddedBroker) -> None:
    for one, values in [*QUOTAS.items(), *SHADOWS.items()]:
        for key, value in values.items():
            broker.context.quotas.update(one.names.get(USER), one.names.get(CLIENT_ID), key, value)


@dataclass
class Known:
    """Counts of one client: requests, bytes of requests and responses, accepted mutations, and delays."""

    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    mutations: int = 0
    throttle_ms: int = 0


@dataclass
class Traffic:
    """Counts of all clients, the broker's verdicts, and the verdicts of shadow quotas."""

    known: dict[str, Known] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    shadows: list[Verdict] = field(default_factory=list)
    librdkafka: Counter[str] = field(default_factory=Counter)  # its statistics: Produce requests, bytes of all requests


class CountingClient(Client):
    """Raw client that counts."""

    def __init__(self, broker: EmbeddedBroker, client_id: str, traffic: Traffic) -> None:
        super().__init__(broker.bootstrap_servers, client_id)
        self.known = traffic.known.setdefault(client_id, Known())

    def begin(self, api: str | int, version: int, body: Body) -> int:
        size = super().begin(api, version, body)
        self.known.requests += 1
        self.known.request_bytes += size
        return size

    def end(self) -> Body:
        body = super().end()
        self.known.response_bytes += len(self.response)
        self.known.throttle_ms += body["ThrottleTimeMs"]
        return body

    def create(self, version: int, *names: str, partitions: int) -> list[int]:
        """Create topics; return their error codes."""
        response = self.call("CreateTopics", version, new_topics(*names, partitions=partitions))
        codes = [int(topic["ErrorCode"]) for topic in response["Topics"]]
        self.known.mutations += partitions * codes.count(0)
        return codes


def make_traffic(broker: EmbeddedBroker) -> Traffic:
    """Exceed every kind of quota; return when the log has all requests."""
    traffic = Traffic()
    broker.create_topic("t", 1)
    set_quotas(broker)
    broker.take_verdicts()
    _librdkafka_writes(broker, traffic)
    clients = (_librdkafka_reads, _raw_writes, _raw_reads, _busy, _mutations)
    with ThreadPoolExecutor(len(clients)) as threads:
        for running in [threads.submit(client, broker, traffic) for client in clients]:
            running.result()
    _connections(broker)
    with CountingClient(broker, "last", traffic) as client:
        client.call("ListGroups", 3, {})
        wait_until(lambda: "last" in clients_in_log(broker))
    for verdict in broker.take_verdicts():
        (traffic.shadows if verdict.is_shadow else traffic.verdicts).append(verdict)
    return traffic


def _librdkafka_writes(broker: EmbeddedBroker, traffic: Traffic) -> None:
    """Run a producer over its byte quota, whose statistics have the bytes sent."""
    seen: list[Counter[str]] = []

    def take(text: str) -> None:
        sums: Counter[str] = Counter()
        for one in json.loads(text)["brokers"].values():
            sums.update(requests=one["req"].get("Produce", 0), request_bytes=one["txbytes"] - 4 * one["tx"])
            sums.update(waiting=one["tx"] - one["rx"])
        seen.append(sums)

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "writer",
            "statistics.interval.ms": 50,
            "stats_cb": take,
            "linger.ms": 0,
        }
    )
    for number in range(12):
        producer.produce("t", bytes(5_000), key=str(number).encode())
        producer.flush(30)
    assert len(producer) == 0

    def is_still() -> bool:
        producer.poll(0.05)
        return len(seen) > 3 and seen[-1] == seen[-3] and not seen[-1]["waiting"]

    wait_until(is_still)
    traffic.librdkafka = seen[-1]


def _librdkafka_reads(broker: EmbeddedBroker, traffic: Traffic) -> None:
    """Run a consumer over its byte quota that reads all records."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "reader", "group.id": "readers"})
    consumer.assign([TopicPartition("t", 0, 0)])
    read = 0
    while read < 12:
        message = consumer.poll(10)
        assert message is not None
        assert not message.error()
        read += 1
    consumer.close()


def _raw_writes(broker: EmbeddedBroker, traffic: Traffic) -> None:
    """Exceed two quotas at once, of bytes and of time."""
    with CountingClient(broker, "raw-writer", traffic) as client:
        for turn in range(30):
            client.produce("t", 100 * turn)
            client.end()


def _raw_reads(broker: EmbeddedBroker, traffic: Traffic) -> None:
    with CountingClient(broker, "raw-reader", traffic) as client:
        for _ in range(6):
            client.fetch("t", offset=0)
            client.end()


def _busy(broker: EmbeddedBroker, traffic: Traffic) -> None:
    """Send forty requests, and then further ones until one is delayed, on a machine of any speed."""
    with CountingClient(broker, "busy", traffic) as client:
        while client.known.requests < 40 or client.known.throttle_ms == 0:
            assert client.known.requests < 100_000
            client.call("ListGroups", 3, {})


def _mutations(broker: EmbeddedBroker, traffic: Traffic) -> None:
    """Exceed the mutation quota with a client that gets error 89, then with an older one, then with the first again."""
    with CountingClient(broker, "strict", traffic) as strict, CountingClient(broker, "old", traffic) as old:
        strict.create(6, "s0", "s1", partitions=40)  # there are 20 tokens: the second topic is refused
        strict.create(6, "s2", partitions=1)
        assert old.create(5, "o0", "o1", "o2", partitions=3) == [0, 0, 0]
        strict.create(6, "s3", "s4", partitions=1)
        number = 5

        def is_let_through() -> bool:
            nonlocal number
            number += 1
            return strict.create(6, f"s{number}", partitions=4) == [0]

        wait_until(is_let_through, 30)
        body: dict[str, Any] = {"TopicNames": ["s0", f"s{number}"], "TimeoutMs": 1000}
        for topic in strict.call("DeleteTopics", 5, body)["Responses"]:
            if topic["ErrorCode"] == 0:
                strict.known.mutations += 40 if topic["Name"] == "s0" else 4


def _connections(broker: EmbeddedBroker) -> None:
    """Open more connections from one address than its quota allows, then remove the quota."""
    quotas = broker.context.connection_quotas
    quotas.update_ip_rate("127.0.0.1", 1)
    quotas.update_ip_rate("127.0.0.1", 2, shadow=True)
    held = [Client(broker.bootstrap_servers) for _ in range(12)]
    wait_until(
        lambda: {one.is_shadow for one in broker.verdicts if one.quota_type == "ConnectionRate"} == {False, True}
    )
    for one in held:
        one.close()
    quotas.update_ip_rate("127.0.0.1", None)
    quotas.update_ip_rate("127.0.0.1", None, shadow=True)


def clients_in_log(broker: EmbeddedBroker) -> list[str | None]:
    """Return the client id of each record in the topic."""
    broker.request_log.flush()
    found: list[str | None] = []
    for record in broker.records(LOG):
        assert record.value is not None
        if record.headers:
            found += pa.ipc.open_stream(record.value).read_all()["client_id"].to_pylist()
        else:
            found.append(json.loads(record.value).get("requestHeader", {}).get("clientId"))
    return found
