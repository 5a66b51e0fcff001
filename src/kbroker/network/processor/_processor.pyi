from typing import final

from kbroker._core.clock import BaseClock
from kbroker._core.requests.memory_pool import MemoryPool
from kbroker._core.requests.request_queue import Queue
from kbroker.network._request_metrics import RequestMetrics, RequestRecorder
from kbroker.network.connections._connection_quotas import ConnectionQuotas
from kbroker.network.connections._refused_requests import RefusedRequests
from kbroker.network.transport._tls import TlsServer
from kbroker.network.transport.authentication import Authentication

@final
class Processor:
    def __new__(
        cls,
        listener_name: str,
        processor_id: int,
        queue: Queue,
        *,
        pool: MemoryPool | None = None,
        clock: BaseClock | None = None,
        framing: str = "length-prefix",
        max_size_bytes: int | None = None,
        delimiter: bytes | None = None,
        idle_ms: int = 600000,
        frame_timeout_ms: int = 30000,
        request_batch_max: int = 16,
        principal: str = "User:ANONYMOUS",
        listener_id: int = 0,
        max_connections: int = 2147483647,
        quotas: ConnectionQuotas | None = None,
        tls: TlsServer | None = None,
        authentication: Authentication | None = None,
        metrics: RequestMetrics | None = None,
        recorder: RequestRecorder | None = None,
        refused: RefusedRequests | None = None,
        send_files: bool = True,
        kafka_requests: bool | None = None,
        backend: object = "auto",
    ) -> Processor: ...
    @property
    def listener_name(self) -> str: ...
    @property
    def processor_id(self) -> int: ...
    def run(self) -> None: ...
    def begin_stop(self) -> None: ...
    def retire(self) -> None: ...
    def finish_stop(self) -> None: ...
    def offer(self, fd: int) -> bool: ...
    def client_software(self) -> dict[tuple[str, str], int]: ...
    def counters(self) -> dict[str, int]: ...
