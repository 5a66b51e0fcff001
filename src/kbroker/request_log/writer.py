"""The writer: moves records from the rings to files and to the topic, on its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kbroker._core.clock import BaseClock
from kbroker.common.errors import KafkaError
from kbroker.common.limited_log import REPEAT_MS, RepeatedFailures
from kbroker.common.loggers import get_logger
from kbroker.common.rolling_files import RollingFiles
from kbroker.request_log._drain import RecordDrain, RecordFormat
from kbroker.request_log._log_core import RequestLogCore

logger = get_logger(__name__)

WRITE_INTERVAL_MS = 100

#: The logs of the topic's partitions by number; empty without a topic.
Logs = Callable[[], Sequence[Any]]


class Format(Protocol):
    """Collector of the bytes to write; ``budget_bytes``: number of bytes after which they are written."""

    @property
    def line_count(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def budget_bytes(self) -> int: ...
    def take_lines(self) -> bytes: ...
    def append_to(self, logs: Sequence[Any]) -> tuple[int, int, str | None]: ...


class RequestLogWriter:
    """Writer of all records, every 100 ms of ``clock`` or when a ring is a quarter full.

    Args: ``sink`` takes the records, ``form`` returns their bytes; ``files``, ``logs``: destinations.
    Threads: ``run`` is the body of one thread; ``flush`` from any; figures from any.
    """

    def __init__(
        self,
        core: RequestLogCore,
        sink: RecordFormat,
        form: Format,
        clock: BaseClock,
        files: RollingFiles | None,
        logs: Logs | None,
    ) -> None:
        self._core = core
        self._sink = sink
        self._form = form
        self._clock = clock
        self._files = files
        self._logs = logs
        self._drain = RecordDrain(core)
        self._failures = RepeatedFailures(clock)
        self._lock = threading.Lock()  # held for draining and writing, never during an fsync
        self._stopping = False
        self._unwritten = 0
        self._reported_dropped = 0
        self._reported_ms: int | None = None
        self._why = ""
        self.written_bytes = 0

    def run(self) -> None:
        """Write until ``stop``, and then the remaining records. Never raises."""
        while not self._stopping:
            self._core.wait(WRITE_INTERVAL_MS)
            self._try_flush(unfold=self._stopping)
        self._try_flush(unfold=True)

    def stop(self) -> None:
        """Make ``run`` write the queued records and return."""
        self._stopping = True
        self._core.wake()

    def flush(self, unfold: bool = False) -> None:
        """Write the queued records; ``unfold``: also the idle polls of the current second."""
        with self._lock:
            done = False
            while not done:
                done = self._drain.drain(self._sink, self._form.budget_bytes, unfold)
                self._write()
            self._notify()

    def _try_flush(self, unfold: bool) -> None:
        try:
            self.flush(unfold)
        except Exception as error:  # no topic, a bug, or out of memory: records are kept or dropped
            self._failures.log(type(error).__name__, logger.exception, "the request log cannot be written")

    def close(self) -> None:
        """Write the queued records, and close the files. Never raises."""
        self._try_flush(unfold=True)
        with self._lock:
            if self._files is not None:
                try:
                    self._files.close()
                except OSError as error:
                    self._why = str(error)
            self._notify(now=True)

    def _write(self) -> None:
        missed = 0
        if self._files is not None:
            missed = self._form.line_count
            lines = self._form.take_lines()
            try:
                self._files.write(lines)
            except OSError as error:
                self._why = str(error)
            else:
                self.written_bytes += len(lines)
                missed = 0
        if self._logs is not None:
            failure = ""
            try:
                logs = self._logs()
            except KafkaError as error:
                if self._files is None:
                    raise  # the records wait for the topic
                logs, failure = (), str(error)
            size_bytes, unwritten, why = self._form.append_to(logs)
            self.written_bytes += size_bytes
            missed = max(missed, unwritten)
            if why is not None:
                self._why = failure or why
        self._unwritten += missed

    def _notify(self, now: bool = False) -> None:
        """Log the number of dropped records since the last line, at most once a minute."""
        dropped = self.dropped
        now_ms = self._clock.now_ms()
        if dropped == self._reported_dropped:
            return
        if not now and self._reported_ms is not None and now_ms - self._reported_ms < REPEAT_MS:
            return
        why = self._why or "the buffer was full (kbroker.request.log.buffer.bytes)"
        logger.warning("the request log has dropped %d records: %s", dropped - self._reported_dropped, why)
        self._reported_dropped, self._reported_ms, self._why = dropped, now_ms, ""

    @property
    def written(self) -> int:
        """Number of records written so far."""
        return self._drain.written - self._form.lost - self._unwritten

    @property
    def dropped(self) -> int:
        """Number of records not written: the buffer was full, memory was exhausted, or a write failed."""
        return self._core.dropped + self._drain.lost + self._form.lost + self._unwritten
