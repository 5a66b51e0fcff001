"""Control records of the metadata log: their bytes, and errors for unsupported ones."""

import uuid

import pytest

from kbroker.common.errors import ProtocolError
from kbroker.metadata.records.control_records import (
    ControlRecord,
    KRaftVersion,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    VoterEndpoint,
    Voters,
    decode_control,
    encode_control,
)
from kbroker.metadata.records.metadata_record import UnknownRecordError

ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
VOTER = Voter(3, ID, (VoterEndpoint("CONTROLLER", "host", 9093), VoterEndpoint("B", "::1", 65535)), 0, 1)


@pytest.mark.parametrize(
    ("record", "number", "value"),
    [
        (LeaderChange(1, (1, 2), (2,)), 2, "0000 00000001 03 00000001 00 00000002 00 02 00000002 00 00"),
        (SnapshotHeader(1000), 3, "0000 00000000000003e8 00"),
        (SnapshotFooter(), 4, "0000 00"),
        (KRaftVersion(1), 5, "0000 0001 00"),
        (
            Voters((Voter(3, ID, (VoterEndpoint("C", "h", 9093),), 0, 1),)),
            6,
            f"0000 02 00000003 {ID.hex} 02 0243 0268 2385 00 0000 0001 00 00 00",
        ),
    ],
)
def test_the_bytes_of_a_record(record: ControlRecord, number: int, value: str) -> None:
    """The key has the version and the type; the value is a flexible message that begins with its version."""
    key = bytes((0, 0, 0, number))
    assert encode_control(record) == (key, bytes.fromhex(value))
    found = decode_control(key, bytes.fromhex(value))
    assert (type(found), found) == (type(record), record)


def test_voters_keep_their_order() -> None:
    voters = Voters((VOTER, VOTER._replace(id=1, endpoints=())))
    assert decode_control(*encode_control(voters)) == voters


def test_an_unknown_type_is_an_error() -> None:
    """The types of transaction markers are unknown in the metadata log."""
    for number in (0, 1, 7):
        with pytest.raises(UnknownRecordError, match=f"has type {number}, supported are 2 to 6: use a version"):
            decode_control(bytes((0, 0, 0, number)), b"\0\0\0")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, b"", "key of a control record: expected 4 bytes, found null"),
        (b"\0\0\0", b"", "key of a control record: expected 4 bytes, found 3 bytes"),
        (b"\0\0\0\3", None, "Version"),
        (b"\0\0\0\3", b"\0\0\0\0", "LastContainedLogTimestamp"),
    ],
)
def test_damaged_bytes_are_a_protocol_error(key: bytes | None, value: bytes | None, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode_control(key, value)
