from typing import final

@final
class KeyOffsets:
    """Cleaner's map of keys (by 128 bits of SipHash-2-4) to offsets. Threads: one at a time.

    Args: `memory_bytes`: limit, 24 bytes a slot; `load_factor`: maximum fill; `keys`: expected number (the map is no
    larger than they need).
    """

    def __new__(cls, memory_bytes: int, load_factor: float = 0.9, keys: int = 0, secret: bytes = ...) -> KeyOffsets: ...
    def __len__(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def put(self, key: bytes, offset: int) -> bool:
        """Record the latest offset of a key; return False if the map is full and does not contain the key."""
    def get(self, key: bytes) -> int:
        """Return the offset of a key, -1 if the map does not contain the key."""
    def hash(self, key: bytes) -> bytes: ...
