from collections.abc import Mapping
from typing import Any

DEFAULTS: dict[str, Any]
INT64_MIN: int
MIN_INDEX_BYTES: int

def check_config(values: Mapping[str, Any]) -> None: ...

KINDS: tuple[str, ...]

def take_failures(folder: str) -> list[tuple[str, str, int, int]]:
    """Return and clear the failures in partitions of a log folder since the last call.

    Returns: (name of the partition's folder, "append", "read" or "sync", errno, count); errno 0: the partition itself
    refuses the operation, or its bytes are not a batch.
    Threads: any.
    """
