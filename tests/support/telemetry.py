"""Metrics in OTLP as clients push them, and a telemetry manager with clients."""

from collections.abc import Mapping
from typing import cast
from uuid import UUID

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metrics.registry import Metrics
from kbroker.network.connections.closed_connections import ClosedConnections
from kbroker.telemetry.instances import ClientInstance
from kbroker.telemetry.manager import Client, ClientMetricsManager, Granted, Push
from tests.support.errors import error_of

DELTA, CUMULATIVE = 1, 2
NO_ID = UUID(int=0)


def gauges(
    values: Mapping[str, float], attributes: Mapping[str, str | int] | None = None, resource: str = ""
) -> MetricsData:
    """Return a push of gauges. ``resource``: value of the resource's attribute ``client_rack``."""
    message = MetricsData()
    one = message.resource_metrics.add()
    if resource:
        one.resource.attributes.add(key="client_rack").value.string_value = resource
    scope = one.scope_metrics.add()
    for name, value in values.items():
        point = scope.metrics.add(name=name).gauge.data_points.add(as_double=value)
        for key, text in (attributes or {}).items():
            field = point.attributes.add(key=key).value
            if isinstance(text, int):
                field.int_value = text
            else:
                field.string_value = text
    return message


def counter(name: str, value: int, temporality: int = DELTA) -> MetricsData:
    """Return a push of one counter."""
    message = MetricsData()
    metric = message.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    metric.sum.is_monotonic = True
    metric.sum.aggregation_temporality = temporality
    metric.sum.data_points.add(as_int=value)
    return message


class Rig:
    """Manager of client metrics with the subscriptions and connections of the test."""

    def __init__(self, clock: BaseClock, max_bytes: int = 1000) -> None:
        self.clock = clock
        self.metrics = Metrics(clock=clock)
        self.image = EMPTY_IMAGE
        self.pushes: list[Push] = []
        self.removed: list[ClientInstance] = []
        self.closed: list[str] = []
        self.watched: set[str] = set()
        self.failure: Exception | None = None
        self.manager = ClientMetricsManager(
            clock,
            self.metrics,
            max_bytes,
            lambda: self.image,
            self._receive,
            cast(ClosedConnections, self),
            self.removed.append,
        )

    def _receive(self, push: Push) -> None:
        self.pushes.append(push)
        if self.failure is not None:
            raise self.failure

    def watch(self, connection_id: str) -> None:
        """Watch a connection, as ``ClosedConnections`` does."""
        self.watched.add(connection_id)

    def forget(self, connection_id: str) -> None:
        self.watched.discard(connection_id)

    def take(self) -> list[str]:
        """Return the connections that were closed since the last call."""
        found, self.closed = self.closed, []
        return found

    def configure(self, name: str, **configs: str) -> None:
        """Store a subscription, or delete it if there are no configs."""
        kind = ConfigResourceType.CLIENT_METRICS
        stored = dict(self.image.configs)
        stored.pop((kind, name), None)
        if configs:
            stored[kind, name] = {key.replace("_", "."): value for key, value in configs.items()}
        self.image = self.image._replace(configs=stored)
        delta = _Delta({(kind, name)})
        assert self.manager.concerns(delta)  # type: ignore[arg-type]
        with self.manager.lock:
            self.manager.publish(delta, self.image)  # type: ignore[arg-type]

    def client(self, client_id: str | None = "c", connection: str = "1", **facts: str) -> Client:
        """Return a client on a connection."""
        return Client({"client_id": client_id, **facts}, "User:alice", connection, lambda: False)

    def close(self, connection: str) -> None:
        """Close a connection."""
        self.watched.remove(connection)
        self.closed.append(connection)

    def get(self, uuid: UUID = NO_ID, client: Client | None = None) -> Granted:
        """Request a subscription."""
        return self.manager.get_subscription(uuid, self.client() if client is None else client)

    def push(
        self,
        granted: Granted,
        data: bytes = b"x",
        *,
        compression: int = 0,
        terminating: bool = False,
        client: Client | None = None,
    ) -> None:
        """Push metrics with a granted subscription."""
        sender = self.client() if client is None else client
        uuid, subscription_id = granted.client_instance_id, granted.subscription_id
        self.manager.push(uuid, subscription_id, terminating, compression, data, sender)

    def error_of(self, *args: object, **kwargs: object) -> Errors:
        """Return the error of ``push`` with these arguments."""
        return error_of(self.push, *args, **kwargs)

    def measured(self, name: str, instance: str = "") -> float | None:
        """Return a metric's value by the metric's name and client instance, or None if the metric does not exist."""
        for metric, value in self.metrics.items():
            if metric.name == name and metric.tag_map.get("client_instance_id", "") == instance:
                return value.measure()
        return None


class _Delta:
    def __init__(self, changed: set[tuple[int, str]]) -> None:
        self.changed_configs = changed
        self.image: MetadataImage = EMPTY_IMAGE
