from collections.abc import Sequence
from typing import Any, final

from kbroker.common.request_log import QUOTA_TYPES as QUOTA_TYPES
from kbroker.common.request_log import VERSION as VERSION
from kbroker.request_log._drain import RecordFormat

@final
class JsonLines(RecordFormat):
    def __new__(
        cls, broker: int, api_names: dict[int, str], *, partitions: int = 0, wants_lines: bool = True
    ) -> JsonLines: ...
    def take_lines(self) -> bytes: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def line_count(self) -> int: ...
    def append_to(self, logs: Sequence[Any]) -> tuple[int, int, str | None]: ...
