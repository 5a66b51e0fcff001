"""Metadata of a node of an embedded cluster, whose nodes share one controller: registered, drained at a stop."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.broker.broker_metadata import NodeLife, fence_node, register_node
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.listeners import Listener
from kbroker.log.manager import LogManager
from kbroker.metadata.configs.resource_configs import broker_configs
from kbroker.metadata.controller import Controller
from kbroker.requests.context import Endpoint


class NodeMetadata(NodeLife):
    """The part of a node in the metadata of its cluster, which remains when the node stops."""

    def __init__(self, config: BrokerConfig, controller: Controller, logs: LogManager) -> None:
        self.controller = controller
        self.logs = logs
        self._config = config
        config.set_dynamic(*broker_configs(controller.image, config.node_id))

    def register(self, listeners: Iterable[Listener], advertised: dict[str, Endpoint]) -> None:
        """Store the registration of this node, whose listeners are bound; it joins the ISR of its partitions."""
        register_node(self.controller, self._config, listeners, advertised, self.logs.directory_ids, is_alone=False)

    def shut_down(self) -> None:
        """Move the leaders on this node to other nodes, and fence it."""
        fence_node(self.controller, self._config.node_id)

    def fence(self) -> None:
        """Fence this node if its start failed before it served."""
        self.shut_down()
