"""Connections that are watched until they are closed."""

from __future__ import annotations

import threading

from kbroker._core.timer.key_signal import KeySignal


def connection_key(connection_id: str) -> tuple[int, int]:
    """Return the key of a connection in a signal of closed connections; its second number is never 0."""
    *_, processor_id, index = connection_id.split("-")
    return int(index), int(processor_id) + 1


class ClosedConnections:
    """Ids of the watched connections that were closed, for a thread that polls them. Threads: any."""

    def __init__(self) -> None:
        self.signal = KeySignal()
        self._lock = threading.Lock()
        self._watched: dict[tuple[int, int], str] = {}

    def watch(self, connection_id: str) -> None:
        """Watch a connection. An earlier close is not reported, so the caller checks for one afterwards."""
        key = connection_key(connection_id)
        with self._lock:
            self._watched[key] = connection_id
        self.signal.watch(*key)

    def take(self) -> list[str]:
        """Return the ids of the watched connections that were closed since the last call, and unwatch them."""
        closed = self.signal.take()
        with self._lock:
            return [self._watched.pop(key) for key in closed if key in self._watched]

    def forget(self, connection_id: str) -> None:
        """Stop watching a connection."""
        key = connection_key(connection_id)
        self.signal.unwatch(*key)
        with self._lock:
            self._watched.pop(key, None)
