"""Clusters kept open in this process: Spark uses a worker again, and a small batch should not connect anew."""

from __future__ import annotations

from kbroker.client.cluster import Cluster
from kbroker.spark.datasource.options import ClientOptions

MAX_OPEN_CLUSTERS = 4

_open: dict[ClientOptions, Cluster] = {}  # main thread of a worker only


def cluster_for(client: ClientOptions) -> Cluster:
    """The cluster that these options reach, opened if need be; it stays open, up to MAX_OPEN_CLUSTERS of them.

    Raises: BrokerConnectionError, KafkaError.

    Threads: the main thread; Spark gives a worker one task at a time.
    """
    cluster = _open.pop(client, None) or client.connect()
    while len(_open) >= MAX_OPEN_CLUSTERS:
        _open.pop(next(iter(_open))).close()
    _open[client] = cluster
    return cluster
