"""Records of a request log as rows: JSON and back, files that grow and roll, filters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.request_records import (
    Filter,
    RequestLogError,
    document_of,
    file_rows,
    parse_line,
    plain_name,
    row_of,
)

DOCUMENT: dict[str, Any] = {
    "version": 3,
    "time": "2026-01-02T03:04:05.678901+00:00",
    "broker": 1,
    "sequence": 7,
    "requestHeader": {"requestApiKey": 1, "requestApiVersion": 12, "requestApiKeyName": "FETCH", "clientId": "reader"},
    "totalTimeMs": 12.345,
    "localTimeMs": 0.001,
    "throttleTimeMs": 300,
    "errorCode": 0,
    "quota": {"verdicts": [{"quotaType": "Fetch", "clientId": "reader", "observed": 2.0, "limit": 1.0}]},
}


def line_of(**fields: Any) -> bytes:
    return json.dumps({**DOCUMENT, **fields}).encode() + b"\n"


def test_a_record_and_back() -> None:
    row = row_of(DOCUMENT)
    assert row["time"] == 1_767_323_045_678_901
    assert (row["total_time_us"], row["local_time_us"], row["throttle_time_ms"]) == (12345, 1, 300)
    assert (row["api_name"], row["client_id"], row["refusal"]) == ("FETCH", "reader", None)
    assert row["verdicts"][0]["limit"] == 1.0
    again = row_of(document_of(row))
    assert again == row


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"null", b"7", b'{"a": 1}', b'{"time": 5}', b'{"time": "x"}', b"\xff\xfe", line_of()[:50],
     b'{"time": "2026-01-02T03:04:05Z", "quota": {"verdicts": 7}}',
     b'{"time": "0001-01-01T00:00:00+14:00"}', b'{"time": "9999-12-31T23:59:59-14:00"}', b"[" * 100_000,
     line_of(totalTimeMs=float("inf")), line_of(totalTimeMs=float("nan")), line_of(throttleTimeMs="x"),
     line_of(throttleTimeMs=[1]), line_of(principal=5), line_of(connection={"a": 1}), line_of(errorCode=10**400),
     line_of(requestHeader={"requestApiKeyName": 7}), line_of(requestHeader={"clientId": ["a"]}),
     line_of(quota={"verdicts": [{"quotaType": 5}]}), line_of(quota={"verdicts": [{"observed": "much"}]})],
)  # fmt: skip
def test_what_is_no_record_is_passed_over(line: bytes) -> None:
    assert parse_line(line) is None


def test_filters() -> None:
    row = row_of(DOCUMENT)
    assert Filter().takes(row)
    assert Filter(frozenset({"reader"}), frozenset({plain_name("Fetch")}), 12.0, True).takes(row)
    assert not Filter(clients=frozenset({"other"})).takes(row)
    assert not Filter(apis=frozenset({"produce"})).takes(row)
    assert not Filter(slower_than_ms=12.345).takes(row)
    assert not Filter(throttled=True).takes({**row, "throttle_time_ms": 0, "verdicts": None})
    assert plain_name("API_VERSIONS") == plain_name("ApiVersions") == plain_name("api-versions")


def test_files_of_a_folder_in_their_order_and_what_is_written_later(tmp_path: Path) -> None:
    """A torn last line is read when it is whole; a file that is made later is found; a deleted one forgotten."""
    first = tmp_path / "requests-20260102T030405Z-000001.jsonl"
    second = tmp_path / "requests-20260102T030405Z-000002.jsonl"
    first.write_bytes(line_of(sequence=1) + line_of(sequence=2)[:30])
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            with first.open("ab") as file:
                file.write(line_of(sequence=2)[30:] + b"no record\n")
            second.write_bytes(line_of(sequence=3))
        elif len(waits) == 2:
            first.unlink()
            with second.open("ab") as file:
                file.write(line_of(sequence=4))

    found: list[list[int]] = [[]]
    for rows in file_rows([tmp_path], True, wait):
        if not rows:
            found.append([])
        found[-1] += [row["sequence"] for row in rows]
        if len(found) == 4:
            break
    assert found == [[1], [2, 3], [4], []]
    assert waits == [0.5, 0.5]


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestLogError, match="no request log is there"):
        list(file_rows([tmp_path], False, lambda seconds: None))
    with pytest.raises(RequestLogError, match="no such file"):
        list(file_rows([tmp_path / "x.jsonl"], False, lambda seconds: None))
