"""Interface between the network and the authenticators of a listener's clients."""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

from kbroker.network.transport._tls import TlsServer


class Outcome(enum.IntEnum):
    """Outcome of one frame of an authentication for its connection."""

    CONTINUE = 0  # the response goes out, the next frame is awaited
    COMPLETE = 1  # the response goes out, and from the next frame on requests are served
    FAILED = 2  # the response, if any, goes out after a delay, then the connection is closed
    CLOSE = 3  # closed at once: nothing that could be answered


class Step(NamedTuple):
    """Result of one frame.

    ``answer``: without its length; None sends nothing. When COMPLETE: ``principal`` as ``User:name``, and how long it
    counts in ``session_lifetime_ms`` (0: as long as the connection). ``client_software``: name and version, where the
    frame had them (KIP-511). ``is_token_authenticated``: who the client is was proved by a delegation token.
    """

    outcome: Outcome
    response: bytes | None = None
    principal: str = ""
    session_lifetime_ms: int = 0
    client_software: tuple[str, str] | None = None
    is_token_authenticated: bool = False


class Authenticator(Protocol):
    """One connection's authentication. Threads: the connection's own."""

    def receive(self, frame: bytes) -> Step:
        """Take the next frame. An exception closes the connection."""
        ...

    def begin_again(self) -> bool:
        """Return whether the frame that follows may begin a re-authentication (else it is a request like any other)."""
        ...


class Authentication(Protocol):
    """A listener's authentication. ``max_receive_bytes``: of a frame until it is complete."""

    max_receive_bytes: int
    failure_delay_ms: int

    def begin(self, remote_host: str, remote_port: int) -> Authenticator:
        """Make the authenticator of a new connection. Threads: several."""
        ...


class ListenerSecurity(NamedTuple):
    """TLS and SASL of one listener; with both, TLS comes first."""

    tls: TlsServer | None = None
    authentication: Authentication | None = None
