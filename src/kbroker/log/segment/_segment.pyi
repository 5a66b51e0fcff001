from typing import final

@final
class OpenFileCache:
    """Bound on the number of open segment files; shared by many partitions.

    Args: capacity 0: a quarter of the descriptor limit, at least 16 and at most 16,384.
    """

    def __new__(cls, capacity: int = ...) -> OpenFileCache: ...
    @property
    def capacity(self) -> int: ...
    @property
    def open_files(self) -> int: ...
