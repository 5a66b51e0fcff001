from collections.abc import Iterable
from typing import Any

from kbroker.network.processor._processor import Processor

MUTE_REASONS: tuple[str, ...]
QUOTA_TYPES: tuple[str, ...]

def snapshot(
    processor: Processor,
    limit: int = 100,
    *,
    timeout_ms: int = 1000,
    numbers: Iterable[int] = (),
) -> dict[str, Any]: ...
def client_connections(
    processor: Processor,
    limit: int = 100,
    *,
    principal: str = "",
    client_id: str = "",
    address: str | None = None,
    index: int | None = None,
    timeout_ms: int = 1000,
) -> dict[str, Any]: ...
