"""Ports for servers of others, which cannot choose one themselves."""

import os
import socket

FIRST, END = 20_000, 32_000  # below what systems hand out for outgoing connections, which tests make by the thousand


def free_pair() -> int:
    """A port that is free now, the one above it too; where the search begins depends on the process."""
    count = END - FIRST
    for step in range(0, count, 2):
        port = FIRST + (os.getpid() * 64 + step) % count
        try:
            with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 1)):
                return port
        except OSError:
            continue
    raise OSError(f"no two free ports between {FIRST} and {END}")
