"""Quotas with librdkafka: reported throttle times, and the throughput that the formula predicts."""

import statistics
import threading
import time

import confluent_kafka
import pytest

from kbroker._core.metrics.metric_config import MetricConfig, Quota
from kbroker._core.metrics.sensor import Sensor
from kbroker._core.metrics.stats import CumulativeSum, Rate
from kbroker.metrics.registry import MetricName
from kbroker.network.request_channel import InboundRequest
from kbroker.testing import EmbeddedBroker
from kbroker.testing.waiting import wait_until
from tests.support.client import Client, fill_partitions, librdkafka_consumer
from tests.support.wire import create_topic

PRODUCE_KEY = 0
LIMIT = 20_000
VALUE_BYTES = 19_000
REQUESTS = 22


def predicted_ms(sizes: list[int], limit: float) -> int:
    """Return the duration of requests that a client sends without pause: the throttle times of all but the last."""
    counter = Sensor("model", MetricConfig(11, 1000, quota=Quota.upper(limit)))
    counter.add("rate", Rate())
    start_ms = time_ms = 1_700_000_000_000
    for size in sizes[:-1]:
        time_ms += counter.record_and_throttle(size, time_ms)
    return time_ms - start_ms


@pytest.mark.slow
def test_librdkafka_gets_what_the_sensors_predict() -> None:
    """The throughput of a saturating producer is within 1 % of the predicted one."""
    throttles: list[float] = []
    seen: list[tuple[int, int]] = []
    with EmbeddedBroker({"auto.create.topics.enable": "true"}) as broker:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "client.id": "saturating",
                "linger.ms": 0,
                "batch.num.messages": 1,
                "throttle_cb": lambda event: throttles.append(event.throttle_time),
            }
        )
        producer.produce("t", b"the connection and the topic are there")
        assert producer.flush(30) == 0
        broker.context.quotas.update(None, "saturating", "producer_byte_rate", LIMIT)

        def look(request: InboundRequest) -> bool:
            if request.api_key == PRODUCE_KEY and request.client_id == "saturating":
                seen.append((broker.clock.epoch_ms(), request.size_bytes))
            return False

        broker.intercept(look, [PRODUCE_KEY])
        for _ in range(REQUESTS):
            producer.produce("t", b"x" * VALUE_BYTES)
        assert producer.flush(60) == 0
        broker.intercept(None)
    assert len(seen) == REQUESTS
    sizes = [size for _, size in seen]
    took_ms = seen[-1][0] - seen[0][0]
    expected_ms = predicted_ms(sizes, LIMIT)
    assert expected_ms > 8000
    accepted, predicted = sum(sizes) / took_ms, sum(sizes) / expected_ms
    assert accepted == pytest.approx(predicted, rel=0.01)
    assert max(throttles) > 0.5
    assert len([delay for delay in throttles if delay > 0]) >= 5


@pytest.mark.slow
def test_librdkafka_consumer_is_throttled_by_time_alone() -> None:
    """A request quota without a byte quota throttles fetches (KIP-124)."""
    throttles: list[float] = []
    with EmbeddedBroker() as broker:
        fill_partitions(broker.bootstrap_servers, "t", 100, partitions=1, prefix="x" * 100)
        consumer = librdkafka_consumer(
            broker.bootstrap_servers, client_id="busy", fetch_wait_max_ms=0,
            throttle_cb=lambda event: throttles.append(event.throttle_time),
        )  # fmt: skip
        try:
            consumer.subscribe(["t"])
            assert len(consumer.consume(100, 30)) == 100
            assert not any(throttles)
            broker.context.quotas.update(None, "busy", "request_percentage", 0.01)
            wait_until(lambda: consumer.poll(0.05) is None and any(delay > 0.1 for delay in throttles), 30)
        finally:
            consumer.close()


WINDOW_MS = 11_000


@pytest.mark.soak
def test_a_spinning_fetcher_is_held_to_its_share_of_time() -> None:
    """A client that fetches in a tight loop is limited to two percent of a thread."""
    quota = 2.0
    with EmbeddedBroker() as broker, Client(broker.bootstrap_servers, "spinner", 30) as client:
        client.send(create_topic("t", 1))
        client.receive()
        broker.context.quotas.update(None, "spinner", "request_percentage", quota)
        broker.context.quotas.request.sensor("ANONYMOUS", "spinner").add("charged", CumulativeSum())
        rate = broker.context.metrics.get(
            MetricName.of("request-time", "Request", {"user": "", "client-id": "spinner"})
        )
        charged = broker.context.metrics.get("charged")  # type: ignore[arg-type]
        assert rate is not None
        assert charged is not None
        delays, used, asked = [], [], 0
        begun_ms = broker.clock.epoch_ms()
        settled: tuple[int, float] | None = None  # end of the first window, and the time charged until then
        while (now_ms := broker.clock.epoch_ms()) - begun_ms < 2 * WINDOW_MS:
            client.fetch("t")
            asked += 1
            delay = client.end()["ThrottleTimeMs"]
            if settled is None and now_ms - begun_ms >= WINDOW_MS:
                settled = (now_ms, charged.measure())
            if delay > 0:
                delays.append(delay)
                used.append(rate.measure())
        assert settled is not None
        elapsed_s = (broker.clock.epoch_ms() - settled[0]) / 1000
        mean = (charged.measure() - settled[1]) / elapsed_s
    assert len(delays) > 5
    assert max(delays) <= 1000  # throttled for at most one window
    assert asked > 100
    assert quota * 0.9 < statistics.median(used[len(used) // 2 :]) < quota * 1.1
    assert quota * 0.8 < mean < quota * 1.1


@pytest.mark.soak
def test_a_spinning_fetcher_hurts_no_other_client() -> None:
    """A throttled client in a tight loop raises another client's p99 by less than half."""
    stop = threading.Event()

    def p99_ms(client: Client) -> float:
        found = []
        for _ in range(800):
            begun = time.perf_counter()
            client.call("Metadata", 8, {"Topics": [], "AllowAutoTopicCreation": False})
            found.append((time.perf_counter() - begun) * 1000)
        return statistics.quantiles(found, n=100)[98]

    with EmbeddedBroker() as broker, Client(broker.bootstrap_servers, "other", 30) as other:
        other.send(create_topic("t", 1))
        other.receive()
        broker.context.quotas.update(None, "spinner", "request_percentage", 2.0)
        may_spin = threading.Event()

        def spin() -> None:
            with Client(broker.bootstrap_servers, "spinner", 30) as spinner:
                while not stop.is_set():
                    may_spin.wait()
                    spinner.fetch("t")
                    spinner.end()

        thread = threading.Thread(target=spin)
        thread.start()
        try:
            may_spin.set()
            wait_until(lambda: broker.context.quotas.request.queue_size > 0, 30)
            ratios = []
            for _ in range(9):
                may_spin.clear()
                alone = p99_ms(other)
                may_spin.set()
                ratios.append(p99_ms(other) / alone)
        finally:
            stop.set()
            may_spin.set()
            thread.join()
    assert statistics.median(ratios) < 1.5, ratios
