"""Computations and messages of SCRAM, for both ends: RFC 5802 and RFC 7677 with the limits of Apache Kafka.

A server stores salt, iterations, stored key and server key of a user, from which no password can be computed. Channel
binding is not supported; the only supported extension is Kafka's ``tokenauth`` (KIP-48), the others are transmitted and
ignored. OpenSSL is loaded on first use.
"""

import binascii
import re
from typing import NamedTuple

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
TOKEN_AUTH = "tokenauth"  # the extension, and the option of a client's JAAS line
MAX_CLIENT_ITERATIONS = 1 << 24  # limits a client's computation to seconds, for any value of the server

_BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
# compiled on first use, then cached by re
_CLIENT_FIRST = rf"(n,(?:a=({_NAME}))?,)((?:m={_VALUE},)?n=({_NAME}),r=({_PRINTABLE})({_EXTENSIONS}))"
_SERVER_FIRST = rf"(?:m={_VALUE},)?r=({_PRINTABLE}),s=({_BASE64}),i=([0-9]{{1,10}}){_EXTENSIONS}"
_CLIENT_FINAL = rf"(c=({_BASE64}),r=({_PRINTABLE}){_EXTENSIONS}),p=({_BASE64})"


class ScramError(ValueError):
    """Malformed SCRAM message or failed proof. The text may reveal whether a user exists: log it, never send it."""


class Mechanism(NamedTuple):
    """One SCRAM mechanism; ``number`` is its code in requests."""

    name: str
    number: int
    hash_name: str

    @property
    def size_bytes(self) -> int:
        """Size of the digest."""
        import hashlib

        return hashlib.new(self.hash_name).digest_size

    def digest(self, data: bytes) -> bytes:
        """Return H of RFC 5802."""
        import hashlib

        return hashlib.new(self.hash_name, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        """Return HMAC of RFC 5802."""
        import hmac

        return hmac.digest(key, data, self.hash_name)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return Hi of RFC 5802; it is slow on purpose."""
        import hashlib

        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


SCRAM_SHA_256 = Mechanism("SCRAM-SHA-256", 1, "sha256")
SCRAM_SHA_512 = Mechanism("SCRAM-SHA-512", 2, "sha512")
MECHANISMS = {mechanism.name: mechanism for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512)}
BY_NUMBER = {mechanism.number: mechanism for mechanism in MECHANISMS.values()}


class Credential(NamedTuple):
    """Verifier of a user: the keys that a server stores."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def from_salted_password(cls, mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> "Credential":
        """Return the keys derived from a client's salted password."""
        stored_key = mechanism.digest(mechanism.hmac(salted, b"Client Key"))
        return cls(salt, iterations, stored_key, mechanism.hmac(salted, b"Server Key"))

    @classmethod
    def from_password(cls, mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> "Credential":
        """Return the keys derived from a password."""
        salted = mechanism.salted_password(password, salt, iterations)
        return cls.from_salted_password(mechanism, salted, salt, iterations)

    def __repr__(self) -> str:
        return "Credential(...)"  # tracebacks and log lines must not show it


class ClientFirst(NamedTuple):
    """The first message: ``header`` before ``bare``, the part that is signed.

    ``is_token``: ``user`` is the id of a delegation token.
    """

    header: str
    authorization_id: str
    bare: str
    user: str
    nonce: str
    is_token: bool = False

    @classmethod
    def parse(cls, message: bytes) -> "ClientFirst":
        """Parse the client's first message. Raises: ScramError."""
        found = re.fullmatch(_CLIENT_FIRST, message.decode("utf-8", "replace"), re.DOTALL)
        if found is None:
            raise ScramError("Invalid SCRAM client first message format")
        extensions = dict(one.split("=", 1) for one in found[6].split(",")[1:])
        is_token = extensions.get(TOKEN_AUTH, "").lower() == "true"
        # as Kafka signs it: a duplicate extension occurs once, so that no proof matches
        bare = found[3][: len(found[3]) - len(found[6])] + "".join(f",{k}={v}" for k, v in extensions.items())
        return cls(found[1], found[2] or "", bare, unescape_name(found[4]), found[5], is_token)


class ServerFirst(NamedTuple):
    """The server's challenge; ``message``: the signed text."""

    message: str
    nonce: str
    salt: bytes
    iterations: int

    @classmethod
    def make(cls, nonce: str, credential: Credential) -> "ServerFirst":
        """Return the challenge to a user; ``nonce``: the client's, followed by the server's."""
        message = f"r={nonce},s={_encode(credential.salt)},i={credential.iterations}"
        return cls(message, nonce, credential.salt, credential.iterations)

    @classmethod
    def parse(cls, message: bytes) -> "ServerFirst":
        """Parse the server's first message. Raises: ScramError."""
        text = message.decode("utf-8", "replace")
        found = re.fullmatch(_SERVER_FIRST, text, re.DOTALL)
        if found is None or int(found[3]) < 1:
            raise ScramError("Invalid SCRAM server first message format")
        return cls(text, found[1], _decode(found[2]), int(found[3]))


class ClientFinal(NamedTuple):
    """The client's proof; ``without_proof``: the signed text."""

    without_proof: str
    channel_binding: bytes
    nonce: str
    proof: bytes

    @classmethod
    def parse(cls, message: bytes) -> "ClientFinal":
        """Parse the client's final message. Raises: ScramError."""
        found = re.fullmatch(_CLIENT_FINAL, message.decode("utf-8", "replace"), re.DOTALL)
        if found is None:
            raise ScramError("Invalid SCRAM client final message format")
        return cls(found[1], _decode(found[2]), found[3], _decode(found[4]))


def verify(mechanism: Mechanism, credential: Credential, signed: bytes, proof: bytes) -> bytes:
    """Return the server's final message, in constant time. Raises: ScramError unless the proof is right."""
    import hmac

    signature = mechanism.hmac(credential.stored_key, signed)
    right = False
    if len(proof) == len(signature):
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
        right = hmac.compare_digest(mechanism.digest(client_key), credential.stored_key)
    if not right:
        raise ScramError("Invalid client credentials")
    return b"v=" + _encode(mechanism.hmac(credential.server_key, signed)).encode()


class ScramClient:
    """The client's side of one exchange.

    Args: ``nonce``: generated when None; ``is_token``: user and password are a delegation token's id and secret, which
    is in base64. Raises (all methods): ScramError.
    """

    def __init__(
        self, mechanism: Mechanism, user: str, password: str, nonce: str | None = None, is_token: bool = False
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = make_nonce() if nonce is None else nonce
        extensions = f",{TOKEN_AUTH}=true" if is_token else ""
        self._bare = f"n={escape_name(user)},r={self._nonce}{extensions}"
        self._expected = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the proof for the server's challenge, and keep the signature that the server has to return.

        It takes the time of the iterations.

        Raises: ScramError.
        """
        server = ServerFirst.parse(challenge)
        if not server.nonce.startswith(self._nonce) or server.nonce == self._nonce:
            raise ScramError("Invalid server nonce")
        if server.iterations < MIN_ITERATIONS:
            raise ScramError(f"Requested iterations {server.iterations} is less than the minimum {MIN_ITERATIONS}")
        if server.iterations > MAX_CLIENT_ITERATIONS:
            text = f"Requested iterations {server.iterations} is more than the maximum {MAX_CLIENT_ITERATIONS}"
            raise ScramError(text)
        mechanism = self._mechanism
        salted = mechanism.salted_password(self._password, server.salt, server.iterations)
        client_key = mechanism.hmac(salted, b"Client Key")
        without_proof = f"c={_encode(b'n,,')},r={server.nonce}"
        signed = f"{self._bare},{server.message},{without_proof}".encode()
        signature = mechanism.hmac(mechanism.digest(client_key), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._expected = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={_encode(proof)}".encode()

    def check(self, outcome: bytes) -> None:
        """Verify the server's final message, which proves that the server has the user's keys. Raises: ScramError."""
        import hmac

        if outcome.startswith(b"e="):
            raise ScramError(outcome[2:].partition(b",")[0].decode("utf-8", "replace"))
        expected = b"v=" + _encode(self._expected).encode()
        if not hmac.compare_digest(outcome.partition(b",")[0], expected):
            raise ScramError("Invalid server signature in server final message")


def make_nonce() -> str:
    """Return a random nonce."""
    import secrets

    return secrets.token_urlsafe(24)


def make_salt() -> bytes:
    """Return a random salt."""
    import secrets

    return secrets.token_bytes(24)


def escape_name(user: str) -> str:
    """Return a user name as messages encode it."""
    return user.replace("=", "=3D").replace(",", "=2C")


def unescape_name(name: str) -> str:
    """Return the user name of an encoded name."""
    return name.replace("=2C", ",").replace("=3D", "=")


def _encode(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _decode(text: str) -> bytes:
    import base64  # not imported at the start of a broker

    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ScramError("not base64") from error
