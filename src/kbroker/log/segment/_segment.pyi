from typing import final

@final
class OpenFileCache:
    """Bounds how many segment files are open; shared by many partitions. 0: a quarter of the descriptor limit, at
    most 2048.
    """

    def __new__(cls, capacity: int = ...) -> OpenFileCache: ...
    @property
    def capacity(self) -> int: ...
    @property
    def open_files(self) -> int: ...
