"""The requests that the console reads from the end of the request log."""

import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.console.rendering import milliseconds
from kbroker.console.request_tail import LoggedRequest, _last_lines, _requests

HEADER = {"requestApiKey": 1, "requestApiKeyName": "FETCH"}
RECORD: dict[str, Any] = {"time": "2026-01-02T03:04:05Z", "requestHeader": HEADER, "localTimeMs": 1.5}


def requests(*documents: object) -> list[LoggedRequest]:
    return list(_requests([json.dumps(document).encode() for document in documents], is_arrow=False))


def test_requests_only() -> None:
    """Verdicts without a request, refusals and records that no broker has written are skipped."""
    verdict = {"time": RECORD["time"], "sequence": 7}
    (one,) = requests([], {}, verdict, {**RECORD, "time": 5}, {**RECORD, "requestBytes": "x"}, RECORD)
    assert (one.api, one.client_id, one.local_ms, one.total_ms) == ("FETCH", "", 1.5, 1.5)


def test_an_api_without_a_name_has_its_number() -> None:
    (one,) = requests({**RECORD, "requestHeader": {**HEADER, "requestApiKeyName": ""}})
    assert one.api == "1"


def test_a_time_that_no_clock_measures_is_zero() -> None:
    (one,) = requests({**RECORD, "remoteTimeMs": -1.5})
    assert (one.remote_ms, one.total_ms) == (0, 1.5)


def test_the_largest_time_is_shown() -> None:
    (one,) = requests({**RECORD, "localTimeMs": 9.2e15})
    assert milliseconds(one.total_ms)


def test_the_last_lines_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest file counts, without its first line if it is cut and its last if it is unfinished."""
    assert _last_lines(tmp_path) == []
    assert _last_lines(tmp_path / "deleted") == []
    (tmp_path / "other.jsonl").write_text("x\n")
    (tmp_path / "requests-20260101T000000Z-000001.jsonl").write_text("old\n")
    newest = tmp_path / "requests-20260102T000000Z-000001.jsonl"
    newest.write_text("one\ntwo\nthr")
    assert _last_lines(tmp_path) == [b"one", b"two"]
    monkeypatch.setattr("kbroker.console.request_tail.TAIL_BYTES", 9)
    assert _last_lines(tmp_path) == [b"two"]
