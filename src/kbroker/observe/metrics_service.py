"""Lifecycle of a broker's metrics: the exposition, and the HTTP port that serves it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.listeners import parse_http_address
from kbroker.metrics.registry import Metrics
from kbroker.observe.http_routes import RouteTable

if TYPE_CHECKING:
    from kbroker.metrics.exposition import Exposition
    from kbroker.observe.broker_parts import BrokerParts
    from kbroker.observe.http_access import HttpAccess
    from kbroker.observe.metrics_server import MetricsServer
    from kbroker.observe.mounted_pages import MountedPages, PageServer


class MetricsService:
    """Metrics and HTTP port of a broker. ``/ready`` succeeds from ``ready`` to ``not_ready``. Parts add to ``routes``.

    Threads: start, ready and stop from one thread; ``exposition`` from any.
    """

    def __init__(self, config: BrokerConfig, metrics: Metrics, clock: BaseClock) -> None:
        self.routes = RouteTable()
        self._metrics = metrics
        self._clock = clock
        self._config = config
        self._entity_series = config.integer("kbroker.metrics.entity.series")
        self._parts: BrokerParts | None = None
        self._lock = threading.Lock()
        self._exposition: Exposition | None = None
        self._mounts: list[tuple[str, Callable[[HttpAccess], PageServer]]] = []
        self._mounted: list[MountedPages] = []
        self._address = config.text("kbroker.metrics.listener")
        self._is_ready = False
        self._server: MetricsServer | None = None

    def start(self, parts: BrokerParts) -> None:
        """Expose the broker's parts, and open the port if one is configured.

        Raises: OSError if it cannot be bound; MissingLibraryError.
        """
        self._parts = parts
        if self._address:
            # http.server is not loaded without a metrics listener
            from kbroker.observe.http_access import HttpAccess
            from kbroker.observe.metrics_server import MetricsServer
            from kbroker.observe.mounted_pages import MountedPages

            access = HttpAccess.configured(self._config, self._clock)
            host, port = parse_http_address(self._address)
            # one check for the whole port, so that there is one count of wrong tokens
            mounted = self._mounted = [MountedPages(path, partial(load, access)) for path, load in self._mounts]
            server = MetricsServer(
                self.exposition, self._obstacle, host, port, self.routes, access, mounted, self._fault
            )
            server.start()
            self._server = server

    @property
    def exposition(self) -> Exposition:
        """Families of the broker, created at the first access: shares of time are measured from then on."""
        with self._lock:
            if self._exposition is None:
                from kbroker.metrics.exposition import Exposition

                self._exposition = Exposition(self._metrics, self._entity_series)
                if self._parts is not None:
                    from kbroker.observe.broker_metrics import register_broker_metrics

                    register_broker_metrics(self._exposition, self._parts)
            return self._exposition

    def mount(self, path: str, load: Callable[[HttpAccess], PageServer]) -> None:
        """Serve pages below a path; call it before ``start``. Without a port, no page is loaded.

        Args: ``load`` creates the pages at the first request for one; its argument is the port's access check.
        """
        self._mounts.append((path, load))

    def _obstacle(self) -> str:
        """Return the reason why no clients are served, "" if they are."""
        member = None if self._parts is None else self._parts.ctx.member
        if member is not None and (obstacle := member.obstacle):
            return obstacle
        return "" if self._is_ready else "the broker starts or stops"

    def _fault(self) -> str:
        member = None if self._parts is None else self._parts.ctx.member
        return "" if member is None else member.fault

    def ready(self) -> None:
        """Make ``/ready`` succeed: clients are served."""
        self._is_ready = True

    def not_ready(self) -> None:
        """Make ``/ready`` fail: the broker is about to stop."""
        self._is_ready = False

    def stop(self) -> None:
        """Close the port. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        for pages in self._mounted:
            pages.close()

    @property
    def url(self) -> str | None:
        """URL of the port; None without one."""
        return self._server.url if self._server is not None else None
