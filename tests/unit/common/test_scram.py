"""SCRAM computations of the examples in its standards, and SCRAM messages."""

import base64
from collections.abc import Callable

import pytest

from kbroker.common.security import scram
from kbroker.security.mechanisms import PlainMechanism, SaslAuthenticationError, SaslError, ScramMechanism

# RFC 7677, section 3
USER, PASSWORD = "user", "pencil"
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def server(
    password: str = PASSWORD, mechanism: scram.Mechanism = scram.SCRAM_SHA_256, nonce: str = SERVER_NONCE
) -> ScramMechanism:
    """Return a server with one user."""
    credential = scram.Credential.from_password(mechanism, password, SALT, 4096)
    return ScramMechanism(mechanism, lambda name, user: credential if user == USER else None, nonce)


def test_the_client_of_rfc_7677() -> None:
    """The client sends the messages of the standard's example and accepts the server's proof."""
    client = scram.ScramClient(scram.SCRAM_SHA_256, USER, PASSWORD, CLIENT_NONCE)
    assert client.first() == CLIENT_FIRST
    assert client.final(SERVER_FIRST) == CLIENT_FINAL
    client.check(SERVER_FINAL)


def test_the_server_of_rfc_7677() -> None:
    """The server responds to the standard's client with the standard's messages."""
    exchange = server()
    assert exchange.evaluate(CLIENT_FIRST) == SERVER_FIRST
    assert exchange.user is None
    assert exchange.evaluate(CLIENT_FINAL) == SERVER_FINAL
    assert exchange.user == USER


@pytest.mark.parametrize("mechanism", scram.MECHANISMS.values(), ids=lambda mechanism: mechanism.name)
@pytest.mark.parametrize("user", ["alice", "a=b,c", "User:x y"])
def test_both_ends_agree(mechanism: scram.Mechanism, user: str) -> None:
    """Client and server agree for any name, with fresh nonces."""
    credential = scram.Credential.from_password(mechanism, "p,=ss", scram.make_salt(), 4096)
    exchange = ScramMechanism(mechanism, lambda name, who: credential if who == user else None)
    client = scram.ScramClient(mechanism, user, "p,=ss")
    client.check(exchange.evaluate(client.final(exchange.evaluate(client.first()))))
    assert exchange.user == user


def test_a_wrong_password_is_refused_and_nothing_follows() -> None:
    """The proof of another password is rejected, and the exchange cannot be repeated."""
    exchange = server("pen")
    client = scram.ScramClient(scram.SCRAM_SHA_256, USER, PASSWORD, CLIENT_NONCE)
    final = client.final(exchange.evaluate(client.first()))
    with pytest.raises(SaslError, match="Invalid client credentials"):
        exchange.evaluate(final)
    assert exchange.user is None


def test_a_server_that_does_not_know_the_user_is_found_out() -> None:
    """The client rejects a proof that needs no knowledge of the password."""
    client = scram.ScramClient(scram.SCRAM_SHA_256, USER, PASSWORD, CLIENT_NONCE)
    client.final(SERVER_FIRST)
    with pytest.raises(scram.ScramError, match="Invalid server signature"):
        client.check(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(scram.ScramError, match="other-error"):
        client.check(b"e=other-error")


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=9999999999",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22,i=4096",
    ],
)
def test_a_client_takes_no_bad_challenge(challenge: bytes) -> None:
    """Another nonce, the client's nonce alone, an invalid number of iterations, and an invalid salt are rejected."""
    client = scram.ScramClient(scram.SCRAM_SHA_256, USER, PASSWORD, CLIENT_NONCE)
    with pytest.raises(scram.ScramError):
        client.final(challenge)


@pytest.mark.parametrize(
    ("iterations", "bound"), [(4095, "less than the minimum 4096"), ((1 << 24) + 1, "more than the maximum 16777216")]
)
def test_a_client_says_which_bound_the_iterations_break(iterations: int, bound: str) -> None:
    """The error names the bound that the number of iterations exceeds."""
    client = scram.ScramClient(scram.SCRAM_SHA_256, USER, PASSWORD, CLIENT_NONCE)
    with pytest.raises(scram.ScramError, match=f"^Requested iterations {iterations} is {bound}$"):
        client.final(f"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i={iterations}".encode())


@pytest.mark.parametrize(
    "first",
    [
        b"", b"n,,", b"y,,n=user,r=x", b"p=tls-unique,,n=user,r=x", b"n,,n=,r=x", b"n,,n=us=er,r=x", b"n,,n=user",
        b"n,,r=x,n=user", b"n,,n=user,r=", b"\xff\xfe", b"n,,n=user,r=x," + b"," * 1000, b"n=user,r=x" * 100000,
    ],
    ids=range(12),
)  # fmt: skip
def test_a_server_takes_no_bad_first_message(first: bytes) -> None:
    """Bytes that are not a first message are rejected at once."""
    with pytest.raises(SaslError):
        server().evaluate(first)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda message: message.replace(b"biws", b"eSws"), "channel binding"),
        (lambda message: message.replace(b"k0", b"k1"), "Invalid client nonce"),
        (lambda message: message.replace(b"dHzb", b"dHzc"), "Invalid client credentials"),
        (lambda message: message[: message.index(b"p=")] + b"p=", "Invalid client credentials"),
        (lambda message: message[:-1], "format"),
        (lambda message: b"", "format"),
    ],
)
def test_a_server_takes_no_bad_proof(change: Callable[[bytes], bytes], why: str) -> None:
    """Each part of the last message is verified."""
    exchange = server()
    exchange.evaluate(CLIENT_FIRST)
    with pytest.raises(SaslError, match=why):
        exchange.evaluate(change(CLIENT_FINAL))


def test_an_unknown_user_and_another_authorization_id() -> None:
    """The client gets no message about an unknown user, and a message about another authorization id."""
    with pytest.raises(SaslError, match="Invalid user credentials"):
        server().evaluate(b"n,,n=other,r=x")
    with pytest.raises(SaslAuthenticationError, match="authorization id that is different"):
        server().evaluate(b"n,a=admin,n=user,r=x")
    assert server().evaluate(b"n,a=user,n=user,r=x").startswith(b"r=x")


def test_plain_tokens() -> None:
    """A token has user and password, and may have an authorization id equal to the user."""
    exchange = PlainMechanism({"alice": "secret"})
    assert exchange.evaluate(b"\0alice\0secret") == b""
    assert exchange.user == "alice"
    exchange = PlainMechanism({"alice": "secret"})
    assert exchange.evaluate(b"alice\0alice\0secret") == b""


@pytest.mark.parametrize(
    ("token", "error", "text"),
    [
        (b"\0alice\0wrong", SaslAuthenticationError, "Invalid username or password"),
        (b"\0bob\0secret", SaslAuthenticationError, "Invalid username or password"),
        (b"\0alice\0secret ", SaslAuthenticationError, "Invalid username or password"),
        (b"admin\0alice\0secret", SaslAuthenticationError, "authorization id"),
        (b"", SaslAuthenticationError, "expected 3 tokens, got 1"),
        (b"\0alice", SaslAuthenticationError, "expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", SaslAuthenticationError, "expected 3 tokens, got 4"),
        (b"\0" * 100_000, SaslAuthenticationError, "expected 3 tokens, got 4"),
        (b"\0\0secret", SaslAuthenticationError, "username not specified"),
        (b"\0alice\0", SaslAuthenticationError, "password not specified"),
        (b"\0alice\0\xff\xfe", SaslAuthenticationError, "Invalid username or password"),
    ],
)
def test_plain_refuses(token: bytes, error: type[Exception], text: str) -> None:
    """An unknown user gets the error of a wrong password, and an incomplete token is an error."""
    exchange = PlainMechanism({"alice": "secret"})
    with pytest.raises(error, match=text):
        exchange.evaluate(token)
    assert exchange.user is None


def test_a_credential_does_not_show_itself() -> None:
    """The representation of a credential hides its keys and its salt."""
    credential = scram.Credential.from_password(scram.SCRAM_SHA_256, "x", SALT, 4096)
    assert repr(credential) == "Credential(...)"
