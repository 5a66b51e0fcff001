"""Memory that hostile clients made the broker allocate is returned to the system after their connections end."""

import contextlib
import re
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import hostile, wire
from tests.support.broker import BrokerProcess, rss_bytes, wait_for
from tests.support.certificates import Certificates

MIB = 1 << 20
KEPT_BYTES = 8 * MIB
SIZES = (30_000, 128 << 10, 500_000, 900_000, 2_000_000)
COUNT = 200
RESET = struct.pack("ii", 1, 0)  # a close sends RST and discards unsent data
TOPIC = "t"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc; the allocator is glibc's"),
]


def unread_bytes(port: int) -> int:
    """Return the bytes in flight to a port of this machine and those unread by it."""
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        sent, received = queues.split(":")
        if int(remote.partition(":")[2], 16) == port:
            count += int(sent, 16)
        if int(local.partition(":")[2], 16) == port:
            count += int(received, 16)
    return count


@contextlib.contextmanager
def half_requests(port: int, size: int, tls: ssl.SSLContext | None = None) -> Iterator[None]:
    """Connections that have sent half a request of the size, which the broker has read, until they are reset."""
    with contextlib.ExitStack() as stack:
        for _ in range(COUNT):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            if tls is not None:
                client = stack.enter_context(tls.wrap_socket(client, server_hostname="localhost"))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.sendall(struct.pack(">i", size) + bytes(size // 2))
        wait_for("all records are read", lambda: unread_bytes(port) == 0)
        yield


def run_battery(broker: BrokerProcess, ports: dict[int, ssl.SSLContext | None]) -> None:
    """Make the broker allocate much memory, and check that the memory is returned."""
    with wire.crowd(broker.bootstrap, COUNT) as clients:
        assert wire.first_topic_error(clients[0].ask(wire.create_topic(TOPIC, 1))) == 0
        before = rss_bytes(broker.pid)
    highest = before
    for port, tls in ports.items():
        for size in SIZES:
            with half_requests(port, size, tls):
                highest = max(highest, rss_bytes(broker.pid))
    for frame in hostile.sizes() + hostile.headers():
        with wire.Connection(broker.bootstrap) as client, contextlib.suppress(wire.Closed):
            client.send_raw(frame.data)  # the broker may close the connection before the rest is sent
    assert highest > before + 5 * KEPT_BYTES, "the battery made the broker hold nothing"
    # memory is trimmed every five seconds, but only every minute if it is allocated again at once
    wait_for("memory is given back", lambda: rss_bytes(broker.pid) <= before + KEPT_BYTES, 90, every=0.5)
    assert wire.responses(broker.bootstrap)


@pytest.mark.parametrize("threads", ["", "16"], ids=["default-threads", "16-threads"])
def test_memory_comes_back_after_a_hostile_battery(threads: str, start_broker: Callable[..., BrokerProcess]) -> None:
    """Memory of two hundred half requests of each size is returned, even with the arenas of 16 network threads."""
    more = {"num__network__threads": threads} if threads else {}
    broker = start_broker(socket__listen__backlog__size="1024", **more)
    run_battery(broker, {broker.port: None})


def test_memory_comes_back_on_every_listener(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """Memory is returned with three listeners of 8 network threads, of which one has TLS buffers per connection."""
    certificates = Certificates(tmp_path / "certificates")
    broker = start_broker(
        listeners="PLAINTEXT://127.0.0.1:0,SECOND://127.0.0.1:0,TLS://127.0.0.1:0",
        listener__security__protocol__map="PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT,TLS:SSL",
        ssl__keystore__type="PEM",
        ssl__keystore__location=str(certificates.server),
        num__network__threads="8",
        socket__listen__backlog__size="1024",
    )
    ready = next(line for line in broker.output if " ready: " in line)
    ports = {name: int(port) for name, port in re.findall(r"(\w+)://127\.0\.0\.1:(\d+)", ready)}
    context = ssl.create_default_context(cafile=str(certificates.ca))
    run_battery(broker, {ports["PLAINTEXT"]: None, ports["SECOND"]: None, ports["TLS"]: context})


def test_memory_after_ten_thousand_connections(start_broker: Callable[..., BrokerProcess]) -> None:
    """The memory of ten thousand connections in five groups is returned."""
    broker = start_broker(socket__listen__backlog__size="2048")
    before = rss_bytes(broker.pid)
    for _ in range(5):
        with wire.crowd(broker.bootstrap, 2_000) as clients:
            assert clients[-1].ask(wire.list_offsets("none", 0, -1))
    wait_for("memory is given back", lambda: rss_bytes(broker.pid) <= before + KEPT_BYTES, 90, every=0.5)
