from typing import Final, final

from kbroker.common import request_log as schema
from kbroker.request_log._drain import RecordFormat

WIDTHS: Final[dict[str, int]]
ALL: Final[tuple[schema.Column, ...]]

_Column = tuple[int, int, bytes | None, bytes | None, bytes | None]

@final
class ArrowColumns(RecordFormat):
    def __new__(cls, broker: int, api_names: dict[int, str], *, sets: int = 1) -> ArrowColumns: ...
    def take_set(self, number: int) -> tuple[int, int, list[_Column]]: ...
    @property
    def set_count(self) -> int: ...
    @property
    def row_count(self) -> int: ...
    @property
    def lost(self) -> int: ...
