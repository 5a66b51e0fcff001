"""Options of the socket server, which its network threads read too."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kbroker.network.connections._connection_quotas import UNLIMITED

Backend = str | Callable[[], object]


class ListenerLimits(NamedTuple):
    """Limits of one listener's connections; None: the server's limit applies."""

    max_connections: int | None = None
    max_connection_rate: int | None = None


class SocketServerOptions(NamedTuple):
    """Options that all listeners share; the defaults are Kafka's.

    ``listener_network_threads`` and ``listener_limits`` are by name. The server's limits do not apply to the
    ``inter_broker_listener`` if there are others.

    ``idle_ms``: connections idle for longer are closed; negative: never. ``frame_timeout_ms``: time limit for receiving
    a whole request; 0: no limit. ``request_batch_max``: maximum size of a request batch, 1 (Kafka's exact behaviour) to
    1024. ``principal``: identity of every connection without authentication.

    ``framing``, ``delimiter`` and ``max_request_bytes`` define how bytes become requests, as in
    ``_core.codec.framing.Framer``. ``backend`` is "auto", "epoll", "kqueue" or a function that creates a selectors-like
    object for each thread.

    ``kafka_requests``: each request carries the state of Kafka's handlers, metrics and quotas. Without it there are no
    request metrics and no records of finished requests, and no listener may authenticate its clients. None: with
    length-prefix framing.

    ``send_files``: False copies file regions through memory, as transports without sendfile must.
    """

    network_threads: int = 3
    listener_network_threads: Mapping[str, int] | None = None
    max_request_bytes: int = 104857600
    idle_ms: int = 600000
    frame_timeout_ms: int = 30000
    request_batch_max: int = 16
    max_connections: int = UNLIMITED
    max_connections_per_ip: int = UNLIMITED
    max_connections_per_ip_overrides: Mapping[str, int] | None = None
    max_connection_rate: int = UNLIMITED
    listener_limits: Mapping[str, ListenerLimits] | None = None
    inter_broker_listener: str | None = None
    quota_samples: int = 11
    quota_window_seconds: int = 1
    backlog: int = 50
    send_buffer_bytes: int = 102400
    receive_buffer_bytes: int = 102400
    framing: str = "length-prefix"
    delimiter: bytes | None = None
    principal: str = "User:ANONYMOUS"
    broker_id: int = 0
    backend: Backend = "auto"
    request_metrics: bool = True
    kafka_requests: bool | None = None
    send_files: bool = True

    @property
    def serves_kafka(self) -> bool:
        """Return ``kafka_requests``; if it is None, whether the framing is length-prefix."""
        return self.framing == "length-prefix" if self.kafka_requests is None else self.kafka_requests

    def new_backend(self) -> object:
        """Return the backend of one more thread."""
        return self.backend() if callable(self.backend) else self.backend
