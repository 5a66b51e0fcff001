"""Ports for foreign servers that cannot choose a port themselves."""

import contextlib
import os
import socket

FIRST, END = 20_000, 32_000  # below the ephemeral ports of outgoing connections, of which tests make thousands


def free_run(length: int) -> int:
    """Return the first of consecutive ports that are free now; the search begins at a port given by the process id."""
    count = END - FIRST
    for step in range(0, count, length):
        first = FIRST + (os.getpid() * 64 + step) % count
        with contextlib.ExitStack() as opened:
            try:
                for port in range(first, first + length):
                    opened.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return first
    raise OSError(f"no {length} free ports between {FIRST} and {END}")
