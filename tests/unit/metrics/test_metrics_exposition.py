"""Names, bounds and text of the exposition for Prometheus."""

import math

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.stats import Avg, CumulativeSum, Rate
from kbroker.metrics.exposition import Exposition
from kbroker.metrics.families import Buckets, Family, Sample, bounded, kafka_name, label_name, prometheus_name
from kbroker.metrics.registry import Metrics
from kbroker.metrics.share import Share

pytest.importorskip("prometheus_client")


@pytest.mark.parametrize(
    ("group", "name", "kind", "expected"),
    [
        ("Request", "throttle-time", "gauge", "kafka_request_throttle_time_ms"),
        ("Request", "request-time", "gauge", "kafka_request_request_time"),
        ("Produce", "byte-rate", "gauge", "kafka_produce_byte_rate"),
        ("socket-server-metrics", "connection-creation-total", "counter",
         "kafka_socket_server_connection_creation_total"),
        ("socket-server-metrics", "MemoryPoolDepletedTimeTotal", "counter",
         "kafka_socket_server_memory_pool_depleted_time_ms_total"),
        ("kafka.network:RequestMetrics", "TotalTimeMs", "histogram", "kafka_network_request_total_time_ms"),
        ("kafka.network:RequestMetrics", "RequestsPerSec", "counter", "kafka_network_request_requests_total"),
        ("kafka.server:KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent", "gauge",
         "kafka_server_kafka_request_handler_pool_request_handler_avg_idle_percent"),
        ("kbroker:network", "late-frames-total", "counter", "kbroker_network_late_frames_total"),
    ],
)  # fmt: skip
def test_names(group: str, name: str, kind: str, expected: str) -> None:
    """Prometheus names are built from Kafka's by one rule: group, name, unit, _total."""
    assert prometheus_name(group, name, kind) == expected  # type: ignore[arg-type]


def test_kafka_names() -> None:
    """A Kafka name is a JMX name or a metric name with tags. A group of kbroker has no Kafka name."""
    assert kafka_name("Request", "byte-rate", ("user", "client-id")) == "Request:byte-rate {user=...,client-id=...}"
    assert kafka_name("kafka.log:Log", "Size", ("topic",)) == "kafka.log:type=Log,name=Size,topic=..."
    assert kafka_name("kbroker:logs", "size-bytes", ()) == ""
    assert (label_name("client-id"), label_name("networkProcessor")) == ("client_id", "network_processor")


def test_series_of_clients_are_bounded() -> None:
    """The largest series stay; others are combined as "other" for each value of the labels that no client chooses."""
    samples = [Sample((f"u{n}", "a" if n % 2 else "b"), float(n)) for n in range(10)]
    kept = bounded(("user", "listener"), samples, 3)
    assert kept[:3] == [Sample(("u9", "a"), 9.0), Sample(("u8", "b"), 8.0), Sample(("u7", "a"), 7.0)]
    assert sorted(kept[3:]) == [Sample(("other", "a"), 1.0 + 3 + 5), Sample(("other", "b"), 0.0 + 2 + 4 + 6)]
    assert Sample(("other", "b"), 6.0) in bounded(("user", "listener"), samples, 3, "max")
    assert bounded(("listener", "x"), samples, 3) == samples
    nan = [Sample(("a",), math.nan), Sample(("b",), 1.0), Sample(("c",), math.nan)]
    assert bounded(("ip",), nan, 1)[0] == Sample(("b",), 1.0)
    assert len(bounded(("ip",), nan, 1)) == 2


def test_a_client_that_calls_itself_other() -> None:
    """The series of a client named "other" is merged with the series of the dropped clients."""
    samples = [Sample(("other", "a"), 9.0), *(Sample((f"u{n}", "a"), float(n)) for n in range(4))]
    assert bounded(("user", "listener"), samples, 2) == [Sample(("u3", "a"), 3.0), Sample(("other", "a"), 12.0)]
    both = [Sample(("other", "x"), 9.0), Sample(("u", "v"), 1.0), Sample(("w", "v"), 2.0)]
    assert bounded(("user", "client_id"), both, 2)[:2] == [both[0], both[2]]
    assert bounded(("user", "client_id"), [Sample(("other", "other"), 5.0), *both], 5)[0].value == 5.0


def exposition() -> tuple[Metrics, Exposition]:
    metrics = Metrics(clock=VirtualClock())
    return metrics, Exposition(metrics, entity_series=2)


def lines(shown: Exposition, start: str) -> list[str]:
    text, _ = shown.text()
    return [line for line in text.decode().splitlines() if line.startswith(start)]


def test_sensors_and_gauges_are_shown() -> None:
    """Every metric of the registry is shown with its tags as labels, and label values are escaped."""
    metrics, shown = exposition()
    sensor = metrics.sensor("Produce-a")
    tags = {"user": 'a"\n', "client-id": "c"}
    sensor.add(metrics.metric_name("byte-rate", "Produce", tags), Rate())
    sensor.add(metrics.metric_name("incoming-byte-total", "socket-server-metrics", {"listener": "X"}), CumulativeSum())
    sensor.add(metrics.metric_name("throttle-time", "Produce", tags, "delay"), Avg())
    sensor.record(60.0)
    metrics.add_gauge(metrics.metric_name("size", "queue-metrics"), lambda: 7)
    assert lines(shown, "kafka_produce_byte_rate") == ['kafka_produce_byte_rate{client_id="c",user="a\\"\\n"} 2.0']
    assert lines(shown, "kafka_socket") == ['kafka_socket_server_incoming_byte_total{listener="X"} 60.0']
    assert lines(shown, "# HELP kafka_produce_throttle") == ["# HELP kafka_produce_throttle_time_ms delay"]
    assert lines(shown, "# TYPE kafka_socket_server_incoming") == [
        "# TYPE kafka_socket_server_incoming_byte_total counter"
    ]
    assert lines(shown, "kafka_queue_size") == ["kafka_queue_size 7.0"]


def test_a_label_that_is_not_utf_8() -> None:
    """The name of a group may have any bytes; those that are not UTF-8 are escaped."""
    _, shown = exposition()
    shown.add(Family("a", "b", "gauge", ("group",), "", lambda: [(("x\udcff",), 1.0), (("é",), 2.0)]))
    assert lines(shown, "kafka_a_b{") == [r'kafka_a_b{group="x\\udcff"} 1.0', 'kafka_a_b{group="é"} 2.0']


def test_registered_series_join_their_family() -> None:
    """A declared family includes the registry's series of its name and bounds them."""
    metrics, shown = exposition()
    shown.add(Family("Produce", "byte-rate", "gauge", ("user", "client-id"), "bytes per second"))
    for number in range(4):
        sensor = metrics.sensor(f"Produce-{number}")
        sensor.add(metrics.metric_name("byte-rate", "Produce", {"user": f"u{number}", "client-id": ""}), Rate())
        sensor.record(30.0 * (number + 1))
    assert lines(shown, "kafka_produce_byte_rate") == [
        'kafka_produce_byte_rate{client_id="",user="u3"} 4.0',
        'kafka_produce_byte_rate{client_id="",user="u2"} 3.0',
        'kafka_produce_byte_rate{client_id="other",user="other"} 3.0',
    ]
    with pytest.raises(ValueError, match="exists already"):
        shown.add(Family("Produce", "byte-rate", "gauge", (), ""))


def test_histograms() -> None:
    """Buckets are cumulative and end with +Inf, followed by count and sum."""
    _, shown = exposition()
    shown.add(
        Family("kafka.network:RequestMetrics", "TotalTimeMs", "histogram", ("request",), "ms",
               lambda: [(("Fetch",), Buckets([1, 2, 3], 44.5))], (0.5, 10.0))
    )  # fmt: skip
    name = "kafka_network_request_total_time_ms"
    assert lines(shown, name) == [
        f'{name}_bucket{{le="0.5",request="Fetch"}} 1.0',
        f'{name}_bucket{{le="10",request="Fetch"}} 3.0',
        f'{name}_bucket{{le="+Inf",request="Fetch"}} 6.0',
        f'{name}_count{{request="Fetch"}} 6.0',
        f'{name}_sum{{request="Fetch"}} 44.5',
    ]


def test_share_of_the_last_minute() -> None:
    """The share covers the last minute between measurements; the first measurement covers the time since the start."""
    clock = VirtualClock()
    spent = 0
    share = Share(lambda: spent, lambda: 2, clock)
    assert math.isnan(share.measure())
    clock.advance_ms(1000)
    spent += 1_000_000_000
    assert share.measure() == 0.5
    clock.advance_ms(59_000)
    spent += 2 * 59_000_000_000
    assert share.measure() == pytest.approx(119 / 120)
    clock.advance_ms(60_000)
    assert share.measure() == 0.0
