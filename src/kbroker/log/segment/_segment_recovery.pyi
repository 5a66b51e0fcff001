from re import Pattern
from typing import Final

SEGMENT_NAME: Final[Pattern[str]]
SNAPSHOT_NAME: Final[Pattern[str]]
SEGMENT_FILES: Final[tuple[str, ...]]

def end_of_batches(path: str) -> int: ...
def finish_swaps(directory: str) -> None: ...
def tidy_folder(directory: str) -> tuple[list[int], list[int]]: ...
