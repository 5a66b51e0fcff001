from collections.abc import Iterable, Mapping
from typing import final

from typing_extensions import Buffer

_HeadersIn = Iterable[tuple[str, Buffer | None]] | Mapping[str, Buffer | None]

@final
class RecordBatchBuilder:
    def __new__(
        cls,
        compression: int = 0,
        *,
        base_offset: int = 0,
        base_timestamp_ms: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
        log_append_time: bool = False,
        leader_epoch: int = -1,
    ) -> RecordBatchBuilder: ...
    def __len__(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def append(
        self,
        key: Buffer | None,
        value: Buffer | None,
        timestamp_ms: int = -1,
        headers: _HeadersIn = (),
        offset_delta: int | None = None,
    ) -> None: ...
    def build(self, last_offset_delta: int | None = None) -> bytes: ...

def key_value_batch(
    records: Iterable[tuple[Buffer | None, Buffer | None]],
    timestamp_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytes: ...
