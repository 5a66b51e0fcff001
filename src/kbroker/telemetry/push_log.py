"""The log of pushes: one JSON object for each, in rolling files beside the request log's.

Its fields have the names of the request log where it has them, so that the pipeline compares the two.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping

from kbroker._core.clock import BaseClock
from kbroker.common.limited_log import RepeatedFailures
from kbroker.common.loggers import get_logger
from kbroker.common.request_log_names import JSON_SUFFIX, TELEMETRY
from kbroker.common.rolling_files import RollingFiles
from kbroker.telemetry.otlp import Point

logger = get_logger(__name__)

VERSION = 1
MAX_CHARACTERS = 4 << 20  # of names and attributes in a line, in which each value repeats those of its resource


class PushLog:
    """Writer of the files. Threads: any; a line is written by the thread of the push."""

    def __init__(self, folder: str, clock: BaseClock, broker: int, *, file_bytes: int, file_count: int) -> None:
        """Open the folder. Raises: OSError if it cannot be written; ValueError for a path with a zero byte."""
        self._clock = clock
        self._broker = broker
        self._failures = RepeatedFailures(clock)
        self._lock = threading.Lock()
        self._files = RollingFiles(
            folder, JSON_SUFFIX, clock, prefix=TELEMETRY, file_bytes=file_bytes, file_count=file_count
        )
        self.written = self.dropped = 0

    def write(self, sender: Mapping[str, str | None], points: Iterable[Point], interval_ms: int, is_last: bool) -> None:
        """Write the line of a push. A failure of the disk drops it, which is counted and logged.

        Args: ``sender``: fields of the line about the client.
        """
        record = {
            "version": VERSION,
            "time": self._clock.wall_ms(),
            "broker": self._broker,
            **sender,
            "intervalMs": interval_ms,
            "terminating": is_last,
            "metrics": _metrics(points),
        }
        line = (json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n").encode(errors="replace")
        with self._lock:
            try:
                self._files.write(line)
                self.written += 1
                return
            except OSError as error:
                self.dropped += 1
                reason = str(error)
        self._failures.log(None, logger.warning, "a push of metrics is not logged: %s", reason)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._files.close()


def _metrics(points: Iterable[Point]) -> list[dict[str, object]]:
    """Return the values of a line, up to MAX_CHARACTERS."""
    found: list[dict[str, object]] = []
    left = MAX_CHARACTERS
    for one in points:
        left -= len(one.name) + sum(len(name) + len(text) for name, text in one.attributes)
        if left < 0:
            break
        found.append({"name": one.name, "attributes": dict(one.attributes), "value": one.value, "delta": one.adds})
    return found
