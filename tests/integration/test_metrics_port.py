"""Metrics port of a running broker: metrics of requests, health, readiness, refused requests."""

import contextlib
import socket
import struct
import threading
import urllib.error
import urllib.request

import pytest

from kbroker.broker import Broker, BrokerStartError
from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.http_port import HttpPort, HttpPortError, NoSuchPathError, find_http_port
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors
from kbroker.protocol import codec
from tests.support import need, wire
from tests.support.broker import wait_for
from tests.support.fixtures import fixture_of

CONFIG = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "kbroker.in.memory": True,
    "kbroker.metrics.listener": "127.0.0.1:0",
    "kbroker.metrics.entity.series": 3,
    "socket.request.max.bytes": 1000,
    "queued.max.request.bytes": 1000,
}

PACKED = {
    "Name": "packed", "NumPartitions": 1, "ReplicationFactor": 1, "Assignments": [],
    "Configs": [{"Name": "compression.type", "Value": "zstd"}],
}  # fmt: skip
broker = fixture_of(Broker, CONFIG)


def get(broker: Broker, path: str, accept: str = "") -> tuple[int, str, str]:
    """Return the status, body and content type of a path."""
    assert broker.metrics_url is not None
    request = urllib.request.Request(broker.metrics_url + path, headers={"Accept": accept} if accept else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode(), response.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers["Content-Type"]


def series(broker: Broker) -> dict[str, float]:
    """Return every series by name and labels."""
    status, text, _ = get(broker, "/metrics")
    assert status == 200
    rows = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


def test_requests_are_counted_where_their_time_went(broker: Broker) -> None:
    """Requests, versions, errors, bytes and times are counted by API, and for FetchConsumer; acks=0 has no errors."""
    with wire.Connection(broker.bootstrap_servers) as client:
        client.ask(wire.create_topic("t", 1))
        for _ in range(3):
            client.ask(wire.produce("t", 0, wire.batch([b"value"])))
        client.ask(wire.produce("none", 0, wire.batch([b"value"])))
        client.send(wire.produce("t", 0, wire.batch([b"value"]), acks=0))
        client.ask(wire.fetch("t", max_wait_ms=200, min_bytes=1_000_000))
        client.ask(wire.list_offsets("t", 0, -1))
        wait_for(
            "everything is counted",
            lambda: series(broker).get('kafka_network_request_requests_total{request="ListOffsets",version="1"}') == 1,
        )
    found = series(broker)
    name = "kafka_network_request_"
    assert found[name + 'requests_total{request="Produce",version="7"}'] == 5
    assert found[name + 'errors_total{error="NONE",request="Produce"}'] == 3
    assert found[name + 'errors_total{error="UNKNOWN_TOPIC_OR_PARTITION",request="Produce"}'] == 1
    # the error code of the response and that of the partition
    assert found[name + 'errors_total{error="NONE",request="Fetch"}'] == 2
    assert found[name + 'errors_total{error="NONE",request="CreateTopics"}'] == 1
    assert found[name + 'request_bytes_total{request="Produce"}'] > 5 * 70
    for api in ("Fetch", "FetchConsumer"):
        assert found[name + f'total_time_ms_count{{request="{api}"}}'] == 1
        assert 150 < found[name + f'remote_time_ms_sum{{request="{api}"}}'] < 5000
        assert found[name + f'remote_time_ms_bucket{{le="100",request="{api}"}}'] == 0
        assert found[name + f'remote_time_ms_bucket{{le="10000",request="{api}"}}'] == 1
    total = found[name + 'total_time_ms_sum{request="Produce"}']
    parts = ("request_queue_time_ms", "local_time_ms", "remote_time_ms", "response_queue_time_ms",
             "response_send_time_ms")  # fmt: skip
    assert total == pytest.approx(sum(found[f'{name}{part}_sum{{request="Produce"}}'] for part in parts), abs=0.1)


def test_time_of_conversions(broker: Broker) -> None:
    """The time of conversions is counted for batches that are rebuilt in the topic's codec, as a part of local time."""
    name = 'kafka_network_request_{}{{request="Produce"}}'
    with wire.Connection(broker.bootstrap_servers) as client:
        client.ask(wire.create_topic("t", 1))
        made = codec.encode_request_frame(
            19, 2, 7, "raw", {"Topics": [PACKED], "timeoutMs": 10_000, "validateOnly": False}
        )
        client.ask(made[4:])
        client.ask(wire.produce("t", 0, wire.batch([b"value"])))
        assert not [name for name in series(broker) if "message_conversions" in name and "Produce" in name]
        for _ in range(2):
            client.ask(wire.produce("packed", 0, wire.batch([b"value" * 100])))
        wait_for("every Produce is counted", lambda: series(broker).get(name.format("total_time_ms_count")) == 3)
        found = series(broker)
    assert found[name.format("message_conversions_time_ms_count")] == 2
    assert 0 < found[name.format("message_conversions_time_ms_sum")] <= found[name.format("local_time_ms_sum")]
    assert found[name.format("total_time_ms_count")] == 3


def test_an_accept_header_that_makes_no_sense(broker: Broker) -> None:
    """An invalid Accept header receives the same response as an empty one."""
    status, text, kind = get(broker, "/metrics", "application/openmetrics-text;version=x")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert "kafka_" in text


def test_state_of_the_parts(broker: Broker) -> None:
    """Connections, idle ratios, queues, memory and logs have metrics; series per topic are limited."""
    with wire.Connection(broker.bootstrap_servers) as client, wire.Connection(broker.bootstrap_servers) as waiting:
        client.ask(wire.create_topic("t", 5))
        for partition in range(5):
            for _ in range(partition):
                client.ask(wire.produce("t", partition, wire.batch([b"value"])))
        waiting.send(wire.fetch("t", max_wait_ms=60_000, min_bytes=1_000_000))
        wait_for("the fetch waits", lambda: broker.waiting_fetches == 1)
        found = series(broker)
    connections = [value for name, value in found.items() if name.startswith("kafka_socket_server_connection_count{")]
    assert sum(connections) == 2
    assert found['kafka_server_delayed_operation_purgatory_num_delayed_operations{delayed_operation="Fetch"}'] == 1
    assert found['kafka_server_delayed_operation_purgatory_purgatory_size{delayed_operation="Produce"}'] == 0
    assert 0 <= found["kafka_network_socket_server_network_processor_avg_idle_percent"] <= 1
    assert 0 <= found["kafka_server_kafka_request_handler_pool_request_handler_avg_idle_percent"] <= 1
    assert found["kafka_network_request_channel_request_queue_size"] == 0
    used = found["kafka_network_socket_server_memory_pool_used"]
    assert used + found["kafka_network_socket_server_memory_pool_available"] == 1000
    assert found["kafka_socket_server_memory_pool_depleted_time_ms_total"] == 0
    ends = {name: value for name, value in found.items() if name.startswith("kafka_log_log_log_end_offset{")}
    assert ends == {
        'kafka_log_log_log_end_offset{partition="4",topic="t"}': 4,
        'kafka_log_log_log_end_offset{partition="3",topic="t"}': 3,
        'kafka_log_log_log_end_offset{partition="2",topic="t"}': 2,
        'kafka_log_log_log_end_offset{partition="other",topic="other"}': 1,
    }
    assert found["kbroker_logs_size_bytes"] > 0
    assert found["kafka_server_replica_manager_partition_count"] == 5
    assert found["process_resident_memory_bytes"] > 1e6


def software(broker: Broker) -> dict[tuple[str, str], float]:
    """Return the open connections by client software in the metrics."""
    found: dict[tuple[str, str], float] = {}
    for name, value in series(broker).items():
        if name.startswith("kafka_socket_server_connections{"):
            labels = dict(part.split("=") for part in name[name.index("{") + 1 : -1].split(","))
            key = (labels["client_software_name"].strip('"'), labels["client_software_version"].strip('"'))
            found[key] = found.get(key, 0) + value
    return found


def announce(client: wire.Connection, name: str, version: str) -> int:
    """Send ApiVersions 3; return the error code."""
    body = {"ClientSoftwareName": name, "ClientSoftwareVersion": version}
    response = client.ask(codec.encode_request_frame(18, 3, 7, "raw", body)[4:])
    return int(codec.decode_response_frame(18, 3, bytearray(response))[1]["ErrorCode"])


def test_connections_by_software(broker: Broker) -> None:
    """A connection is counted by the client software that its last valid ApiVersions request had.

    The two names are the same text, split at another position. A connection is counted anew when its response has been
    sent.
    """
    with wire.Connection(broker.bootstrap_servers) as one, wire.Connection(broker.bootstrap_servers) as other:
        wait_for("both connections are counted", lambda: software(broker) == {("unknown", "unknown"): 2})
        assert announce(one, "librdkafka", "210.0") == 0
        assert announce(other, "librdkafka", "210.0") == 0
        wait_for("both are counted by their software", lambda: software(broker) == {("librdkafka", "210.0"): 2})
        assert announce(other, "no name", "1") == Errors.INVALID_REQUEST
        assert announce(other, "librdkafka", "210.0") == 0
        wait_for("the count has not changed", lambda: software(broker) == {("librdkafka", "210.0"): 2})
        assert announce(other, "librdkafka2", "10.0") == 0
        wait_for(
            "both are counted", lambda: software(broker) == {("librdkafka", "210.0"): 1, ("librdkafka2", "10.0"): 1}
        )
    wait_for("no connection is counted", lambda: software(broker) == {})


def announced(broker: Broker) -> set[str]:
    """Return the names of all clients' software, without a limit."""
    return {name for p in broker.parts.server.processors for name, _ in p.client_software()}


def test_software_that_clients_make_up_is_bounded(broker: Broker) -> None:
    """The metrics show the software of most connections by name, and the others together."""
    clients = [wire.Connection(broker.bootstrap_servers) for _ in range(100)]
    try:
        for i, client in enumerate(clients):
            for again in range(20):
                assert announce(client, f"made-up-{i}-{again}", "1") == 0
        made_up = {f"made-up-{i}-19" for i in range(len(clients))}
        wait_for("the last names are known", lambda: announced(broker) == made_up)
        found = software(broker)
        assert sum(found.values()) == 100
        assert len(found) == 4
        assert found["other", "other"] == 97
    finally:
        for client in clients:
            client.close()
    wait_for("the clients are disconnected", lambda: software(broker) == {})


def test_responses_that_wait_for_a_network_thread() -> None:
    """The responses between handlers and network threads are counted by thread and in total, and return to 0."""
    with Broker(CONFIG) as broker, wire.Connection(broker.bootstrap_servers) as client:
        server = broker.parts.server
        seen: set[float] = set()
        while not (seen - {0}):
            for _ in range(200):
                client.send(wire.header(18, 0, 1))
            for _ in range(200):
                client.receive()
                seen.update(processor.counters()["responses_queued"] for processor in server.processors)
        found = series(broker)
        numbers = ("", *range(len(server.processors)))
    name = "kafka_network_request_channel_response_queue_size"
    assert {key: value for key, value in found.items() if key.startswith(name)} == {
        f'{name}{{processor="{number}"}}': 0 for number in numbers
    }
    assert min(seen) == 0


def test_memory_pool_that_runs_dry(broker: Broker) -> None:
    """The depletion sensors record how long requests waited for memory."""
    big = wire.produce("t", 0, b"x" * 800)
    with wire.Connection(broker.bootstrap_servers) as first, wire.Connection(broker.bootstrap_servers) as second:
        first.send_raw(struct.pack(">i", len(big)) + big[:-1])
        wait_for("the first holds memory", lambda: series(broker)["kafka_network_socket_server_memory_pool_used"] > 800)
        second.send_raw(struct.pack(">i", len(big)) + big[:-1])
        wait_for("both hold memory", lambda: series(broker)["kafka_network_socket_server_memory_pool_available"] < 0)
        with wire.Connection(broker.bootstrap_servers) as third:
            third.send(wire.list_offsets("t", 0, -1))
            wait_for(
                "the third waits",
                lambda: sum(v for n, v in series(broker).items() if n.startswith("kbroker_network_memory_mutes")) == 1,
            )
            first.send_raw(big[-1:])
            second.send_raw(big[-1:])
            assert third.receive()
    found = series(broker)
    assert found["kafka_socket_server_memory_pool_depleted_time_ms_total"] > 0
    assert 0 < found["kafka_socket_server_memory_pool_avg_depleted_percent"] <= 1
    wait_for("all memory is released", lambda: series(broker)["kafka_network_socket_server_memory_pool_used"] == 0)


def test_health_readiness_and_other_paths(broker: Broker) -> None:
    """/health, /ready and OpenMetrics are served; other paths and methods are refused."""
    assert get(broker, "/health")[:2] == (200, "ok\n")
    assert get(broker, "/ready")[:2] == (200, "ready\n")
    assert get(broker, "/metrics")[2].startswith("text/plain; version=")
    status, text, kind = get(broker, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert (status, kind.startswith("application/openmetrics-text")) == (200, True)
    assert text.endswith("# EOF\n")
    assert get(broker, "/")[0] == 404
    assert broker.metrics_url is not None
    post = urllib.request.Request(broker.metrics_url + "/metrics", data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="405") as caught:
        urllib.request.urlopen(post, timeout=10)
    caught.value.close()


def test_port_is_closed_with_the_broker() -> None:
    """The port is closed by default and with the broker; a port in use is named."""
    with Broker() as broker:
        assert broker.metrics_url is None
    with Broker(CONFIG) as broker:
        assert broker.metrics_url is not None
        port = int(broker.metrics_url.rpartition(":")[2])
        with pytest.raises(BrokerStartError, match=f"cannot listen on 127.0.0.1:{port}"):
            Broker({**CONFIG, "kbroker.metrics.listener": f"127.0.0.1:{port}"}).start()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_clients_find_the_port_over_kafkas_protocol() -> None:
    """DescribeConfigs has the bound address and the configured value; without a port, an error says so."""
    with Broker(CONFIG) as broker, Cluster(broker.bootstrap_servers) as cluster:
        assert find_http_port(cluster) == broker.metrics_url
        entry = Admin(cluster).describe_configs(
            ConfigResourceType.BROKER, str(broker.config.node_id), ["kbroker.metrics.listener"], include_synonyms=True
        )[0]
        assert (f"http://{entry.value}", entry.read_only) == (broker.metrics_url, True)
        assert [synonym.value for synonym in entry.synonyms] == ["127.0.0.1:0", ""]
        with pytest.raises(NoSuchPathError, match="there are /metrics, /health"):
            HttpPort(find_http_port(cluster)).get("/nothing")
    with Broker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        with pytest.raises(HttpPortError, match=r"has no HTTP port: start it with kbroker\.metrics\.listener"):
            find_http_port(cluster)
        with pytest.raises(HttpPortError, match="no broker 7"):
            find_http_port(cluster, 7)


def test_address_of_the_port() -> None:
    """An address is host:port or a port; other values are refused."""
    for good in ("9400", "0.0.0.0:1", "[::1]:0"):
        BrokerConfig({"kbroker.metrics.listener": good})
    for wrong in ("host", "host:", ":80", "1:70000", "a:b"):
        with pytest.raises(ConfigError, match=r"kbroker\.metrics\.listener"):
            BrokerConfig({"kbroker.metrics.listener": wrong})


def test_a_thousand_connections_take_nothing_for_good(broker: Broker) -> None:
    """A thousand silent or incomplete connections do not block the health page and are closed."""
    assert broker.metrics_url is not None
    host, _, port = broker.metrics_url.removeprefix("http://").partition(":")
    said = (b"", b"GET /metr", b"GET /metrics HTTP/1.0\r\n\r\n", b"GET /ready HTTP/1.0\r\n\r\n", b"\0\xff" * 40)
    with need.open_files(2500), contextlib.ExitStack() as crowd:
        for number in range(1000):
            one = crowd.enter_context(socket.create_connection((host, int(port)), 20))
            with contextlib.suppress(OSError):  # the connection may be closed already, in favour of another
                one.sendall(said[number % len(said)])
            if number % 100 == 0:
                assert get(broker, "/health")[0] == 200
        assert get(broker, "/ready")[0] == 200
        assert get(broker, "/metrics")[0] == 200
    wait_for("all threads have ended", lambda: "metrics-request" not in [t.name for t in threading.enumerate()])
    assert get(broker, "/health")[0] == 200
