"""Interface between the network and the authenticators of a listener's clients."""

import enum
from typing import NamedTuple, Protocol

from kbroker.network.transport._security import TlsServer


class Outcome(enum.IntEnum):
    """Result of one frame of an authentication for its connection."""

    CONTINUE = 0  # the response is sent, the next frame is expected
    COMPLETE = 1  # the response is sent, and requests are served from the next frame on
    FAILED = 2  # the response, if any, is sent after a delay, then the connection is closed
    CLOSE = 3  # closed at once, without a response


class Step(NamedTuple):
    """Result of one frame.

    ``response``: the response without its length; None sends nothing. With COMPLETE: ``principal`` as ``User:name``,
    and the lifetime of the session, ``session_lifetime_ms`` (0: until the connection closes). ``client_software``: name
    and version, if the frame had them (KIP-511). ``is_token_authenticated``: a delegation token proved the principal.
    ``remote_host``: address of the client if it differs from that of the connection, at most 63 bytes.
    ``is_renewable``: the client can authenticate again on the connection (KIP-368).
    """

    outcome: Outcome
    response: bytes | None = None
    principal: str = ""
    session_lifetime_ms: int = 0
    client_software: tuple[str, str] | None = None
    is_token_authenticated: bool = False
    remote_host: str = ""
    is_renewable: bool = True


class Authenticator(Protocol):
    """Authentication of one connection. Threads: the connection's own."""

    def receive(self, frame: bytes) -> Step:
        """Process the next frame. An exception closes the connection."""
        ...

    def begin_again(self) -> bool:
        """Return whether the next frame may begin a re-authentication (else it is a request like any other)."""
        ...


class Authentication(Protocol):
    """Authentication of a listener's clients. ``max_receive_bytes``: maximum frame size until it is complete."""

    max_receive_bytes: int
    failure_delay_ms: int

    def begin(self, remote_host: str, remote_port: int) -> Authenticator:
        """Create the authenticator of a new connection. Threads: several."""
        ...


class ListenerSecurity(NamedTuple):
    """TLS and SASL of one listener; with both, TLS comes first."""

    tls: TlsServer | None = None
    authentication: Authentication | None = None
