"""The end of a listening socket, though a child made by fork may have a copy of it."""

from __future__ import annotations

import contextlib
import os
import socket


def close_listening(server: socket.socket, owner_pid: int) -> None:
    """Close a socket that listens, and the port with it.

    Closing alone would leave the port to a copy in a child: only a shutdown ends it there as well. In the child itself
    it is another's (``owner_pid``), who goes on listening.
    """
    if os.getpid() == owner_pid and server.fileno() >= 0:
        with contextlib.suppress(OSError):  # macOS: not connected
            server.shutdown(socket.SHUT_RDWR)
    server.close()
