"""Start of client telemetry: at its first request, or with the broker if its metrics are written or forwarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.broker.late_service import LateService
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.configs.config_telemetry import ENDPOINT, LOG_DIR
from kbroker.common.loggers import get_logger
from kbroker.log.scheduler import Scheduler
from kbroker.network.connections.closed_connections import ClosedConnections
from kbroker.requests.context import ApiContext
from kbroker.telemetry.decoder import INSTALL, has_decoder

if TYPE_CHECKING:
    from kbroker.telemetry.service import TelemetryService

logger = get_logger(__name__)


class LateTelemetry:
    """Client telemetry of a broker; its modules are imported when it starts.

    Args: ``connections`` reports the watched connections that were closed.
    Threads: ``open`` and ``close`` from one thread; requests, which start it, from any.
    """

    def __init__(self, ctx: ApiContext, scheduler: Scheduler, connections: ClosedConnections) -> None:
        self._ctx = ctx
        self._scheduler = scheduler
        self._connections = connections
        self._service = LateService(self._start)

    def open(self) -> None:
        """Start client telemetry now if a setting needs that, else at its first request.

        Raises: ConfigError if a setting cannot be met.
        """
        config = self._ctx.config
        is_eager = False
        for name in (LOG_DIR, ENDPOINT):
            if value := config.text(name):
                is_eager = True
                if not has_decoder():
                    raise ConfigError(name, value, f"opentelemetry-proto is not installed: {INSTALL}", "no value")
        if not has_decoder():
            logger.info("clients are not asked for their metrics: opentelemetry-proto is not installed (%s)", INSTALL)
            return
        if is_eager:
            self._service.get()
        self._ctx.start_telemetry = self._service.get

    def close(self, timeout_s: float) -> None:
        """Stop it if it has started. Idempotent."""
        self._service.close(lambda service: service.close(timeout_s))

    def _start(self) -> TelemetryService:
        from kbroker.telemetry.service import TelemetryService

        ctx = self._ctx
        ctx.telemetry_service = TelemetryService(
            ctx.config, ctx.clock, ctx.controller, ctx.metrics, self._scheduler, self._connections
        )
        return ctx.telemetry_service
