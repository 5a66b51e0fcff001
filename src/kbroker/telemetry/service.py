"""Client telemetry as a part of the broker: the manager of client metrics, and the receiver of their pushes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import folder_error
from kbroker.common.configs.config_telemetry import ENDPOINT, LOG_DIR
from kbroker.common.loggers import get_logger
from kbroker.log.checkpoints import uuid_to_text
from kbroker.metadata.controller import Controller
from kbroker.metrics.registry import Metrics
from kbroker.network.connections.closed_connections import ClosedConnections
from kbroker.protocol._compression import decompress_bounded
from kbroker.telemetry import otlp
from kbroker.telemetry.forwarder import Forwarder
from kbroker.telemetry.instances import ClientInstance
from kbroker.telemetry.manager import ClientMetricsManager, Push
from kbroker.telemetry.push_log import PushLog
from kbroker.telemetry.series import ClientSeries

if TYPE_CHECKING:
    from kbroker.log.scheduler import Scheduler

logger = get_logger(__name__)

SWEEP_MS = 1000


class TelemetryService:
    """Receiver of the clients' metrics: latest values, log, and forwarding, as configured.

    Args: ``connections`` reports the watched connections that were closed.
    Threads: built and closed by one thread each; the rest from any.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: BaseClock,
        controller: Controller,
        metrics: Metrics,
        scheduler: Scheduler,
        connections: ClosedConnections,
    ) -> None:
        """Open the log if it is configured. Raises: ConfigError if its folder cannot be written."""
        self._clock = clock
        self._controller = controller
        self._broker = config.node_id
        self.series = ClientSeries(config.integer("kbroker.telemetry.series.bytes"))
        self.log = _push_log(config, clock)
        endpoint = config.text(ENDPOINT)
        queue_bytes = config.integer("kbroker.telemetry.otlp.queue.bytes")
        self.forwarder = Forwarder(endpoint, clock, scheduler, queue_bytes) if endpoint else None
        max_bytes = config.integer("telemetry.max.bytes")
        self.manager = ClientMetricsManager(
            clock, metrics, max_bytes, lambda: controller.image, self.receive, connections, self._removed
        )
        controller.publishers.append(self.manager)
        self._sweeps = scheduler.schedule("telemetry-expiry", self.manager.sweep, delay_ms=SWEEP_MS, period_ms=SWEEP_MS)

    def receive(self, push: Push) -> None:
        """Decode a push; keep, log and forward its metrics. Raises: ValueError if it is malformed or too large."""
        data = push.data
        if push.compression:
            data = decompress_bounded(push.compression, data, self.manager.max_bytes)
        message = otlp.parse(data)
        points = list(otlp.points(message))
        client = push.client
        self.series.put(client.uuid, points, self._clock.now_ms())
        if self.log is not None:
            self.log.write(_sender_of(push), points, client.requested.interval_ms, push.is_terminating)
        if self.forwarder is not None:
            otlp.add_attributes(message, self._identity(push))
            self.forwarder.put(message.SerializeToString())

    def close(self, timeout_s: float) -> None:
        """End the sweeps and the forwarder, and close the log. Idempotent."""
        self._controller.unfollow(self.manager)
        self._sweeps.cancel()
        if self.forwarder is not None and not self.forwarder.stop(timeout_s):
            logger.error("the forwarder of client metrics did not end within %.1f s", timeout_s)
        if self.log is not None:
            self.log.close()

    def _removed(self, client: ClientInstance) -> None:
        self.series.remove(client.uuid)

    def _identity(self, push: Push) -> dict[str, str | None]:
        """Return the attributes by which the endpoint distinguishes clients, named as in ``match``; None: not sent.

        They are cut, because each resource of a push gets a copy of them.
        """
        found = {
            **push.sender.facts,
            "client_instance_id": uuid_to_text(push.client.uuid),
            "principal": push.sender.principal,
            "kbroker.node.id": str(self._broker),
        }
        return {name: text and text[: otlp.MAX_NAME] for name, text in found.items()}


def _sender_of(push: Push) -> dict[str, str | None]:
    """Return the client as the log shows it."""
    facts = push.sender.facts
    return {
        "clientInstanceId": uuid_to_text(push.client.uuid),
        "clientId": facts.get("client_id"),
        "principal": push.sender.principal,
        "address": facts.get("client_source_address"),
        "softwareName": facts.get("client_software_name"),
        "softwareVersion": facts.get("client_software_version"),
    }


def _push_log(config: BrokerConfig, clock: BaseClock) -> PushLog | None:
    folder = config.text(LOG_DIR)
    if not folder:
        return None
    try:
        return PushLog(
            folder,
            clock,
            config.node_id,
            file_bytes=config.integer("kbroker.request.log.file.bytes"),
            file_count=config.integer("kbroker.request.log.file.count"),
        )
    except (OSError, ValueError) as error:
        raise folder_error(LOG_DIR, folder, error) from error
