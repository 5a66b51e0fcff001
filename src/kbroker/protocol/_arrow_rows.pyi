from typing import final

from typing_extensions import Buffer

from kbroker.protocol._batch_builder import RecordBatchBuilder

def murmur2(key: Buffer) -> int: ...
def partition_of_key(key: Buffer, partition_count: int) -> int: ...

_Strings = tuple[int, Buffer | None, Buffer, Buffer]
_Numbers = tuple[int, Buffer | None, Buffer]
_Headers = tuple[int, Buffer | None, Buffer, int, int, Buffer | None, _Strings, _Strings]

@final
class ArrowRows:
    def __new__(
        cls,
        count: int,
        key: _Strings | None,
        value: _Strings | None,
        partition: _Numbers | None = None,
        headers: _Headers | None = None,
    ) -> ArrowRows: ...
    def __len__(self) -> int: ...
    def assign(self, partition_count: int) -> list[int]: ...
    def append(
        self,
        builders: dict[int, RecordBatchBuilder],
        sticky: int,
        position: int,
        now_ms: int,
        pending_bytes: int,
        limit_bytes: int,
    ) -> int: ...
