"""SASL mechanisms, server side: each evaluates a client's tokens until the user is authenticated or refused.

Source: ``PlainSaslServer``, ``ScramSaslServer``.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from kbroker.common.security import scram

if TYPE_CHECKING:  # most brokers have no tokens
    from kbroker.security.delegation_tokens import TokenLogin

PLAIN = "PLAIN"
SUPPORTED = (PLAIN, *scram.MECHANISMS)

OTHER_AUTHORIZATION_ID = "Authentication failed: Client requested an authorization id that is different from username"


class SaslError(Exception):
    """A refusal whose reason is hidden from the client: it might reveal which users exist."""


class SaslAuthenticationError(Exception):
    """A refusal with a text for the client."""


class Mechanism(Protocol):
    """One exchange. ``user``: None until it is complete.

    ``token_expiry_ms``: expiry of the client's delegation token, since 1970; None without a token.
    """

    user: str | None
    token_expiry_ms: int | None

    def evaluate(self, token: bytes) -> bytes:
        """Return the server's token for a client's. Raises: SaslError, SaslAuthenticationError."""
        ...


MechanismFactory = Callable[[], Mechanism]
FindCredential = Callable[[str, str], scram.Credential | None]
FindToken = Callable[[str, str], "TokenLogin | None"]


class PlainMechanism:
    """RFC 4616: one token with user and password. ``users``: passwords by user."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.user: str | None = None
        self.token_expiry_ms: int | None = None

    def evaluate(self, token: bytes) -> bytes:
        """See Mechanism."""
        words = token.decode("utf-8", "replace").split("\0", 3)
        if len(words) != 3:
            raise SaslAuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(words)}")
        authorization_id, user, password = words
        if not user:
            raise SaslAuthenticationError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationError("Authentication failed: password not specified")
        known = self._users.get(user)
        expected = password + " " if known is None else known  # an unknown user takes as long, and never matches
        if not hmac.compare_digest(expected.encode("utf-8", "replace"), password.encode("utf-8", "replace")):
            raise SaslAuthenticationError("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise SaslAuthenticationError(OTHER_AUTHORIZATION_ID)
        self.user = user
        return b""


class ScramMechanism:
    """RFC 5802: the client proves knowledge of the password.

    Args: ``find`` returns a user's credential for the mechanism; ``nonce``: the server's part, random when None;
    ``find_token`` returns the facts of a delegation token by id, None: there are no tokens.
    """

    def __init__(
        self,
        mechanism: scram.Mechanism,
        find: FindCredential,
        nonce: str | None = None,
        find_token: FindToken | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._find_token = find_token
        self._nonce = scram.make_nonce() if nonce is None else nonce
        self._first: scram.ClientFirst | None = None
        self._challenge: scram.ServerFirst | None = None
        self._credential: scram.Credential | None = None
        self._user = ""
        self.user: str | None = None
        self.token_expiry_ms: int | None = None

    def evaluate(self, token: bytes) -> bytes:
        """See Mechanism."""
        if self.user is not None:
            raise SaslError("the exchange is over")
        try:
            return self._challenge_user(token) if self._first is None else self._verify(token)
        except scram.ScramError as error:
            raise SaslError(str(error)) from None

    def _challenge_user(self, token: bytes) -> bytes:
        first = self._first = scram.ClientFirst.parse(token)
        credential = self._credential = self._credential_of(first)
        if credential is None:
            raise SaslError("Authentication failed: Invalid user credentials")
        if first.authorization_id not in ("", first.user):
            raise SaslAuthenticationError(OTHER_AUTHORIZATION_ID)
        self._challenge = scram.ServerFirst.make(first.nonce + self._nonce, credential)
        return self._challenge.message.encode()

    def _credential_of(self, first: scram.ClientFirst) -> scram.Credential | None:
        """Return the credential of the user, None if unknown; for a login with a token, the token's credential.

        Raises: SaslError for an unknown token.
        """
        if not first.is_token:
            self._user = first.user
            return self._find(self._mechanism.name, first.user)
        login = None if self._find_token is None else self._find_token(self._mechanism.name, first.user)
        if login is None:
            raise SaslError(f"Token Authentication failed: Invalid tokenId : {first.user}")
        self._user, self.token_expiry_ms = login.owner, login.expiry_ms
        return login.credential

    def _verify(self, token: bytes) -> bytes:
        if self._first is None or self._challenge is None or self._credential is None:
            raise SaslError("the exchange has failed")
        final = scram.ClientFinal.parse(token)
        if final.nonce != self._challenge.nonce:
            raise SaslError("Invalid client nonce in the final client message.")
        if final.channel_binding != self._first.header.encode():
            raise SaslError("Invalid channel binding in the final client message.")
        signed = f"{self._first.bare},{self._challenge.message},{final.without_proof}".encode()
        response = scram.verify(self._mechanism, self._credential, signed, final.proof)
        self.user, self._credential = self._user, None
        return response
