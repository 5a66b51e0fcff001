from typing import Any, Final, final

from typing_extensions import Buffer

DEFAULT_CAP_BYTES: int
OFFSET: Final[int]
TIMESTAMP: Final[int]
TIMESTAMP_TYPE: Final[int]
KEY: Final[int]
VALUE: Final[int]
HEADERS: Final[int]
MILLISECONDS: Final[int]

_BinaryBuffers = tuple[int, memoryview | None, memoryview, memoryview]
# None for a column that was not requested: rows, offsets, timestamps, timestamp types, keys, values, headers
_Taken = tuple[int, Any, Any, Any, Any, Any, Any]

class Array:
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class BinaryColumn:
    def __new__(cls, rows: int, column: _BinaryBuffers) -> BinaryColumn: ...
    @property
    def data(self) -> memoryview: ...
    @property
    def offsets(self) -> memoryview: ...
    @property
    def valid(self) -> memoryview | None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> bytes | None: ...

@final
class ArrowColumns:
    @property
    def row_count(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def size_bytes(self) -> int: ...
    def __new__(cls, wanted: int) -> ArrowColumns: ...
    def append(
        self,
        data: Buffer,
        position: int,
        from_offset: int,
        until_offset: int,
        *,
        limit_rows: int = ...,
        limit_bytes: int = ...,
        cap_bytes: int = ...,
        total_cap_bytes: int = ...,
        include_control: bool = False,
    ) -> int: ...
    def take(self) -> _Taken: ...

def whole_batches(data: Buffer) -> tuple[int, int]: ...
