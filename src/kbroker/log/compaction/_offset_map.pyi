from typing import final

@final
class KeyOffsets:
    """The cleaner's map of keys (by 128 bits of SipHash-2-4) to offsets. Threads: one at a time.

    Args: `memory_bytes` what it may take, 24 bytes a slot; `load_factor` how full it may be; `keys` how many are
        expected (it is made no larger than they need).
    """

    def __new__(cls, memory_bytes: int, load_factor: float = 0.9, keys: int = 0, secret: bytes = ...) -> KeyOffsets: ...
    def __len__(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def put(self, key: bytes, offset: int) -> bool:
        """Record where a key was last seen; False when the map is full and does not know it."""
    def get(self, key: bytes) -> int:
        """Its offset, -1 when it is not there."""
    def hash(self, key: bytes) -> bytes: ...
