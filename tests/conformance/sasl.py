"""Logins step by step, so that a script can send messages that no client sends, and the users of the SASL listener."""

import base64
import hashlib
import hmac
import re
import secrets

from tests.conformance.codec import Body
from tests.conformance.talk import Stuck, Talk

PASSWORDS = {"alice": "alice-secret", "bob": "bob-secret"}
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: Settings of a broker for situations with logins; the program that starts it names the listener SASL_PLAINTEXT.
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_MODULE} required "
    + " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    + ";",
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "delegation.token.secret.key": "a key",
}
UNCOMPARED = ("AuthBytes", "SessionLifetimeMs")  # challenges and times


def log_in(talk: Talk, user: str) -> str:
    """Open a connection and log in with a password, without recording; return the connection's name, `user`."""
    if user not in talk.connections:
        talk.open_sasl(user)
        talk.quietly("SaslHandshake", 1, {"Mechanism": "PLAIN"}, on=user)
        token = f"\0{user}\0{PASSWORDS[user]}".encode()
        if code := talk.quietly("SaslAuthenticate", 2, {"AuthBytes": token}, on=user)["ErrorCode"]:
            raise Stuck(f"{user} cannot log in: error {code}")
    return user


def by_scram(talk: Talk, user: str, password: bytes, extensions: str, note: str, *, authorization_id: str = "") -> str:
    """Log in with SCRAM-SHA-256 and record each response; return the connection's name.

    Args: ``extensions``: text after the nonce of the first message, with its leading comma.
    """
    on = f"{note} {user}"
    talk.open_sasl(on)
    talk.quietly("SaslHandshake", 1, {"Mechanism": "SCRAM-SHA-256"}, on=on)
    header = f"n,a={authorization_id}," if authorization_id else "n,,"
    bare = f"n={user},r={secrets.token_hex(12)}{extensions}"
    challenge = _authenticate(talk, f"{header}{bare}", f"{note}, first", on)
    found = re.fullmatch(r"r=([^,]+),s=([^,]+),i=(\d+)", challenge)
    if found is None:
        return on
    without_proof = f"c={base64.b64encode(header.encode()).decode()},r={found[1]}"
    salted = hashlib.pbkdf2_hmac("sha256", password, base64.b64decode(found[2]), int(found[3]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), f"{bare},{challenge},{without_proof}".encode(), "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    _authenticate(talk, f"{without_proof},p={proof}", f"{note}, proof", on)
    return on


def _authenticate(talk: Talk, message: str, note: str, on: str) -> str:
    body = {"AuthBytes": message.encode()}
    response: Body = talk.also("SaslAuthenticate", 2, body, note, on=on, without=UNCOMPARED)
    return bytes(response.get("AuthBytes") or b"").decode()
