"""Appends: refused, stored, repaired and duplicate batches."""

from pathlib import Path

import pytest

from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.records import CompressionType, Record, build_batch
from tests.support.compaction import keyed
from tests.support.log_files import NOW_MS, base_of, batch, crc_ok, gzip_batch, open_log, read_all, with_field


def zstd(data: bytes) -> bytes:
    return with_field(data, 21, 2, 4)


@pytest.mark.parametrize(
    ("name", "data", "version", "error"),
    [
        ("no batch", b"", 9, 87),
        ("half a header", batch(b"x")[:16], 9, 87),
        ("cut batch", batch(b"x")[:-1], 9, 87),
        ("size below any batch", with_field(batch(b"x"), 8, 4, 13, fix_crc=False), 9, 2),
        ("negative size", with_field(batch(b"x"), 8, 4, -5, fix_crc=False), 9, 2),
        ("magic 1", with_field(batch(b"x"), 16, 1, 1, fix_crc=False), 9, 87),
        ("magic 0", with_field(batch(b"x"), 16, 1, 0, fix_crc=False), 9, 87),
        ("magic 3", with_field(batch(b"x"), 16, 1, 3, fix_crc=False), 9, 2),
        ("two batches", batch(b"x") + batch(b"y"), 9, 87),
        ("zstd below 7", zstd(batch(b"x")), 6, 76),
        ("base offset", with_field(batch(b"x"), 0, 8, 5, fix_crc=False), 9, 87),
        ("larger than max.message.bytes", batch(b"x" * 1000), 9, 10),
        ("crc", with_field(batch(b"x"), 17, 4, 1, fix_crc=False), 9, 2),
        ("shorter than a v2 header", b"\0" * 8 + (20).to_bytes(4, "big") + b"\0\0\0\0\2" + b"\0" * 15, 9, 2),
        ("count too small", with_field(batch(b"x", b"y"), 57, 4, 1), 9, 87),
        ("count 0", with_field(batch(b"x"), 57, 4, 0), 9, 87),
        ("count 2^31-1", with_field(batch(b"x"), 57, 4, 2**31 - 1), 9, 87),
        ("both 2^31-1", with_field(with_field(batch(b"x"), 57, 4, 2**31 - 1), 23, 4, 2**31 - 2), 9, 87),
        ("negative last offset delta", with_field(batch(b"x"), 23, 4, -1), 9, 87),
        ("control batch", with_field(batch(b"x"), 21, 2, 32), 9, 87),
        ("producer without sequence", with_field(batch(b"x"), 43, 8, 7), 9, 87),
        ("unknown codec", with_field(batch(b"x"), 21, 2, 7), 9, -1),
        ("undecodable", with_field(batch(b"x"), 21, 2, 1), 9, -1),
        ("record past the end", with_field(batch(b"x"), 61, 1, 0x7E), 9, 87),
    ],
)
def test_refused_batches(tmp_path: Path, name: str, data: bytes, version: int, error: int) -> None:
    """Each invalid batch gets Kafka's error, nothing is written, and the next valid batch has offset 0."""
    log = open_log(tmp_path / "t-0", config={"max.message.bytes": 500})
    result = log.append(data, api_version=version)
    assert (result.error, result.base_offset) == (error, -1), name
    assert log.log_end_offset == 0
    assert log.size_bytes == 0
    assert log.append(batch(b"x")).base_offset == 0


def test_trailing_garbage_is_left_out(log: PartitionLog) -> None:
    """Bytes after the batch that are not a batch are not written, as in Kafka."""
    assert log.append(batch(b"x") + b"\0" * 9).error == 0
    assert log.size_bytes == len(batch(b"x"))


@pytest.mark.parametrize(("ahead_ms", "error"), [(3_600_000, 0), (3_600_001, 32)])
def test_time_ahead(log: PartitionLog, ahead_ms: int, error: int) -> None:
    """A record more than message.timestamp.after.max.ms ahead gets INVALID_TIMESTAMP and its index."""
    records = [Record(key=None, value=b"x", timestamp_ms=t) for t in (NOW_MS, NOW_MS + ahead_ms)]
    result = log.append(build_batch(records))
    assert (result.error, result.bad_record) == (error, 1 if error else -1)
    assert (result.message is None) == (error == 0)


def test_time_behind(tmp_path: Path) -> None:
    """message.timestamp.before.max.ms limits the past, in compressed batches too; timestamp -1 is accepted."""
    log = open_log(tmp_path / "t-0", config={"message.timestamp.before.max.ms": "1000"})
    assert log.append(batch(b"x", timestamp_ms=NOW_MS - 1000)).error == 0
    assert log.append(batch(b"x", timestamp_ms=NOW_MS - 1001)).error == 32
    assert log.append(gzip_batch(b"x", timestamp_ms=NOW_MS - 1001)).error == 32
    assert log.append(batch(b"x", timestamp_ms=-1)).error == 0


def test_times_at_the_ends_of_64_bits(tmp_path: Path) -> None:
    """The age of a record wraps as in Kafka: without limits every time is accepted."""
    most = str(2**63 - 1)
    limits = {"message.timestamp.before.max.ms": most, "message.timestamp.after.max.ms": most}
    log = open_log(tmp_path / "t-0", config=limits)
    for time_ms in (-(2**63), -2, 2**63 - 1):
        assert log.append(batch(b"x", timestamp_ms=time_ms)).error == 0


def test_key_of_a_compacted_topic(tmp_path: Path) -> None:
    """A record without a key is refused with error 87 and its index."""
    log = open_log(tmp_path / "t-0", config={"cleanup.policy": "compact"})
    records = [Record(key=b"k", value=b"x", timestamp_ms=NOW_MS), Record(key=None, value=b"x", timestamp_ms=NOW_MS)]
    assert log.append(build_batch(records))[:1] == (87,)
    assert log.append(build_batch(records)).bad_record == 1
    assert log.append(build_batch(records[:1])).error == 0


@pytest.mark.parametrize("codec", [0, 1])
def test_every_refused_record_is_named(tmp_path: Path, codec: int) -> None:
    """A batch of a compacted topic reports each of its records without a key."""
    log = open_log(tmp_path / "t-0", config={"cleanup.policy": "compact"})
    result = log.append(keyed(*((None if i % 10 == 0 else b"k", b"v") for i in range(100)), codec=codec))
    assert (result.error, result.bad_record, result.bad_records) == (87, 0, tuple(range(0, 100, 10)))
    assert log.append(keyed((b"k", b"v"), codec=codec))[5:7] == (-1, None)


def test_bad_times_and_keys_in_one_batch(tmp_path: Path) -> None:
    """Both kinds are reported with the timestamp's error; the timestamp of a record without a key is not checked."""
    log = open_log(tmp_path / "t-0", config={"cleanup.policy": "compact"})
    late = NOW_MS + 3_600_001
    fine, keyless, both, ahead = ((b"k", NOW_MS), (None, NOW_MS), (None, late), (b"k", late))

    def append(*records: tuple[bytes | None, int]) -> tuple[int, tuple[int, ...]]:
        rows = [Record(key=key, value=b"x", timestamp_ms=time_ms) for key, time_ms in records]
        result = log.append(build_batch(rows))
        return result.error, result.bad_records

    assert append(fine, keyless, both) == (87, (1, 2))
    assert append(both, fine, ahead) == (32, (0, 2))
    assert append(fine) == (0, ())


def test_so_many_refused_records_are_named(tmp_path: Path) -> None:
    """A response has at most 8,192 refused records of a batch."""
    log = open_log(tmp_path / "t-0", config={"cleanup.policy": "compact"})
    result = log.append(keyed(*((None, b"") for _ in range(9000)), codec=1))
    assert (result.error, result.bad_records) == (87, tuple(range(8192)))


def test_inner_offsets(log: PartitionLog) -> None:
    """A wrong inner offset is stored in an uncompressed batch, and refused with error -1 in a compressed one."""
    plain = batch(b"x")
    at = 61 + 3  # after length, attributes and timestamp delta
    wrong = with_field(plain, at, 1, 2)
    assert log.append(wrong).error == 0
    assert read_all(log)[0][at] == 2
    records = [Record(key=None, value=b"x", timestamp_ms=NOW_MS, offset=o) for o in (0, 2)]
    skipping = with_field(build_batch(records, compression=CompressionType.GZIP), 23, 4, 1)
    assert log.append(skipping).error == -1


def test_client_batch_marked_log_append_time(log: PartitionLog) -> None:
    """A topic with CreateTime clears the bit and rebuilds the checksum."""
    assert log.append(batch(b"x", log_append_time=True)).error == 0
    (stored,) = read_all(log)
    assert stored[22] & 8 == 0
    assert crc_ok(stored)


def test_wrong_largest_time_is_repaired(log: PartitionLog) -> None:
    """A wrong maximum timestamp in the header is corrected."""
    assert log.append(with_field(batch(b"x"), 35, 8, NOW_MS + 5)).error == 0
    (stored,) = read_all(log)
    assert int.from_bytes(stored[35:43], "big") == NOW_MS
    assert crc_ok(stored)


def test_log_append_time(tmp_path: Path) -> None:
    """LogAppendTime stamps the batch, sets the bit, rebuilds the checksum, and accepts old timestamps."""
    log = open_log(tmp_path / "t-0", config={"message.timestamp.type": "LogAppendTime"})
    result = log.append(batch(b"x", timestamp_ms=5))
    assert (result.error, result.log_append_time_ms) == (0, NOW_MS)
    (stored,) = read_all(log)
    assert stored[22] & 8
    assert int.from_bytes(stored[35:43], "big") == NOW_MS
    assert crc_ok(stored)
    assert log.offset_for_timestamp(NOW_MS) == (0, NOW_MS, 0)
    assert log.append(gzip_batch(b"x", timestamp_ms=5)).error == 0


def test_negative_epoch_of_an_unknown_producer(log: PartitionLog) -> None:
    """Epoch -1 is that of a producer that the partition does not know, so that -2 is older."""
    first = batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0)
    assert log.append(with_field(first, 51, 2, -2)).error == 47
    assert log.append(with_field(first, 51, 2, -1)).error == 0


def test_only_the_broker_stamps_records(tmp_path: Path) -> None:
    """A producer's batch with the attribute of LogAppendTime is refused unless its records have times to check."""
    stamped = with_field(batch(b"x"), 21, 2, 8)
    log = open_log(tmp_path / "t-0", config={"message.timestamp.type": "LogAppendTime"})
    result = log.append(stamped)
    assert (result.error, result.bad_record) == (32, 0)
    log = open_log(tmp_path / "t-1")
    assert log.append(stamped).error == 0
    assert log.append(with_field(batch(b"x", timestamp_ms=-1), 21, 2, 8)).error == 32


def test_stored_batch(tmp_path: Path) -> None:
    """Only base offset and leader epoch are changed; other bytes, the checksum included, are the client's."""
    log = open_log(tmp_path / "t-0", leader_epoch=3)
    log.append(batch(b"a", b"b"))
    log.append(batch(b"c"))
    second = read_all(log)[1]
    assert base_of(second) == 2
    assert int.from_bytes(second[12:16], "big") == 3
    assert second[16:] == batch(b"c")[16:]
    assert log.leader_epochs() == [(3, 0)]
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"
    assert (tmp_path / "t-0" / "partition.metadata").read_text() == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"


def test_larger_than_a_segment(tmp_path: Path) -> None:
    """A batch larger than segment.bytes gets error 18 and does not roll the segment."""
    log = open_log(tmp_path / "t-0", config={"segment.bytes": 200})
    assert log.append(batch(b"x" * 300)).error == 18
    assert len(log.segments()) == 1


def test_idempotent_sequences(log: PartitionLog) -> None:
    """A duplicate returns its first offset and time without a write; a gap gets error 45, and an old epoch 47."""

    def send(sequence: int, epoch: int = 1) -> tuple[int, int, bool]:
        result = log.append(batch(b"x", producer_id=9, producer_epoch=epoch, base_sequence=sequence))
        return result.error, result.base_offset, result.is_duplicate

    assert [send(0), send(1), send(0), send(1)] == [(0, 0, False), (0, 1, False), (0, 0, True), (0, 1, True)]
    assert send(3) == (45, -1, False)
    assert send(2, epoch=0)[0] == 47
    assert log.log_end_offset == 2
    assert log.producer_count == 1
    repeat = log.append(batch(b"x", producer_id=9, producer_epoch=1, base_sequence=1))
    assert repeat.log_append_time_ms == NOW_MS


def test_producer_state_survives(tmp_path: Path) -> None:
    """After a clean and an unclean stop the next sequence is accepted, and a gap is refused."""
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"x", producer_id=9, producer_epoch=1, base_sequence=0))
    for turn, clean in enumerate((True, False, False), start=1):
        log.close(clean=clean)
        log = open_log(tmp_path / "t-0", clean=clean)
        assert log.append(batch(b"x", producer_id=9, producer_epoch=1, base_sequence=turn + 1)).error == 45
        assert log.append(batch(b"x", producer_id=9, producer_epoch=1, base_sequence=turn)).base_offset == turn
