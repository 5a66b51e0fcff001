"""Rows in Arrow's layout give the record batches of rows that are appended singly."""

import random
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import kbroker.protocol._batch_builder
from kbroker.protocol._arrow_rows import ArrowRows, partition_of_key
from kbroker.protocol.records import RecordBatchBuilder, iter_batches

NOW_MS = 1_767_312_000_000


def bitmap(flags: list[Any | bool], offset: int = 0) -> bytes:
    """Return a validity bitmap of Arrow, with the lowest bit first."""
    bits = [1] * offset + [int(flag) for flag in flags]
    return bytes(sum(bit << i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))


def strings(values: list[bytes | Any | None], offset: int = 0) -> tuple[int, bytes, bytes, bytes]:
    """Return a binary column after `offset` rows of another slice."""
    before = [b"other"] * offset
    ends, data = [0], b""
    for value in [*before, *values]:
        data += value or b""
        ends.append(len(data))
    return offset, bitmap([v is not None for v in values], offset), array("i", ends).tobytes(), data


def numbers(values: list[int | None], offset: int = 0) -> tuple[int, bytes, bytes]:
    data = array("i", [77] * offset + [v or 0 for v in values]).tobytes()
    return offset, bitmap([v is not None for v in values], offset), data


def lists(values: Sequence[Sequence[tuple[bytes | None, bytes | None]] | None], offset: int = 0) -> Any:
    """Return a column of headers: lists of pairs, or None for null."""
    flat = [pair for pairs in values for pair in pairs or ()]
    ends = [0] * (offset + 1)
    for pairs in values:
        ends.append(ends[-1] + len(pairs or ()))
    keys, found = strings([p[0] for p in flat], 3), strings([p[1] for p in flat])
    valid = bitmap([v is not None for v in values], offset)
    return offset, valid, array("i", ends).tobytes(), len(flat), 0, None, keys, found


def append_all(
    rows: ArrowRows, count: int, sticky: int = 0, limit: int = 1 << 20
) -> dict[int, kbroker.protocol._batch_builder.RecordBatchBuilder]:
    used = rows.assign(count)
    builders = {p: RecordBatchBuilder() for p in {sticky if p < 0 else p for p in used}}
    assert rows.append(builders, sticky, 0, NOW_MS, 0, limit) == len(rows)
    return builders


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("offset", [0, 3, 11])
def test_rows_are_what_appending_one_by_one_gives(seed: int, offset: int) -> None:
    """Keys, values, headers and nulls of every partition have the same bytes, whatever slice the columns are."""
    rng = random.Random(seed)

    def text(nullable: bool = True) -> bytes | None:
        return None if nullable and rng.random() < 0.2 else rng.randbytes(rng.choice([0, 1, 3, 4, 5, 200]))

    n = 100
    keys, values = [text() for _ in range(n)], [text() for _ in range(n)]
    partitions = [rng.choice([None, None, 0, 1, 2]) for _ in range(n)]
    headers = [
        None if rng.random() < 0.3 else [(rng.choice([b"", b"h", b"name"]), text()) for _ in range(rng.randint(0, 3))]
        for _ in range(n)
    ]
    rows = ArrowRows(
        n, strings(keys, offset), strings(values, offset), numbers(partitions, offset), lists(headers, offset)
    )
    found = append_all(rows, 3, sticky=2)
    expected = {p: RecordBatchBuilder() for p in range(3)}
    for key, value, partition, pairs in zip(keys, values, partitions, headers, strict=True):
        if partition is None:
            partition = 2 if key is None else partition_of_key(key, 3)
        expected[partition].append(key, value, NOW_MS, [(k.decode(), v) for k, v in pairs or ()])
    assert {p: b.build() for p, b in found.items()} == {p: b.build() for p, b in expected.items() if len(b)}


def test_columns_that_are_not_there_are_null() -> None:
    """Tombstones without a key go to the sticky partition, for which assign returns -1."""
    rows = ArrowRows(2, None, None)
    assert rows.assign(5) == [-1]
    (builder,) = append_all(rows, 5, sticky=4).values()
    (batch,) = iter_batches(builder.build())
    assert [record[2:4] for record in batch.records()] == [(None, None)] * 2
    assert len(ArrowRows(0, None, None)) == 0
    assert ArrowRows(0, None, None).assign(1) == []


def test_a_limit_stops_before_the_row_that_would_exceed_it() -> None:
    """A row may exceed the limit alone. Bytes of other builders count towards the limit."""
    rows = ArrowRows(3, None, strings([b"x" * 100, b"y" * 100, b"z" * 5000]))
    rows.assign(1)
    builders = {0: RecordBatchBuilder()}
    assert rows.append(builders, 0, 0, NOW_MS, 150, 200) == 0
    assert rows.append(builders, 0, 0, NOW_MS, 0, 220) == 2
    assert rows.append({0: RecordBatchBuilder()}, 0, 2, NOW_MS, 0, 220) == 3
    (batch,) = iter_batches(builders[0].build())
    assert [bytes((record[3] or b"")[:1]) for record in batch.records()] == [b"x", b"y"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ArrowRows(2, None, None, numbers([1, 3])), "row 1: expected a partition from 0 to 2, got 3"),
        (lambda: ArrowRows(1, None, None, numbers([-1])), "row 0: expected a partition from 0 to 2, got -1"),
        (lambda: ArrowRows(3, None, None, numbers([1])), "null or outside"),
        (lambda: ArrowRows(1, None, None, None, lists([[(None, b"v")]])), "row 0: a header has no key"),
        (lambda: ArrowRows(1, (*strings([b"k"])[:3], b""), None), "row 0: an offset points outside"),
        (lambda: ArrowRows(1, None, (0, None, struct.pack("ii", 5, 2), b"abcdef")), "row 0: an offset points outside"),
        (lambda: ArrowRows(1, None, (0, None, struct.pack("ii", -5, 2), b"abcdef")), "row 0: an offset points outside"),
        (lambda: ArrowRows(2, None, (*strings([b"v"])[:1], None, *strings([b"v"])[2:])), "row 1: an offset points"),
        (
            lambda: ArrowRows(
                1, None, None, None, (0, None, struct.pack("ii", 0, 9), 2, 0, None, strings([]), strings([]))
            ),
            "row 0: an offset points outside",
        ),
        (lambda: ArrowRows(1, (-1, None, b"", b""), None), "offsets must be"),
        (lambda: ArrowRows(1, (1 << 62, None, b"", b""), None), "offsets must be"),
        (lambda: ArrowRows(-1, None, None), "count must be"),
    ],
)
def test_what_does_not_fit_together_is_refused(make: Callable[[], ArrowRows], said: str) -> None:
    """An inconsistency is refused with its row, and no byte outside the buffers is read."""
    if said == "null or outside":
        assert append_all(make(), 3) is not None  # a bitmap that is too short means null
        return
    with pytest.raises(ValueError, match=said):
        append_all(make(), 3)


def test_builders_must_be_there() -> None:
    """A missing builder, unassigned rows and a negative place are refused before a row is appended."""
    rows = ArrowRows(1, None, None)
    with pytest.raises(ValueError, match="assigned"):
        rows.append({}, 0, 0, NOW_MS, 0, 1)
    rows.assign(2)
    for sticky, builders in ((0, {}), (1, {0: RecordBatchBuilder()}), (-1, {-1: RecordBatchBuilder()}), (0, {0: None})):
        with pytest.raises(KeyError):
            rows.append(builders, sticky, 0, NOW_MS, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="places"):
        rows.append({0: RecordBatchBuilder()}, 0, -1, NOW_MS, 0, 1)
    assert rows.append({0: RecordBatchBuilder()}, 0, 5, NOW_MS, 0, 1) == 5


def test_rows_that_could_not_be_assigned_are_not_appended() -> None:
    """A failed assignment discards the previous assignment."""
    rows = ArrowRows(2, None, None, numbers([0, 2]))
    rows.assign(3)
    with pytest.raises(ValueError, match="from 0 to 1, got 2"):
        rows.assign(2)
    with pytest.raises(ValueError, match="assigned"):
        rows.append({0: RecordBatchBuilder(), 2: RecordBatchBuilder()}, 0, 0, NOW_MS, 0, 1)
