"""X-ray of a running broker: connections, purgatories, memory, threads, requests; exact on a virtual clock."""

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.client.http_port import HttpPort, HttpPortError
from kbroker.observe.thread_times import Look, Looks
from kbroker.testing import VirtualBroker
from tests.support import need, wire
from tests.support.broker import wait_for
from tests.support.client import Client, join_body
from tests.support.fixtures import fixture_of
from tests.support.throttling import FETCH, SETTINGS, fill
from tests.support.wire import Connection, create_topic

REAL = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "kbroker.in.memory": True,
    "kbroker.metrics.listener": "127.0.0.1:0",
    "queued.max.request.bytes": 2000,
    "socket.request.max.bytes": 1500,
}
broker = fixture_of(VirtualBroker, SETTINGS, topics={"t": 2})


def connection_of(found: dict[str, Any], client_id: str) -> dict[str, Any]:
    (one,) = [c for c in found["connections"]["shown"] if c["client_id"] == client_id]
    assert isinstance(one, dict)
    return one


def purgatory_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [p for p in found["purgatories"] if p["name"] == name]
    assert isinstance(one, dict)
    return one


def test_a_throttled_connection_with_its_quota_and_the_time_left(broker: VirtualBroker) -> None:
    """A throttled connection has its quota type and the exact time left, until the throttle ends."""
    fill(broker, 5000)
    broker.context.quotas.update(None, "slow", FETCH, 501)
    with Client(broker.bootstrap_servers, "slow") as slow, Client(broker.bootstrap_servers, "other") as other:
        other.call("ApiVersions", 0, {})
        slow.fetch("t")
        throttle_ms = slow.end()["ThrottleTimeMs"]
        assert throttle_ms > 100
        wait_for("the channel is muted", lambda: "throttled" in connection_of(broker.xray(), "slow")["muted"])
        broker.advance_ms(40)
        found = broker.xray()
        facts = connection_of(found, "slow")
        assert (facts["muted"], facts["throttled_by"]) == (["throttled"], "Fetch")
        assert facts["throttle_left_ms"] == throttle_ms - 40
        assert facts["mute_state"] == "MUTED_AND_THROTTLED"
        assert facts["idle_ms"] == 40.0
        assert found["connections"]["shown"][0] is facts, "what is muted comes first"
        assert found["connections"]["muted"]["throttled"] == 1
        (client,) = [c for c in found["clients"]["shown"] if c["client_id"] == "slow"]
        assert (client["connections"], client["throttled"], client["throttle_left_ms"]) == (1, 1, throttle_ms - 40)
        assert (client["requests"], client["principal"]) == (1, "User:ANONYMOUS")
        assert connection_of(found, "other")["muted"] == []
        broker.advance_ms(throttle_ms - 40)
        wait_for("the throttle is over", lambda: connection_of(broker.xray(), "slow")["muted"] == [])
        assert connection_of(broker.xray(), "slow")["throttle_left_ms"] is None
        json.dumps(found, allow_nan=False)


def test_the_longest_of_a_clients_throttles(broker: VirtualBroker) -> None:
    """A client is shown with the longest throttle of its connections, which are sorted by the time left.

    Throttled connections come before a connection whose request has waited longer.
    """
    fill(broker, 5000)
    address = broker.bootstrap_servers
    with Client(address, "waiting") as waiting, Client(address, "slow") as one, Client(address, "slow") as other:
        waiting.call("ApiVersions", 0, {})
        waiting.fetch("t", offset=1, max_wait_ms=60_000)
        wait_for("the fetch waits", lambda: broker.waiting_fetches == 1)
        throttles = []
        for client, limit in ((one, 501), (other, 509)):
            broker.context.quotas.update(None, "slow", FETCH, limit)
            client.fetch("t")
            throttles.append(client.end()["ThrottleTimeMs"])
            broker.advance_ms(10)
        left = [throttles[0] - 20, throttles[1] - 10]
        assert left[0] > left[1] > 0
        wait_for("both connections are muted", lambda: broker.xray()["connections"]["muted"]["throttled"] == 2)
        found = broker.xray()
        shown = [c["throttle_left_ms"] for c in found["connections"]["shown"] if c["client_id"] == "slow"]
        assert shown == sorted(left, reverse=True)
        assert [c["client_id"] for c in found["connections"]["shown"][:3]] == ["slow", "slow", "waiting"]
        (client,) = [c for c in found["clients"]["shown"] if c["client_id"] == "slow"]
        assert (client["connections"], client["throttled"], client["throttle_left_ms"]) == (2, 2, max(left))


def test_a_client_that_does_not_read_its_response() -> None:
    """Bytes that do not fit the socket are shown as unsent, until the client reads them."""
    sizes = {"queued.max.request.bytes": -1, "socket.request.max.bytes": 64 << 20, "message.max.bytes": 32 << 20}
    with Broker({**REAL, **sizes}) as broker:
        with Connection(broker.bootstrap_servers) as admin:
            admin.ask(create_topic("large", 1))
        with Client(broker.bootstrap_servers, "deaf") as deaf:
            size = 16 << 20
            deaf.produce("large", size)
            assert deaf.end()["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0
            wait_for("the client's id is known", lambda: connection_of(broker.xray(), "deaf")["muted"] == [])
            deaf.fetch("large", max_bytes=64 << 20, partition_max_bytes=64 << 20)
            unsent = "response_unsent"
            wait_for("the client's socket is full", lambda: unsent in connection_of(broker.xray(), "deaf")["muted"])
            facts = connection_of(broker.xray(), "deaf")
            assert size <= facts["unsent_bytes"] < size + 1000
            assert broker.xray()["connections"]["muted"][unsent] == 1
            deaf.end()
            wait_for("the response is sent", lambda: connection_of(broker.xray(), "deaf")["muted"] == [])
            assert connection_of(broker.xray(), "deaf")["unsent_bytes"] == 0


def test_a_login_that_has_failed_and_the_time_until_it_knows() -> None:
    """A failed login has the exact time until its delayed response."""
    settings = {
        **SETTINGS,
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="right";'
        ),
        "connection.failed.authentication.delay.ms": "7000",
    }
    with VirtualBroker(settings) as broker, Client(broker.bootstrap_servers) as client:
        assert client.call("SaslHandshake", 1, {"Mechanism": "PLAIN"})["ErrorCode"] == 0
        client.begin("SaslAuthenticate", 1, {"AuthBytes": b"\0a\0wrong"})
        refused = "refusal_delayed"
        wait_for("the login has failed", lambda: broker.xray()["connections"]["muted"][refused] == 1)
        broker.advance_ms(2500)
        (facts,) = broker.xray()["connections"]["shown"]
        assert facts["muted"] == [refused, "batch_in_flight"]
        assert (facts["stage"], facts["refusal_left_ms"]) == ("authentication", 4500)
        assert facts["throttle_left_ms"] is None
        broker.advance_ms(4500)
        assert client.end()["ErrorCode"] == 58
        wait_for("the connection is closed", lambda: broker.xray()["connections"]["open"] == 0)


def test_delayed_fetches_with_keys_age_and_whose_they_are(broker: VirtualBroker) -> None:
    with Client(broker.bootstrap_servers, "reader") as reader:
        reader.call("ApiVersions", 0, {})
        reader.fetch("t", max_wait_ms=500)
        wait_for("the fetch waits", lambda: broker.waiting_fetches == 1)
        broker.advance_ms(120)
        found = broker.xray()
        fetches = purgatory_of(found, "Fetch")
        (waiting,) = fetches["operations"]
        facts = connection_of(found, "reader")
        assert waiting == {
            "operation": "DelayedFetch",
            "keys": [["t", 0]],
            "key_count": 1,
            "timeout_ms": 500,
            "age_ms": 120,
            "time_left_ms": 380,
            "min_bytes": 1,
            "connection": facts["connection"],
            "client_id": "reader",
        }
        assert (fetches["delayed"], fetches["is_truncated"]) == (1, False)
        assert (facts["muted"], facts["in_flight"], facts["in_flight_ms"]) == (["batch_in_flight"], 1, 120.0)
        broker.advance_ms(380)
        assert reader.end()["ErrorCode"] == 0
        assert purgatory_of(broker.xray(), "Fetch")["operations"] == []


def test_members_of_groups_that_wait(broker: VirtualBroker) -> None:
    """Operations in the Python purgatories are shown with the group's id."""
    with Client(broker.bootstrap_servers, "member") as member:
        member.begin("JoinGroup", 2, {**join_body("a-group", 10_000), "RebalanceTimeoutMs": 5000})
        wait_for(
            "the join waits",
            lambda: any(p["operations"] for p in broker.xray()["purgatories"] if p["name"] == "Rebalance"),
        )
        assert member.end()["ErrorCode"] == 0
        broker.advance_ms(300)
        (waiting,) = purgatory_of(broker.xray(), "Rebalance")["operations"]
        assert waiting["operation"] == "DelayedSync"
        assert "a-group" in waiting["keys"][0]
        assert (waiting["age_ms"], waiting["timeout_ms"], waiting["time_left_ms"]) == (300, 5000, 4700)
        (heartbeat,) = purgatory_of(broker.xray(), "Heartbeat")["operations"]
        assert (heartbeat["operation"], heartbeat["time_left_ms"]) == ("DelayedHeartbeat", 9700)


def test_requests_with_their_time_line(broker: VirtualBroker) -> None:
    """Finished requests are listed from the first X-ray on; the slowest ones always, without the wait of a fetch."""
    with Client(broker.bootstrap_servers, "worker") as worker:
        worker.fetch("t", max_wait_ms=700)
        wait_for("the fetch waits", lambda: broker.waiting_fetches == 1)
        broker.advance_ms(700)
        assert worker.end()["ErrorCode"] == 0
        slowest = broker.xray()["requests"]["slowest"]
        (fetch,) = [r for r in slowest if r["api"] == "Fetch"]
        assert (fetch["remote_ms"], fetch["total_ms"], fetch["local_ms"]) == (700.0, 700.0, 0.0)
        assert (fetch["client_id"], fetch["error_code"]) == ("worker", 0)
        assert broker.xray()["requests"]["latest"] == []
        worker.call("ListOffsets", 1, {"ReplicaId": -1, "Topics": []})
        wait_for("the request is over", lambda: broker.xray()["requests"]["latest"] != [])
        latest = broker.xray()["requests"]["latest"][0]
        facts = connection_of(broker.xray(), "worker")
        assert (latest["api"], latest["connection"]) == ("ListOffsets", facts["connection"])
        broker.advance_ms(31_000)
        assert broker.xray()["requests"]["latest"] == [], "too old to be the latest"
        broker.advance_ms(120_000)
        assert broker.xray()["requests"]["slowest"] == []


def test_memory_of_the_pool_by_connection() -> None:
    """The memory of a frame belongs to its connection until it is released; a connection without memory is muted."""
    with Broker(REAL) as broker:
        first, second = (socket.create_connection(address_of(broker)) for _ in range(2))
        with first, second:
            for one in (first, second):
                one.sendall(struct.pack(">i", 1400) + b"abc")
            wait_for("two frames are begun", lambda: (broker.xray()["memory_pool"] or {})["connections_bytes"] == 2800)
            pool = broker.xray()["memory_pool"]
            assert (pool["size_bytes"], pool["available_bytes"], pool["is_out_of_memory"]) == (2000, -800, True)
            shown = broker.xray()["connections"]["shown"]
            assert [(c["memory_pool_bytes"], c["frame_bytes"], c["frame_arrived_bytes"]) for c in shown] == [
                (1400, 1400, 3)
            ] * 2
            with socket.create_connection(address_of(broker)) as third:
                third.sendall(struct.pack(">i", 100) + b"abc")
                wait_for(
                    "the third waits for memory", lambda: broker.xray()["connections"]["muted"]["memory_pool"] == 1
                )
                assert broker.xray()["connections"]["shown"][0]["muted"] == ["memory_pool"]
        wait_for("all memory is released", lambda: (broker.xray()["memory_pool"] or {})["connections_bytes"] == 0)
        assert broker.xray()["memory_pool"]["available_bytes"] == 2000
        with Client(broker.bootstrap_servers) as client:
            for _ in range(100):
                client.call("ApiVersions", 0, {})
        wait_for("released", lambda: broker.xray()["memory_pool"]["available_bytes"] == 2000)
        assert broker.xray()["memory_pool"]["connections_bytes"] == 0


def address_of(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host, int(port)


def test_threads_queues_and_the_route() -> None:
    with Broker(REAL) as broker:
        assert broker.metrics_url is not None
        port = HttpPort(broker.metrics_url)
        found = port.get("/xray")
        assert found["connections"]["open"] == 0
        assert [queue["name"] for queue in found["queues"]] == ["requests", "python_requests", "responses"]
        requests = found["queues"][0]
        assert (requests["depth"], requests["capacity"], requests["takers"]) == (0, 500, 8)
        assert [thread["answer"] for thread in found["network_threads"]] == ["ok"] * len(found["network_threads"])
        names = [thread["name"] for thread in found["threads"]]
        assert any("network-thread" in name for name in names)
        assert any("request-handler" in name for name in names)
        assert "metrics-request" in names  # the one that responds
        for wrong in ("limit=0", "limit=10001", "limit=x", "depth=3"):
            with pytest.raises(HttpPortError, match="400"):
                port.get(f"/xray?{wrong}")
        with pytest.raises(ValueError, match="limit must be 1 to 10000"):
            broker.xray(0)
    with pytest.raises(RuntimeError, match="does not run"):
        broker.xray()


def test_shares_are_of_the_time_between_two_looks() -> None:
    looks = Looks()
    second = 1_000_000_000
    assert looks.shares(Look(0, {"a": (0, 0)})) == ({}, None)
    assert looks.shares(Look(second // 10, {"a": (second // 20, 0)})) == ({"a": (0.5, 0.0)}, 100.0)
    shares, window_ms = looks.shares(Look(second, {"a": (second // 2, second // 4), "new": (5, 5)}))
    assert (shares, window_ms) == ({"a": (0.5, 0.2777777777777778)}, 900.0), "of the newest that is old enough"
    assert looks.shares(Look(second, {}))[0] == {}


def test_hostile_names_are_text(broker: VirtualBroker) -> None:
    name = "\x1b[2Jgone\u202e<script>"
    with Client(broker.bootstrap_servers, name) as client:
        client.call("ApiVersions", 0, {})
        wait_for("the request is over", lambda: connection_of(broker.xray(), name)["requests"] == 1)
        assert json.dumps(broker.xray()).isascii()
    with Client(broker.bootstrap_servers, "x" * 5000) as client:
        client.call("ApiVersions", 0, {})
        wait_for("a long client id is cut", lambda: connection_of(broker.xray(), "x" * 64)["requests"] == 1)


def test_looks_while_connections_come_and_go_and_the_broker_stops() -> None:
    """X-rays of a broker under load succeed, and do not delay its stop."""
    with Broker(REAL) as broker:
        over = threading.Event()
        failures: list[BaseException] = []
        looks = [0]

        def look() -> None:
            while not over.is_set():
                try:
                    broker.xray(1000)
                    looks[0] += 1
                except RuntimeError:
                    return
                except BaseException as error:
                    failures.append(error)
                    return

        lookers = [threading.Thread(target=look) for _ in range(2)]
        for looker in lookers:
            looker.start()
        try:
            for _ in range(300):
                assert wire.responses(broker.bootstrap_servers, within=10)
            started = time.monotonic()
            broker.stop()
            assert time.monotonic() - started < 10
        finally:
            over.set()
            for looker in lookers:
                looker.join(20)
        assert failures == []
        assert looks[0] > 10


READERS = """
import sys
from tests.support.client import Client
readers = [Client(sys.argv[1], f"client-{number % 100}") for number in range(10_000)]
for reader in readers:
    reader.fetch("t", max_wait_ms=300_000)
print("all sent", flush=True)
sys.stdin.read()
"""


@pytest.mark.soak
def test_ten_thousand_connections_and_waiting_fetches() -> None:
    """An X-ray of 10,000 connections takes a bounded time, shows as many as requested, and counts all."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "kbroker.in.memory": True, "num.network.threads": 1}
    with need.open_files(12_000), Broker(settings) as broker:
        with Connection(broker.bootstrap_servers) as admin:
            admin.ask(create_topic("t", 2))
        command = [sys.executable, "-c", READERS, broker.bootstrap_servers]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as readers:
            assert readers.stdout is not None
            assert readers.stdout.readline() == b"all sent\n"
            wait_for("all fetches wait", lambda: broker.waiting_fetches == 10_000, 60)
            _look_at_ten_thousand(broker)
            readers.communicate()


def _look_at_ten_thousand(broker: Broker) -> None:
    times = []
    for limit in (100, 100, 100, 10_000):
        started = time.perf_counter()
        found = broker.xray(limit)
        times.append(time.perf_counter() - started)
    print(f"\nlooks at 10,000 connections took {[f'{1000 * t:.1f} ms' for t in times]}, {found['took_ms']} ms the last")
    assert found["connections"]["open"] == 10_000
    assert found["connections"]["muted"]["batch_in_flight"] == 10_000
    assert len(found["connections"]["shown"]) == 10_000
    assert found["clients"]["count"] == 1, "no request is over: no client id is known"
    assert purgatory_of(found, "Fetch")["delayed"] == 10_000
    assert purgatory_of(found, "Fetch")["is_truncated"]
    assert max(times[:3]) < 1
    assert times[3] < 3
