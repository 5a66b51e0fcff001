"""Shadow quotas with kafka-python and librdkafka, which are not affected far above their limits."""

import time

import confluent_kafka
import kafka

from kbroker.metrics.families import Buckets
from kbroker.testing import EmbeddedBroker

LIMITS = {
    "shadow.producer_byte_rate": 100.0,
    "shadow.consumer_byte_rate": 100.0,
    "shadow.request_percentage": 1e-6,
    "shadow.controller_mutation_rate": 0.01,
}
RECORDS = 40
VALUE = b"x" * 5000  # an enforced quota would delay each record for most of a minute


def shadowed(broker: EmbeddedBroker) -> None:
    for key, limit in LIMITS.items():
        broker.context.quotas.update("ANONYMOUS", None, key, limit)


def check(broker: EmbeddedBroker, took_s: float) -> None:
    """Check that the clients were not delayed, and that there are shadow verdicts."""
    verdicts = broker.take_verdicts()
    assert {v.quota_type for v in verdicts} >= {"Produce", "Fetch", "Request"}
    assert all(v.is_shadow for v in verdicts)
    assert sum(v.delay_asked_ms for v in verdicts) > 60_000 * 20
    assert took_s < 30
    assert [one.queue_size for one in broker.context.quotas.enforced] == [0, 0, 0, 0]
    (asked,) = [samples for family, samples in broker.exposition.collect() if family.name == "ThrottleTimeMs"]
    assert {sample.value.sum for sample in asked if isinstance(sample.value, Buckets)} == {0}


def test_librdkafka_is_not_delayed() -> None:
    """The throttle callback, which reports every throttle time in a response, reports none above 0."""
    throttles: list[float] = []
    with EmbeddedBroker({"auto.create.topics.enable": "true"}) as broker:
        shadowed(broker)
        begun = time.monotonic()
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "rd",
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
        producer = confluent_kafka.Producer({**settings, "linger.ms": 0, "batch.num.messages": 1})
        for _ in range(RECORDS):
            producer.produce("t", VALUE)
        assert producer.flush(60) == 0
        consumer = confluent_kafka.Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        found = 0
        while found < RECORDS and time.monotonic() < begun + 60:
            found += len(consumer.consume(RECORDS, 1.0))
        consumer.close()
        assert found == RECORDS
        assert max(throttles, default=0.0) == 0
        check(broker, time.monotonic() - begun)


def test_kafka_python_is_not_delayed() -> None:
    """The metric of throttle times stays 0, and topics are created and deleted at once."""
    with EmbeddedBroker({"auto.create.topics.enable": "false"}) as broker:
        shadowed(broker)
        begun = time.monotonic()
        admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers, client_id="kp")
        for name in ("t", "u"):
            admin.create_topics([kafka.admin.NewTopic(name, 3, 1)])
        admin.delete_topics(["u"])
        admin.close()
        producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id="kp", linger_ms=0)
        for _ in range(RECORDS):
            producer.send("t", VALUE).get(60)
        found_ms = [row["throttle-time-max"] for row in producer.metrics().values() if "throttle-time-max" in row]
        producer.close()
        consumer = kafka.KafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, client_id="kp", auto_offset_reset="earliest",
            consumer_timeout_ms=60_000, max_partition_fetch_bytes=10_000,
        )  # fmt: skip
        found = [next(consumer) for _ in range(RECORDS)]
        consumer.close()
        assert len(found) == RECORDS
        assert max(found_ms) == 0
        assert any(v.refused for v in broker.verdicts if v.quota_type == "ControllerMutation")
        check(broker, time.monotonic() - begun)
