"""Choice of a decoder: by name, by detection, and for Kafka's internal topics."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client.schema_registry import (
    AVRO,
    JSON_SCHEMA,
    RegistryError,
    Schema,
    SchemaId,
    SchemaRegistry,
    SchemaVersion,
)
from kbroker.decoders import by_schema, encoders, kafka_records
from kbroker.decoders.decoded import Decoded, MissingPackageError, Place, UndecodableError, UnencodableError
from kbroker.decoders.decoders import MAX_MISSES, DecodedRecord, Decoders
from kbroker.decoders.encoders import Encoders
from kbroker.decoders.protobuf import UnfinishedError
from kbroker.protocol.codec import encode_versioned
from tests.support.errors import raising

msgpack = pytest.importorskip("msgpack")


class Known(SchemaRegistry):
    """Registry of one schema, with id 7, that counts look-ups."""

    def __init__(self) -> None:
        self.lookups = 0

    def schema(self, schema_id: SchemaId) -> Schema:
        self.lookups += 1
        if schema_id.text != "7":
            raise RegistryError("status 404: no such schema", 404)
        return Schema(AVRO, '"string"')

    def version(self, subject: str, version: int | None = None) -> SchemaVersion:
        self.lookups += 1
        if subject == "t-key":
            raise RegistryError("status 404: no such subject", 404)
        kind = JSON_SCHEMA if subject == "json-value" else AVRO
        return SchemaVersion(subject, 1, 7, Schema(kind, '"string"'))


def decoded(decoders: Decoders, key: bytes | None, value: bytes | None, topic: str = "t", **more: Any) -> DecodedRecord:
    return decoders.record(topic, 0, 0, 0, key, value, more.get("headers", []))


def value_of(decoders: Decoders, data: bytes, topic: str = "t") -> Decoded:
    found = decoded(decoders, None, data, topic).value
    assert found is not None
    return found


def shown(part: Decoded | None) -> tuple[str, str]:
    assert part is not None
    return part.format, part.text


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b'{"a": 1.0}', ("json", '{"a": 1.0}')),
        (b'{"a": ', ("text", '{"a": ')),
        (b"17", ("text", "17")),
        ("Grüße\n".encode(), ("text", "Grüße\n")),
        (b"", ("text", "")),
        (msgpack.packb({"a": 1}), ("msgpack", '{"a": 1}')),
        (msgpack.packb([msgpack.Timestamp(-2, 1)]), ("msgpack", '["-1.999999999"]')),
        (b"\0\0\0\x07", ("hex", "00000007")),
        (b"a\x1bb", ("hex", "611b62")),
    ],
)
def test_detected(data: bytes, wanted: tuple[str, str]) -> None:
    assert shown(decoded(Decoders(), None, data).value) == wanted


def test_chosen_by_name() -> None:
    found = decoded(Decoders("int32", "hex"), b"\0\0\0\x07", b"ab")
    assert (shown(found.key), shown(found.value)) == (("int32", "7"), ("hex", "6162"))
    failed = decoded(Decoders("int32", "json"), b"ab", b"cd")
    assert failed.key == Decoded("text", "ab", problem="expected 4 bytes for int32, got 2 bytes")
    assert failed.value is not None
    assert failed.value.text == "cd"
    assert "not JSON" in failed.value.problem
    assert decoded(Decoders("int32", "json"), None, None)[4:6] == (None, None)


def test_wrong_names() -> None:
    with pytest.raises(ValueError, match="expected a decoder of auto, json"):
        Decoders("xml")
    with pytest.raises(ValueError, match="avro needs a Schema Registry"):
        Decoders(value="avro")


def test_by_a_schema() -> None:
    registry = Known()
    framed = b"\0\0\0\0\x07\x04ab"
    for name in ("auto", "avro", "registry"):
        found = decoded(Decoders(value=name, registry=registry), None, framed).value
        assert found == Decoded("avro", '"ab"', is_json=True, schema="string, id 7")
    other = value_of(Decoders(value="protobuf", registry=registry), framed)
    assert (other.format, other.problem) == ("hex", "schema id 7 is of avro, expected protobuf")
    assert (
        value_of(Decoders(registry=registry), b"\0\0\0\0\x08\x04ab").problem
        == "schema id 8: status 404: no such schema"
    )
    assert value_of(Decoders(value="avro", registry=registry), b"ab").problem.startswith("no id of a schema")


def test_an_error_that_no_decoder_expects_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error of a decoder is reported beside the record's bytes."""
    broken = raising(ZeroDivisionError("x"))
    monkeypatch.setattr(by_schema, "decode", broken)
    monkeypatch.setattr(kafka_records, "record", broken)
    for name, topic in (("auto", "t"), ("avro", "t"), ("kafka", "t"), ("auto", "__consumer_offsets")):
        found = decoded(Decoders(value=name, registry=Known()), None, b"\0\0\0\0\x07", topic).value
        assert found == Decoded("hex", "0000000007", problem="ZeroDivisionError: x")


def test_a_refused_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def refuse(text: str, references: Any) -> Any:
        compiled.append(text)
        raise UndecodableError("refused")

    monkeypatch.setattr(by_schema, "ProtobufSchema", refuse)
    monkeypatch.setattr(Known, "schema", lambda *_: Schema("protobuf", "test_a_refused_schema"))
    for _ in range(2):
        found = decoded(Decoders(value="registry", registry=Known()), None, b"\0\0\0\0\x07\0").value
        assert found == Decoded("hex", "000000000700", problem="schema id 7: refused")
    assert len(compiled) == 1


def test_an_unfinished_schema_is_compiled_again_a_minute_later() -> None:
    clock, results = VirtualClock(), iter([UnfinishedError("protoc did not end"), "compiled"])

    def compiled(schema: Schema) -> Any:
        found = next(results)
        if isinstance(found, UnfinishedError):
            raise found
        return found

    compile_once = by_schema._kept(compiled, clock)
    schema = Schema("protobuf", "slow")
    for _ in range(2):
        with pytest.raises(UndecodableError, match="protoc did not end"):
            compile_once(schema)
        clock.advance_ms(30_000)
    assert compile_once(schema) == compile_once(schema) == "compiled"


def test_numbers_that_look_like_ids_do_not_flood_the_registry() -> None:
    registry = Known()
    decoders = Decoders(registry=registry)
    for number in range(1000):
        assert shown(decoded(decoders, None, (1 << 40 | number << 24).to_bytes(8, "big")).value)[0] == "hex"
    assert registry.lookups == MAX_MISSES


@pytest.mark.parametrize("status", [None, 503])
def test_a_registry_that_responds_again_is_asked_again(monkeypatch: pytest.MonkeyPatch, status: int | None) -> None:
    registry, framed = Known(), b"\0\0\0\0\x07\x04ab"
    decoders = Decoders(registry=registry)
    with monkeypatch.context() as patch:
        patch.setattr(Known, "schema", raising(RegistryError("no response within 5 s", status)))
        for _ in range(MAX_MISSES):
            assert value_of(decoders, framed).problem == "schema id 7: no response within 5 s"
    assert value_of(decoders, framed).schema == "string, id 7"


def test_records_of_kafka() -> None:
    key = encode_versioned("OffsetCommitKey", 1, {"Group": "g", "Topic": "t", "Partition": 2})
    body = {"Offset": 5, "LeaderEpoch": -1, "Metadata": "", "CommitTimestamp": 9, "ExpireTimestamp": -1}
    value = encode_versioned("OffsetCommitValue", 3, body)
    found = decoded(Decoders(), key, value, "__consumer_offsets")
    assert found.key is not None
    assert found.key.value == {"type": "1", "data": {"group": "g", "topic": "t", "partition": 2}}
    assert json.loads(shown(found.value)[1])["data"]["offset"] == 5
    gone = decoded(Decoders(), key, None, "__consumer_offsets")
    assert gone.key is not None
    assert (gone.key.format, gone.value) == ("kafka", None)
    odd = decoded(Decoders("kafka", "kafka"), b"\x7f\xff", b"abc", "__transaction_state").value
    assert odd == Decoded("text", "abc", problem="Unknown record type 32767 at offset 0, skipping.")
    other = decoded(Decoders("kafka", "kafka"), key, value).key
    assert other is not None
    assert other.problem.startswith("expected an internal topic of Kafka")


def test_records_of_the_metadata_log() -> None:
    found = value_of(Decoders(), b"\x01\x14\x00\x00", "__cluster_metadata")
    assert found.value == {"type": "NO_OP_RECORD", "version": 0, "data": {}}
    broken = value_of(Decoders(), b"\x01\x7f\x00", "__cluster_metadata")
    assert broken.format == "hex"
    assert broken.problem.startswith("not a metadata record")


def test_packages_are_imported_when_a_record_needs_them() -> None:
    """The record commands and pages import no optional package at start."""
    code = (
        "import sys, kbroker.console.views.messages, kbroker.console.views.produce, kbroker.cli.consume\n"
        "print(sorted(sys.modules.keys() & {'jmespath', 'msgpack', 'grpc_tools', 'google.protobuf', 'pyarrow'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "package"), [("msgpack", "msgpack"), ("protobuf", "grpc_tools"), ("registry", "grpc_tools")]
)
def test_without_a_package(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    """A decoder chosen by name reports the missing package; detection works without the package."""

    class Messages(Known):
        def schema(self, schema_id: SchemaId) -> Schema:
            return Schema("protobuf", f'syntax = "proto3"; message NotYet{name} {{}}')

    monkeypatch.setitem(sys.modules, package, None)
    registry = Messages()
    with pytest.raises(MissingPackageError, match=rf'needs {package}, .* pip install "kbroker\[decoders\]"'):
        decoded(Decoders(value=name, registry=registry), None, b"\0\0\0\0\x07\0")
    detected = "protobuf" if package == "msgpack" else "hex"
    assert shown(decoded(Decoders(registry=registry), None, b"\0\0\0\0\x07\0").value)[0] == detected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("text", "Zoë"), ("json", '{"a": 1}'), ("hex", "00ff"), ("boolean", "true"), ("int16", "-3"), ("int32", "7")),
        *(("int64", "-5"), ("float", "0.1"), ("double", "2.5"), ("uuid", "12345678-1234-5678-1234-567812345678")),
        *(("msgpack", '{"a": [1, null]}'), ("avro", '"Zoë"'), ("registry", '"x"')),
    ],
)  # fmt: skip
def test_what_is_encoded_is_decoded(name: str, text: str) -> None:
    registry = Known()
    encoder = Encoders(registry)
    data = [encoder.encode(name, text, Place("t")) for _ in range(2)][1]
    found = value_of(Decoders(value=name, registry=registry), data)
    assert (found.problem, found.text) == ("", text)
    assert registry.lookups <= 2, "a subject is looked up once"


@pytest.mark.parametrize("name", encoders.NAMES)
def test_a_text_that_cannot_be_encoded(name: str) -> None:
    if name in ("text", "base64"):
        return
    with pytest.raises(UnencodableError):
        Encoders(Known()).encode(name, "no: {", Place("t"))


def test_a_temporary_folder_that_is_missing_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc_tools")
    found = SchemaVersion("t-value", 1, 7, Schema("protobuf", 'syntax = "proto3"; message NoFolder {}'))
    monkeypatch.setattr(Known, "version", lambda *_: found)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(UnencodableError, match=r"No such file.*/gone/.*expected .*TMPDIR"):
        Encoders(Known()).encode("protobuf", "{}", Place("t"))


@pytest.mark.parametrize(("name", "topic"), [("json", "t"), ("json-schema", "json")])
def test_no_number_is_no_json(name: str, topic: str) -> None:
    with pytest.raises(UnencodableError, match="NaN is not a number of JSON"):
        Encoders(Known()).encode(name, "[NaN]", Place(topic))


@pytest.mark.parametrize(
    ("encoder", "name", "place", "reason"),
    [
        (Encoders(), "avro", Place("t"), "needs a Schema Registry"),
        (Encoders(Known()), "avro", Place("t", True), "the subject t-key: status 404"),
        (Encoders(Known()), "protobuf", Place("t"), "the subject t-value is of avro, expected protobuf"),
        (Encoders(Known()), "yaml", Place("t"), "expected an encoder of text, json"),
        (Encoders(Known()), "json-schema", Place("json"), "json-value version 1: not JSON"),
        (Encoders(Known()), "base64", Place("t"), "is not base64"),
    ],
)
def test_encoders_by_schema(encoder: Encoders, name: str, place: Place, reason: str) -> None:
    with pytest.raises(UnencodableError, match=reason):
        encoder.encode(name, "{", place)
