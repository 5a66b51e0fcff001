from typing import final

from kbroker.network.connections.refusal import Refusal

REASONS: tuple[str, ...]

@final
class RefusedRequests:
    def take(self) -> tuple[list[Refusal], int]: ...
    def counts(self) -> dict[str, int]: ...
