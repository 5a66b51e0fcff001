from typing import final

from kbroker._core.clock import BaseClock
from kbroker._core.requests.memory_pool import MemoryPool
from kbroker._core.requests.request_queue import Queue, RequestExecutor
from kbroker._core.timer.key_signal import KeySignal
from kbroker.network._request_metrics import RequestMetrics, RequestRecorder
from kbroker.network.connections._connection_quotas import ConnectionQuotas
from kbroker.network.connections._refused_requests import RefusedRequests
from kbroker.network.options import SocketServerOptions
from kbroker.network.transport.authentication import ListenerSecurity

@final
class Processor:
    def __new__(
        cls,
        listener_name: str,
        processor_id: int,
        queue: Queue,
        options: SocketServerOptions | None = None,
        *,
        pool: MemoryPool | None = None,
        clock: BaseClock | None = None,
        listener_id: int = 0,
        quotas: ConnectionQuotas | None = None,
        security: ListenerSecurity | None = None,
        metrics: RequestMetrics | None = None,
        recorder: RequestRecorder | None = None,
        refused: RefusedRequests | None = None,
        executor: RequestExecutor | None = None,
        closed: tuple[KeySignal, ...] = (),
    ) -> Processor: ...
    @property
    def listener_name(self) -> str: ...
    @property
    def processor_id(self) -> int: ...
    def run(self) -> None: ...
    def stand_in(self) -> None: ...
    def begin_stop(self) -> None: ...
    def retire(self) -> None: ...
    def finish_stop(self) -> None: ...
    def offer(self, fd: int) -> bool: ...
    def client_software(self) -> dict[tuple[str, str], int]: ...
    def counters(self) -> dict[str, int]: ...
