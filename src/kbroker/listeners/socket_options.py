"""Configuration of the network: the options of the socket server, and the endpoints that clients connect to."""

from __future__ import annotations

import selectors
import socket

from kbroker.common.configs.config import BrokerConfig, listener_key
from kbroker.common.listeners import Listener
from kbroker.listeners.connection_limits import address_limits, listener_limits
from kbroker.network.options import SocketServerOptions
from kbroker.requests.context import Endpoint


def socket_options(config: BrokerConfig) -> SocketServerOptions:
    """Return the options of sockets and network threads from the configuration."""
    idle_ms = config.integer("connections.max.idle.ms")
    poller = config.text("kbroker.poller")
    return SocketServerOptions(
        network_threads=config.integer("num.network.threads"),
        listener_network_threads=network_threads(config),
        max_request_bytes=config.integer("socket.request.max.bytes"),
        idle_ms=idle_ms,
        frame_timeout_ms=config.integer("kbroker.frame.timeout.ms"),
        request_batch_max=config.integer("kbroker.request.batch.max"),
        max_connections=config.integer("max.connections"),
        max_connections_per_ip=config.integer("max.connections.per.ip"),
        max_connections_per_ip_overrides=address_limits(config),
        max_connection_rate=config.integer("max.connection.creation.rate"),
        listener_limits=listener_limits(config),
        inter_broker_listener=config.inter_broker_listener,
        quota_samples=config.integer("quota.window.num"),
        quota_window_seconds=config.integer("quota.window.size.seconds"),
        backlog=config.integer("socket.listen.backlog.size"),
        send_buffer_bytes=config.integer("socket.send.buffer.bytes"),
        receive_buffer_bytes=config.integer("socket.receive.buffer.bytes"),
        broker_id=config.node_id,
        backend=selectors.DefaultSelector if poller == "selectors" else poller,
    )


def network_threads(config: BrokerConfig) -> dict[str, int]:
    """Return the number of network threads of each listener: its own or the broker's."""
    return {each.name: config.integer(listener_key(each.name, "num.network.threads")) for each in config.listeners}


def endpoints_of(config: BrokerConfig, bound: list[Listener]) -> dict[str, Endpoint]:
    """Return each listener's address for clients: the advertised or bound one; this host's name replaces a wildcard."""
    advertised = {listener.name: listener for listener in config.advertised_listeners}
    endpoints = {}
    for listener in bound:
        public = advertised.get(listener.name, listener)
        host = public.host if public.host not in ("", "0.0.0.0", "::") else socket.gethostname()
        endpoints[listener.name] = Endpoint(host, public.port or listener.port)
    return endpoints
