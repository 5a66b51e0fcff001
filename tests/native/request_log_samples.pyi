from collections.abc import Iterable, Sequence
from typing import final

from kbroker.request_log._json_lines import JsonLines
from kbroker.request_log._log_core import RequestLogRecorder

@final
class SampleConnection:
    def __new__(
        cls,
        recorder: RequestLogRecorder,
        principal: bytes = b"User:ANONYMOUS",
        *,
        local_host: bytes = b"127.0.0.1",
        local_port: int = 9092,
        remote_host: bytes = b"127.0.0.1",
        remote_port: int = 40000,
        listener: bytes = b"PLAINTEXT",
        processor_id: int = 0,
        index: int = 0,
    ) -> SampleConnection: ...
    def log_in(self, principal: bytes) -> None: ...
    def record(
        self,
        *,
        count: int = 1,
        api_key: int = 0,
        api_version: int = 9,
        correlation_id: int = 1,
        client_id: bytes | None = b"client",
        start_ns: int = 1,
        dequeue_ns: int = 2,
        local_done_ns: int = 0,
        response_ready_ns: int = 0,
        response_dequeue_ns: int = 0,
        response_sent_ns: int = 3,
        network_ns: int = 0,
        request_bytes: int = 0,
        response_bytes: int = 0,
        throttle_ms: int = 0,
        errors: Iterable[tuple[int, int]] = (),
        software: tuple[bytes, bytes] | None = None,
        updates: Iterable[tuple[object, ...]] = (),
        verdicts: Iterable[tuple[object, ...]] = (),
        shadows: Iterable[tuple[object, ...]] = (),
        brought_nothing: bool = False,
        leave_out: bool = False,
        is_late: bool = False,
        transactional_id: bytes | None = None,
        appended: Sequence[tuple[bytes, int, int, int]] = (),
    ) -> None: ...

def longest_line(lines: JsonLines, event_kind: int = 0) -> tuple[bytes, int]: ...
