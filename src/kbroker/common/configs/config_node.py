"""Configuration of a node of any Kafka cluster, for the storage tool: a broker, a controller, or both.

The roles and the quorum are checked as in Kafka, with its messages; a file without ``process.roles`` is checked as one
of ``kbroker serve``.
Source: ``KafkaConfig.validateValues``, ``KRaftConfigs``.
"""

from __future__ import annotations

from collections.abc import Collection

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_member import (
    check_broker_only,
    check_controllers,
    quorum_addresses,
    scala_set,
)
from kbroker.common.configs.config_quorum import (
    BROKER_ROLE,
    CONTROLLER_ROLE,
    LISTENER_NAMES,
    ROLES,
    VOTERS,
    broker_listeners,
    controller_listeners,
    refused,
)


class NodeConfig(BrokerConfig):
    """Values of the configs of a node. Raises: ConfigError for an invalid value."""

    @property
    def is_broker(self) -> bool:
        """Return whether the node is a broker."""
        return BROKER_ROLE in self.words(ROLES)

    @property
    def is_controller(self) -> bool:
        """Return whether the node is a controller."""
        return CONTROLLER_ROLE in self.words(ROLES)

    @property
    def allows_unstable_features(self) -> bool:
        """Return whether ``unstable.feature.versions.enable`` is set, which only the storage tool reads."""
        return str(self.unknown.get("unstable.feature.versions.enable", "")).strip().lower() == "true"

    def _check(self) -> None:
        if not self.is_set(ROLES):
            super()._check()
            return
        for name in ("node.id", LISTENER_NAMES):
            if not self.is_set(name):
                raise refused(f'Missing required configuration "{name}" which has no default value.')
        servers, voters = quorum_addresses(self)
        check_controllers(servers, voters)
        if self.is_controller:
            self._check_controller(voters)
        else:
            check_broker_only(self, voters)
        if self.is_broker:
            broker_listeners(self)

    def _check_controller(self, voters: Collection[int]) -> None:
        if voters and self.node_id not in voters:
            raise refused(
                f"If {ROLES} contains the 'controller' role, the node id {self.node_id} must be included in the set of "
                f"voters {VOTERS}={scala_set(voters)}"
            )
        bound = {word.partition("://")[0].upper() for word in self.words("listeners")}
        names = {name.upper() for name in self.words(LISTENER_NAMES)}
        if not self.is_broker and not bound <= names:
            raise refused(
                f"The listeners config must only contain KRaft controller listeners from {LISTENER_NAMES} when "
                f"{ROLES}=controller"
            )
        if not controller_listeners(self):
            raise refused(
                f"{LISTENER_NAMES} must contain at least one value appearing in the 'listeners' configuration when "
                "running the KRaft controller role"
            )
        if not names <= bound:
            raise refused(
                f"{LISTENER_NAMES} must only contain values appearing in the 'listeners' configuration when running "
                "the KRaft controller role"
            )
