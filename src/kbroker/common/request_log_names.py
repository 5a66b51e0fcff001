"""Names of the files of logs: ``requests-20260102T030405Z-000001.jsonl``, ``telemetry-...`` for client metrics."""

from __future__ import annotations

import re
import time

JSON_SUFFIX, ARROW_SUFFIX = ".jsonl", ".arrows"

#: End of an Arrow IPC stream; a file without it is truncated, and its complete batches can be read.
ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

#: First words of the names: of the request log, and of the log of client metrics.
REQUESTS, TELEMETRY = "requests", "telemetry"

_NAME = re.compile(r"([a-z]+)-\d{8}T\d{6}Z-\d{6,}")


def file_name(time_ms: int, number: int, suffix: str, prefix: str = REQUESTS) -> str:
    """Return the name of the file begun at a time (ms since 1970) as the ``number``-th of its folder."""
    begun = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time_ms // 1000))
    return f"{prefix}-{begun}-{number:06d}{suffix}"


def is_file_name(name: str, suffix: str, prefix: str = REQUESTS) -> bool:
    """Return whether a file of the log can have this name."""
    found = _NAME.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
    return found is not None and found.group(1) == prefix
