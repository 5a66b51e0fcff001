"""Sign-in of the users of another cluster: by a connection with their password, which their pages then use."""

from __future__ import annotations

import threading

from kbroker.client.security import ClientSecurity
from kbroker.common.errors import Errors, KafkaError
from kbroker.console.connections import CLIENT_ID, RETRY_S, Identity
from kbroker.console.passwords import MAX_NAME_CHARACTERS, MAX_PASSWORD_CHARACTERS, SignedIn
from kbroker.console.requests import PageError

MAX_USERS = 1000  # a further user ends the sessions of the oldest


class RemoteUsers:
    """Logins of signed-in users, and the login of all others.

    Args: ``bootstrap``: `host:port[,host:port...]`; ``security`` of the console itself, whose principal is ``own``.
    Threads: any.
    """

    def __init__(self, bootstrap: str, security: ClientSecurity) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self.own = "" if security.sasl is None else f"User:{security.sasl.user}"
        self._lock = threading.Lock()
        self._users: dict[str, ClientSecurity] = {}  # keys: principal; oldest first

    @property
    def have_passwords(self) -> bool:
        """Return whether the cluster's users log in with passwords."""
        return self._security.sasl is not None

    def security_of(self, identity: Identity) -> ClientSecurity:
        """Return the security of connections for an identity. Raises: PageError 403 for a user without a session."""
        with self._lock:
            found = self._users.get(identity.principal)
        if found is None and identity.principal not in ("", self.own):  # another user has taken its place
            raise PageError(403, "The session has ended: sign in again.")
        return found or self._security

    def sign_in(self, user: str, password: str) -> SignedIn | None:
        """Return the signed-in user; None for a password that the cluster rejects, or for empty or too long input.

        A new password ends older sessions; so does, for the user kept longest, a user beyond MAX_USERS.

        Raises: BrokerConnectionError; PageError 503 if the cluster fails otherwise.
        """
        if not user or len(user) > MAX_NAME_CHARACTERS or len(password) > MAX_PASSWORD_CHARACTERS:
            return None
        security = self._security.as_user(user, password)
        try:
            security.open_cluster(
                self._bootstrap, client_id=CLIENT_ID, connect_timeout_s=RETRY_S, request_timeout_s=RETRY_S
            ).close()
        except KafkaError as error:
            if error.error is Errors.SASL_AUTHENTICATION_FAILED:
                return None
            raise PageError(503, f"The cluster cannot check the password: {error.message}") from None
        principal = f"User:{user}"
        with self._lock:
            before = self._users.pop(principal, None)
            if before is not None and before.sasl == security.sasl:
                security = before  # sessions with the same password stay
            self._users[principal] = security
            while len(self._users) > MAX_USERS:
                del self._users[next(iter(self._users))]
        return SignedIn(principal, lambda: self._users.get(principal) is security)
