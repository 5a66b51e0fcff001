from typing import Final, final

from kbroker.common.request_log import (
    BOOL as BOOL,
)
from kbroker.common.request_log import (
    COLUMNS as COLUMNS,
)
from kbroker.common.request_log import (
    FLOAT64 as FLOAT64,
)
from kbroker.common.request_log import (
    INT16 as INT16,
)
from kbroker.common.request_log import (
    INT32 as INT32,
)
from kbroker.common.request_log import (
    INT64 as INT64,
)
from kbroker.common.request_log import (
    LIST as LIST,
)
from kbroker.common.request_log import (
    STRING as STRING,
)
from kbroker.common.request_log import (
    TIMESTAMP_US as TIMESTAMP_US,
)
from kbroker.common.request_log import (
    UPDATE as UPDATE,
)
from kbroker.common.request_log import (
    VERDICT as VERDICT,
)
from kbroker.request_log._drain import RecordFormat

WIDTHS: Final[dict[str, int]]
FILLED: Final[tuple[str, ...]]
FILLED_VERDICT: Final[tuple[str, ...]]
FILLED_UPDATE: Final[tuple[str, ...]]

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
