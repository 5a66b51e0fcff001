"""Manager of client metrics: it serves GetTelemetrySubscriptions and PushTelemetry and keeps the client instances.

Source: ``ClientMetricsManager``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.log.checkpoints import random_uuid_text, uuid_from_text, uuid_to_text
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage
from kbroker.metrics.registry import Metrics
from kbroker.network.connections.closed_connections import ClosedConnections
from kbroker.protocol.compression import CompressionType
from kbroker.telemetry.instances import ClientInstance, InstanceCache
from kbroker.telemetry.sensors import TelemetrySensors
from kbroker.telemetry.subscriptions import (
    ClientFacts,
    Requested,
    Subscription,
    is_reserved,
    requested_metrics,
    subscription_of,
)

logger = get_logger(__name__)

#: Compression of pushes, in the order of Kafka's response.
ACCEPTED_COMPRESSION = [CompressionType.ZSTD, CompressionType.LZ4, CompressionType.GZIP, CompressionType.SNAPPY]


class Client(NamedTuple):
    """Sender of a request.

    Args: ``connection_id``: "" for a request without a connection. ``is_closed`` returns whether it is closed.
    """

    facts: ClientFacts
    principal: str
    connection_id: str
    is_closed: Callable[[], bool]


class Push(NamedTuple):
    """Accepted push. ``sender``: the client of the connection, perhaps another client with the instance's id."""

    client: ClientInstance
    sender: Client
    compression: int
    data: bytes
    is_terminating: bool


class Granted(NamedTuple):
    """Response to a client's request for its subscription."""

    client_instance_id: UUID
    subscription_id: int
    requested: Requested


class ClientMetricsManager:
    """The client instances and the subscriptions.

    Args:
        image: returns the latest metadata, which has the subscriptions.
        receive: gets each accepted push that has data; raises an error if the data cannot be decoded.
        connections: reports the watched connections that were closed.
        on_removed: called with each instance that is removed, under the manager's lock.
    Threads: any.
    """

    def __init__(
        self,
        clock: BaseClock,
        metrics: Metrics,
        max_bytes: int,
        image: Callable[[], MetadataImage],
        receive: Callable[[Push], object],
        connections: ClosedConnections,
        on_removed: Callable[[ClientInstance], object] = bool,
    ) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._image = image
        self._receive = receive
        self._closed = connections
        self._on_removed = on_removed
        self.lock = threading.Lock()  # guards all below; held during ``publish``, not during the receiver
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0
        self._changed: set[str] | None = None  # names of subscriptions to be read from the image; None: all
        self._instances = InstanceCache(self._removed)
        self._connections: dict[str, UUID] = {}  # the latest instance of each watched connection
        self.sensors = TelemetrySensors(metrics, lambda: len(self._instances))

    # ------------------------------------------------------------ subscriptions

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether the delta changes a subscription."""
        return any(kind == ConfigResourceType.CLIENT_METRICS for kind, _ in delta.changed_configs)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Put the changed subscriptions in force from the next request on."""
        names = {name for kind, name in delta.changed_configs if kind == ConfigResourceType.CLIENT_METRICS}
        if self._changed is not None:
            self._changed |= names

    # ------------------------------------------------------------ requests

    def get_subscription(self, client_instance_id: UUID, client: Client) -> Granted:
        """Return the subscription of a client, under a new id unless the client has one.

        Raises: KafkaError THROTTLING_QUOTA_EXCEEDED before the push interval has passed.
        """
        now_ms = self._clock.now_ms()
        with self.lock:
            self._refresh()
            chosen = client_instance_id if client_instance_id.int else self._new_id(now_ms)
            instance = self._instance(chosen, client, now_ms)
            if not instance.accepts_get(now_ms) and instance.last_error not in (
                Errors.UNKNOWN_SUBSCRIPTION_ID,
                Errors.UNSUPPORTED_COMPRESSION_TYPE,
            ):
                self._throttle(instance)
            instance.last_error = Errors.NONE
            return Granted(chosen, instance.subscription_id, instance.requested)

    def push(
        self,
        client_instance_id: UUID,
        subscription_id: int,
        is_terminating: bool,
        compression: int,
        data: bytes,
        client: Client,
    ) -> None:
        """Accept metrics of a client. Raises: KafkaError."""
        if is_reserved(client_instance_id):
            raise KafkaError(Errors.INVALID_REQUEST, "a client instance id is needed")
        now_ms = self._clock.now_ms()
        with self.lock:
            self._refresh()
            instance = self._instance(client_instance_id, client, now_ms)
            try:
                self._check(instance, subscription_id, is_terminating, compression, len(data), now_ms)
            except KafkaError as error:
                instance.last_error = error.error
                raise
            finally:
                instance.is_terminating = is_terminating
        failed = bool(data) and not self._received(Push(instance, client, compression, data, is_terminating))
        with self.lock:
            instance.last_error = Errors.INVALID_RECORD if failed else Errors.NONE
            if client_instance_id not in self._instances:  # removed while its metrics were received
                self._on_removed(instance)
        if failed:
            raise KafkaError(Errors.INVALID_RECORD)

    def _received(self, push: Push) -> bool:
        """Pass a push to the receiver; return false if it cannot be decoded."""
        text = uuid_to_text(push.client.uuid)
        begun_ns = self._clock.now_ns()
        try:
            self._receive(push)
        except Exception as error:  # even a bug of the decoder: a client's data must not cause a broker error
            logger.info("client instance %s: metrics cannot be decoded: %s", text, error)
            self.sensors.failed(text)
            return False
        self.sensors.exported(text, (self._clock.now_ns() - begun_ns) / 1e6)
        return True

    def sweep(self) -> None:
        """Remove instances that have expired or whose connections were closed."""
        with self.lock:
            self._refresh()
            self._instances.expire(self._clock.now_ms())

    # ------------------------------------------------------------ facts

    @property
    def instances(self) -> list[ClientInstance]:
        """The client instances, the least recently used first."""
        with self.lock:
            return list(self._instances)

    @property
    def subscriptions(self) -> list[Subscription]:
        """The subscriptions, sorted by name."""
        with self.lock:
            self._refresh()
            return [self._subscriptions[name] for name in sorted(self._subscriptions)]

    # ------------------------------------------------------------ under the lock

    def _check(
        self, instance: ClientInstance, subscription_id: int, is_last: bool, compression: int, size: int, now_ms: int
    ) -> None:
        """Check a push, with Kafka's errors in Kafka's order. Raises: KafkaError."""
        if instance.is_terminating:
            raise KafkaError(Errors.INVALID_REQUEST, "the client has sent its last push already")
        if not instance.accepts_push(now_ms) and not is_last:
            self._throttle(instance)
        if subscription_id != instance.subscription_id:
            self.sensors.unknown_subscription()
            raise KafkaError(Errors.UNKNOWN_SUBSCRIPTION_ID)
        if compression not in CompressionType._value2member_map_:
            raise KafkaError(Errors.UNSUPPORTED_COMPRESSION_TYPE)
        if size > self.max_bytes:
            raise KafkaError(Errors.TELEMETRY_TOO_LARGE)

    def _throttle(self, instance: ClientInstance) -> None:
        self.sensors.throttled(uuid_to_text(instance.uuid))
        raise KafkaError(Errors.THROTTLING_QUOTA_EXCEEDED)

    def _instance(self, client_instance_id: UUID, client: Client, now_ms: int) -> ClientInstance:
        """Return the instance of a request, created anew if the subscriptions have changed."""
        instance = self._instances.get(client_instance_id, now_ms)
        if instance is None or instance.version < self._version:
            facts, principal = client[:2] if instance is None else (instance.facts, instance.principal)
            facts = {**facts, "client_instance_id": uuid_to_text(client_instance_id)}
            requested = requested_metrics(self._subscriptions.values(), facts)
            instance = ClientInstance(client_instance_id, facts, principal, requested, self._version)
            self.sensors.add(uuid_to_text(client_instance_id))
            self._instances.put(instance)
            self._watch(instance, client)
        instance.touch(now_ms)
        return instance

    def _new_id(self, now_ms: int) -> UUID:
        while True:
            found = uuid_from_text(random_uuid_text())
            if self._instances.get(found, now_ms) is None:
                return found

    def _watch(self, instance: ClientInstance, client: Client) -> None:
        """Watch the connection, to remove the instance when it is closed; a connection has one instance, the latest."""
        connection_id = client.connection_id
        if not connection_id:
            return
        if connection_id not in self._connections:
            self._closed.watch(connection_id)
            if client.is_closed():  # not watched: the instance will expire
                self._closed.forget(connection_id)
                return
        self._connections[connection_id] = instance.uuid

    def _refresh(self) -> None:
        """Read changed subscriptions, and remove the instances of closed connections."""
        if self._changed is None or self._changed:
            image = self._image()
            kind = ConfigResourceType.CLIENT_METRICS
            names = {name for found, name in image.configs if found == kind} if self._changed is None else self._changed
            for name in names:
                configs = image.configs.get((kind, name))
                if self._subscriptions.pop(name, None) is not None or configs:
                    self._version += 1
                if configs:
                    self._subscriptions[name] = subscription_of(name, configs)
            self._changed = set()
        for connection_id in self._closed.take():
            self._instances.remove(self._connections.pop(connection_id))

    def _removed(self, instance: ClientInstance) -> None:
        self.sensors.remove(uuid_to_text(instance.uuid))
        self._on_removed(instance)
