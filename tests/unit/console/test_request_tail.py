"""Request log records that no broker has written are skipped, or shown with their valid fields."""

import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.console.rendering import milliseconds
from kbroker.console.request_tail import LoggedRequest, _json, _last_lines

RECORD: dict[str, Any] = {"time": "2026-01-02T03:04:05Z", "requestHeader": {"requestApiKeyName": "FETCH"}}


@pytest.mark.parametrize(
    "value", [b"[]", b"7", b"null", b"[" * 100_000, b'{"requestHeader": 5}', b'{"requestHeader": "x"}']
)
def test_what_is_no_record_is_passed_over(value: bytes) -> None:
    assert list(_json([value])) == []


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e308", "9" * 400, '"x"', "{}", "[]"])
def test_numbers_that_no_broker_writes(number: str) -> None:
    names = ("requestQueueTimeMs", "remoteTimeMs", "requestBytes", "errorCode")
    text = json.dumps(RECORD)[:-1] + "".join(f', "{name}": {number}' for name in names) + "}"
    (one,) = _json([text.encode()])
    assert (one.total_ms, one.request_bytes, one.error_code) == (0.0, 0, 0)
    assert milliseconds(one.total_ms) == "0 ms"


@pytest.mark.parametrize("time", [5, None, {}, "x", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_times_that_no_broker_writes(time: object) -> None:
    (one,) = _json([json.dumps({**RECORD, "time": time}).encode()])
    assert isinstance(one, LoggedRequest)


def test_the_last_lines_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest file counts, without its first line if it is cut and its last if it is unfinished."""
    assert _last_lines(tmp_path) == []
    (tmp_path / "other.jsonl").write_text("x\n")
    (tmp_path / "requests-20260101T000000Z-000001.jsonl").write_text("old\n")
    newest = tmp_path / "requests-20260102T000000Z-000001.jsonl"
    newest.write_text("one\ntwo\nthr")
    assert _last_lines(tmp_path) == [b"one", b"two"]
    monkeypatch.setattr("kbroker.console.request_tail.TAIL_BYTES", 9)
    assert _last_lines(tmp_path) == [b"two"]
