"""Clusters that stay open in this process, since Spark reuses a worker and a small batch should not reconnect."""

from __future__ import annotations

import time
from collections.abc import Callable

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.client.cluster import BACKOFF_FIRST_S, BACKOFF_MAX_S, Cluster
from kbroker.client.connection import BrokerConnectionError
from kbroker.spark.datasource.options import ClientOptions

MAX_OPEN_CLUSTERS = 4

_open: dict[ClientOptions, Cluster] = {}  # main thread of a worker only


def cluster_for(
    client: ClientOptions, clock: BaseClock | None = None, sleep: Callable[[float], None] = time.sleep
) -> Cluster:
    """Return the open cluster of these options; up to MAX_OPEN_CLUSTERS stay open.

    A failed connection is retried, as for an open cluster, so the restart of a broker fails no task, even in a new
    worker.

    Args: ``clock``: the system's by default; ``sleep``: waits between attempts.
    Raises: BrokerConnectionError when no broker responds within the client's retry time-out; KafkaError.

    Threads: the main thread; Spark gives a worker one task at a time.
    """
    cluster = _open.pop(client, None) or _connected(client, clock or SystemClock(), sleep)
    while len(_open) >= MAX_OPEN_CLUSTERS:
        _open.pop(next(iter(_open))).close()
    _open[client] = cluster
    return cluster


def _connected(client: ClientOptions, clock: BaseClock, sleep: Callable[[float], None]) -> Cluster:
    until_ms, backoff_s = clock.now_ms() + client.retry_timeout_s * 1000, BACKOFF_FIRST_S
    while True:
        try:
            return client.connect()
        except BrokerConnectionError:
            if clock.now_ms() + backoff_s * 1000 > until_ms:
                raise
        sleep(backoff_s)
        backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
