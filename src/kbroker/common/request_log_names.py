"""Files of the request log: ``requests-20260102T030405Z-000001.jsonl``."""

from __future__ import annotations

import re
from datetime import datetime, timezone

JSON_SUFFIX, ARROW_SUFFIX = ".jsonl", ".arrows"

#: End of an Arrow IPC stream; a file without it is truncated, and its complete batches can be read.
ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_NAME = re.compile(r"requests-\d{8}T\d{6}Z-\d{6,}")


def file_name(time_ms: int, number: int, suffix: str) -> str:
    """Return the name of the file begun at a time (ms since 1970) as the ``number``-th of its folder."""
    begun = datetime.fromtimestamp(time_ms // 1000, timezone.utc)
    return f"requests-{begun:%Y%m%dT%H%M%SZ}-{number:06d}{suffix}"


def is_file_name(name: str, suffix: str) -> bool:
    """Return whether a file of the request log can have this name."""
    return name.endswith(suffix) and _NAME.fullmatch(name.removesuffix(suffix)) is not None
