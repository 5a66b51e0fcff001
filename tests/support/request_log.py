"""Request log without a broker: artificial requests in, records out, on a clock that a test advances."""

import json
from typing import Any

from kbroker._core.clock import VirtualClock
from kbroker.common.request_log import COLUMNS, LIST, TIMESTAMP_US, Column
from kbroker.request_log._drain import RecordDrain
from kbroker.request_log._json_lines import JsonLines
from kbroker.request_log._log_core import RequestLogCore
from tests.native.request_log_samples import SampleConnection

START_MS = 1_767_323_045_123  # 2026-01-02T03:04:05.123Z
NAMES = {0: "PRODUCE", 1: "FETCH", 18: "API_VERSIONS", 19: "CREATE_TOPICS"}


class Bench:
    """Request log core with the recorder of one network thread, and the conversion of its records to JSON."""

    def __init__(self, *, sampling: float = 1.0, buffer_bytes: int = 1 << 20, seed: int = 1) -> None:
        self.clock = VirtualClock(START_MS)
        self.core = RequestLogCore(self.clock, NAMES, sampling)
        self.recorder = self.core.recorder("PLAINTEXT", buffer_bytes, seed)
        self.drain = RecordDrain(self.core)
        self.form = JsonLines(7, NAMES)

    def connect(self, principal: bytes = b"User:alice", **facts: Any) -> SampleConnection:
        return SampleConnection(self.recorder, principal, **facts)

    def lines(self, unfolds: bool = True) -> list[dict[str, Any]]:
        """Return the records since the last call."""
        while not self.drain.drain(self.form, 1 << 20, unfolds):
            pass
        return [json.loads(line) for line in self.form.take_lines().decode("utf-8").splitlines()]

    def now_ns(self) -> int:
        return self.clock.now_ns()


def as_columns(record: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object as a row."""

    def look(value: Any, path: str) -> Any:
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def convert(column: Column) -> Any:
        value = look(record, column.json)
        if column.type == LIST and value is not None:
            return [{field.name: part.get(field.json) for field in column.fields} for part in value]
        if column.name.endswith("_time_us") and value is not None:
            return round(value * 1000)
        return value

    return {column.name: convert(column) for column in COLUMNS}


def as_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of Arrow with its time in the form of JSON."""
    for column in COLUMNS:
        if column.type == TIMESTAMP_US:
            row[column.name] = row[column.name].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return row
