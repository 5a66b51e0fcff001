"""The latest values of the clients' metrics, bounded per client and in total."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kbroker.telemetry.otlp import Point

MAX_CLIENT_SERIES = 2000
SERIES_BYTES = 300  # of memory besides the texts: a tuple, its key, two numbers, and the entries of two tables

Key = tuple[str, tuple[tuple[str, str], ...]]


class Value(NamedTuple):
    """Latest value of a series. ``counts``: it is the total of a counter."""

    value: float
    counts: bool


@dataclass
class _Client:
    values: dict[Key, Value] = field(default_factory=dict)
    size_bytes: int = 0
    pushed_ms: int = 0


class SeriesFigures(NamedTuple):
    """Series that are kept, their bytes in memory, and values that were left out because a limit was reached."""

    series: int
    size_bytes: int
    omitted: int


class ClientSeries:
    """Series by client instance. Threads: any.

    Args: ``max_bytes``: of all series; ``max_client_series``: of one client. Series beyond the limits are left out and
    counted; existing ones are still updated.
    """

    def __init__(self, max_bytes: int, max_client_series: int = MAX_CLIENT_SERIES) -> None:
        self._max_bytes = max_bytes
        self._max_client_series = max_client_series
        self._lock = threading.Lock()  # a leaf
        self._clients: dict[UUID, _Client] = {}
        self._size_bytes = 0
        self._omitted = 0

    def put(self, client_instance_id: UUID, points: Iterable[Point], now_ms: int) -> None:
        """Add or replace the latest values by those of a push; count new series beyond the limits as left out."""
        with self._lock:
            client = self._clients.setdefault(client_instance_id, _Client())
            client.pushed_ms = now_ms
            for point in points:
                key = (point.name, point.attributes)
                before = client.values.get(key)
                if before is None and not self._makes_room(client, key):
                    self._omitted += 1
                    continue
                start = before.value if before is not None and point.adds else 0.0
                client.values[key] = Value(start + point.value, point.counts)

    def remove(self, client_instance_id: UUID) -> None:
        """Remove the series of a client."""
        with self._lock:
            client = self._clients.pop(client_instance_id, None)
            if client is not None:
                self._size_bytes -= client.size_bytes

    def of(self, client_instance_id: UUID) -> dict[Key, Value]:
        """Return a copy of a client's series."""
        with self._lock:
            client = self._clients.get(client_instance_id)
            return {} if client is None else dict(client.values)

    def pushed_ms(self, client_instance_id: UUID) -> int | None:
        """Return the time of a client's latest push, None if there was none."""
        with self._lock:
            client = self._clients.get(client_instance_id)
            return None if client is None else client.pushed_ms

    @property
    def figures(self) -> SeriesFigures:
        """The number of series, their bytes, and the number of values that were left out."""
        with self._lock:
            count = sum(len(client.values) for client in self._clients.values())
            return SeriesFigures(count, self._size_bytes, self._omitted)

    def _makes_room(self, client: _Client, key: Key) -> bool:
        """Return whether the limits permit a new series, and count its size if so."""
        name, attributes = key
        size = SERIES_BYTES + len(name) + sum(100 + len(one) + len(text) for one, text in attributes)
        if len(client.values) >= self._max_client_series or self._size_bytes + size > self._max_bytes:
            return False
        client.size_bytes += size
        self._size_bytes += size
        return True
