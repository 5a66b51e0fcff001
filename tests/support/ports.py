"""Ports for servers of others, which cannot choose one themselves."""

import contextlib
import os
import socket

FIRST, END = 20_000, 32_000  # below what systems hand out for outgoing connections, which tests make by the thousand


def free_pair() -> int:
    """A port that is free now, the one above it too; where the search begins depends on the process."""
    return free_run(2)


def free_run(length: int) -> int:
    """The first of so many ports that are free now, one above the other."""
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
