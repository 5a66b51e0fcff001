"""Control port over HTTP: every route, wrong requests, access, and `kbroker serve` with a control port."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from kbroker.testing import ControlServer, EmbeddedBroker, EmbeddedCluster, VirtualBroker, wait_until
from tests.support import wire
from tests.support.client import librdkafka_producer, send_values

Served = tuple[VirtualBroker, ControlServer]
Json = dict[str, Any]


class Client:
    """Client of the control port, as a test in another language would write it."""

    def __init__(self, url: str, token: str) -> None:
        self.address = re.fullmatch(r"http://(.+):(\d+)", url).groups()
        self.token = token

    def __call__(
        self, method: str, path: str, body: bytes | Json | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Json]:
        """Return the status and the decoded response."""
        raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        status, response = self.raw(method, path, raw, {"Authorization": f"Bearer {self.token}", **(headers or {})})
        return status, json.loads(response)

    def raw(self, method: str, path: str, raw: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(self.address[0].strip("[]"), int(self.address[1]), timeout=20)) as one:
            one.request(method, path, raw, headers)
            response = one.getresponse()
            return response.status, response.read()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Broker with snapshots and a virtual clock, and its control port."""
    with VirtualBroker(snapshots=True) as broker, ControlServer(broker) as control:
        yield broker, control


@pytest.fixture
def broker(served: Served) -> VirtualBroker:
    return served[0]


@pytest.fixture
def call(served: Served) -> Client:
    return Client(served[1].url, served[1].token)


def produce(broker: EmbeddedBroker, topic: str) -> None:
    send_values(librdkafka_producer(broker.bootstrap_servers), b"x", topic=topic)


def test_what_the_broker_is(broker: VirtualBroker, call: Client) -> None:
    """The root has the address, the cluster id and the clock of the broker."""
    status, response = call("GET", "/")
    assert (status, response["bootstrap_servers"], response["cluster_id"]) == (
        200,
        broker.bootstrap_servers,
        broker.cluster_id,
    )
    assert response["clock"] == {"virtual": True, "now_ms": broker.now_ms}


def test_topics(call: Client) -> None:
    """Topics can be created with partitions and configs, listed and deleted; errors have Kafka's names."""
    assert call("POST", "/topics", {"name": "t", "partitions": 3, "configs": {"retention.ms": 5}}) == (
        200,
        {"name": "t", "partitions": 3},
    )
    assert {"name": "t", "partitions": 3} in call("GET", "/topics")[1]["topics"]
    status, response = call("POST", "/topics", {"name": "t"})
    assert (status, response["code"]) == (409, "TOPIC_ALREADY_EXISTS")
    assert call("POST", "/topics", {"name": "default", "partitions": -1}) == (200, {"name": "default", "partitions": 1})
    assert call("POST", "/topics", {"name": "u", "configs": {"no.such": "1"}})[1]["code"] == "INVALID_CONFIG"
    assert call("DELETE", "/topics/t") == (200, {})
    assert call("DELETE", "/topics/t")[1]["code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_faults(broker: VirtualBroker, call: Client) -> None:
    """Faults can be added, waited for, listed with their hits and removed; a client retries the two refusals."""
    call("POST", "/topics", {"name": "f"})
    rule = {"keys": ["produce"], "topic": "f", "error": "NOT_LEADER_OR_FOLLOWER", "count": 2}
    status, response = call(
        "POST", "/faults", {"rules": [rule, {"keys": [1], "drop": True, "count": -1, "topic": "no"}]}
    )
    first, second = response["ids"]
    assert status == 200
    thread = threading.Thread(target=produce, args=(broker, "f"))
    thread.start()
    assert call("POST", f"/faults/{first}/wait", {"hits": 2, "timeout_ms": 20_000}) == (200, {"hits": 2})
    thread.join()
    listed = {fault["id"]: fault for fault in call("GET", "/faults")[1]["faults"]}
    assert listed[first] == {
        "id": first, "hits": 2, "left": 0, "action": "NOT_LEADER_OR_FOLLOWER", "keys": [0],
        "topic": "f", "client_id": None,
    }  # fmt: skip
    assert (listed[second]["left"], listed[second]["action"]) == (-1, "drop")
    assert call("DELETE", f"/faults/{first}") == (200, {"removed": 1})
    assert call("DELETE", f"/faults/{first}") == (404, {"error": f"there is no fault {first}"})
    assert call("DELETE", "/faults") == (200, {"removed": 1})
    assert broker.faults.all() == []


def test_a_lost_response(broker: VirtualBroker, call: Client) -> None:
    """With a lost response, the request is executed and the connection closed, so that the client sends it again."""
    call("POST", "/topics", {"name": "lost"})
    rule = {"keys": ["produce"], "topic": "lost", "disconnect": True, "execute": True}
    (number,) = call("POST", "/faults", {"rules": [rule]})[1]["ids"]
    produce(broker, "lost")
    (listed,) = [fault for fault in call("GET", "/faults")[1]["faults"] if fault["id"] == number]
    assert (listed["action"], listed["hits"]) == ("execute then disconnect", 1)
    assert len(broker.records("lost")) == 2
    call("DELETE", "/faults")


def test_waiting_for_what_never_comes(call: Client) -> None:
    """A wait that reaches its timeout ends with status 408 and the number of hits."""
    (number,) = call("POST", "/faults", {"rules": [{"drop": True, "topic": "unused"}]})[1]["ids"]
    status, response = call("POST", f"/faults/{number}/wait", {"timeout_ms": 1})
    assert (status, "0 hits of 1" in response["error"]) == (408, True)
    assert call("POST", f"/faults/{number}/wait", {"hits": 0, "timeout_ms": 10**400}) == (200, {"hits": 0})
    call("DELETE", "/faults")


def test_a_bad_rule_installs_none(broker: VirtualBroker, call: Client) -> None:
    """If one of several faults is invalid, none is added."""
    status, response = call("POST", "/faults", {"rules": [{"drop": True}, {"error": "NO_SUCH"}]})
    assert (status, response) == (
        400,
        {"error": "expected the name or number of an error, got 'NO_SUCH'", "usage": True},
    )
    assert broker.faults.all() == []


def test_time(broker: VirtualBroker, call: Client) -> None:
    """The clock moves by the given time, and the response has the new time."""
    before = broker.now_ms
    assert call("POST", "/clock/advance", {"ms": 1500}) == (200, {"now_ms": before + 1500})


def test_state(broker: VirtualBroker, call: Client) -> None:
    """A restore deletes topics that were created after the snapshot, and keeps the address."""
    status, response = call("POST", "/snapshots")
    number = response["id"]
    assert (status, number in call("GET", "/snapshots")[1]["snapshots"]) == (200, True)
    call("POST", "/topics", {"name": "later"})
    assert call("POST", f"/snapshots/{number}/restore") == (200, {"bootstrap_servers": broker.bootstrap_servers})
    assert "later" not in broker.topics
    assert call("DELETE", f"/snapshots/{number}") == (200, {"removed": 1})
    assert call("POST", f"/snapshots/{number}/restore") == (404, {"error": f"there is no snapshot {number}"})


# ---------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic {token}"},
        {"Authorization": "Bearer {token}x"},
        {"Authorization": "Bearer {token}", "skip": "first character"},
        {"Authorization": "Bearer \xe9"},
    ],
)
def test_without_the_token_nothing(broker: VirtualBroker, call: Client, headers: dict[str, str]) -> None:
    """A request without the right token is refused with status 401 and has no effect."""
    token = call.token[1:] if headers.get("skip") else call.token
    given = {"Authorization": headers["Authorization"].replace("{token}", token)} if headers else {}
    for method, path, body in (
        ("GET", "/", None),
        ("POST", "/topics", b'{"name": "evil"}'),
        ("POST", "/shutdown", b""),
    ):
        status, response = call.raw(method, path, body, given)
        assert (status, "token" in json.loads(response)["error"]) == (401, True)
    assert (broker.is_running, "evil" in broker.topics) == (True, False)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/nothing", None, 404, "there are: GET /,"),
        ("GET", "/topics/a/b/c", None, 404, "no such path"),
        ("PUT", "/topics", None, 501, "Unsupported method"),
        ("POST", "/", None, 405, "/ takes GET"),
        ("GET", "/faults/1/wait", None, 405, "takes POST"),
        ("POST", "/topics", b"{", 400, "expected JSON"),
        ("POST", "/topics", b"\xff\xfe\x00", 400, "expected JSON"),
        ("POST", "/topics", b"[" * 100_000, 400, "expected JSON"),
        ("POST", "/topics", b"[]", 400, "expected a JSON object"),
        ("POST", "/topics", {}, 400, "name is missing"),
        ("POST", "/topics", {"name": 5}, 400, "name must be a text, got 5"),
        ("POST", "/topics", {"name": "a", "partitions": True}, 400, "a whole number"),
        ("POST", "/topics", {"name": "a", "partition": 1}, 400, "unknown field 'partition'"),
        ("POST", "/topics", {"name": "a", "configs": {"retention.ms": []}}, 400, "object of texts"),
        ("POST", "/topics", {"name": "a/b"}, 409, "INVALID_TOPIC_EXCEPTION"),
        ("POST", "/topics", {"name": "a", "partitions": 0}, 409, "INVALID_PARTITIONS"),
        ("POST", "/faults", {"rules": []}, 400, "at least one"),
        ("POST", "/faults", {"rules": [1]}, 400, "must be an object"),
        ("POST", "/faults", {"rules": [{"keys": [None], "drop": True}]}, 400, "by its name or key"),
        ("POST", "/faults", {"rules": [{"kees": [0], "drop": True}]}, 400, "unknown field 'kees'; did you mean keys?"),
        ("POST", "/faults", {"rules": [{"drop": "yes"}]}, 400, "true or false"),
        ("DELETE", "/faults/x", None, 404, "no fault x"),
        ("POST", "/clock/advance", {}, 400, "ms is missing"),
        ("POST", "/clock/advance", {"ms": -1}, 400, "ms must be"),
        ("POST", "/clock/advance", {"ms": 10**30}, 400, "ms must be"),
        ("POST", "/snapshots/1e9/restore", None, 404, "no snapshot"),
        ("DELETE", "/snapshots/" + "9" * 5000, None, 404, "no snapshot"),
        ("POST", "/snapshots", {"folder": "/etc"}, 400, "unknown field"),
        ("DELETE", "/faults", {"id": 1}, 400, "unknown field 'id'"),
        ("POST", "/snapshots/1/restore", {"faults": True}, 400, "unknown field 'faults'"),
        ("POST", "/shutdown", {"after_ms": 1}, 400, "unknown field 'after_ms'"),
    ],
)
def test_wrong_requests(
    call: Client, method: str, path: str, body: bytes | Json | None, status: int, text: str
) -> None:
    """A wrong request is refused with its status and an error message, and the port continues to serve."""
    got, response = call(method, path, body)
    assert (got, text in response["error"]) == (status, True), response
    assert call("GET", "/")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": str(1 << 40)}, 413),
        ({"Content-Length": str((1 << 20) + 1)}, 413),
        ({"Content-Length": "9" * 5000}, 413),
        ({"Content-Length": "-1"}, 400),
        ({"Content-Length": "one"}, 400),
        ({"Transfer-Encoding": "chunked"}, 411),
    ],
)
def test_a_body_of_the_wrong_size(call: Client, headers: dict[str, str], status: int) -> None:
    """A body is refused by its declared length, before it is read."""
    lines = [f"{name}: {value}" for name, value in {"Authorization": f"Bearer {call.token}", **headers}.items()]
    with socket.create_connection((call.address[0], int(call.address[1])), timeout=20) as one:
        one.sendall("\r\n".join(["POST /topics HTTP/1.1", *lines, "", ""]).encode())
        response = one.makefile("rb").read()
    assert response.split(b" ", 2)[1] == str(status).encode()
    assert "error" in json.loads(response.partition(b"\r\n\r\n")[2])


def test_a_target_that_is_no_url(call: Client) -> None:
    """An invalid request target is refused with status 400."""
    with socket.create_connection((call.address[0], int(call.address[1])), timeout=20) as one:
        one.sendall(f"GET http://[::1/topics HTTP/1.1\r\nAuthorization: Bearer {call.token}\r\n\r\n".encode())
        response = one.makefile("rb").read()
    assert response.split(b" ", 2)[1] == b"400"
    assert "no such target" in json.loads(response.partition(b"\r\n\r\n")[2])["error"]


def test_a_client_that_says_nothing(call: Client) -> None:
    """A silent client does not block others, and an invalid request line receives an error in JSON."""
    with socket.create_connection((call.address[0], int(call.address[1])), timeout=20) as silent:
        assert call("GET", "/")[0] == 200
        silent.sendall(b"\x00\x01 nonsense\r\n\r\n")
        assert b'"error"' in silent.makefile("rb").read()


@pytest.mark.parametrize(
    "listener", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:0", "127.0.0.1", "127.0.0.1:x", ":0"]
)
def test_only_loopback(listener: str) -> None:
    """Only addresses of the loopback interface are accepted."""
    with pytest.raises(ValueError, match=r"loopback|host:port"):
        ControlServer(EmbeddedBroker(), listener).start()


def test_a_port_of_the_system_clock() -> None:
    """An operation that this broker does not support has status 409 and names the remedy."""
    with EmbeddedBroker() as broker, ControlServer(broker, token="mine") as control:
        call = Client(control.url, "mine")
        assert call("POST", "/clock/advance", {"ms": 1})[0] == 409
        status, response = call("POST", "/snapshots")
        assert (status, "snapshots need a folder" in response["error"]) == (409, True)
        broker.stop()
        assert call("GET", "/topics") == (409, {"error": "this broker does not run"})
        broker.start()
        assert call("GET", "/topics") == (200, {"topics": []})
        assert call("POST", "/shutdown") == (200, {})
        wait_until(lambda: not broker.is_running)


# ---------------------------------------------------------------- kbroker serve


def serve(*settings: str) -> subprocess.Popen[str]:
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "kbroker", "serve", "--in-memory", "--listener", "127.0.0.1:0", *words]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("KAFKA_", "KBROKER_CFG"))}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def test_served_from_the_command_line() -> None:
    """The second line has the address and the token; the routes work; /shutdown ends the process with status 0."""
    with serve("kbroker.control.listener=127.0.0.1:0", "kbroker.control.virtual.clock=true") as process:
        ready, second = process.stdout.readline(), process.stdout.readline()
        found = re.fullmatch(r"kbroker control (http://\S+) token (\S+)\n", second)
        assert found, second
        call = Client(*found.groups())
        assert call("GET", "/")[1]["bootstrap_servers"] in ready
        assert call("POST", "/topics", {"name": "t"})[0] == 200
        (number,) = [call("POST", "/snapshots")[1]["id"]]
        assert call("DELETE", "/topics/t")[0] == 200
        assert call("POST", f"/snapshots/{number}/restore")[0] == 200
        assert call("GET", "/topics")[1]["topics"] == [{"name": "t", "partitions": 1}]
        assert call("POST", "/clock/advance", {"ms": 3_600_000})[0] == 200
        assert call("POST", "/shutdown")[0] == 200
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_a_token_by_setting() -> None:
    """The configured token is used."""
    with serve("kbroker.control.listener=127.0.0.1:0", "kbroker.control.token=s3cret") as process:
        process.stdout.readline()
        url = process.stdout.readline().split()[2]
        assert Client(url, "s3cret")("GET", "/")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("listener", "status", "text"),
    [
        ("0.0.0.0:0", 2, "only the loopback interface"),
        ("nonsense", 2, "expected host:port"),
        ("in use", 1, "cannot listen on 127.0.0.1:"),
    ],
)
def test_a_start_that_cannot_be(served: Served, listener: str, status: int, text: str) -> None:
    """A start that fails prints one line with the reason."""
    taken = served[1].url.removeprefix("http://")
    with serve(f"kbroker.control.listener={taken if listener == 'in use' else listener}") as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, text in err, err.count("\n")) == (status, "", True, 1), err


def test_without_the_setting_there_is_none() -> None:
    """Without the setting there is no control port, and only the ready line is printed."""
    with serve() as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20) == ("", "")


def test_a_cluster() -> None:
    """The routes of a cluster move leaders and coordinators, stop nodes, and set faults and time by node."""
    with EmbeddedCluster(3, racks=["a", "b", "c"], virtual_clock=True) as cluster, ControlServer(cluster) as control:
        call = Client(control.url, control.token)
        nodes = call("GET", "/")[1]["nodes"]
        assert [(one["node_id"], one["address"], one["rack"]) for one in nodes] == [
            (node, cluster.addresses[node], rack) for node, rack in zip((1, 2, 3), "abc", strict=True)
        ]
        assert call("POST", "/topics", {"name": "t", "replicas": [[1, 2], [2, 3]]}) == (
            200,
            {"name": "t", "partitions": 2},
        )
        assert call("GET", "/topics/t/records") == (200, {"records": []})
        assert call("POST", "/topics/t/leader", {"node": 2}) == (200, {"leader": 2})
        assert call("DELETE", "/topics/t", {"node": 2})[1]["error"] == "unknown field 'node'"
        assert call("POST", "/nodes/2/drop") == (200, {"bootstrap_servers": cluster.bootstrap})
        rows = call("GET", "/topics/t/partitions")[1]["partitions"]
        assert [(one["leader"], one["isr"], one["replicas"]) for one in rows] == [(1, [1], [1, 2]), (3, [3], [2, 3])]
        assert call("POST", "/topics/t/leader", {"node": 2})[1]["code"] == "INVALID_REPLICA_ASSIGNMENT"
        assert call("POST", "/controller", {"node": 2})[1]["code"] == "BROKER_NOT_AVAILABLE"
        assert call("POST", "/nodes/2/start")[0] == 200
        assert call("POST", "/topics/t/replicas", {"partition": 1, "replicas": [3, 1]}) == (200, {"replicas": [3, 1]})
        assert call("POST", "/preferred-leaders") == (200, {})
        assert call("POST", "/coordinator", {"key": "g", "node": 3}) == (200, {"node": 3})
        assert call("POST", "/controller", {"node": 2}) == (200, {"controller_id": 2})

        (number,) = call("POST", "/nodes/2/faults", {"rules": [{"keys": ["metadata"], "disconnect": True}]})[1]["ids"]
        assert call("GET", "/nodes/1/faults") == (200, {"faults": []})
        with wire.Connection(cluster.addresses[1]) as first, wire.Connection(cluster.addresses[2]) as second:
            request = wire.header(3, 1) + b"\0\0\0\0"
            assert first.ask(request)
            with pytest.raises(wire.Closed):
                second.ask(request)
        assert call("POST", f"/nodes/2/faults/{number}/wait") == (200, {"hits": 1})

        times = [one["now_ms"] for one in nodes]
        assert call("POST", "/nodes/3/clock/advance", {"ms": 500}) == (200, {"now_ms": times[2] + 500})
        assert call("POST", "/clock/advance", {"ms": 1000})[0] == 200
        found = [one["now_ms"] for one in call("GET", "/")[1]["nodes"]]
        assert found == [times[0] + 1000, times[1] + 1000, times[2] + 1500]

        assert call("POST", "/faults", {"rules": []})[1]["error"] == "each node has its own: /nodes/ID/faults"
        assert call("GET", "/nodes/4/faults")[0] == call("POST", "/snapshots")[0] == 404
        assert call("POST", "/topics/t/replicas", {"replicas": ["x"]})[0] == 400
        assert call("POST", "/topics", {"name": "wide", "partitions": 10_001})[1]["code"] == "POLICY_VIOLATION"
        assert call("GET", "/topics/none/partitions")[1]["code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        for node in cluster.nodes:
            assert call("POST", f"/nodes/{node}/stop")[0] == 200
        assert call("POST", "/shutdown") == (200, {})
