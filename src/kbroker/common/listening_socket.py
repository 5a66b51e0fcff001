"""Error of a socket that cannot listen; closing of a socket that a child made by fork may share."""

from __future__ import annotations

import contextlib
import errno
import os
import socket


def cannot_listen(address: object, why: OSError) -> OSError:
    """Return the error that names the address, and the remedy for a port in use."""
    remedy = "; stop the program that uses it, or choose another port" if why.errno == errno.EADDRINUSE else ""
    return OSError(why.errno, f"cannot listen on {address}: {why.strerror or why}{remedy}")


def close_listening(server: socket.socket, owner_pid: int) -> None:
    """Close a listening socket, and its port.

    After ``close`` alone a copy in a child would keep the port open: only a shutdown closes it there as well. In the
    child itself the socket belongs to the parent (``owner_pid``), which continues to listen.
    """
    if os.getpid() == owner_pid and server.fileno() >= 0:
        with contextlib.suppress(OSError):  # macOS: not connected
            server.shutdown(socket.SHUT_RDWR)
    server.close()
