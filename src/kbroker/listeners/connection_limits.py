"""Configured limits of connections, kept current: settings of broker and listeners, quotas of addresses."""

from __future__ import annotations

import socket

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_broker import host_limits
from kbroker.common.loggers import get_logger
from kbroker.common.quotas import CONNECTION_CREATION_RATE, IP, QuotaEntity, enforced_key, is_shadow_key
from kbroker.network.connections._connection_quotas import ConnectionQuotas
from kbroker.network.options import ListenerLimits

logger = get_logger(__name__)


class ConnectionLimits:
    """Application of configuration and quota entities to the limits of a socket server.

    Threads: one change at a time, in the order of their stores.
    """

    def __init__(self, config: BrokerConfig, quotas: ConnectionQuotas) -> None:
        self._config = config
        self._quotas = quotas

    def on_config_change(self, changed: frozenset[str]) -> None:
        """Apply changed limits of connections; ignore other configs."""
        if not any("max.connection" in name for name in changed):
            return
        config = self._config
        self._quotas.update(
            config.integer("max.connections"),
            config.integer("max.connections.per.ip"),
            address_limits(config),
            config.integer("max.connection.creation.rate"),
        )
        for name, limits in listener_limits(config).items():
            self._quotas.update_listener(name, *limits)

    def on_quota_change(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        """Apply a changed quota or shadow of an address, or of all addresses; ignore other quotas."""
        if enforced_key(key) == CONNECTION_CREATION_RATE and IP in entity.names:
            rate = None if value is None else int(value)
            self._quotas.update_ip_rate(entity.names[IP], rate, shadow=is_shadow_key(key))


def address_limits(config: BrokerConfig) -> dict[str, int]:
    """Return max.connections.per.ip.overrides by address; a host name counts for all its addresses, if it has any."""
    limits = {}
    for host, limit in host_limits(config.text("max.connections.per.ip.overrides")).items():
        try:
            found = {str(row[4][0]) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError) as error:
            logger.warning("max.connections.per.ip.overrides: %s has no address: %s", host, error)
            continue
        limits.update(dict.fromkeys(found, limit))
    return limits


def listener_limits(config: BrokerConfig) -> dict[str, ListenerLimits]:
    """Return the connection limits that are set for single listeners."""
    return {
        listener.name: ListenerLimits(
            config.listener_integer(listener.name, "max.connections"),
            config.listener_integer(listener.name, "max.connection.creation.rate"),
        )
        for listener in config.listeners
    }
