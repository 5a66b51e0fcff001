"""Parts of a running broker, as metrics, the X-ray and the console read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # metrics and the X-ray are imported on first use
    from kbroker._core.requests.memory_pool import MemoryPool
    from kbroker._core.requests.request_queue import Queue
    from kbroker.handlers._native_apis import NativeApis
    from kbroker.handlers.handler_threads import HandlerThreads
    from kbroker.log.manager import LogManager
    from kbroker.network.socket_server import SocketServer
    from kbroker.request_log.service import RequestLog
    from kbroker.requests.context import ApiContext


class BrokerParts(NamedTuple):
    """Parts of a running broker, assembled once by its start.

    Args:
        ctx: parts that request handlers use too: topics, configs, quotas, coordinators, authorizer, clock.
        pool: memory pool of requests, None without ``queued.max.request.bytes``.
        requests, python_requests: queues of the native handlers and of the Python handlers.
        api_names: names of the served APIs by key.
    Threads: any; each part states its own lock.
    """

    ctx: ApiContext
    logs: LogManager
    server: SocketServer
    pool: MemoryPool | None
    requests: Queue
    python_requests: Queue
    native_apis: NativeApis
    handlers: HandlerThreads
    request_log: RequestLog
    api_names: Mapping[int, str]
