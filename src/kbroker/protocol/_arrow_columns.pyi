from typing import Final, final

from typing_extensions import Buffer

DEFAULT_CAP_BYTES: int
OFFSET: Final[int]
TIMESTAMP: Final[int]
TIMESTAMP_TYPE: Final[int]
KEY: Final[int]
VALUE: Final[int]
HEADERS: Final[int]

_BinaryBuffers = tuple[int, memoryview | None, memoryview, memoryview]
_HeaderBuffers = tuple[int, memoryview | None, memoryview, int, _BinaryBuffers, _BinaryBuffers]

_Taken = tuple[
    int,
    memoryview | None,
    memoryview | None,
    memoryview | None,
    _BinaryBuffers | None,
    _BinaryBuffers | None,
    _HeaderBuffers | None,
]

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
    ) -> int: ...
    def take(self) -> _Taken: ...

def whole_batches(data: Buffer) -> tuple[int, int]: ...
