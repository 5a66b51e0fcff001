from collections.abc import Mapping
from typing import Final, final

UNLIMITED: Final[int]

@final
class ConnectionQuotas:
    def __new__(
        cls, max_connections: int = ..., max_per_address: int = ..., overrides: Mapping[str, int] | None = None
    ) -> ConnectionQuotas: ...
    def update(
        self, max_connections: int, max_per_address: int, overrides: Mapping[str, int] | None = None
    ) -> None: ...
    def count(self, address: str | None = None) -> int: ...
    @property
    def refused(self) -> int: ...
