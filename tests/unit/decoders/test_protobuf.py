"""Protobuf messages, by schema files that protoc compiles."""

from pathlib import Path

import pytest

from kbroker.decoders.decoded import UndecodableError, UnencodableError
from kbroker.decoders.protobuf import ProtobufSchema
from tests.support.fixtures import fixture_of

pytest.importorskip("grpc_tools")

TEXT = """
syntax = "proto3";
package shop;
import "money.proto";
import "google/protobuf/timestamp.proto";
message Other { string a = 1; }
message Order {
  message Line { string sku = 1; uint64 count = 2; }
  int64 id = 1;
  repeated Line lines = 2;
  shop.Money price = 3;
  google.protobuf.Timestamp at = 4;
  bytes hash = 5;
  bool paid = 6;
}
"""
MONEY = 'syntax = "proto3"; package shop; message Money { int32 cents = 1; Order2 in = 2; } message Order2 {}'
schema = fixture_of(lambda: ProtobufSchema(TEXT, {"money.proto": MONEY}), scope="module")


def test_a_message_with_imports(schema: ProtobufSchema) -> None:
    data = b"\x08\x07\x12\x05\x0a\x01a\x10\x02\x1a\x02\x08\x63\x22\x02\x08\x01\x2a\x01\xff"
    found = schema.decode(data, indexes=(1,))
    assert (found.format, found.schema) == ("protobuf", "shop.Order")
    assert found.value == {
        "id": "7",
        "lines": [{"sku": "a", "count": "2"}],
        "price": {"cents": 99},
        "at": "1970-01-01T00:00:01Z",
        "hash": "/w==",
        "paid": False,
    }
    assert schema.decode(b"\x0a\x01x", indexes=(1, 0)).value == {"sku": "x", "count": "0"}
    assert schema.decode(b"\x0a\x01x", name="Other").schema == schema.decode(b"", name="shop.Other").schema
    assert schema.decode(b"", indexes=()).schema == "shop.Other"


def test_bytes_that_do_not_fit(schema: ProtobufSchema) -> None:
    for data, indexes, reason in (
        (b"\x08", (1,), "not a message shop.Order"),
        (b"", (2,), r"no message at \[2\]"),
        (b"", (1, 0, 0), r"no message at \[1, 0, 0\]"),
        (b"", (-1,), r"no message at \[-1\]"),
    ):
        with pytest.raises(UndecodableError, match=reason):
            schema.decode(data, indexes=indexes)
    with pytest.raises(UndecodableError, match="no message 'Nothing'"):
        schema.decode(b"", name="Nothing")


def test_nesting_is_limited() -> None:
    chain = ProtobufSchema('syntax = "proto3"; message L { L next = 1; }')
    data = b""
    for _ in range(200):
        size = len(data)
        data = b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + data
    with pytest.raises(UndecodableError, match="not a message L"):
        chain.decode(data)


def test_absent_fields_of_many_messages_are_left_out() -> None:
    """A record of a kilobyte would be a megabyte of JSON otherwise, and one of a megabyte take hours."""
    fields = "".join(f"int32 f{number} = {number};" for number in range(3, 1500))
    wide = ProtobufSchema(
        f"""syntax = "proto3"; import "google/protobuf/any.proto";
        message M {{ repeated M m = 1; map<string, google.protobuf.Any> any = 2; {fields} }}"""
    )
    found = wide.decode(b"\x0a\0" * 3 + b"\x18\x07").value
    assert (len(found), len(found["m"][2]), found["f3"]) == (1499, 1499, 7)
    many = b"\x0a\0" * 500
    assert wide.decode(many).value == {"m": [{}] * 500}
    inside = b"\x0a\x03x/M\x12" + bytes([1000 & 127 | 128, 1000 >> 7]) + many
    entry = b"\x12" + bytes([len(inside) & 127 | 128, len(inside) >> 7]) + inside
    data = b"\x12" + bytes([len(entry) & 127 | 128, len(entry) >> 7]) + entry
    assert wide.decode(data).value["any"][""]["m"] == [{}] * 500


@pytest.mark.parametrize("data", [b"\x0a\0" * 2000, b"\x13\x14" * 2000, b"\x1a\x04\x12\x02\x0a\0" * 2000])
def test_a_short_message_is_no_gigabyte_of_memory(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent fields take memory too: a message has all fields of its type, even in a group or in a map's value."""
    fields = "".join(f"optional int32 f{number} = {number};" for number in range(4, 200))
    wide = ProtobufSchema(
        f"""syntax = "proto2"; message M {{
        repeated M m = 1; repeated group G = 2 {{ {fields} }} map<int32, M> n = 3; {fields} }}"""
    )
    wide.decode(data)
    monkeypatch.setattr("kbroker.decoders.protobuf.MAX_PARSED_FIELDS", 300_000)
    with pytest.raises(UndecodableError, match=r"^more than 300000 fields"):
        wide.decode(data)


@pytest.mark.parametrize("data", [b"\x0a\x02\x10\x01" * 1200, b"\x1a\xb0\x09" + b"\x01" * 1200])
def test_a_short_message_is_no_gigabyte_of_names(data: bytes) -> None:
    long = "a" * 60_000
    named = ProtobufSchema(
        f"""syntax = "proto3"; enum E {{ NO = 0; {long} = 1; }}
        message M {{ repeated M m = 1; bool {long} = 2; repeated E e = 3; }}"""
    )
    with pytest.raises(UndecodableError, match="characters of names"):
        named.decode(data)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message {", "protoc refuses the schema: schema.proto:1"),
        ('import "missing.proto";', "missing.proto: File not found"),
    ],
)
def test_texts_that_protoc_refuses(text: str, reason: str) -> None:
    with pytest.raises(UndecodableError, match=reason):
        ProtobufSchema('syntax = "proto3"; ' + text)


@pytest.mark.parametrize("path", ["/etc/passwd", "../up.proto"])
def test_an_import_stays_in_its_folder(path: str) -> None:
    with pytest.raises(UndecodableError, match="relative path"):
        ProtobufSchema(TEXT, {path: MONEY})


@pytest.mark.parametrize("path", ["@{folder}/options", "-Iother.proto", "schema.proto"])
def test_the_path_of_an_import_is_only_a_path(path: str, tmp_path: Path) -> None:
    """protoc reads options from the file after an @, and its error names the first invalid one, such as a password."""
    (tmp_path / "options").write_text("secret")
    path = path.format(folder=tmp_path)
    text = f'syntax = "proto3"; import "{path}"; message Order {{ shop.Money price = 1; }}'
    assert ProtobufSchema(text, {path: MONEY}).decode(b"", indexes=(0,)).schema == "Order"


def test_the_first_message_is_encoded() -> None:
    money = ProtobufSchema(MONEY)
    assert money.encode('{"cents": 99, "in": {}}') == b"\x08\x63\x12\x00"
    with pytest.raises(UnencodableError, match=r'not a message shop.Money: .*"cent"'):
        money.encode('{"cent": 99}')
    with pytest.raises(UnencodableError, match="the schema has no message"):
        ProtobufSchema('syntax = "proto3";').encode("{}")
