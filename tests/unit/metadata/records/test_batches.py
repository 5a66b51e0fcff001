"""Tests of the batches of the metadata log."""

import pytest

from kbroker.common.errors import Errors, ProtocolError
from kbroker.metadata.records.batches import MetadataBatch, build_control, build_records, read_batches
from kbroker.metadata.records.control_records import KRaftVersion, LeaderChange
from kbroker.metadata.records.metadata_record import UnknownRecordError, metadata_record
from kbroker.protocol.records import Record, build_batch

TOPIC = metadata_record("RemoveDelegationTokenRecord", {"TokenId": "x"})
NO_OP = metadata_record("NoOpRecord", {})
LEADER = LeaderChange(1, (1,), (1,))


def test_batches_are_read_as_built() -> None:
    """A batch has its offsets, its epoch, its timestamp, and either control records or metadata records."""
    data = build_control([LEADER, KRaftVersion(1)], 10, 3, 1000) + build_records([TOPIC, NO_OP, NO_OP], 12, 3, 1001)
    assert list(read_batches(memoryview(data))) == [
        MetadataBatch(10, 11, 3, 1000, [LEADER, KRaftVersion(1)], ()),
        MetadataBatch(12, 14, 3, 1001, (), [TOPIC, NO_OP, NO_OP]),
    ]
    assert list(read_batches(b"")) == []


def test_every_changed_byte_is_found() -> None:
    """The checksum covers all but the first fields; a batch that is cut at any length is an error."""
    first, second = build_records([NO_OP], 0, 1, 1000), build_records([TOPIC], 1, 1, 1000)
    for at in range(16, len(second)):  # after the base offset, the length and the leader epoch
        changed = bytearray(second)
        changed[at] ^= 1
        with pytest.raises(ProtocolError) as caught:
            list(read_batches(first + changed))
        assert caught.value.error == Errors.CORRUPT_MESSAGE
        assert "batch at offset 1" in str(caught.value)
    for length in range(1, len(second)):
        with pytest.raises(ProtocolError, match=f"the batch at byte {len(first)} is cut after {length} bytes"):
            list(read_batches(first + second[:length]))


def test_an_unknown_record_is_an_error_with_the_offset() -> None:
    """Batches before the unknown record are yielded."""
    batches = read_batches(build_records([NO_OP], 0, 1, 0) + build_batch([(None, b"\1\6\0\0")], base_offset=1))
    assert next(batches).records == [NO_OP]
    with pytest.raises(UnknownRecordError, match="batch at offset 1: a metadata record has type 6"):
        next(batches)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record(None, None), "a metadata record has no value"),
        (Record(None, b""), "frame version of a metadata record: malformed varint"),
        (Record(None, b"\1\x14\0\0\0"), "NoOpRecord: expected 4 bytes, found 5"),
    ],
)
def test_a_record_that_is_none_of_the_metadata_log(record: Record, message: str) -> None:
    """Damage inside a batch with a correct checksum is an error."""
    with pytest.raises(ProtocolError, match=rf"{message}.*batch at offset 0"):
        list(read_batches(build_batch([record])))


def test_an_empty_batch_is_not_built() -> None:
    for build in (build_control, build_records):
        with pytest.raises(ValueError, match="a batch of the metadata log needs a record"):
            build([], 0, 0, 0)
