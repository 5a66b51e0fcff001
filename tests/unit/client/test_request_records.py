"""Records of a request log as rows: conversion to and from JSON, files that grow and roll, filters."""

import json
import os
import tracemalloc
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


def test_a_text_in_place_of_a_time_takes_no_memory() -> None:
    """A text in place of a time is refused instead of multiplied."""
    line = line_of(localTimeMs="x" * 100_000)
    tracemalloc.start()
    try:
        assert parse_line(line) is None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("wanted", "fields", "is_taken"),
    [
        (Filter(), {}, True),
        (Filter(), {"requestHeader": None, "totalTimeMs": None, "throttleTimeMs": None, "quota": None}, True),
        (Filter(clients=frozenset({"reader", "other"})), {}, True),
        (Filter(clients=frozenset({"other"})), {}, False),
        (Filter(clients=frozenset({"reader"})), {"requestHeader": None}, False),
        (Filter(apis=frozenset({"fetch", "produce"})), {}, True),
        (Filter(apis=frozenset({"produce"})), {}, False),
        (Filter(apis=frozenset({"fetch"})), {"requestHeader": None}, False),
        (Filter(slower_than_ms=12), {}, True),
        (Filter(slower_than_ms=12.345), {}, False),  # the limit is exclusive
        (Filter(slower_than_ms=0), {"totalTimeMs": 0.001}, True),
        (Filter(slower_than_ms=0), {"totalTimeMs": 0}, False),
        (Filter(slower_than_ms=0), {"totalTimeMs": None}, False),
        (Filter(throttled=True), {}, True),
        (Filter(throttled=True), {"throttleTimeMs": 0}, True),  # a refusal, or the shorter of two delays, has a verdict
        (Filter(throttled=True), {"quota": None}, True),
        (Filter(throttled=True), {"throttleTimeMs": 0, "quota": None}, False),
        (Filter(throttled=True), {"throttleTimeMs": None, "quota": {"verdicts": []}}, False),
        (Filter(frozenset({"reader"}), frozenset({"fetch"}), 12.0, True), {}, True),
        (Filter(frozenset({"other"}), frozenset({"fetch"}), 12.0, True), {}, False),
        (Filter(frozenset({"reader"}), frozenset({"produce"}), 12.0, True), {}, False),
        (Filter(frozenset({"reader"}), frozenset({"fetch"}), 13.0, True), {}, False),
    ],
)
def test_filters(wanted: Filter, fields: dict[str, Any], is_taken: bool) -> None:
    """A record matches if it satisfies each filter; a record without a field satisfies no filter of that field."""
    row = parse_line(line_of(**fields))
    assert row is not None
    assert wanted.takes(row) == is_taken


def test_names_of_apis_in_any_spelling() -> None:
    assert plain_name("API_VERSIONS") == plain_name("ApiVersions") == plain_name("api-versions")


def test_files_of_a_folder_in_their_order_and_what_is_written_later(tmp_path: Path) -> None:
    """A torn last line is read once it is complete, new files are found, and deleted files are forgotten."""
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


def test_a_pipe_in_place_of_a_file() -> None:
    """Records may come from another program, such as one that decompresses them."""
    reader, writer = os.pipe()
    try:
        with open(writer, "wb") as pipe:
            pipe.write(line_of())
        (row,), none = file_rows([Path(f"/dev/fd/{reader}")], False, lambda seconds: None)
    finally:
        os.close(reader)
    assert (row["api_name"], none) == ("FETCH", [])


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestLogError, match="expected files of a request log"):
        list(file_rows([tmp_path], False, lambda seconds: None))
    with pytest.raises(RequestLogError, match="no such file"):
        list(file_rows([tmp_path / "x.jsonl"], False, lambda seconds: None))


def test_a_folder_that_is_followed_must_be_there(tmp_path: Path) -> None:
    """The folder may be empty, but a misspelt path is an error."""
    with pytest.raises(RequestLogError, match="no such file"):
        next(file_rows([tmp_path / "x"], True, lambda seconds: None))
    assert next(file_rows([tmp_path], True, lambda seconds: None)) == []
