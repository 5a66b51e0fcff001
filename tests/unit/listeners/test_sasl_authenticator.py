"""SASL exchange before the first request, frame by frame on a virtual clock."""

import logging
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.common.security import scram
from kbroker.handlers.api_table import KafkaApis
from kbroker.listeners.sasl_authenticator import SaslAuthenticator, SaslListener, error_body
from kbroker.metadata.features import FinalizedFeatures
from kbroker.network.transport.authentication import Outcome, Step
from kbroker.protocol import codec
from kbroker.security.mechanisms import PlainMechanism, ScramMechanism
from tests.support.fixtures import fixture_of

HANDSHAKE, API_VERSIONS, METADATA, AUTHENTICATE, PRODUCE = 17, 18, 3, 36, 0
PASSWORDS = {"alice": "alice-secret", "bob": "bob-secret"}
APIS = KafkaApis()


def error_response_of(key: int, version: int) -> Any:
    entry = APIS.find(key, version)
    return None if entry is None else entry.failure


def credential(mechanism: str, user: str) -> scram.Credential | None:
    how = scram.MECHANISMS[mechanism]
    return scram.Credential.from_password(how, PASSWORDS[user], b"salt", 4096) if user in PASSWORDS else None


class Client:
    """Client that builds frames and decodes an authenticator's responses."""

    def __init__(self, max_reauth_ms: int = 0) -> None:
        self.clock = VirtualClock()
        names = ("PLAIN", *scram.MECHANISMS)
        self.listener = SaslListener(
            {
                "PLAIN": lambda: PlainMechanism(PASSWORDS),
                "SCRAM-SHA-256": lambda: ScramMechanism(scram.SCRAM_SHA_256, credential),
            },
            api_versions=APIS.ranges,
            features=lambda: FinalizedFeatures({}, 0),
            error_body=error_body(error_response_of),
            clock=self.clock,
            max_reauth_ms=dict.fromkeys(names, max_reauth_ms),
        )
        self.authenticator: SaslAuthenticator = self.listener.begin("127.0.0.1", 1)

    def send(self, key: int, version: int, **body: Any) -> Step:
        frame = codec.encode_request_frame(key, version, 7, "me", body)[4:]
        return self.authenticator.receive(frame)

    def ask(self, key: int, version: int, **body: Any) -> dict[str, Any]:
        step = self.send(key, version, **body)
        assert step.outcome is Outcome.CONTINUE
        return self.read(key, version, step)

    @staticmethod
    def read(key: int, version: int, step: Step) -> dict[str, Any]:
        assert step.response is not None
        correlation_id, body = codec.decode_response_frame(key, version, bytearray(step.response))
        assert correlation_id == 7
        return body

    def log_in(self, user: str = "alice", version: int = 2) -> Step:
        assert self.ask(HANDSHAKE, 1, Mechanism="PLAIN")["ErrorCode"] == 0
        return self.send(AUTHENTICATE, version, AuthBytes=f"\0{user}\0{user}-secret".encode())


client = fixture_of(Client)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_plain(client: Client, version: int) -> None:
    """ApiVersions, SaslHandshake and SaslAuthenticate with user and password establish the principal."""
    ranges = client.ask(API_VERSIONS, 3, ClientSoftwareName="x", ClientSoftwareVersion="1")
    assert {row["ApiKey"] for row in ranges["ApiKeys"]} == set(APIS.ranges())
    step = client.log_in(version=version)
    assert (step.outcome, step.principal, step.session_lifetime_ms) == (Outcome.COMPLETE, "User:alice", 0)
    assert step.is_renewable == (version > 0)
    response = client.read(AUTHENTICATE, version, step)
    assert (response["ErrorCode"], response["AuthBytes"]) == (0, b"")


def test_scram(client: Client) -> None:
    """The exchange takes two SaslAuthenticate requests."""
    assert client.ask(HANDSHAKE, 1, Mechanism="SCRAM-SHA-256")["Mechanisms"] == ["PLAIN", "SCRAM-SHA-256"]
    exchange = scram.ScramClient(scram.SCRAM_SHA_256, "bob", "bob-secret")
    challenge = client.ask(AUTHENTICATE, 2, AuthBytes=exchange.first())["AuthBytes"]
    step = client.send(AUTHENTICATE, 2, AuthBytes=exchange.final(bytes(challenge)))
    assert (step.outcome, step.principal) == (Outcome.COMPLETE, "User:bob")
    exchange.check(bytes(client.read(AUTHENTICATE, 2, step)["AuthBytes"]))


def test_bare_tokens_after_handshake_0(client: Client) -> None:
    """Old clients send and get tokens without headers."""
    client.ask(HANDSHAKE, 0, Mechanism="PLAIN")
    step = client.authenticator.receive(b"\0alice\0alice-secret")
    assert step == Step(Outcome.COMPLETE, b"", "User:alice", 0, is_renewable=False)
    client = Client()
    client.ask(HANDSHAKE, 0, Mechanism="SCRAM-SHA-256")
    exchange = scram.ScramClient(scram.SCRAM_SHA_256, "bob", "bob-secret")
    challenge = client.authenticator.receive(exchange.first())
    assert challenge.response is not None
    step = client.authenticator.receive(exchange.final(challenge.response))
    assert step.principal == "User:bob"


def test_bare_tokens_refused(client: Client) -> None:
    """An error cannot be encoded, so it closes the connection, with a delay where Kafka has one."""
    client.ask(HANDSHAKE, 0, Mechanism="PLAIN")
    assert client.authenticator.receive(b"\0alice\0wrong") == Step(Outcome.FAILED)
    client = Client()
    client.ask(HANDSHAKE, 0, Mechanism="SCRAM-SHA-256")
    assert client.authenticator.receive(b"n,,n=stranger,r=x") == Step(Outcome.CLOSE)


def test_an_unknown_mechanism_gets_the_list(client: Client) -> None:
    """UNSUPPORTED_SASL_MECHANISM with the list of mechanisms ends the exchange."""
    step = client.send(HANDSHAKE, 1, Mechanism="GSSAPI")
    assert step.outcome is Outcome.FAILED
    response = client.read(HANDSHAKE, 1, step)
    assert response == {"ErrorCode": 33, "Mechanisms": ["PLAIN", "SCRAM-SHA-256"]}
    assert client.send(HANDSHAKE, 1, Mechanism="PLAIN").outcome is Outcome.CLOSE


def test_wrong_passwords_get_kafkas_words(client: Client) -> None:
    """Both mechanisms respond with error 58; only PLAIN's message has the cause."""
    client.ask(HANDSHAKE, 1, Mechanism="PLAIN")
    step = client.send(AUTHENTICATE, 1, AuthBytes=b"\0alice\0wrong")
    response = client.read(AUTHENTICATE, 1, step)
    assert step.outcome is Outcome.FAILED
    assert (response["ErrorCode"], response["ErrorMessage"]) == (
        58,
        "Authentication failed: Invalid username or password",
    )
    for user in ("bob", "stranger"):
        client = Client()
        client.ask(HANDSHAKE, 1, Mechanism="SCRAM-SHA-256")
        exchange = scram.ScramClient(scram.SCRAM_SHA_256, user, "wrong")
        step = client.send(AUTHENTICATE, 2, AuthBytes=exchange.first())
        if step.outcome is Outcome.CONTINUE:
            challenge = bytes(client.read(AUTHENTICATE, 2, step)["AuthBytes"])
            step = client.send(AUTHENTICATE, 2, AuthBytes=exchange.final(challenge))
        response = client.read(AUTHENTICATE, 2, step)
        assert step.outcome is Outcome.FAILED
        assert response["ErrorCode"] == 58
        assert response["ErrorMessage"] == (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
        )


def test_other_requests_instead_of_a_token_get_error_34(client: Client) -> None:
    """The error has the response format of the request; an API without such a format closes after the delay."""
    client.ask(HANDSHAKE, 1, Mechanism="PLAIN")
    step = client.send(API_VERSIONS, 0)
    assert step.outcome is Outcome.FAILED
    assert client.read(API_VERSIONS, 0, step)["ErrorCode"] == Errors.ILLEGAL_SASL_STATE
    client = Client()
    client.ask(HANDSHAKE, 1, Mechanism="PLAIN")
    step = client.authenticator.receive(b"\0\x12\0\x63\0\0\0\x07\xff\xff\0")
    assert client.read(API_VERSIONS, 0, step)["ErrorCode"] == Errors.ILLEGAL_SASL_STATE, "of an unknown version"
    client = Client()
    client.ask(HANDSHAKE, 1, Mechanism="PLAIN")
    assert client.send(PRODUCE, 7, TransactionalId=None, Acks=1, TimeoutMs=1, TopicData=[]) == Step(Outcome.FAILED)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\x12",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        codec.encode_request_frame(METADATA, 1, 1, "x", {"Topics": []})[4:],
        codec.encode_request_frame(AUTHENTICATE, 1, 1, "x", {"AuthBytes": b"\0alice\0alice-secret"})[4:],
        codec.encode_request_frame(HANDSHAKE, 1, 1, "x", {"Mechanism": "PLAIN"})[4:-2],
        b"\0\x11\0\x02\0\0\0\1\0\0\0\x05PLAIN",
        b"\0\x11\0\x01\0\0\0\1\x7f\xff",
        b"\xff" * 100,
    ],
)
def test_what_is_no_beginning_is_closed(client: Client, frame: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Garbage, other protocols, other requests and truncated requests close the connection at once, with a log line."""
    assert client.authenticator.receive(frame) == Step(Outcome.CLOSE)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith("closing the connection of 127.0.0.1:1: ")
    assert client.send(HANDSHAKE, 1, Mechanism="PLAIN").outcome is Outcome.CLOSE


def test_api_versions_of_every_kind(client: Client) -> None:
    """Unknown versions get error 35, invalid names 42, and a retry is allowed; after a success it is not."""
    step = client.authenticator.receive(b"\0\x12\0\x63\0\0\0\x07")
    assert client.read(API_VERSIONS, 0, step)["ErrorCode"] == 35
    bad = client.ask(API_VERSIONS, 3, ClientSoftwareName="!", ClientSoftwareVersion="1")
    assert bad["ErrorCode"] == 42
    assert client.ask(API_VERSIONS, 0)["ErrorCode"] == 0
    assert client.send(API_VERSIONS, 0).outcome is Outcome.CLOSE


def test_a_session_with_an_end_is_renewed() -> None:
    """The response has the session lifetime; the same user may reauthenticate, at most once a second."""
    client = Client(max_reauth_ms=60_000)
    step = client.log_in()
    assert step.session_lifetime_ms == 60_000
    assert client.read(AUTHENTICATE, 2, step)["SessionLifetimeMs"] == 60_000
    assert client.authenticator.begin_again()
    assert client.log_in().outcome is Outcome.COMPLETE
    client.clock.advance_ms(999)
    assert not client.authenticator.begin_again()
    client.clock.advance_ms(1)
    assert client.authenticator.begin_again()
    assert client.log_in().principal == "User:alice"


def test_without_an_end_there_is_nothing_to_renew(client: Client) -> None:
    """A further handshake is refused like any other request."""
    client.log_in()
    assert not client.authenticator.begin_again()


def test_a_renewal_cannot_change_the_user() -> None:
    """Reauthentication as another user fails with error 58 in Kafka's words."""
    client = Client(max_reauth_ms=60_000)
    client.log_in("alice")
    assert client.authenticator.begin_again()
    step = client.log_in("bob")
    assert step.outcome is Outcome.FAILED
    assert client.read(AUTHENTICATE, 2, step)["ErrorMessage"] == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )


def test_a_renewal_cannot_change_the_mechanism() -> None:
    """The handshake succeeds, and the next token ends the exchange, as in Kafka."""
    client = Client(max_reauth_ms=60_000)
    client.log_in("alice")
    assert client.authenticator.begin_again()
    assert client.ask(HANDSHAKE, 1, Mechanism="SCRAM-SHA-256")["ErrorCode"] == 0
    assert client.send(AUTHENTICATE, 2, AuthBytes=b"n,,n=alice,r=x") == Step(Outcome.FAILED)


def test_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Passwords, right or wrong, and tokens are logged at no level."""
    with caplog.at_level(logging.DEBUG):
        Client().log_in()
        client = Client()
        client.ask(HANDSHAKE, 1, Mechanism="PLAIN")
        client.send(AUTHENTICATE, 1, AuthBytes=b"\0alice\0not-her-secret")
    assert "failed authentication with 127.0.0.1:1" in caplog.text
    assert "secret" not in caplog.text
