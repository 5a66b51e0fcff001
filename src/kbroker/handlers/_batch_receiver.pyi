from typing import final

from kbroker.network.processor._inbound import InboundRequest

@final
class BatchReceiver:
    def receive(self, timeout_s: float) -> InboundRequest | None: ...
    def close(self) -> None: ...
