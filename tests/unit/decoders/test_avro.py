"""Avro as fastavro writes it, and malicious bytes."""

import io
import json
import time
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from kbroker.decoders.avro import MAX_DEPTH, AvroSchema
from kbroker.decoders.avro_writer import AvroWriter
from kbroker.decoders.decoded import UndecodableError, UnencodableError

fastavro = pytest.importorskip("fastavro")

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "last", "type": "State"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "weight", "type": "float"},
        {"name": "ratio", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "next", "type": ["null", "Order"]},
    ],
}

DIGITS = {"logicalType": "decimal", "precision": 40, "scale": 2}
MONEY = {"type": "fixed", "name": "Money", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def test_every_type() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=timezone.utc)
    order = {
        "id": -(2**62),
        "name": "Zoë",
        "price": Decimal("-12.05"),
        "at": moment,
        "day": moment.date(),
        "time": moment.time(),
        "state": "PAID",
        "last": "NEW",
        "hash": b"\x00\xff",
        "tags": ["a", "b"],
        "counts": {"x": -1},
        "weight": 0.1,
        "ratio": float("nan"),
        "paid": True,
        "next": None,
    }
    data = written(ORDER, {**order, "next": order})
    found = AvroSchema(json.dumps(ORDER)).decode(data)
    shown = {
        "id": -(2**62),
        "name": "Zoë",
        "price": "-12.05",
        "at": "2026-01-02T03:04:05.678000Z",
        "day": "2026-01-02",
        "time": "03:04:05.678000",
        "state": "PAID",
        "last": "NEW",
        "hash": "\x00ÿ",
        "tags": ["a", "b"],
        "counts": {"x": -1},
        "weight": 0.1,
        "ratio": "NaN",
        "paid": True,
        "next": None,
    }
    assert (found.format, found.is_json, found.value) == ("avro", True, {**shown, "next": shown})
    assert AvroWriter(json.dumps(ORDER)).encode(json.dumps({**shown, "next": shown})) == data


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (ORDER, {"id": 1}, "the value: the member name is missing"),
        (ORDER, {"idd": 1}, 'the value: expected one of id, name, .*, got "idd"'),
        (["null", "int"], "x", 'the value: expected null, got "x"; the value: expected int, got "x"'),
        ({"type": "array", "items": "long"}, [1, True], r"the value\[1\]: expected long, got true"),
        ("int", 1 << 31, "expected int, got 2147483648"),
        ("bytes", "\u0100", "expected bytes"),
        ({"type": "int", "logicalType": "date"}, "2026-13-01", "expected date, got"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, "0.25", "expected decimal, got"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, "100.0", "expected decimal, got"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, "1e999999999", "expected decimal, got"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, "Infinity", "expected decimal, got"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2026-01-02T03:04:05.0005Z", "timestamp-millis, got"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "2026-01-02T03:04:05.0000001Z", "timestamp-micros, got"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "2026-01-02T03:04:05.0000000001Z", "timestamp-nanos, got"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "1969-01-02T03:04:05.000001", "millis, got"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "1969-01-02T03:04:05Z", "millis, got"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "1969-01-02T03:04:05+02:00", "micros, got"),
        ({"type": "int", "logicalType": "time-millis"}, "03:04:05.678900", "expected time-millis, got"),
        ({"type": "long", "logicalType": "time-micros"}, "03:04:05.000000001", "expected time-micros, got"),
        ({"type": "long", "logicalType": "time-micros"}, "03:04:05+02:00", "expected time-micros, got"),
        (MONEY, "ten", 'the value: expected decimal, got "ten"'),
        (MONEY, "1e20", 'the value: expected decimal, got "1e20"'),
        ("Nowhere", 1, "uses 'Nowhere', which it does not define"),
        ({"type": "array"}, [1], "the schema cannot be used"),
    ],
)
def test_a_value_that_does_not_fit_its_schema(kind: Any, value: Any, reason: str) -> None:
    with pytest.raises(UnencodableError, match=reason):
        AvroWriter(json.dumps(kind)).encode(json.dumps(value))


@pytest.mark.parametrize(
    ("logical", "value"),
    [
        ("timestamp-nanos", "2026-01-02T03:04:05.000000007Z"),
        ("local-timestamp-micros", "1969-12-31T23:59:59.999999"),
        ("time-micros", "03:04:05.000006"),
        ("timestamp-millis", "2026-01-02T03:04:05Z"),
        ("timestamp-millis", "1969-12-31T23:59:59.678000Z"),
    ],
)
def test_a_time_reads_as_it_was_written(logical: str, value: str) -> None:
    schema = json.dumps({"type": "long", "logicalType": logical})
    assert AvroSchema(schema).decode(AvroWriter(schema).encode(json.dumps(value))).value == value


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ({**DIGITS, "type": "bytes"}, '"-123456789012345678901234567890.12"', "-123456789012345678901234567890.12"),
        ({**DIGITS, "type": "bytes"}, "12345678901234567890.12", "12345678901234567890.12"),
        ([MONEY, "string"], '"ten"', "ten"),
        ([MONEY, "string"], "-1.5", "-1.50"),
        ({"type": "int", "logicalType": "decimal"}, "5", 5),
        ({"type": "string", "logicalType": "date"}, '"2026-01-02"', "2026-01-02"),
    ],
)
def test_a_logical_type_keeps_each_digit_and_is_ignored_where_it_does_not_fit(kind: Any, text: str, shown: Any) -> None:
    schema = json.dumps(kind)
    assert AvroSchema(schema).decode(AvroWriter(schema).encode(text)).value == shown


def test_a_number_that_no_float_holds_is_not_infinite() -> None:
    with pytest.raises(UnencodableError, match="expected double, got Infinity"):
        AvroWriter('"double"').encode("1e999")
    assert AvroSchema('"double"').decode(AvroWriter('"double"').encode('"Infinity"')).value == "Infinity"


def test_a_union_within_unions_is_tried_for_a_limited_time() -> None:
    inner = {"type": "record", "name": "B", "fields": [{"name": "n", "type": ["A", "B", "int"]}]}
    outer = {"type": "record", "name": "A", "fields": [{"name": "n", "type": ["A", inner, "int"]}]}
    value: Any = "not an int"
    for _ in range(60):
        value = {"n": value}
    with pytest.raises(UnencodableError, match=r"the value\.n") as refused:
        AvroWriter(json.dumps(outer)).encode(json.dumps(value))
    assert len(str(refused.value)) < 1000


def test_defaults_and_references_of_what_is_written() -> None:
    point = {"type": "record", "name": "geo.Point", "fields": [{"name": "x", "type": "int", "default": 3}]}
    line = {"type": "record", "name": "geo.Line", "fields": [{"name": "a", "type": "Point"}]}
    assert AvroWriter(json.dumps(line), (json.dumps(point),)).encode('{"a": {}}') == b"\x06"


def test_the_default_of_a_decimal_is_bytes() -> None:
    """A schema has the default in the form of the Avro type; a value is a number."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0}
    field = {"name": "price", "type": price, "default": "1"}
    writer = AvroWriter(json.dumps({"type": "record", "name": "R", "fields": [field]}))
    assert (writer.encode("{}"), writer.encode('{"price": 1}')) == (b"\x02\x31", b"\x02\x01")


@pytest.mark.parametrize(("kind", "value"), [("string", "plain"), ("int", -7), ("bytes", b"x"), ("null", None)])
def test_a_schema_that_is_one_type(kind: str, value: Any) -> None:
    shown = value.decode() if isinstance(value, bytes) else value
    assert AvroSchema(json.dumps(kind)).decode(written(kind, value)).value == shown


def test_a_type_of_another_schema() -> None:
    point = {"type": "record", "name": "geo.Point", "fields": [{"name": "x", "type": "int"}]}
    line = {"type": "record", "name": "geo.Line", "fields": [{"name": "a", "type": "Point"}]}
    assert AvroSchema(json.dumps(line), (json.dumps(point),)).decode(b"\x0e").value == {"a": {"x": 7}}
    with pytest.raises(UndecodableError, match="uses 'Point', which it does not define"):
        AvroSchema(json.dumps(line))


def test_a_recursive_value_deeper_than_the_stack() -> None:
    """A value deeper than the limit is refused; the same bytes terminate a process that uses fastavro."""
    chain = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    schema = AvroSchema(json.dumps(chain))
    assert schema.decode(b"\x02" * (MAX_DEPTH - 1) + b"\0").is_json
    with pytest.raises(UndecodableError, match="deeper"):
        schema.decode(b"\x02" * 1_000_000 + b"\0")


def test_elements_without_bytes_are_limited() -> None:
    """An array of 2^60 nulls, which takes ten bytes, is refused."""
    schema = AvroSchema('{"type": "array", "items": "null"}')
    assert schema.decode(b"\x04\0").value == [None, None]
    started = time.process_time()
    with pytest.raises(UndecodableError, match="more elements than bytes"):
        schema.decode(b"\x80\x80\x80\x80\x80\x80\x80\x80\x20\0")
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "item",
    [
        {"type": "enum", "name": "E", "symbols": ["A" * 100_000]},
        {"type": "record", "name": "R", "fields": [{"name": "a" * 100_000, "type": "boolean"}]},
        {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "scale": 1000},
    ],
    ids=["symbols", "names", "zeros"],
)
def test_a_short_value_is_no_gigabyte_of_text(item: dict[str, Any]) -> None:
    """Each byte, which any producer may write, stands for a long name of the schema."""
    schema = AvroSchema(json.dumps({"type": "array", "items": item}))
    assert schema.decode(b"\x04" + bytes(2) + b"\0").is_json
    with pytest.raises(UndecodableError, match="characters of names"):
        schema.decode(b"\x80\x89\x7a" + bytes(1_000_000) + b"\0")


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("string", b"\x10ab", "expected 8 bytes"),
        ("string", b"\x01", "expected -1 bytes"),
        ("long", b"\xff" * 11, "expected a number"),
        ("long", b"", "expected a number"),
        ("long", b"\xff" * 9 + b"\x02", "expected a number of 64 bits"),
        ("int", b"\x80\x80\x80\x80\x10", "expected a number of 32 bits"),
        ("int", b"\x02\x02", "1 bytes are left"),
        (["null", "int"], b"\x04", "branch of a union from 0 to 1, got 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "symbol from 0 to 0, got 1"),
        ({"type": "bytes", "logicalType": "decimal", "scale": 2}, b"\x82\x10" + b"\1" * 1025, "too long"),
    ],
)
def test_bytes_that_do_not_fit(schema: Any, data: bytes, reason: str) -> None:
    with pytest.raises(UndecodableError, match=reason):
        AvroSchema(json.dumps(schema)).decode(data)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "7",
        '"Unknown"',
        '{"type": "record", "name": "A"}',
        "[" * 150 + "]" * 150,
        "[" * 9**5,
        '{"type": "fixed", "name": "F", "size": 1e999}',
        '{"type": "bytes", "logicalType": "decimal", "scale": Infinity}',
    ],
)
def test_texts_that_are_not_schemas(text: str) -> None:
    with pytest.raises(UndecodableError):
        AvroSchema(text)


@pytest.mark.parametrize(("kind", "data", "value"), [("int", b"\x0e", 7), ("null", b"", None)])
def test_a_logical_type_of_another_type_is_ignored(kind: str, data: bytes, value: Any) -> None:
    assert AvroSchema(json.dumps({"type": kind, "logicalType": "decimal"})).decode(data).value == value


def test_half_a_surrogate_pair_in_a_name() -> None:
    """The decoded text and the schema's name can be encoded as UTF-8."""
    fields = [{"name": "\ud800", "type": "int"}]
    schema = AvroSchema(json.dumps({"type": "record", "name": "R\ud800", "fields": fields}))
    assert (schema.name.encode(), schema.decode(b"\x0e").text.encode()) == (b"R?", b'{"\\ud800": 7}')


def test_a_time_beyond_the_calendar_is_a_number() -> None:
    schema = AvroSchema('{"type": "long", "logicalType": "timestamp-millis"}')
    assert schema.decode(written("long", 2**62)).value == 2**62
