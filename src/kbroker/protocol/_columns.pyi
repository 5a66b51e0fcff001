from typing import final

from typing_extensions import Buffer

class Array:
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class BinaryColumn:
    @property
    def data(self) -> memoryview: ...
    @property
    def offsets(self) -> memoryview: ...
    @property
    def nulls(self) -> memoryview: ...
    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> bytes | None: ...

DEFAULT_CAP_BYTES: int

_Columns = tuple[memoryview, memoryview, BinaryColumn, BinaryColumn, memoryview, BinaryColumn, BinaryColumn, int]

def read_columns(
    data: Buffer,
    min_offset: int = 0,
    allow_truncated: bool = False,
    include_control: bool = False,
    cap_bytes: int = ...,
) -> _Columns: ...
