"""Network failure between kbroker and the controllers, while clients reach kbroker."""

import contextlib
import re
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log.checkpoints import random_uuid_text
from tests.support import need
from tests.support.broker import ConfiguredBroker, run_to_end, wait_for
from tests.support.client import Client, set_quotas
from tests.support.console import Browser, words_of
from tests.support.kafka import ApacheKafka
from tests.support.ports import free_run

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

CUTS = 5
ALTER_QUOTAS = 49


class Wire:
    """Forwarder from a port to another one; a cut closes its connections and refuses new ones."""

    def __init__(self, port: int, target: int) -> None:
        self._port, self._target = port, target
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []

    def connect(self) -> None:
        self._ends = threading.Event()
        listening = socket.create_server(("127.0.0.1", self._port))
        self._start(self._accept, listening, self._ends)

    def cut(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(10)
        self._threads.clear()

    def _start(self, body: object, *arguments: object) -> None:
        thread = threading.Thread(target=body, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listening: socket.socket, ends: threading.Event) -> None:
        with listening:
            while not ends.is_set():
                if select.select([listening], [], [], 0.05)[0]:
                    self._start(self._pass_on, listening.accept()[0], ends)

    def _pass_on(self, client: socket.socket, ends: threading.Event) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self._target)) as server:
            other = {client: server, server: client}
            while not ends.is_set():
                for ready in select.select([client, server], [], [], 0.05)[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    other[ready].sendall(data)


@pytest.fixture
def wire_to_controller(tmp_path: Path) -> Iterator[tuple[Wire, ConfiguredBroker]]:
    """kbroker as the only broker of a controller whose clients all connect through a `Wire`."""
    need.kafka_tools()
    port = free_run(3)  # ports of the wire, the controller and kbroker
    voters = f"101@127.0.0.1:{port}:{random_uuid_text()}"
    common = {
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
    }
    controller = ApacheKafka(
        {
            **common, "process.roles": "controller", "node.id": "101", "controller.quorum.voters": "",
            "listeners": f"CONTROLLER://127.0.0.1:{port + 1}",
            "advertised.listeners": f"CONTROLLER://127.0.0.1:{port}",
        },
        port=port + 1,
        heap="160m",
        folder=tmp_path / "controller",
        formatted=("--initial-controllers", voters),
    )  # fmt: skip
    properties = tmp_path / "kbroker.properties"
    mine = {
        **common, "process.roles": "broker", "node.id": "9", "listeners": f"PLAINTEXT://127.0.0.1:{port + 2}",
        "log.dirs": str(tmp_path / "data"), "kbroker.metrics.listener": "127.0.0.1:0",
    }  # fmt: skip
    properties.write_text("".join(f"{name}={value}\n" for name, value in mine.items()), encoding="utf-8")
    member = ConfiguredBroker(tmp_path, port + 2, properties)
    wire = Wire(port, port + 1)
    wire.connect()
    try:
        with controller:
            words = ["storage", "format", "--cluster-id", controller.cluster_id, "--config", str(properties)]
            run_to_end([member.python, "-c", "from kbroker.__main__ import main; main()", *words])
            with member:
                yield wire, member
    finally:
        wire.cut()


def test_the_network_to_the_controller_is_cut(wire_to_controller: tuple[Wire, ConfiguredBroker]) -> None:
    """During a cut, a change waits and the node serves its metadata; afterwards the node is unfenced without a restart.

    The console shows the metadata and the reason for the failure, and does not wait for the controllers.
    """
    wire, member = wire_to_controller
    (url,) = re.findall(r"metrics at http://(\S+)/metrics", member.tail())
    browser = Browser(url)

    def shown() -> str:
        status, page = browser.ask("cluster")
        assert status == 200, page
        return words_of(page)

    with Client(member.bootstrap, timeout=60) as client, Client(member.bootstrap) as other:
        for number in range(CUTS):
            wire.cut()
            client.begin(ALTER_QUOTAS, 1, set_quotas("user", "alice", {"producer_byte_rate": 1000.0 + number}))
            for _ in range(10):
                assert other.call("Metadata", 13, {"Topics": []})["ClusterId"]
            assert not client.has_response
            wait_for(
                "the reason on a page", lambda: "controllers cannot be followed" in shown() or "Not ready" in shown()
            )
            assert re.search(r" 9 this node (fenced )?127\.0\.0\.1:\d+ - 0 0 0 - ", shown())
            wire.connect()
            assert client.end()["Entries"][0]["ErrorCode"] == 0

            def is_back(value: float = 1000.0 + number) -> bool:
                found = other.call("DescribeClientQuotas", 1, {"Components": [], "Strict": False})["Entries"]
                brokers = other.call("DescribeCluster", 2, {"EndpointType": 1})["Brokers"]
                return [row["Value"] for one in found for row in one["Values"]] == [value] and len(brokers) == 1

            wait_for("the change, and the node unfenced", is_back, 30)
        wait_for("the controllers on the page", lambda: "Ready: registered" in shown() and "101 leader" in shown())
