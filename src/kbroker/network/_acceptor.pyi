from typing import final

from kbroker._core.clock import BaseClock
from kbroker.network.connections._connection_quotas import ConnectionQuotas
from kbroker.network.processor._processor import Processor

@final
class Acceptor:
    def __new__(
        cls,
        listener: int,
        processors: list[Processor],
        *,
        send_buffer_bytes: int = -1,
        quotas: ConnectionQuotas | None = None,
        clock: BaseClock | None = None,
        backend: object = "auto",
    ) -> Acceptor: ...
    def deal_to(self, processors: list[Processor]) -> None: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def accepted(self) -> int: ...
    @property
    def out_of_descriptors(self) -> int: ...
    @property
    def blocked_ns(self) -> int: ...
    @property
    def held(self) -> int: ...
