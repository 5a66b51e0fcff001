"""Connections of pages to the cluster, kept by identity for the next page."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.broker import Broker
from kbroker.client.cluster import Cluster
from kbroker.client.connection import Address, BrokerConnectionError, format_address, open_plaintext
from kbroker.client.security import ClientSecurity
from kbroker.common.errors import KafkaError
from kbroker.console.requests import PageError

CLIENT_ID = "kbroker-console"
HERE = ("broker", 9092)  # the address of the broker of this process for its own console
MAX_KEPT = 16
IDLE_MS = 60_000
REQUEST_TIMEOUT_S, RETRY_S = 15.0, 5.0
MAX_THROTTLE_S = 2.0  # maximum time for which a page waits for a quota


class Identity(NamedTuple):
    """The user of a page: the principal whose ACLs and quotas apply, and the address of the browser."""

    principal: str
    address: str


#: Returns new connections to the cluster for an identity.
OpenCluster = Callable[[Identity], Cluster]


class Connections:
    """Connections to one cluster.

    Args: ``open_cluster``: opens them; ``clock`` of the time for which they are kept.
    Threads: any; a leased Cluster belongs to one request.
    """

    def __init__(self, open_cluster: OpenCluster, clock: BaseClock) -> None:
        self._open = open_cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: list[tuple[Identity, int, Cluster]] = []  # with the time of return; oldest first
        self._is_closed = False

    @contextmanager
    def lease(self, identity: Identity) -> Iterator[Cluster]:
        """Yield connections with this identity; they are kept afterwards unless they failed.

        Raises: BrokerConnectionError if no broker responds.
        """
        cluster = self._kept_one(identity) or self._open(identity)
        try:
            yield cluster
        except (KafkaError, PageError):
            self._keep(identity, cluster)
            raise
        except BaseException:
            cluster.close()
            raise
        self._keep(identity, cluster)

    def _kept_one(self, identity: Identity) -> Cluster | None:
        oldest_ms = self._clock.now_ms() - IDLE_MS
        found = None
        with self._lock:
            old = [one for one in self._kept if one[1] < oldest_ms]
            self._kept = [one for one in self._kept if one[1] >= oldest_ms]
            for index, (owner, _, cluster) in enumerate(self._kept):
                if owner == identity:
                    found = cluster
                    del self._kept[index]
                    break
        for _, _, cluster in old:
            cluster.close()
        return found

    def _keep(self, identity: Identity, cluster: Cluster) -> None:
        cluster.forget()
        surplus: Cluster | None = cluster
        with self._lock:
            if not self._is_closed:
                self._kept.append((identity, self._clock.now_ms(), cluster))
                surplus = self._kept.pop(0)[2] if len(self._kept) > MAX_KEPT else None
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        """Close the connections that no request uses; the others are closed when they are returned."""
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, []
        for _, _, cluster in kept:
            cluster.close()


def in_process(broker: Broker) -> OpenCluster:
    """Return a function that opens connections to the brokers of this process, as clients already authenticated.

    The brokers' handlers serve them as those of any other client, with its ACLs, quotas, logs and errors.
    """

    is_open = not any(listener.has_tls or listener.has_sasl for listener in broker.config.listeners)

    def open_cluster(identity: Identity) -> Cluster:
        def open_stream(address: Address, timeout_s: float) -> socket.socket:
            for node in (broker.context, *broker.context.peers.values()):
                if node.connect is not None and (
                    address == HERE or address in {tuple(one) for one in node.endpoints.values()}
                ):
                    return node.connect(identity.principal, identity.address)
            if is_open and broker.context.auth.authorizer is None:
                return open_plaintext(address, timeout_s)
            raise OSError(errno.EHOSTUNREACH, "another broker of the cluster: kbroker console shows all of them")

        return Cluster(
            format_address(HERE),
            client_id=CLIENT_ID,
            request_timeout_s=REQUEST_TIMEOUT_S,
            retry_timeout_s=RETRY_S,
            open_stream=open_stream,
            sleep=_sleep,
        )

    return open_cluster


def over_the_wire(bootstrap: str, security_of: Callable[[Identity], ClientSecurity]) -> OpenCluster:
    """Return a function that opens connections to any Kafka cluster, with the security of each identity."""

    def open_cluster(identity: Identity) -> Cluster:
        return security_of(identity).open_cluster(
            bootstrap,
            client_id=CLIENT_ID,
            connect_timeout_s=RETRY_S,
            request_timeout_s=REQUEST_TIMEOUT_S,
            retry_timeout_s=RETRY_S,
            sleep=_sleep,
        )

    return open_cluster


def _sleep(seconds: float) -> None:
    """Wait for a quota or before a retry. Raises: PageError 503 for a long throttle time."""
    if seconds > MAX_THROTTLE_S:
        raise PageError(503, f"A quota throttles these pages for {seconds:.1f} s more. Try again then.")
    time.sleep(seconds)


def unreachable(error: BrokerConnectionError) -> PageError:
    """Return the page for a cluster that does not respond."""
    return PageError(503, f"The cluster cannot be reached: {error}.")
