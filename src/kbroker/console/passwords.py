"""Sign-in as a SCRAM user: the exchange of a listener, with both sides in this process."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Mapping
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

    Args: ``find`` returns the credential of a user for a mechanism; ``users`` returns the iterations by mechanism of
    every user; ``mechanisms``: names of those that listeners accept. Threads: any.
    """

    def __init__(
        self,
        find: FindCredential,
        users: Callable[[], Mapping[str, Mapping[str, int]]],
        mechanisms: Collection[str] = tuple(scram.MECHANISMS),
    ) -> None:
        self._find, self._users = find, users
        self._mechanisms = [one for one in scram.MECHANISMS.values() if one.name in mechanisms]
        self._key = secrets.token_bytes(32)

    def sign_in(self, user: str, password: str) -> SignedIn | None:
        """Return the user if the password is that of one of its credentials, else None.

        For an unknown name, the check takes as long as for an existing user, always the same one for that name.
        """
        if len(user) > MAX_NAME_CHARACTERS or len(password) > MAX_PASSWORD_CHARACTERS:
            return None
        imitated = self._imitated(user)  # for known users too, because it takes time
        found = [(one, self._find(one.name, user)) for one in self._mechanisms]
        known = [(mechanism, credential) for mechanism, credential in found if credential is not None]
        right = next((one for one in known or imitated if _exchange(*one, user, password)), None)
        if right is None or not known:
            return None
        mechanism, credential = right
        return SignedIn(f"User:{user}", lambda: self._find(mechanism.name, user) == credential)

    def _imitated(self, user: str) -> list[tuple[scram.Mechanism, scram.Credential]]:
        """Return credentials without a password, with the mechanisms and iterations of an existing user."""
        used = {
            tuple((index, of_user[one.name]) for index, one in enumerate(self._mechanisms) if one.name in of_user)
            for of_user in self._users().values()
        }
        choices = sorted(used - {()}) or [((0, scram.MIN_ITERATIONS),)]
        digest = hmac.digest(self._key, user.encode("utf-8", "replace"), hashlib.sha256)
        chosen = choices[int.from_bytes(digest, "big") % len(choices)]
        return [
            (self._mechanisms[index], scram.Credential(scram.make_salt(), iterations, digest, digest))
            for index, iterations in chosen
        ]


def _exchange(mechanism: scram.Mechanism, credential: scram.Credential, user: str, password: str) -> bool:
    server = ScramMechanism(mechanism, lambda name, user: credential)
    client = scram.ScramClient(mechanism, user, password)
    try:
        client.check(server.evaluate(client.final(server.evaluate(client.first()))))
    except (SaslError, SaslAuthenticationError, scram.ScramError):
        return False
    return server.user == user


def accepted(config: BrokerConfig) -> list[str]:
    """Return the SCRAM mechanisms that listeners accept: the console accepts their users too."""
    of_listeners = [
        str(config.listener_value(listener.name, "sasl.enabled.mechanisms"))
        for listener in config.listeners
        if listener.has_sasl
    ]
    return [name for name in scram.MECHANISMS if any(name in names for names in of_listeners)]
