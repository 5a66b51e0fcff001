"""Values of metadata records: their form, their versions, and errors for unsupported ones."""

import json
import random
import uuid
from typing import Any

import pytest

from kbroker.common.errors import ProtocolError
from kbroker.common.feature_versions import FIRST_LEVEL, LAST_STABLE_LEVEL
from kbroker.metadata.records.metadata_record import (
    RECORD_TYPES,
    MetadataRecord,
    UnknownRecordError,
    decode_record,
    encode_record,
    metadata_record,
)
from kbroker.protocol.schema import data_plan, data_versions
from tests.support.wire_bodies import FOLDER, random_body

TABLES: dict[str, Any] = json.loads((FOLDER / "metadata.json").read_text(encoding="utf-8"))
ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


def test_the_types_are_those_of_the_tables() -> None:
    assert list(RECORD_TYPES.values()) == list(TABLES)
    assert list(RECORD_TYPES) == sorted(RECORD_TYPES)


@pytest.mark.parametrize("name", TABLES)
def test_every_version_is_decoded_as_encoded(name: str) -> None:
    """A record keeps its body in every version, and fields that the version lacks have their defaults."""
    rng = random.Random(name)
    first, last = data_versions(name)
    for version in range(first, last + 1):
        for _ in range(20):
            body = random_body(rng, TABLES[name], version)
            record = decode_record(encode_record(MetadataRecord(name, version, body)))
            assert record == (name, version, {**data_plan(name, version).default(), **body})


def test_the_bytes_of_a_record() -> None:
    """The frame version, the type and the version precede a message with compact lengths and a tagged section."""
    topic = metadata_record("TopicRecord", {"Name": "orders", "TopicId": ID})
    value = b"\x01\x02\x00" + b"\x07orders" + ID.bytes + b"\x00"
    assert encode_record(topic) == value
    assert decode_record(memoryview(value)) == topic
    change = metadata_record("PartitionChangeRecord", {"PartitionId": 3, "TopicId": ID, "Leader": -1, "Isr": []})
    assert encode_record(change) == b"\x01\x05\x02\0\0\0\x03" + ID.bytes + b"\x02\x00\x01\x01\x01\x04\xff\xff\xff\xff"


def test_varints_may_be_longer_than_needed() -> None:
    """Like Kafka, kbroker reads a small number from a varint of two bytes."""
    record = MetadataRecord("NoOpRecord", 0, {})
    assert decode_record(b"\x01\x14\x00\x00") == record
    assert decode_record(b"\x81\x00\x94\x00\x80\x00\x00") == record


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("RegisterBrokerRecord", {7: 1, 8: 2, 16: 2, 17: 3, 29: 3, 30: 4}),
        ("PartitionRecord", {7: 0, 16: 0, 17: 1, 22: 1, 23: 2, 30: 2}),
        ("PartitionChangeRecord", {7: 0, 16: 0, 17: 1, 22: 1, 23: 2, 30: 2}),
        ("TopicRecord", {7: 0, 30: 0}),
    ],
)
def test_the_version_of_a_level(name: str, levels: dict[int, int]) -> None:
    """Each level of metadata.version selects the record version that Kafka writes at that level."""
    assert {level: metadata_record(name, {}, level).version for level in levels} == levels
    assert metadata_record(name, {}).version == data_versions(name)[1]


def test_the_version_of_a_registration_change() -> None:
    """The version is the lowest that has every changed field, at any level."""
    fields: list[dict[str, Any]] = [
        {"Fenced": 1},
        {"InControlledShutdown": 1},
        {"LogDirs": [ID]},
        {"CordonedLogDirs": []},
    ]
    for level in (FIRST_LEVEL, LAST_STABLE_LEVEL):
        records = [metadata_record("BrokerRegistrationChangeRecord", {"BrokerId": 1, **one}, level) for one in fields]
        assert [record.version for record in records] == [0, 1, 2, 3]
        assert [decode_record(encode_record(record)).version for record in records] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"\x00\x02\x00", "a metadata record has frame version 0, supported is 1: read"),
        (b"\x01\x06\x00\x00", r"has type 6, supported are 0, 1, 2, 3, 4, 5, 7, .*28: use a version of kbroker that"),
        (b"\x01\xac\x02\x00\x00", "has type 300, supported are"),
        (b"\x01\x00\x05", "RegisterBrokerRecord has version 5, supported is 0 to 4: use"),
        (b"\x01\x02\x01", "TopicRecord has version 1, supported is 0: use"),
    ],
)
def test_an_unknown_record_is_an_error(value: bytes, message: str) -> None:
    """The error has the number found and the supported numbers."""
    with pytest.raises(UnknownRecordError, match=message):
        decode_record(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "frame version of a metadata record: malformed varint at byte 0 of 0"),
        (b"\x01", "type of a metadata record: malformed varint at byte 1 of 1"),
        (b"\x01\x02", "version of a metadata record: malformed varint at byte 2 of 2"),
        (b"\x01\xff\xff\xff\xff\xff\x01", "type of a metadata record: malformed varint at byte 1 of 7"),
        (b"\x01\x80\x80\x02\x00\x00", "type of a metadata record: 32768 is above 32767"),
        (b"\x01\x02\x00\x07ord", "Name"),
        (b"\x01\x14\x00\x00\x00", "NoOpRecord: expected 4 bytes, found 5"),
    ],
)
def test_damaged_bytes_are_a_protocol_error(value: bytes, message: str) -> None:
    """A truncated or extended value is an error."""
    with pytest.raises(ProtocolError, match=message):
        decode_record(value)


def test_an_unknown_name_or_field_is_not_encoded() -> None:
    """The name must be that of a metadata record, and the fields must exist in the version."""
    with pytest.raises(UnknownRecordError, match="AbortedTxn is not a record of the metadata log"):
        encode_record(MetadataRecord("AbortedTxn", 0, {}))
    with pytest.raises(UnknownRecordError, match="TopicRecord has version 1"):
        encode_record(MetadataRecord("TopicRecord", 1, {}))
    with pytest.raises(ProtocolError, match="LogDirs does not exist in this version"):
        encode_record(metadata_record("RegisterBrokerRecord", {"LogDirs": [ID]}, level=FIRST_LEVEL))
    with pytest.raises(ProtocolError, match="has no field Nmae"):
        encode_record(metadata_record("TopicRecord", {"Nmae": "x"}))
