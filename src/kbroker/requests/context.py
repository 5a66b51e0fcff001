"""Context of Python handlers: the broker's parts, and the facts of one request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.late_service import LateService
from kbroker.metadata.features import Features
from kbroker.metadata.producer_ids import ProducerIds
from kbroker.metrics.registry import Metrics
from kbroker.network.connections._connection_quotas import ConnectionQuotas
from kbroker.quota._client_quotas import ClientQuotaManagers
from kbroker.quota.entity_store import QuotaEntityStore
from kbroker.security.authorizer.auth_helper import AuthHelper
from kbroker.security.credentials import ScramCredentials

if TYPE_CHECKING:  # imported at the first request that needs them
    from kbroker.coordinator.group_coordinator import GroupCoordinator
    from kbroker.coordinator.group_service import GroupService
    from kbroker.coordinator.share.share_coordinator import ShareCoordinator
    from kbroker.coordinator.share.share_service import ShareService
    from kbroker.coordinator.transaction.add_partitions_to_txn import AddPartitionsToTxnManager
    from kbroker.coordinator.transaction.marker_sender import Markers
    from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
    from kbroker.coordinator.transaction_service import TransactionService
    from kbroker.member.member import Member
    from kbroker.member.producer_ids import RemoteProducerIds
    from kbroker.metadata.configs.dynamic_configs import DynamicConfigs
    from kbroker.metadata.controller import Controller
    from kbroker.metadata.image.delta import MetadataDelta
    from kbroker.metadata.image.image import MetadataImage
    from kbroker.metadata.topics import TopicRegistry
    from kbroker.network.processor._inbound import InboundRequest
    from kbroker.quota.mutation_quota import MutationQuota
    from kbroker.security.authorizer.authorizer import Authorizer
    from kbroker.security.delegation_tokens import DelegationTokens
    from kbroker.share.share_partition_manager import SharePartitionManager
    from kbroker.share.share_partition_service import SharePartitionService
    from kbroker.telemetry.service import TelemetryService

Body = dict[str, Any]

#: Value of authorized operations that were not requested.
OPERATIONS_NOT_ASKED = -(2**31)


class Endpoint(NamedTuple):
    """Advertised address of a listener."""

    host: str
    port: int


class Completion(Protocol):
    """Receiver of the response when a handler returned None."""

    def complete(self, body: Body) -> None: ...

    def close(self) -> None: ...


class ApiContext:
    """Parts of a broker that handlers use.

    ``endpoints``: by listener name, filled once the ports are bound. ``bound_addresses``: by setting, if the system
    chose the port. ``connection_quotas``: the limits that the acceptors enforce. ``group_service`` and the like:
    started by the first request that needs them. ``peers``: the nodes of this process by id, where there are several.
    ``connect``: opens a connection of this process to the broker for a principal and an address, as authenticated
    already. ``delegation_tokens``: None if the broker has no key for them. ``auth``: checks what clients may do.
    Threads: any; parts lock themselves.
    """

    def __init__(
        self,
        config: BrokerConfig,
        controller: Controller,
        topics: TopicRegistry,
        endpoints: dict[str, Endpoint],
        api_versions: Callable[[], Mapping[int, tuple[int, int]]],
        clock: BaseClock,
        *,
        connection_quotas: ConnectionQuotas,
        quotas: ClientQuotaManagers,
        credentials: ScramCredentials,
        delegation_tokens: DelegationTokens | None,
        features: Features,
        authorizer: Authorizer | None,
    ) -> None:
        self.auth = AuthHelper(authorizer)
        self.config = config
        self.controller = controller
        self.member: Member | None = None  # None: this broker is the only controller of its cluster
        self.producer_ids: ProducerIds | RemoteProducerIds = ProducerIds(controller)
        self.topics = topics
        self.endpoints = endpoints
        self.api_versions = api_versions
        self.clock = clock
        self.group_service: LateService[GroupService] = LateService(_unavailable)
        self.transaction_service: LateService[TransactionService] = LateService(_unavailable)
        self.share_service: LateService[ShareService] = LateService(_unavailable)
        self.share_partition_service: LateService[SharePartitionService] = LateService(_unavailable)
        self.telemetry_service: LateService[TelemetryService] = LateService(_unsupported)
        self.peers: Mapping[int, ApiContext] = {}
        self.connect: Callable[[str, str], socket.socket] | None = None
        self.bound_addresses: dict[str, str] = {}
        self.connection_quotas = connection_quotas
        self.quotas = quotas
        self.quota_entities = QuotaEntityStore(controller)
        self.credentials = credentials
        self.delegation_tokens = delegation_tokens
        self.features = features
        self._lock = threading.Lock()  # guards the creation of ``dynamic``; taken before any other lock
        self.lock = threading.Lock()  # held while changed configs of the broker are put in force
        self._dynamic: DynamicConfigs | None = None
        self._change_hooks: list[Callable[[frozenset[str]], None]] = []

    @property
    def dynamic(self) -> DynamicConfigs:
        """Service that changes configs at run time."""
        with self._lock:
            if self._dynamic is None:
                from kbroker.metadata.configs.dynamic_configs import DynamicConfigs

                self._dynamic = DynamicConfigs(self.config, self.controller, self.topics, self, self._change_hooks)
            return self._dynamic

    @property
    def image(self) -> MetadataImage:
        """Latest metadata of the cluster."""
        return self.controller.image

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether the delta changes configs of a broker."""
        return any(kind == ConfigResourceType.BROKER for kind, _ in delta.changed_configs)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Put changed configs of the broker in force, by a module that is imported at the first change."""
        self.dynamic.publish(delta, image)

    def on_broker_change(self, hook: Callable[[frozenset[str]], None]) -> None:
        """Call ``hook`` after each change, with the names of the changed broker configs, once they are in force.

        The hook must not change configs itself.
        """
        self._change_hooks.append(hook)

    @property
    def groups(self) -> GroupCoordinator:
        """Coordinator of groups. Raises: KafkaError COORDINATOR_NOT_AVAILABLE while there is none."""
        return self.group_service.get().coordinator

    @property
    def transactions(self) -> TransactionCoordinator:
        """Coordinator of transactions. Raises: KafkaError COORDINATOR_NOT_AVAILABLE while there is none."""
        return self.transaction_service.get().coordinator

    @property
    def markers(self) -> Markers:
        """Writer of transaction markers. Raises: KafkaError as ``transactions``."""
        return self.transaction_service.get().markers

    @property
    def add_partitions_to_txn(self) -> AddPartitionsToTxnManager:
        """Client of the coordinator of transactions for partitions. Raises: KafkaError as ``transactions``."""
        return self.transaction_service.get().partitions

    @property
    def share(self) -> ShareCoordinator:
        """Coordinator of share partitions. Raises: KafkaError COORDINATOR_NOT_AVAILABLE while there is none."""
        return self.share_service.get().coordinator

    @property
    def share_partitions(self) -> SharePartitionManager:
        """Share partitions and their sessions. Raises: KafkaError COORDINATOR_NOT_AVAILABLE while there are none."""
        return self.share_partition_service.get().manager

    @property
    def telemetry(self) -> TelemetryService:
        """Client telemetry. Raises: KafkaError UNSUPPORTED_VERSION if its decoder is not installed."""
        return self.telemetry_service.get()

    @property
    def metrics(self) -> Metrics:
        """Metrics of the broker."""
        return self.quotas.registry

    @property
    def node_id(self) -> int:
        """Id of the node as which requests are served."""
        return self.config.node_id

    @property
    def cluster_id(self) -> str:
        """Id of the cluster."""
        return self.controller.cluster_id

    def mutation_quota(self, request: RequestContext, is_strict: bool) -> MutationQuota:
        """Return the quota that the mutations of a request are charged to.

        Args: ``is_strict``: whether the quota rejects (the client supports error 89) or only delays.
        """
        from kbroker.quota.mutation_quota import new_quota

        quotas = self.quotas.controller_mutation
        manager = quotas if request.inbound is None else quotas.noted(request.inbound)
        return new_quota(manager, self.clock.epoch_ms, request.user, request.client_id, is_strict)

    def endpoint(self, listener: str) -> Endpoint:
        """Return the advertised address of a listener; for an unknown name, that of the first listener."""
        found = self.endpoints.get(listener)
        return found if found is not None else next(iter(self.endpoints.values()))


class RequestContext(NamedTuple):
    """One request's header and the facts of its connection. ``client_host``: address of the client."""

    api_key: int
    api_version: int
    correlation_id: int = 0
    client_id: str = ""
    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    client_host: str = ""
    completion: Completion | None = None
    inbound: InboundRequest | None = None  # the request itself, open while its handler runs, for the notes of quotas
    is_token_authenticated: bool = False  # a delegation token proved the principal

    @property
    def connection_id(self) -> str:
        """Id of the connection, empty if there is none."""
        return "" if self.inbound is None else self.inbound.connection_id

    @property
    def is_disconnected(self) -> bool:
        """Return whether the connection is closed."""
        return self.inbound is not None and self.inbound.is_disconnected

    @property
    def user(self) -> str:
        """Name of the principal, which quotas use."""
        return self.principal.partition(":")[2]

    def complete(self, body: Body) -> None:
        """Respond to a request whose handler returned None: exactly once, at any time, from any thread.

        Raises: RuntimeError after its response.
        """
        if self.completion is None:
            raise RuntimeError("complete() needs a request whose handler may respond later")
        self.completion.complete(body)

    def close(self) -> None:
        """Close the connection without a response. No effect after the response."""
        if self.completion is not None:
            self.completion.close()


#: Part of a handler that takes seconds: the handler returns it, and the thread of long requests calls it.
LongWork = Callable[[ApiContext, Body, RequestContext], Body]


def _unavailable() -> NoReturn:
    raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)


def _unsupported() -> NoReturn:
    raise KafkaError(Errors.UNSUPPORTED_VERSION)
