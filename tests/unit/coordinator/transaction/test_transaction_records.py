"""Kafka's record bytes of __transaction_state in both versions, and malformed values."""

import struct

import pytest

from kbroker.common.errors import ProtocolError
from kbroker.coordinator.transaction.transaction_metadata import NO_PLACES, Move, TransactionState
from kbroker.coordinator.transaction.transaction_records import decode_key, decode_value, encode_key, encode_value
from tests.support.transactions import T0, T1, T2

S = TransactionState
EMPTY = Move(S.EMPTY, 7, -1, -1, 0, -1, 60_000, NO_PLACES, -1, 5, 0)
OPEN = Move(S.ONGOING, 7, 7, -1, 1, 0, 60_000, frozenset({T0, T1, T2}), 4, 5, 2)


def test_a_key() -> None:
    assert encode_key("tx") == b"\0\0\0\2tx"
    assert decode_key(b"\0\0\0\2tx") == "tx"
    assert decode_key(b"\0\1\0\2tx") is None
    for bad in (b"", b"\0", b"\0\0\0\5tx"):
        with pytest.raises(ProtocolError):
            decode_key(bad)
    with pytest.raises(ProtocolError):
        encode_key("x" * 32_768)


def test_an_empty_value() -> None:
    """Partitions are null, and no tagged field differs from its default."""
    expected = struct.pack(">hqhib", 1, 7, 0, 60_000, 0) + b"\0" + struct.pack(">qq", 5, -1) + b"\0"
    assert encode_value(EMPTY) == expected


def test_a_value_of_version_0() -> None:
    """Records of Kafka before 4.0 have no tagged fields and so no client version."""
    expected = struct.pack(">hqhib", 0, 7, 1, 60_000, 1) + struct.pack(">i", 2)
    expected += b"\0\1t" + struct.pack(">iii", 2, 0, 1) + b"\0\1u" + struct.pack(">ii", 1, 0) + struct.pack(">qq", 5, 4)
    found = decode_value("x", expected)
    assert (found.state, found.partitions, found.client_version) == (S.ONGOING, OPEN.partitions, 0)


@pytest.mark.parametrize(
    "move",
    [
        EMPTY,
        OPEN,
        OPEN._replace(state=S.PREPARE_ABORT, next_producer_id=9, producer_epoch=32_767),
        OPEN._replace(state=S.COMPLETE_COMMIT, partitions=NO_PLACES, producer_id=9, prev_producer_id=7),
    ],
)
def test_values_come_back(move: Move) -> None:
    """All fields are read back except the epoch before the last, which Kafka does not write either."""
    found = decode_value("x", encode_value(move))
    for name in Move._fields:
        if name != "last_producer_epoch":
            assert getattr(found, name) == getattr(move, name), name


def test_a_field_of_a_later_version_is_skipped() -> None:
    """Kafka's tag 3 and an unknown tag are skipped."""
    value = encode_value(OPEN)
    count = value.index(struct.pack(">qq", 5, 4)) + 16
    tags = bytes([value[count] + 2]) + value[count + 1 :] + b"\3\2\0\5" + b"\x09\1\0"
    assert decode_value("x", value[:count] + tags).partitions == OPEN.partitions


@pytest.mark.parametrize("value", [b"", b"\0\1", b"\0\2" + encode_value(OPEN)[2:], encode_value(OPEN)[:-4]])
def test_malformed_values(value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_value("x", value)


@pytest.mark.parametrize("number", [-1, 6, 7, 99])
def test_states_that_are_never_logged(number: int) -> None:
    value = bytearray(encode_value(EMPTY))
    value[16] = number & 0xFF
    with pytest.raises(ProtocolError, match="expected a state from 0 to 5"):
        decode_value("x", bytes(value))
