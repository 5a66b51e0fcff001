"""SASL listeners: logins, refused logins, limits before authentication, sessions and their renewal, users."""

import logging
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client.connection import BrokerConnectionError
from kbroker.common.errors import Errors, KafkaError
from kbroker.protocol import codec
from tests.support import wire
from tests.support.broker import BrokerProcess, wait_for
from tests.support.certificates import Certificates
from tests.support.client import Body, Client
from tests.support.descriptors import socket_count
from tests.support.fixtures import fixture_of
from tests.support.secured import PASSWORDS, SecuredBroker, is_closed, settings
from tests.support.wire import Closed

HANDSHAKE, API_VERSIONS, METADATA, AUTHENTICATE = 17, 18, 3, 36
ALICE = b"\0alice\0alice-secret"


def ask(connection: Client, key: int, version: int, **body: object) -> Body:
    return connection.call(key, version, body)


def log_in(connection: Client, token: bytes = ALICE, version: int = 2) -> Body:
    assert ask(connection, HANDSHAKE, 1, Mechanism="PLAIN")["ErrorCode"] == 0
    return ask(connection, AUTHENTICATE, version, AuthBytes=token)


@pytest.mark.parametrize("listener", ["SASL", "BOTH"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", PASSWORDS)
def test_our_own_client_gets_in(secured: SecuredBroker, listener: str, mechanism: str, user: str) -> None:
    """kbroker's client logs in with each mechanism on each SASL listener, and its principal is that user."""
    seen = []
    secured.broker.intercept(lambda request: bool(seen.append(request.principal)), [API_VERSIONS])  # type: ignore[func-returns-value]
    try:
        with secured.cluster(listener, mechanism=mechanism, user=user) as cluster:
            cluster.fetch_metadata([])
    finally:
        secured.broker.intercept(None)
    assert set(seen) == {f"User:{user}"}


@pytest.mark.parametrize("listener", ["SASL", "BOTH"])
def test_wrong_passwords_users_and_mechanisms(secured: SecuredBroker, listener: str) -> None:
    """Wrong passwords, users and mechanisms are refused with Kafka's error codes and messages."""
    wrong = {"sasl.jaas.config": 'x.Y required username="alice" password="wrong";'}
    stranger = {"sasl.jaas.config": 'x.Y required username="stranger" password="wrong";'}
    for changes in (wrong, stranger):
        with pytest.raises(KafkaError, match="Authentication failed: Invalid username or password") as refused:
            secured.cluster(listener, changes)
        assert refused.value.error is Errors.SASL_AUTHENTICATION_FAILED
        with pytest.raises(KafkaError, match="due to invalid credentials with SASL mechanism SCRAM-SHA-512") as refused:
            secured.cluster(listener, changes, mechanism="SCRAM-SHA-512")
        assert refused.value.error is Errors.SASL_AUTHENTICATION_FAILED
    connection = secured.connect("SASL")
    response = ask(connection, HANDSHAKE, 1, Mechanism="GSSAPI")
    assert response == {"ErrorCode": 33, "Mechanisms": ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]}
    assert is_closed(connection)


def test_bare_tokens(secured: SecuredBroker) -> None:
    """With SaslHandshake version 0, tokens have no request header; requests follow the login."""
    with secured.connect("SASL") as connection:
        assert ask(connection, HANDSHAKE, 0, Mechanism="PLAIN")["ErrorCode"] == 0
        assert connection.ask(ALICE) == b""
        assert ask(connection, METADATA, 1, Topics=[])["Brokers"]


def test_after_success_there_is_nothing_to_authenticate(secured: SecuredBroker) -> None:
    """After a login without an end of session, further authentication is refused, and the connection stays open."""
    with secured.connect("SASL") as connection:
        assert log_in(connection)["ErrorCode"] == 0
        assert ask(connection, HANDSHAKE, 1, Mechanism="PLAIN")["ErrorCode"] == Errors.ILLEGAL_SASL_STATE
        again = ask(connection, AUTHENTICATE, 2, AuthBytes=ALICE)
        assert again["ErrorCode"] == Errors.ILLEGAL_SASL_STATE
        assert again["ErrorMessage"] == "SaslAuthenticate request received after successful authentication"
        assert ask(connection, METADATA, 1, Topics=[])["Brokers"]


def test_software_announced_before_the_login(secured: SecuredBroker) -> None:
    """The client software of an ApiVersions request before the login is kept after it."""
    with secured.connect("SASL") as connection:
        announced = {"ClientSoftwareName": "before-login", "ClientSoftwareVersion": "1.0"}
        assert ask(connection, API_VERSIONS, 3, **announced)["ErrorCode"] == 0
        log_in(connection)
        processors = secured.broker.parts.server.processors
        known = [p.listener_name for p in processors if p.client_software().get(("before-login", "1.0")) == 1]
        assert known == ["SASL"]


def test_a_long_name_of_software_is_held_for_no_client(secured: SecuredBroker) -> None:
    """Names of client software that are too long are stored neither in tables nor in metrics."""
    with secured.connect("SASL") as connection:
        announced = {"ClientSoftwareName": "n" * 4096, "ClientSoftwareVersion": "v" * 4097}
        assert ask(connection, API_VERSIONS, 3, **announced)["ErrorCode"] == 0
        log_in(connection)
        processors = secured.broker.parts.server.processors
        known = [name for p in processors for name in p.client_software()]
        assert known == [("unknown", "unknown")]


def test_api_versions_before_and_after(secured: SecuredBroker) -> None:
    """ApiVersions returns the same ranges before and after a login, and on every listener."""
    with secured.connect("PLAINTEXT") as plain, secured.connect("SASL") as connection:
        expected = ask(plain, API_VERSIONS, 0)
        assert ask(connection, API_VERSIONS, 0) == expected
        log_in(connection)
        assert ask(connection, API_VERSIONS, 0) == expected


def test_the_whole_conversation_in_one_packet(secured: SecuredBroker) -> None:
    """A client that sends handshake, token and a request at once receives the responses in order."""
    frames = [
        codec.encode_request_frame(HANDSHAKE, 1, 1, "x", {"Mechanism": "PLAIN"}),
        codec.encode_request_frame(AUTHENTICATE, 1, 2, "x", {"AuthBytes": ALICE}),
        codec.encode_request_frame(METADATA, 1, 3, "x", {"Topics": []}),
    ]
    with secured.connect("SASL") as connection:
        connection.send_raw(b"".join(frames))
        assert [struct.unpack_from(">i", connection.receive())[0] for _ in frames] == [1, 2, 3]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        struct.pack(">i", -1),
        struct.pack(">i", 524_289),
        struct.pack(">i", 4) + b"\0\x03\0\0",
        codec.encode_request_frame(METADATA, 1, 1, "x", {"Topics": []}),
        codec.encode_request_frame(AUTHENTICATE, 1, 1, "x", {"AuthBytes": ALICE}),
        struct.pack(">i", 64) + bytes(64),
    ],
    ids=["http", "tls", "negative", "giant", "cut", "metadata", "token", "zeros"],
)
def test_garbage_before_authentication_is_cut_off(secured: SecuredBroker, data: bytes) -> None:
    """Invalid data before a login closes the connection without a response; the size limit is that of tokens."""
    with secured.connect("SASL") as connection:
        connection.send_raw(data)
        with pytest.raises(Closed):
            connection.receive()


def test_frames_as_large_as_allowed_are_read(secured: SecuredBroker) -> None:
    """A token of the maximum size is checked, not refused because of its size."""
    with secured.connect("SASL") as connection:
        ask(connection, HANDSHAKE, 0, Mechanism="PLAIN")
        connection.send_raw(struct.pack(">i", 524_288) + b"\0" * 524_288)
        assert is_closed(connection)
    with secured.connect("SASL") as connection:
        assert ask(connection, HANDSHAKE, 1, Mechanism="PLAIN")["ErrorCode"] == 0
        response = ask(connection, AUTHENTICATE, 1, AuthBytes=b"\0alice\0" + b"x" * 500_000)
        assert response["ErrorCode"] == Errors.SASL_AUTHENTICATION_FAILED


def test_frames_before_authentication_do_not_touch_the_pool(certificates: Certificates) -> None:
    """Incomplete frames before a login do not take memory from the pool of requests."""
    changes = {"queued.max.request.bytes": 1_000_000, "socket.request.max.bytes": 1_000_000}
    with SecuredBroker(certificates, changes) as secured:
        strangers = [secured.connect("SASL") for _ in range(10)]
        for stranger in strangers:
            stranger.send_raw(struct.pack(">i", 500_000) + bytes(200_000))
        with secured.connect("SASL") as connection:
            assert log_in(connection)["ErrorCode"] == 0
            assert ask(connection, METADATA, 1, Topics=[])["Brokers"]
        assert secured.counters()["memory_mutes"] == 0
        for stranger in strangers:
            stranger.close()


def test_a_failure_is_sent_after_the_delay_only(certificates: Certificates) -> None:
    """The response to a failed login is sent after the delay on the broker's clock, and other clients are served."""
    clock = VirtualClock()
    changes = {"connection.failed.authentication.delay.ms": 5000, "num.network.threads": 1}
    with (
        SecuredBroker(certificates, changes, clock) as secured,
        secured.connect("SASL") as refused,
        secured.connect("SASL") as other,
    ):
        assert ask(refused, HANDSHAKE, 1, Mechanism="PLAIN")["ErrorCode"] == 0
        refused.send(codec.encode_request_frame(AUTHENTICATE, 1, 3, "x", {"AuthBytes": b"\0alice\0no"})[4:])
        wait_for("the failure", lambda: secured.counters()["authentications_failed"] == 1)
        assert log_in(other)["ErrorCode"] == 0
        clock.advance_ms(4999)
        assert ask(other, METADATA, 1, Topics=[])["Brokers"]
        refused.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            refused.receive()
        refused.socket.settimeout(10)
        clock.advance_ms(1)
        _, response = codec.decode_response_frame(AUTHENTICATE, 1, bytearray(refused.receive()))
        assert response["ErrorCode"] == Errors.SASL_AUTHENTICATION_FAILED
        assert is_closed(refused)


def test_the_default_delay_passes(secured: SecuredBroker) -> None:
    """The default delay of a failed login is 100 ms on the system clock."""
    with secured.connect("SASL") as connection:
        assert ask(connection, HANDSHAKE, 1, Mechanism="PLAIN")["ErrorCode"] == 0
        begun = time.monotonic()
        assert ask(connection, AUTHENTICATE, 1, AuthBytes=b"\0alice\0no")["ErrorCode"] == 58
        assert 0.099 <= time.monotonic() - begun < 5


def test_refused_clients_that_leave_take_nothing_along(secured: SecuredBroker) -> None:
    """The descriptors of clients that disconnect before the response to a failed login are closed."""
    before = socket_count()
    for number in range(40):
        connection = secured.connect("SASL")
        connection.send_raw(
            codec.encode_request_frame(HANDSHAKE, 1, 1, "x", {"Mechanism": "PLAIN"})
            + codec.encode_request_frame(AUTHENTICATE, 1, 2, "x", {"AuthBytes": b"\0alice\0no"})
        )
        if number % 2:
            connection.reset()
        else:
            connection.close()
    wait_for("the descriptors", lambda: socket_count() <= before)


# ---- sessions that end


clock = fixture_of(VirtualClock)


@pytest.fixture
def ending(certificates: Certificates, clock: VirtualClock) -> Iterator[SecuredBroker]:
    """Broker with sessions of 60 s, and 30 s for PLAIN."""
    changes = {
        "connections.max.reauth.ms": 60_000,
        "listener.name.sasl.plain.connections.max.reauth.ms": 30_000,
        "connections.max.idle.ms": -1,
    }
    with SecuredBroker(certificates, changes, clock) as secured:
        secured.add_scram_users()
        yield secured


def test_a_session_ends(ending: SecuredBroker, clock: VirtualClock) -> None:
    """The login's response has the session lifetime; the first later request closes the connection and is counted."""
    with ending.connect("SASL") as connection:
        assert log_in(connection)["SessionLifetimeMs"] == 30_000
        clock.advance_ms(30_000)
        assert ask(connection, METADATA, 1, Topics=[])["Brokers"]
        clock.advance_ms(1)
        connection.send(codec.encode_request_frame(METADATA, 1, 1, "x", {"Topics": []})[4:])
        assert is_closed(connection)
    assert ending.counters()["sessions_expired"] == 1
    shown = {
        family.name: sum(float(sample.value) for sample in samples)  # type: ignore[arg-type, misc]
        for family, samples in ending.broker.exposition.collect()
        if family.name.startswith(("Expired", "expired-", "successful-auth", "failed-auth"))
    }
    assert shown == {
        "ExpiredConnectionsKilledCount": 1,
        "expired-connections-killed-count": 1,
        "failed-authentication-total": 0,
        "successful-authentication-no-reauth-total": 0,
        "successful-authentication-total": 1,
    }


def test_a_session_is_renewed_on_the_same_connection(ending: SecuredBroker, clock: VirtualClock) -> None:
    """A session can be renewed in time or with the first late request, but not by another user."""
    with ending.connect("SASL") as connection:
        log_in(connection)
        clock.advance_ms(29_000)
        assert log_in(connection)["SessionLifetimeMs"] == 30_000
        clock.advance_ms(29_000)
        assert ask(connection, METADATA, 1, Topics=[])["Brokers"]
        clock.advance_ms(29_000)
        assert log_in(connection)["ErrorCode"] == 0, "late, but the connection's first request"
        assert ask(connection, METADATA, 1, Topics=[])["Brokers"]
        assert ask(connection, HANDSHAKE, 1, Mechanism="PLAIN")["ErrorCode"] == 34, "twice within a second"
        clock.advance_ms(1000)
        ask(connection, HANDSHAKE, 1, Mechanism="PLAIN")
        frame = codec.encode_request_frame(
            AUTHENTICATE, 1, 9, "x", {"AuthBytes": f"\0bob\0{PASSWORDS['bob']}".encode()}
        )
        connection.send(frame[4:])
        wait_for("the failure", lambda: ending.counters()["reauthentications_failed"] == 1)
        clock.advance_ms(100)
        _, response = codec.decode_response_frame(AUTHENTICATE, 1, bytearray(connection.receive()))
        assert response["ErrorMessage"].startswith("Cannot change principals during re-authentication")
        assert is_closed(connection)
    counters = ending.counters()
    assert [counters[name] for name in ("authenticated", "reauthenticated", "authentications_failed")] == [1, 2, 0]


def test_a_renewal_in_a_packet_with_requests(ending: SecuredBroker, clock: VirtualClock) -> None:
    """Requests before and after a renewal in the same packet are served in order."""
    with ending.connect("SASL") as connection:
        log_in(connection)
        clock.advance_ms(10_000)
        metadata: Body = {"Topics": []}
        connection.send_raw(
            codec.encode_request_frame(METADATA, 1, 1, "x", metadata)
            + codec.encode_request_frame(METADATA, 1, 2, "x", metadata)
            + codec.encode_request_frame(HANDSHAKE, 1, 3, "x", {"Mechanism": "PLAIN"})
            + codec.encode_request_frame(AUTHENTICATE, 1, 4, "x", {"AuthBytes": ALICE})
            + codec.encode_request_frame(METADATA, 1, 5, "x", metadata)
        )
        responses = [connection.receive() for _ in range(5)]
        assert [struct.unpack_from(">i", response)[0] for response in responses] == [1, 2, 3, 4, 5]
        _, renewed = codec.decode_response_frame(AUTHENTICATE, 1, bytearray(responses[3]))
        assert (renewed["ErrorCode"], renewed["SessionLifetimeMs"]) == (0, 30_000)


def test_our_own_client_renews_its_session(ending: SecuredBroker, clock: VirtualClock) -> None:
    """kbroker's client renews its session on the same connection."""
    with ending.cluster("BOTH", mechanism="SCRAM-SHA-256", clock=lambda: clock.now_ms() / 1000) as cluster:
        created = ending.counters()["connections_created"]
        for _ in range(5):
            clock.advance_ms(55_000)
            cluster.fetch_metadata([])
        assert ending.counters()["connections_created"] <= created + 1
    assert ending.counters()["sessions_expired"] == 0


# ---- users


def test_scram_users_come_and_go(certificates: Certificates, tmp_path: Path) -> None:
    """A removed user cannot log in; other users survive a restart."""
    changes = {"log.dirs": str(tmp_path / "data")}
    with SecuredBroker(certificates, changes) as secured:
        secured.add_scram_users()
        secured.cluster("SASL", mechanism="SCRAM-SHA-256", user="bob").close()
        with secured.cluster("SASL", mechanism="SCRAM-SHA-256") as cluster:
            from kbroker.client.users import Users

            users = Users(cluster)
            assert users.list() == {name: {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096} for name in sorted(PASSWORDS)}
            users.remove("bob", "SCRAM-SHA-256")
            with pytest.raises(KafkaError, match="user 'bob': Attempt to delete a user credential"):
                users.remove("bob", "SCRAM-SHA-256")
        with pytest.raises(KafkaError, match="invalid credentials"):
            secured.cluster("SASL", mechanism="SCRAM-SHA-256", user="bob")
    with SecuredBroker(certificates, changes) as secured:
        secured.cluster("SASL", mechanism="SCRAM-SHA-256").close()
        secured.cluster("BOTH", mechanism="SCRAM-SHA-512", user="bob").close()
        with pytest.raises(KafkaError, match="invalid credentials"):
            secured.cluster("SASL", mechanism="SCRAM-SHA-256", user="bob")


def test_no_secret_is_in_the_log(certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither log messages of any level nor files of the broker contain a password."""
    caplog.set_level(logging.DEBUG, "kbroker.listeners.sasl_authenticator")
    with caplog.at_level(logging.DEBUG), SecuredBroker(certificates, {"log.dirs": str(tmp_path / "data")}) as secured:
        secured.add_scram_users()
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            secured.cluster("SASL", mechanism=mechanism, user="bob").close()
            wrong = {"sasl.jaas.config": 'x.Y required username="bob" password="another-secret";'}
            with pytest.raises(KafkaError):
                secured.cluster("SASL", wrong, mechanism=mechanism)
    text = caplog.text + "".join(
        path.read_bytes().decode("latin-1") for path in (tmp_path / "data").rglob("*") if path.is_file()
    )
    assert "failed authentication" in text
    assert "bob" in text
    assert [secret for secret in (*PASSWORDS.values(), "another-secret") if secret in text] == []


def test_quotas_go_by_who_logged_in(secured: SecuredBroker) -> None:
    """A user's quota applies to the connections of that user only."""
    topic = secured.broker.create_topic("held-back")
    records = wire.batch([b"x" * 20_000])
    secured.broker.context.quotas.update("alice", None, "producer_byte_rate", 1000.0)
    try:
        with (
            secured.connect("SASL") as alice,
            secured.connect_tls("BOTH") as bob,
            secured.connect("PLAINTEXT") as other,
        ):
            log_in(alice)
            log_in(bob, b"\0bob\0" + PASSWORDS["bob"].encode())
            throttled = {}
            for name, connection in (("alice", alice), ("bob", bob), ("other", other)):
                response = connection.ask(wire.produce(topic, 0, records))
                assert wire.produced(response).error_code == 0
                (throttled[name],) = struct.unpack(">i", response[-4:])
            assert throttled["alice"] > 0
            assert throttled["bob"] == throttled["other"] == 0
    finally:
        secured.broker.context.quotas.update("alice", None, "producer_byte_rate", None)


def test_a_plaintext_client_on_a_secured_port(secured: SecuredBroker) -> None:
    """A plaintext client is disconnected by a SASL listener."""
    from kbroker.client.cluster import Cluster

    with pytest.raises(BrokerConnectionError), Cluster(secured.address("SASL"), retry_timeout_s=0) as cluster:
        cluster.fetch_metadata([])


def test_failures_have_lines_in_the_log_of_a_process(certificates: Certificates, tmp_path: Path) -> None:
    """`kbroker serve` writes failed logins and handshakes at its default level, as Kafka does."""
    with BrokerProcess(tmp_path, {key: str(value) for key, value in settings(certificates).items()}) as broker:
        port = {name: int(found) for name, found in re.findall(r"(\w+)://127\.0\.0\.1:(\d+)", broker.tail())}
        with Client(f"127.0.0.1:{port['SASL']}") as client:
            assert log_in(client, b"\0alice\0wrong")["ErrorCode"] == Errors.SASL_AUTHENTICATION_FAILED
            wait_for("the login", lambda: login(client.socket.getsockname()[1]) in broker.tail())
        with socket.create_connection(("127.0.0.1", port["TLS"]), 20) as plain:
            plain.sendall(bytes(64))
            start = f"INFO failed authentication with 127.0.0.1:{plain.getsockname()[1]} (SSL handshake failed: "
            wait_for("the handshake", lambda: start in broker.tail())


def login(port: int) -> str:
    return f"INFO failed authentication with 127.0.0.1:{port} (Authentication failed: Invalid username or password)"
