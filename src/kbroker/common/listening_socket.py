"""Closing of a listening socket of which a child made by fork may have a copy."""

from __future__ import annotations

import contextlib
import os
import socket


def close_listening(server: socket.socket, owner_pid: int) -> None:
    """Close a listening socket, and its port.

    After ``close`` alone a copy in a child would keep the port open: only a shutdown closes it there as well. In the
    child itself the socket belongs to the parent (``owner_pid``), which continues to listen.
    """
    if os.getpid() == owner_pid and server.fileno() >= 0:
        with contextlib.suppress(OSError):  # macOS: not connected
            server.shutdown(socket.SHUT_RDWR)
    server.close()
