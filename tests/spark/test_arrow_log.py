"""Valid and invalid Arrow batches of a request log, of any version."""

from typing import Any

import pyarrow as pa
import pytest

from kbroker.spark.tables.arrow_log import conform, decode_messages
from kbroker.spark.tables.log_schema import arrow_schema
from tests.spark.day import make_day


def stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode(*values: tuple[bytes, bool]) -> list[dict[str, Any]]:
    message = pa.record_batch(
        {
            "value": pa.array([value for value, _ in values], pa.binary()),
            "arrow": pa.array([is_arrow for _, is_arrow in values]),
            "source": pa.array(["t-0"] * len(values)),
            "position": pa.array(range(len(values)), pa.int64()),
            "stamp": pa.nulls(len(values), pa.timestamp("us", "UTC")),
        }
    )
    return [row for batch in decode_messages([message]) for row in batch.to_pylist()]


def test_a_batch_of_this_version_keeps_every_value() -> None:
    rows = make_day(1_000).rows
    (batch,) = rows.combine_chunks().to_batches()
    found = pa.table(conform(batch), schema=arrow_schema())
    assert found.equals(rows)


def test_columns_of_other_versions_are_null_or_left_out() -> None:
    """Columns that older batches lack are null, unknown columns are dropped, and narrower types are converted."""
    batch = pa.record_batch(
        {
            "sequence": pa.array([1, 2], pa.int32()),
            "client_id": pa.array(["a", "b"]).dictionary_encode(),
            "of_tomorrow": pa.array([1.5, 2.5]),
            "verdicts": pa.array([[{"user": "u", "of_tomorrow": 1}], None]),
        }
    )
    found = dict(zip(arrow_schema().names, conform(batch), strict=True))
    assert [column.type for column in found.values()] == arrow_schema().types
    assert found["sequence"].to_pylist() == [1, 2]
    assert found["client_id"].to_pylist() == ["a", "b"]
    assert found["principal"].to_pylist() == [None, None]
    first, second = found["verdicts"].to_pylist()
    assert (first[0]["user"], first[0]["quota_type"], second) == ("u", None, None)


def test_messages_keep_their_kind() -> None:
    """Arrow batches become rows and other messages pass as text, each with its origin."""
    batch = pa.record_batch({"sequence": pa.array([7, 8], pa.int64())})
    found = decode((b'{"a": 1}', False), (stream(batch), True), (b"{}", False))
    rows = sorted((row["position"], row["text"], row["sequence"]) for row in found)
    assert rows == [(0, '{"a": 1}', None), (1, None, 7), (1, None, 8), (2, "{}", None)]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "no Arrow stream"),
        (b"rubbish that is not a stream", "no Arrow stream"),
        (stream(pa.record_batch({"sequence": pa.array([1], pa.int64())}))[:-30], "no Arrow stream"),
        (stream(pa.record_batch({"other": pa.array([1])})), "none of its columns is one of a request log"),
        (stream(pa.record_batch({"sequence": pa.array(["x"])})), "Failed to parse string"),
        (stream(pa.record_batch({"api_key": pa.array([1 << 40])})), "not in range"),
    ],
    ids=["empty", "no stream", "cut off", "another table", "wrong type", "too large"],
)
def test_a_message_that_cannot_be_read_is_one_row_that_says_why(value: bytes, why: str) -> None:
    """An invalid message ends no task, and the message after it is read."""
    good = stream(pa.record_batch({"sequence": pa.array([7], pa.int64())}))
    bad, fine = decode((value, True), (good, True))
    assert why in bad["reason"]
    assert (bad["position"], fine["sequence"], fine["reason"]) == (0, 7, None)


def test_a_column_that_occurs_twice_ends_no_task() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["sequence", "sequence"])
    assert [row["sequence"] for row in decode((stream(twice), True))] == [2]


def test_offsets_that_point_outside_are_refused() -> None:
    """String offsets beyond the data of a batch are rejected, since they would read foreign memory."""
    good = stream(pa.record_batch({"client_id": ["abc"]}))
    offsets = (0).to_bytes(4, "little") + (3).to_bytes(4, "little")
    at = good.rindex(offsets)
    broken = good[:at] + (0).to_bytes(4, "little") + (1 << 20).to_bytes(4, "little") + good[at + len(offsets) :]
    (row,) = decode((broken, True))
    assert "no Arrow stream" in row["reason"]
    assert decode((good, True))[0]["client_id"] == "abc"
