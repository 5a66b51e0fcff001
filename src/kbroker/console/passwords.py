"""Sign-in as a SCRAM user: the exchange of a listener, with both sides in this process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple, Protocol

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.security import scram
from kbroker.security.mechanisms import FindCredential, SaslAuthenticationError, SaslError, ScramMechanism

MAX_NAME_CHARACTERS, MAX_PASSWORD_CHARACTERS = 1000, 4000


class SignedIn(NamedTuple):
    """A user whose password was right. ``is_valid``: returns false once the password is changed or the user removed."""

    principal: str
    is_valid: Callable[[], bool]


class PasswordCheck(Protocol):
    """Check of the users of a cluster. Threads: any."""

    def sign_in(self, user: str, password: str) -> SignedIn | None:
        """Return the user if the password is right, else None."""
        ...


class Passwords:
    """Check of SCRAM users of this process.

    Args: ``find`` returns the credential of a user for a mechanism. Threads: any.
    """

    def __init__(self, find: FindCredential) -> None:
        self._find = find
        self._nobody = {  # an unknown user takes as long, and never matches
            mechanism.name: scram.Credential.from_password(
                mechanism, secrets.token_hex(16), scram.make_salt(), scram.MIN_ITERATIONS
            )
            for mechanism in scram.MECHANISMS.values()
        }

    def sign_in(self, user: str, password: str) -> SignedIn | None:
        """Return the user if the password is right, else None, after the same time."""
        if len(user) > MAX_NAME_CHARACTERS or len(password) > MAX_PASSWORD_CHARACTERS:
            return None
        for mechanism in scram.MECHANISMS.values():
            credential = self._find(mechanism.name, user)
            if credential is not None:
                break
        else:
            mechanism = scram.SCRAM_SHA_256
        is_right = _exchange(mechanism, credential or self._nobody[mechanism.name], user, password)
        if not is_right or credential is None:
            return None
        name, proven = mechanism.name, credential
        return SignedIn(f"User:{user}", lambda: self._find(name, user) == proven)


def _exchange(mechanism: scram.Mechanism, credential: scram.Credential, user: str, password: str) -> bool:
    server = ScramMechanism(mechanism, lambda name, user: credential)
    client = scram.ScramClient(mechanism, user, password)
    try:
        client.check(server.evaluate(client.final(server.evaluate(client.first()))))
    except (SaslError, SaslAuthenticationError, scram.ScramError):
        return False
    return server.user == user


def are_accepted(config: BrokerConfig) -> bool:
    """Return whether a listener accepts SCRAM users: the console then accepts them too."""
    for listener in config.listeners:
        if listener.has_sasl:
            names = config.listener_value(listener.name, "sasl.enabled.mechanisms")
            if any(mechanism in str(names) for mechanism in scram.MECHANISMS):
                return True
    return False
