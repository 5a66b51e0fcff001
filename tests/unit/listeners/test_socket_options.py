"""Options of the socket server."""

from kbroker.common.configs.config import BrokerConfig
from kbroker.listeners.socket_options import socket_options
from kbroker.network.options import SocketServerOptions

NUMBERS = (
    "max_request_bytes", "idle_ms", "frame_timeout_ms", "request_batch_max", "max_connections",
    "max_connections_per_ip", "max_connection_rate", "quota_samples", "quota_window_seconds", "backlog",
    "send_buffer_bytes", "receive_buffer_bytes",
)  # fmt: skip


def test_defaults_are_those_of_the_configs() -> None:
    """A server without options behaves like that of a broker without configs."""
    configured, defaults = socket_options(BrokerConfig()), SocketServerOptions()
    assert {name: getattr(defaults, name) for name in NUMBERS} == {name: getattr(configured, name) for name in NUMBERS}
