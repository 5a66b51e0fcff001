"""Connections of this process to its own socket server, whose clients are authenticated already."""

from __future__ import annotations

import socket
import struct

from kbroker.network.transport.authentication import ListenerSecurity, Outcome, Step

MAX_FRAME_BYTES = 1 << 16
MAX_HOST_BYTES = 63


class InternalAuthentication:
    """Authentication of connections that ``open_pair`` opened: their first frame names principal and host.

    The frame is written before the client gets its end, so that a client cannot choose another principal.
    Threads: any.
    """

    max_receive_bytes = MAX_FRAME_BYTES
    failure_delay_ms = 0

    def begin(self, remote_host: str, remote_port: int) -> InternalAuthentication:
        """Return the authenticator of a new connection."""
        return self

    def receive(self, frame: bytes) -> Step:
        """Read principal and host from the first frame; nothing is sent."""
        principal, _, host = frame.decode().partition("\0")
        return Step(Outcome.COMPLETE, principal=principal, remote_host=host)

    def begin_again(self) -> bool:
        """Return False: a session lasts as long as its connection."""
        return False


def security() -> ListenerSecurity:
    """Return the security of the network thread that serves these connections."""
    return ListenerSecurity(None, InternalAuthentication())


def open_pair(principal: str, remote_host: str) -> tuple[socket.socket, socket.socket]:
    """Return the client's and the server's end of a new connection.

    Args: ``principal``: as ``User:name``; ``remote_host``: address of the client for ACLs and logs.
    Raises: ValueError for a principal or host that no session can have; OSError without descriptors.
    """
    host = remote_host.encode()
    frame = principal.encode() + b"\0" + host
    if ":" not in principal or "\0" in principal or "\0" in remote_host or len(host) > MAX_HOST_BYTES:
        raise ValueError(f"expected a principal as Type:name and an address, got {principal!r} and {remote_host!r}")
    if len(frame) > MAX_FRAME_BYTES:
        raise ValueError(f"expected a principal of at most {MAX_FRAME_BYTES} bytes, got {len(principal)}")
    ours, theirs = socket.socketpair()
    try:
        ours.sendall(struct.pack(">i", len(frame)) + frame)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    return ours, theirs
