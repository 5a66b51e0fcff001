"""Numbers as Kafka's serializers write them, UUIDs, booleans, JSON and MessagePack."""

import contextlib
import struct
from typing import Any
from uuid import UUID

import pytest

from kbroker.decoders import plain
from kbroker.decoders.decoded import UndecodableError

msgpack = pytest.importorskip("msgpack")


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("int16", b"\xff\xfe", "-2"),
        ("int32", b"\0\0\1\0", "256"),
        ("int64", b"\x80" + b"\0" * 7, "-9223372036854775808"),
        ("float", struct.pack(">f", 0.1), "0.1"),
        ("float", b"\x7f\x7f\xff\xff", "3.4028235e+38"),
        ("double", struct.pack(">d", 0.1), "0.1"),
        ("double", struct.pack(">d", float("-inf")), "-Infinity"),
    ],
)
def test_numbers(name: str, data: bytes, text: str) -> None:
    assert plain.NUMBERS[name](data).text == text
    with pytest.raises(UndecodableError, match=f"expected {len(data)} bytes for {name}, got 1 byte"):
        plain.NUMBERS[name](b"x")


def test_uuids_in_both_forms() -> None:
    wanted = UUID("6f1c2e7e-0d5b-4c1a-9d1e-1f2a3b4c5d6e")
    assert plain.uuid(str(wanted).encode()).text == plain.uuid(wanted.bytes).text == str(wanted)
    with pytest.raises(UndecodableError):
        plain.uuid(b"6f1c2e7e")


def test_booleans() -> None:
    assert [plain.boolean(data).value for data in (b"\0", b"\1")] == [False, True]
    with pytest.raises(UndecodableError):
        plain.boolean(b"\2")


def test_json_keeps_its_digits() -> None:
    found = plain.json_document(b' {"a": 1.50, "b": 12345678901234567890123} ')
    assert found.text == '{"a": 1.50, "b": 12345678901234567890123}'


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_constants_are_not_json(name: str) -> None:
    """A constant of JavaScript is refused: it would make a line of `--json` invalid."""
    with pytest.raises(UndecodableError, match=f"not JSON: {name} is not a number of JSON"):
        plain.json_document(f'{{"a": {name}}}'.encode())


@pytest.mark.parametrize("depth", [500, 900, 1023, 5000])
def test_message_pack_that_is_nested_deep(depth: int) -> None:
    """Deeply nested MessagePack is decoded, or refused if Python's stack has no room for its levels."""
    with contextlib.suppress(UndecodableError):
        assert plain.message_pack(b"\x91" * depth + b"\1").text == "[" * depth + "1" + "]" * depth


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": [1, -2.5, None, True], "b": b"\0\xff"}, {"a": [1, -2.5, None, True], "b": "AP8="}),
        ({1: "x", b"k": {}}, {"1": "x", "aw==": {}}),
        ([msgpack.ExtType(5, b"ab"), float("nan")], [{"type": 5, "data": "YWI="}, "NaN"]),
    ],
)
def test_message_pack(value: Any, shown: Any) -> None:
    data = msgpack.packb(value)
    assert plain.message_pack(data).value == plain.message_pack_container(data).value == shown


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x91", b"\x81\x90\x01", b"\x91" * 100_000 + b"\1", b"\xdd\xff\xff\xff\xff", b"\x01\x02"]
)
def test_what_is_not_message_pack(data: bytes) -> None:
    with pytest.raises(UndecodableError):
        plain.message_pack(data)


@pytest.mark.parametrize("data", [b"\x07", b"\xa1a", b"\x80", b"\x90", b"\xc0"])
def test_short_values_are_not_message_pack_by_chance(data: bytes) -> None:
    with pytest.raises(UndecodableError, match="neither"):
        plain.message_pack_container(data)
