"""TLS listeners: certificates, slow and broken handshakes, and data at the limits of records."""

import contextlib
import logging
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client.connection import BrokerConnectionError
from kbroker.common.configs.config_def import ConfigError
from tests.support import wire
from tests.support.broker import wait_for
from tests.support.certificates import Certificates
from tests.support.descriptors import socket_count
from tests.support.errors import raising
from tests.support.secured import SecuredBroker, dribble, is_closed
from tests.support.wire import API_VERSIONS, Connection, header

CLIENT_NAME = "CN=alice,OU=Clients,O=Example\\, Inc."


@pytest.fixture(scope="module")
def client(certificates: Certificates) -> Path:
    return certificates.make("alice", "alice")


@pytest.fixture(scope="module", params=["OpenSSL", "buffers"])
def secured(certificates: Certificates, request: pytest.FixtureRequest) -> Iterator[SecuredBroker]:
    """Broker that encrypts with OpenSSL directly, and one that does not find OpenSSL's library."""
    with SecuredBroker(certificates) as broker:
        if request.param == "buffers":
            for name in ("TLS", "BOTH"):
                protection = broker.broker.parts.server._security[name]
                assert protection.tls is not None
                hide_openssl(protection.tls.context)
        yield broker


class WithoutLibrary:
    """``SSLObject`` without the attribute that leads to OpenSSL's object."""

    def __init__(self, connection: ssl.SSLObject) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> object:
        if name == "_sslobj":
            raise AttributeError(name)
        return getattr(self._connection, name)


def hide_openssl(context: ssl.SSLContext) -> None:
    made = context.wrap_bio
    context.wrap_bio = lambda *given, **named: WithoutLibrary(made(*given, **named))  # type: ignore[method-assign, assignment]


@contextlib.contextmanager
def principals(secured: SecuredBroker) -> Iterator[list[str]]:
    """Yield the principals of ApiVersions requests in order."""
    seen: list[str] = []
    secured.broker.intercept(lambda request: bool(seen.append(request.principal)), [API_VERSIONS])  # type: ignore[func-returns-value]
    try:
        yield seen
    finally:
        secured.broker.intercept(None)


def client_hello(context: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """Return a client in a handshake through buffers, which the test transfers."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return client, incoming, outgoing


# ---- principals


def test_a_client_certificate_names_the_client(secured: SecuredBroker, client: Path) -> None:
    """The principal is the distinguished name of the client's certificate, or ANONYMOUS; each handshake is counted."""
    before = secured.counters()
    with principals(secured) as seen:
        secured.cluster("TLS", {"ssl.keystore.location": str(client)}).close()
        secured.cluster("TLS").close()
    assert seen == [f"User:{CLIENT_NAME}", "User:ANONYMOUS"]
    after = secured.counters()
    changed = {name for name in after if name.endswith(("ed_once", "authenticated")) and after[name] != before[name]}
    assert changed == {"authenticated", "authenticated_once"}
    assert (
        after["authenticated"] - before["authenticated"] == after["connections_created"] - before["connections_created"]
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions(secured: SecuredBroker, client: Path, version: ssl.TLSVersion) -> None:
    """TLS 1.2 and 1.3 are served, with a client's certificate."""
    context = secured.tls_context(client)
    context.minimum_version = context.maximum_version = version
    with principals(secured) as seen, secured.connect("TLS") as connection:
        connection.socket = context.wrap_socket(connection.socket, server_hostname="127.0.0.1")
        assert connection.ask(header(API_VERSIONS, 0))
        assert connection.socket.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
    assert seen == [f"User:{CLIENT_NAME}"]


def test_a_certificate_may_be_demanded_and_mapped(certificates: Certificates, client: Path, tmp_path: Path) -> None:
    """Without a certificate of the right authority that a mapping rule matches, the connection is refused."""
    changes = {
        "listener.name.tls.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=Clients.*$/$1/U",
    }
    stranger = Certificates(tmp_path).make("stranger", "alice")
    with SecuredBroker(certificates, changes) as secured:
        with principals(secured) as seen:
            secured.cluster("TLS", {"ssl.keystore.location": str(client)}).close()
        assert seen == ["User:ALICE"]
        for key in ({}, {"ssl.keystore.location": str(stranger)}):
            with pytest.raises(BrokerConnectionError):
                secured.cluster("TLS", key)
        other = certificates.make("other", "bob", unit="Others")
        with pytest.raises(BrokerConnectionError):
            secured.cluster("TLS", {"ssl.keystore.location": str(other)})
        with secured.connect("PLAINTEXT") as plain:
            assert plain.ask(header(API_VERSIONS, 0))


@pytest.mark.parametrize("is_pinned", [False, True], ids=["its authority", "itself"])
def test_any_certificate_may_be_trusted(
    certificates: Certificates, client: Path, tmp_path: Path, is_pinned: bool
) -> None:
    """An authority below the root, and a certificate itself, are trusted without the root, on both sides."""
    authority, leaf = Certificates(tmp_path).make_child("below")
    trusted = str(leaf.with_suffix(".crt") if is_pinned else authority)
    changes = {
        "listener.name.tls.ssl.client.auth": "required",
        "listener.name.tls.ssl.truststore.location": trusted,
        "listener.name.tls.ssl.keystore.location": str(leaf),
    }
    with SecuredBroker(certificates, changes) as secured, principals(secured) as seen:
        trust = {"ssl.truststore.location": trusted}
        secured.cluster("TLS", {"ssl.keystore.location": str(leaf), **trust}).close()
        assert seen[0].startswith("User:CN=below")
        with pytest.raises(BrokerConnectionError):
            secured.cluster("TLS", {"ssl.keystore.location": str(client), **trust})
        with pytest.raises(BrokerConnectionError):
            secured.cluster("TLS", {"ssl.keystore.location": str(leaf)})


def test_client_auth_of_all_listeners_leaves_out_sasl(
    certificates: Certificates, client: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ssl.client.auth applies to SSL listeners; a SASL_SSL listener needs its own value, as in Kafka."""
    required = {"ssl.client.auth": "required", "listener.name.tls.ssl.client.auth": "required"}
    with SecuredBroker(certificates, required) as secured:
        assert "listener.name.both.ssl.client.auth" in caplog.text
        secured.cluster("BOTH").close()
        with pytest.raises(BrokerConnectionError):
            secured.cluster("TLS")
    with SecuredBroker(certificates, {"listener.name.both.ssl.client.auth": "required"}) as secured:
        secured.cluster("BOTH", {"ssl.keystore.location": str(client)}).close()
        with pytest.raises(BrokerConnectionError):
            secured.cluster("BOTH")


def test_a_broker_is_known_by_its_certificate(secured: SecuredBroker, tmp_path: Path) -> None:
    """A client that does not trust the broker's certificate raises an error with the reason."""
    other = Certificates(tmp_path)
    expected = r"[0-9]: certificate verify failed: [^(]*; expected its authority in ssl.truststore.location$"
    with pytest.raises(BrokerConnectionError, match=expected):
        secured.cluster("TLS", {"ssl.truststore.location": str(other.ca)})


def test_keys_and_certificates_in_the_settings(certificates: Certificates) -> None:
    """Inline PEM may have spaces instead of line ends, as in a properties file."""

    def inline(name: str) -> str:
        return (certificates.folder / name).read_text().replace("\n", " ")

    changes = {
        "ssl.keystore.location": "",
        "ssl.keystore.key": inline("server.key"),
        "ssl.keystore.certificate.chain": inline("server.crt"),
        "ssl.truststore.location": "",
        "ssl.truststore.certificates": inline("ca.pem"),
    }
    with SecuredBroker(certificates, changes) as secured:
        secured.cluster("TLS").close()
        secured.cluster("BOTH").close()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ssl.keystore.location": "/no/such/file"}, "No such file"),
        ({"ssl.keystore.location": __file__}, "PEM"),
        ({"ssl.keystore.location": ""}, "needs a private key"),
        ({"ssl.keystore.key": "x"}, "Both a file and the key itself"),
        ({"ssl.truststore.location": "/no/such/file"}, "No such file"),
        ({"ssl.truststore.location": ""}, "ssl.truststore.location: An empty store trusts no client"),
        (
            {"ssl.truststore.location": None, "ssl.truststore.certificates": ""},
            "ssl.truststore.certificates: An empty store trusts no client",
        ),
        ({"ssl.principal.mapping.rules": "nonsense"}, "Invalid rule"),
        ({"ssl.cipher.suites": "NO-SUCH-CIPHER"}, "No such cipher"),
        ({"ssl.keystore.type": "JKS"}, "PEM"),
        ({"ssl.client.auth": "maybe"}, "none"),
        ({"sasl.enabled.mechanisms": ""}, "needs a SASL mechanism"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "PLAIN, SCRAM-SHA-256"),
        ({"listener.name.sasl.plain.sasl.jaas.config": ""}, "has no users"),
        ({"listener.name.sasl.plain.sasl.jaas.config": "secret"}, "required"),
        ({"connection.failed.authentication.delay.ms": 600_000}, "should be less than"),
    ],
)
def test_settings_that_cannot_be(certificates: Certificates, changes: dict[str, object], text: str) -> None:
    """Invalid settings are refused at the start with the allowed values, and without a secret."""
    with pytest.raises(ConfigError) as refused, SecuredBroker(certificates, changes):
        pass
    assert text in refused.value.explain()
    assert "secret" not in refused.value.explain()


# ---- handshakes


def test_a_slow_handshake(secured: SecuredBroker) -> None:
    """A handshake that arrives byte by byte completes, and meanwhile others are served by the same listener."""
    with secured.connect("TLS") as slow:
        hello, incoming, outgoing = client_hello(secured.tls_context())
        dribble(slow.socket, outgoing.read()[:-1])
        with secured.connect_tls("TLS") as other:
            assert other.ask(header(API_VERSIONS, 0))
        hello, incoming, outgoing = client_hello(secured.tls_context())
    with secured.connect("TLS") as slow:
        while True:
            dribble(slow.socket, outgoing.read())
            try:
                hello.do_handshake()
                break
            except ssl.SSLWantReadError:
                incoming.write(slow.socket.recv(100))
        dribble(slow.socket, outgoing.read())
        hello.write(struct.pack(">i", 11) + header(API_VERSIONS, 0, client_id="x"))
        dribble(slow.socket, outgoing.read())
        response = b""
        while len(response) < 4:
            try:
                response += hello.read(1 << 16)
            except ssl.SSLWantReadError:
                incoming.write(slow.socket.recv(1 << 16))


def test_request_in_the_packet_that_ends_the_handshake(secured: SecuredBroker) -> None:
    """A request in the packet that ends the handshake is read."""
    with secured.connect("TLS") as connection:
        hello, incoming, outgoing = client_hello(secured.tls_context())
        held = b""
        while True:
            try:
                hello.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.socket.sendall(outgoing.read())
                incoming.write(connection.socket.recv(1 << 16))
        hello.write(struct.pack(">i", 11) + header(API_VERSIONS, 0, client_id="x"))
        connection.socket.sendall(outgoing.read())
        while len(held) < 4:
            try:
                held += hello.read(1 << 16)
            except ssl.SSLWantReadError:
                incoming.write(connection.socket.recv(1 << 16))


def test_refusals_are_logged_once_a_minute(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    """Connections whose TLS session cannot begin are closed, and logged once a minute."""
    clock = VirtualClock()
    with SecuredBroker(certificates, clock=clock) as secured:
        protection = secured.broker.parts.server._security["TLS"]
        assert protection.tls is not None
        protection.tls.context.wrap_bio = raising(MemoryError("no buffers"))  # type: ignore[method-assign]
        with caplog.at_level(logging.ERROR):
            for advance_ms in (0, 0, 0, 60_000):
                if advance_ms:
                    clock.advance_ms(advance_ms)
                assert is_closed(secured.connect("TLS"))
            line = "listener TLS: connections are closed, TLS cannot begin: no buffers"
            wait_for("the line", lambda: len(caplog.messages) == 2)
            assert caplog.messages == [line, f"{line} (3 times since the last such line)"]


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">i", 11) + header(18, 0), bytes(50), b"\x16\x03\x01\xff\xff" + bytes(9)],
)
def test_what_is_no_handshake(secured: SecuredBroker, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Plaintext on a TLS listener closes the connection; the log names client and cause, and the failure is counted."""
    before = secured.counters()["authentications_failed"]
    with caplog.at_level(logging.INFO):
        connection = secured.connect("TLS")
        host, port = connection.socket.getsockname()
        connection.send_raw(data + bytes(1 << 16))
        assert is_closed(connection)
        start = f"failed authentication with {host}:{port} (SSL handshake failed"
        wait_for("the line", lambda: start in caplog.text)
    (line,) = [line for line in caplog.messages if line.startswith(start)]
    is_plain = not data.startswith(b"\x16")
    assert ("the bytes are not TLS: is security.protocol=PLAINTEXT used" in line) == is_plain, line
    wait_for("the count", lambda: secured.counters()["authentications_failed"] == before + 1)


def test_broken_records_are_logged_ten_times_a_second(
    secured: SecuredBroker, client: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that send invalid records after the handshake are logged at most ten times a second."""
    host, port = secured.address("TLS").rsplit(":", 1)
    context = secured.tls_context(client)
    began = int(time.time())
    with caplog.at_level(logging.DEBUG, "kbroker.network.tls"):
        for _ in range(60):
            with (
                socket.create_connection((host, int(port)), 10) as plain,
                context.wrap_socket(plain, server_hostname=host) as connection,
            ):
                os.write(connection.fileno(), b"\x17\x03\x03\x00\x20" + b"x" * 32)  # a record that no key has encrypted
                with contextlib.suppress(OSError):
                    assert connection.recv(1) == b""
    lines = [line for line in caplog.messages if line.startswith("closing the connection of 127.0.0.1:")]
    assert 0 < len(lines) <= 10 * (int(time.time()) - began + 1)


def test_a_half_open_handshake_is_given_up(certificates: Certificates) -> None:
    """An incomplete handshake is closed after the frame timeout; a connection after its handshake stays open."""
    clock = VirtualClock()
    with SecuredBroker(certificates, {"kbroker.frame.timeout.ms": 30_000}, clock) as secured:
        silent, half, done = secured.connect("TLS"), secured.connect("TLS"), secured.connect_tls("TLS")
        _, _, outgoing = client_hello(secured.tls_context())
        half.send_raw(outgoing.read()[:50])
        assert done.ask(header(API_VERSIONS, 0))
        wait_for("the connections", lambda: secured.counters()["connections_created"] == 3)
        clock.advance_ms(29_000)
        assert done.ask(header(API_VERSIONS, 0))
        assert secured.counters()["connections_closed"] == 0
        clock.advance_ms(2_000)
        assert is_closed(silent)
        assert is_closed(half)
        assert done.ask(header(API_VERSIONS, 0))
        done.close()


def test_clients_killed_in_mid_handshake(secured: SecuredBroker) -> None:
    """Clients that close or reset a connection at any step of the handshake leave no descriptor open."""
    before = socket_count()
    for steps in range(3):
        for reset in (True, False):
            for _ in range(10):
                connection = secured.connect("TLS")
                _, _, outgoing = client_hello(secured.tls_context())
                hello = outgoing.read()
                connection.send_raw(hello[: len(hello) * steps // 2])
                if steps == 2:
                    connection.socket.recv(10)
                if reset:
                    connection.reset()
                else:
                    connection.close()
    wait_for("the descriptors", lambda: socket_count() <= before)
    with secured.connect_tls("TLS") as connection:
        assert connection.ask(header(API_VERSIONS, 0))


def test_the_end_is_announced(secured: SecuredBroker) -> None:
    """A connection that the broker closes ends with TLS's close_notify."""
    with secured.connect_tls("TLS") as connection:
        connection.send_raw(struct.pack(">i", -1))
        assert connection.socket.recv(1) == b""


# ---- data


@pytest.fixture(scope="module")
def filled(secured: SecuredBroker) -> tuple[str, bytes]:
    """Topic of 24 MiB in one segment, and its bytes on the disk."""
    topic = secured.broker.create_topic("filled")
    with secured.connect("PLAINTEXT") as plain:
        for number in range(24):
            batch = wire.batch([bytes([number]) * 100 + os.urandom(1000)] * 900)
            assert wire.produced(plain.ask(wire.produce(topic, 0, batch))).error_code == 0
        whole = b""
        while len(whole) < 20 << 20:
            offset = 0 if not whole else last_offset(whole) + 1
            got = wire.fetched(
                plain.ask(wire.fetch(topic, offset=offset, max_bytes=1 << 25, partition_max_bytes=1 << 25))
            )
            whole += got.records
    return topic, whole


def last_offset(records: bytes) -> int:
    at = base = 0
    while at + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, at)
        (delta,) = struct.unpack_from(">i", records, at + 23)
        at += 12 + length
    return int(base + delta)


@pytest.mark.parametrize("listener", ["TLS", "BOTH"])
def test_file_regions_arrive_whole_under_load(secured: SecuredBroker, filled: tuple[str, bytes], listener: str) -> None:
    """Several readers, one of them slow, receive exactly the bytes of the log."""
    topic, whole = filled
    failures: list[str] = []
    others_done = threading.Event()

    def read(number: int) -> None:
        with secured.connect_tls(listener) as connection:
            if listener == "BOTH":
                connection.ask(header(17, 0) + wire.text("PLAIN"))
                connection.ask(b"\0alice\0alice-secret")
            request = wire.fetch(topic, max_bytes=1 << 25, partition_max_bytes=1 << 25)
            for _ in range(2):
                connection.send(request)
                if number == 0:  # the kernel's buffers are full, so that encrypted data must wait
                    others_done.wait(60)
                response = connection.receive()
                got = wire.fetched(response).records
                if got != whole[: len(got)] or len(got) < 1 << 20:
                    failures.append(f"reader {number}: {len(got)} bytes that differ")

    readers = [threading.Thread(target=read, args=(number,)) for number in range(5)]
    for reader in readers:
        reader.start()
    for reader in readers[1:]:
        reader.join(60)
    others_done.set()
    readers[0].join(60)
    assert not any(reader.is_alive() for reader in readers)
    assert failures == []


@pytest.mark.parametrize("request_batch_max", [1, 16])
def test_many_requests_in_one_record(certificates: Certificates, request_batch_max: int) -> None:
    """Requests that were decrypted with earlier ones are executed without further bytes from the client."""
    count = 500
    frames = b"".join(struct.pack(">i", 13) + header(API_VERSIONS, 0, number, "raw") for number in range(count))
    with (
        SecuredBroker(certificates, {"kbroker.request.batch.max": request_batch_max}) as secured,
        secured.connect_tls("TLS") as connection,
    ):
        connection.send_raw(frames)
        for number in range(count):
            assert struct.unpack_from(">i", connection.receive())[0] == number


def test_a_login_and_requests_in_one_record(secured: SecuredBroker) -> None:
    """Requests in the same record as a login are executed after the login, without further bytes from the client."""
    token = b"\0alice\0alice-secret"
    frames = [header(17, 0, 1) + wire.text("PLAIN"), token]
    frames += [header(API_VERSIONS, 0, number, "raw") for number in range(3, 40)]
    with secured.connect_tls("BOTH") as connection:
        connection.send_raw(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        assert struct.unpack_from(">ih", connection.receive()) == (1, 0)
        assert connection.receive() == b""
        for number in range(3, 40):
            assert struct.unpack_from(">i", connection.receive())[0] == number


def test_bytes_in_tls_are_not_stuck_when_memory_is_short(certificates: Certificates) -> None:
    """Requests over TLS that together exceed the memory pool all receive responses."""
    size = 300_000  # several requests and parts of requests are in one read of a socket
    changes = {
        "queued.max.request.bytes": 1_000_000,
        "socket.request.max.bytes": 1_000_000,
        "message.max.bytes": 900_000,
        "num.network.threads": 1,
    }
    with SecuredBroker(certificates, changes) as secured:
        topic = secured.broker.create_topic("tight")
        batch = wire.batch([os.urandom(size)])
        request = wire.produce(topic, 0, batch)
        frame = struct.pack(">i", len(request)) + request
        connections = [secured.connect_tls("TLS") for _ in range(12)]

        def talk(connection: Connection) -> None:
            for _ in range(4):
                connection.send_raw(frame)

        senders = [threading.Thread(target=talk, args=(connection,)) for connection in connections]
        for sender in senders:
            sender.start()
        for connection in connections:
            connection.socket.settimeout(60)
            for _ in range(4):
                assert wire.produced(connection.receive()).error_code == 0
        for sender in senders:
            sender.join(10)
        for connection in connections:
            connection.close()
        assert wire.end_offset(secured.address("PLAINTEXT"), topic) == 48


def test_any_poller_will_do(certificates: Certificates) -> None:
    """TLS and SASL work with Python's selectors, as on Windows."""
    with SecuredBroker(certificates, {"kbroker.poller": "selectors"}) as secured:
        topic = secured.broker.create_topic("portable")
        batch = wire.batch([os.urandom(1000)] * 900)
        with secured.connect_tls("BOTH") as connection:
            connection.ask(header(17, 0) + wire.text("PLAIN"))
            assert connection.ask(b"\0alice\0alice-secret") == b""
            for _ in range(5):
                assert wire.produced(connection.ask(wire.produce(topic, 0, batch))).error_code == 0
            response = connection.ask(wire.fetch(topic, max_bytes=1 << 25, partition_max_bytes=1 << 25))
            assert wire.fetched(response).records.count(batch[61:]) == 5
        before = secured.counters()["connections_closed"]
        stranger = secured.connect_tls("TLS")
        stranger.reset()
        wait_for("the end", lambda: secured.counters()["connections_closed"] > before)


def test_clients_that_do_not_read(secured: SecuredBroker, filled: tuple[str, bytes]) -> None:
    """Clients that reset a connection with unsent encrypted data leave no descriptor open."""
    topic, _ = filled
    before = socket_count()
    connections = [secured.connect_tls("TLS") for _ in range(5)]
    for connection in connections:
        connection.send(wire.fetch(topic, max_bytes=1 << 25, partition_max_bytes=1 << 25))
    with secured.connect_tls("TLS") as other:
        assert other.ask(header(API_VERSIONS, 0))
    for connection in connections:
        connection.reset()
    wait_for("the descriptors", lambda: socket_count() <= before)


def test_a_stop_with_tls_connections(certificates: Certificates) -> None:
    """A stop closes connections in every state."""
    secured = SecuredBroker(certificates)
    with secured:
        connections = [secured.connect("TLS"), secured.connect_tls("TLS"), secured.connect_tls("BOTH")]
        assert connections[1].ask(header(API_VERSIONS, 0))
    for connection in connections:
        assert is_closed(connection)


def test_a_broker_without_secured_listeners_loads_no_openssl(tmp_path: Path) -> None:
    """A broker without secured listeners does not import ssl."""
    program = (
        "import sys, kbroker.cli\n"
        "from kbroker.broker import Broker\n"
        "with Broker(): print('ssl' in sys.modules, 'kbroker.common.security.scram' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split()[0] == "False", done.stderr
