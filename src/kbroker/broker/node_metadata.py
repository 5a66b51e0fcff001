"""Metadata of a node of an embedded cluster, whose nodes share one controller: registered, drained at a stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kbroker.broker.broker_metadata import fence_node, register_node
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.listeners import Listener
from kbroker.handlers.api_table import KafkaApis
from kbroker.log.manager import LogManager
from kbroker.metadata.configs.resource_configs import broker_configs
from kbroker.metadata.controller import Controller
from kbroker.requests.context import ApiContext, Endpoint


class NodeMetadata:
    """The part of a node in the metadata of its cluster; the same methods as ``BrokerMetadata``."""

    features = None

    def __init__(self, config: BrokerConfig, controller: Controller, logs: LogManager) -> None:
        self.controller = controller
        self.logs = logs
        self._config = config
        config.set_dynamic(*broker_configs(controller.image, config.node_id))

    def register(self, listeners: Iterable[Listener], advertised: dict[str, Endpoint]) -> None:
        """Store the registration of this node, whose listeners are bound; it joins the ISR of its partitions."""
        register_node(self.controller, self._config, listeners, advertised, self.logs.directory_ids, is_alone=False)

    def connect(self, ctx: ApiContext, apis: KafkaApis, on_versions: Callable[[], object]) -> None:
        """Do nothing: the controller is in this process."""

    def follow(self) -> None:
        """Do nothing: the parts follow each change."""

    serve = follow

    def shut_down(self) -> None:
        """Let other nodes lead the partitions of this one, and fence it."""
        fence_node(self.controller, self._config.node_id)

    def fence(self) -> None:
        """Fence this node if its start failed before it served."""
        self.shut_down()

    def close(self) -> None:
        """Do nothing: the metadata belongs to the cluster."""
