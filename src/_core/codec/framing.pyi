from typing import final

from kbroker._core.requests.memory_pool import MemoryPool

@final
class Framer:
    def __new__(
        cls,
        framing: str = "length-prefix",
        max_size_bytes: int | None = None,
        delimiter: bytes | None = None,
        pool: MemoryPool | None = None,
    ) -> Framer: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def is_partial(self) -> bool: ...
    def feed(self, data: bytes | bytearray | memoryview) -> tuple[list[bytes], int]: ...
