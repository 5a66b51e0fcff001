"""One partition: every row of the append table, rolls, reads, flush, retention."""

import os
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log._partition_log import PartitionLog
from kbroker.log._segment import OpenFileCache
from kbroker.protocol.records import CompressionType, Record, build_batch
from tests.support.compaction import keyed
from tests.support.log_files import (
    NOW_MS,
    TOPIC_ID,
    base_of,
    batch,
    crc_ok,
    gzip_batch,
    open_log,
    read_all,
    split,
    with_field,
)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "t-0")


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
    """Each bad batch gets Kafka's code, nothing is written, and the next good batch is offset 0."""
    log = open_log(tmp_path / "t-0", config={"max.message.bytes": 500})
    result = log.append(data, api_version=version)
    assert (result.error, result.base_offset) == (error, -1), name
    assert log.log_end_offset == 0
    assert log.size_bytes == 0
    assert log.append(batch(b"x")).base_offset == 0


def test_trailing_garbage_is_left_out(log: PartitionLog) -> None:
    """Bytes after the batch that are no batch are not written (Kafka trims them)."""
    assert log.append(batch(b"x") + b"\0" * 9).error == 0
    assert log.size_bytes == len(batch(b"x"))


@pytest.mark.parametrize(("ahead_ms", "error"), [(3_600_000, 0), (3_600_001, 32)])
def test_time_ahead(log: PartitionLog, ahead_ms: int, error: int) -> None:
    """A record more than message.timestamp.after.max.ms ahead gives 32 and the index of the record."""
    records = [Record(key=None, value=b"x", timestamp_ms=t) for t in (NOW_MS, NOW_MS + ahead_ms)]
    result = log.append(build_batch(records))
    assert (result.error, result.bad_record) == (error, 1 if error else -1)
    assert (result.message is None) == (error == 0)


def test_time_behind(tmp_path: Path) -> None:
    """message.timestamp.before.max.ms bounds the past; -1 is let through; compressed batches are looked into."""
    log = open_log(tmp_path / "t-0", config={"message.timestamp.before.max.ms": "1000"})
    assert log.append(batch(b"x", timestamp_ms=NOW_MS - 1000)).error == 0
    assert log.append(batch(b"x", timestamp_ms=NOW_MS - 1001)).error == 32
    assert log.append(gzip_batch(b"x", timestamp_ms=NOW_MS - 1001)).error == 32
    assert log.append(batch(b"x", timestamp_ms=-1)).error == 0


def test_key_of_a_compacted_topic(tmp_path: Path) -> None:
    """A record without a key is refused with 87 and its index."""
    log = open_log(tmp_path / "t-0", config={"cleanup.policy": "compact"})
    records = [Record(key=b"k", value=b"x", timestamp_ms=NOW_MS), Record(key=None, value=b"x", timestamp_ms=NOW_MS)]
    assert log.append(build_batch(records))[:1] == (87,)
    assert log.append(build_batch(records)).bad_record == 1
    assert log.append(build_batch(records[:1])).error == 0


@pytest.mark.parametrize("codec", [0, 1])
def test_every_refused_record_is_named(tmp_path: Path, codec: int) -> None:
    """A batch of a compacted topic with several records that have no key tells of each of them, not of the first."""
    log = open_log(tmp_path / "t-0", config={"cleanup.policy": "compact"})
    result = log.append(keyed(*((None if i % 10 == 0 else b"k", b"v") for i in range(100)), codec=codec))
    assert (result.error, result.bad_record, result.bad_records) == (87, 0, tuple(range(0, 100, 10)))
    assert log.append(keyed((b"k", b"v"), codec=codec))[5:7] == (-1, None)


def test_bad_times_and_keys_in_one_batch(tmp_path: Path) -> None:
    """Both kinds are named together and the time stamp's code wins; a record without key has no time looked at."""
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
    """An answer names 8,192 refused records and no more, however many a packed batch holds."""
    log = open_log(tmp_path / "t-0", config={"cleanup.policy": "compact"})
    result = log.append(keyed(*((None, b"") for _ in range(9000)), codec=1))
    assert (result.error, result.bad_records) == (87, tuple(range(8192)))


def test_inner_offsets(log: PartitionLog) -> None:
    """A wrong inner offset delta is stored as it is when uncompressed, and -1 in a compressed batch."""
    plain = batch(b"x")
    at = 61 + 3  # length, attributes, timestamp delta, then the offset delta
    wrong = with_field(plain, at, 1, 2)
    assert log.append(wrong).error == 0
    assert read_all(log)[0][at] == 2
    records = [Record(key=None, value=b"x", timestamp_ms=NOW_MS, offset=o) for o in (0, 2)]
    skipping = with_field(build_batch(records, compression=CompressionType.GZIP), 23, 4, 1)
    assert log.append(skipping).error == -1


def test_client_batch_marked_log_append_time(log: PartitionLog) -> None:
    """On a CreateTime topic the bit is cleared and the checksum rebuilt."""
    assert log.append(batch(b"x", log_append_time=True)).error == 0
    (stored,) = read_all(log)
    assert stored[22] & 8 == 0
    assert crc_ok(stored)


def test_wrong_largest_time_is_repaired(log: PartitionLog) -> None:
    """A header that claims another largest time stamp is stored with the true one."""
    assert log.append(with_field(batch(b"x"), 35, 8, NOW_MS + 5)).error == 0
    (stored,) = read_all(log)
    assert int.from_bytes(stored[35:43], "big") == NOW_MS
    assert crc_ok(stored)


def test_log_append_time(tmp_path: Path) -> None:
    """LogAppendTime stamps the batch, sets the bit, rebuilds the checksum and answers the time; old records are no
    error.
    """
    log = open_log(tmp_path / "t-0", config={"message.timestamp.type": "LogAppendTime"})
    result = log.append(batch(b"x", timestamp_ms=5))
    assert (result.error, result.log_append_time_ms) == (0, NOW_MS)
    (stored,) = read_all(log)
    assert stored[22] & 8
    assert int.from_bytes(stored[35:43], "big") == NOW_MS
    assert crc_ok(stored)
    assert log.offset_for_timestamp(NOW_MS) == (0, NOW_MS, 0)
    assert log.append(gzip_batch(b"x", timestamp_ms=5)).error == 0


def test_stored_batch(tmp_path: Path) -> None:
    """Base offset and leader epoch are patched in place; the rest, checksum included, is the client's."""
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
    """A batch larger than segment.bytes is 18; a refused one has not rolled the segment."""
    log = open_log(tmp_path / "t-0", config={"segment.bytes": 200})
    assert log.append(batch(b"x" * 300)).error == 18
    assert len(log.segments()) == 1


def test_idempotent_sequences(log: PartitionLog) -> None:
    """A repeat answers its first offset and writes nothing; a gap is 45, an old epoch 47; duplicates answer their
    time.
    """

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
    """After a clean and after an unclean stop the next sequence is accepted and a gap is not."""
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"x", producer_id=9, producer_epoch=1, base_sequence=0))
    for turn, clean in enumerate((True, False, False), start=1):
        log.close(clean=clean)
        log = open_log(tmp_path / "t-0", clean=clean)
        assert log.append(batch(b"x", producer_id=9, producer_epoch=1, base_sequence=turn + 1)).error == 45
        assert log.append(batch(b"x", producer_id=9, producer_epoch=1, base_sequence=turn)).base_offset == turn


# ---------------------------------------------------------------------------------------------------------------- roll


def test_roll_by_size(tmp_path: Path) -> None:
    """A segment is closed when the new batch would not fit; bases follow offsets; files are Kafka's."""
    size = len(batch(b"x"))
    log = open_log(tmp_path / "t-0", config={"segment.bytes": 3 * size})
    for _ in range(7):
        log.append(batch(b"x"))
    assert [(s.base_offset, s.size_bytes) for s in log.segments()] == [(0, 3 * size), (3, 3 * size), (6, size)]
    names = {p.name for p in (tmp_path / "t-0").iterdir()}
    assert {f"{3:020d}{s}" for s in (".log", ".index", ".timeindex", ".snapshot")} <= names
    sealed = (tmp_path / "t-0" / f"{0:020d}.timeindex").read_bytes()
    assert sealed == NOW_MS.to_bytes(8, "big") + (0).to_bytes(4, "big")  # the closing entry


def test_roll_by_event_time(tmp_path: Path) -> None:
    """segment.ms counts from the first append's time stamp to the new one's, strictly."""
    log = open_log(tmp_path / "t-0", config={"segment.ms": 1000})
    for stamp in (NOW_MS, NOW_MS + 1000, NOW_MS + 1001):
        log.append(batch(b"x", timestamp_ms=stamp))
    assert [s.base_offset for s in log.segments()] == [0, 2]


def test_roll_when_an_index_is_full(tmp_path: Path) -> None:
    """A full time index closes the segment."""
    log = open_log(tmp_path / "t-0", config={"segment.index.bytes": 36, "index.interval.bytes": 0})
    stamps = iter(range(NOW_MS, NOW_MS + 100))
    for _ in range(8):
        log.append(batch(b"x", timestamp_ms=next(stamps)))
    assert len(log.segments()) > 1


def test_index_entries(tmp_path: Path) -> None:
    """An entry is added when MORE than index.interval.bytes lie behind the last one; the first append makes none."""
    size = len(batch(b"x"))
    log = open_log(tmp_path / "t-0", config={"index.interval.bytes": size})
    counts = []
    for _ in range(6):
        log.append(batch(b"x"))
        counts.append(log.segments()[0].offset_entries)
    assert counts == [0, 0, 1, 1, 2, 2]
    data = (tmp_path / "t-0" / f"{0:020d}.index").read_bytes()
    assert data[:8] == (2).to_bytes(4, "big") + (2 * size).to_bytes(4, "big")


# ---------------------------------------------------------------------------------------------------------------- read


def test_read_bounds(log: PartitionLog) -> None:
    """Below the start and past the end is 1; the end itself is empty; inside a batch gives the whole batch."""
    log.append(batch(b"a", b"b", b"c"))
    log.append(batch(b"d"))
    assert log.read(-1).error == 1
    assert log.read(5).error == 1
    assert log.read(4) == (0, 4, 4, 0, b"", 0, [])
    assert base_of(log.read(2).records) == 0
    assert base_of(log.read(3).records) == 3


def test_read_limits(log: PartitionLog) -> None:
    """The last batch is cut at max_bytes; min_one lets the first exceed it; else what does not fit is left."""
    log.append(batch(b"a"))
    log.append(batch(b"b"))
    size = len(batch(b"a"))
    assert len(log.read(0, size + 10).records) == size + 10
    assert len(log.read(0, 1).records) == size
    assert log.read(0, size - 1, min_one=False).records == b""
    assert len(log.read(0, size + 1, min_one=False).records) == size + 1
    assert log.read(0, 0, min_one=False).records == b""
    assert log.probe(0) == (0, 2 * size, False)
    assert log.probe(1) == (0, size, False)
    assert log.probe(2) == (0, 0, False)
    assert log.probe(3)[0] == 1


def test_every_offset_is_found(tmp_path: Path) -> None:
    """Whatever the index says, a read begins with the batch that contains the offset, in every segment."""
    log = open_log(tmp_path / "t-0", config={"segment.bytes": 2000, "index.interval.bytes": 200})
    for i in range(60):
        log.append(batch(*[b"x" * (i % 7)] * (1 + i % 3)))
    bases = [base_of(b) for b in read_all(log)]
    for offset in range(log.log_end_offset):
        assert base_of(log.read(offset).records) == max(b for b in bases if b <= offset)


def test_files_stay_few(tmp_path: Path) -> None:
    """A cache of two descriptors serves a log of many segments."""
    files = OpenFileCache(2)
    log = open_log(tmp_path / "t-0", config={"segment.bytes": 200}, files=files)
    for _ in range(40):
        log.append(batch(b"x" * 50))
    assert len(log.segments()) == 40
    assert len(read_all(log)) == 40
    assert files.open_files <= 2


def test_offset_for_timestamp(tmp_path: Path) -> None:
    """First record at or after a time over segments and codecs; -3 the largest; nothing later is unknown."""
    log = open_log(tmp_path / "t-0", config={"segment.bytes": 400, "index.interval.bytes": 0})
    for i in range(20):
        make = gzip_batch if i % 2 else batch
        log.append(make(b"x", timestamp_ms=NOW_MS + 10 * i))
    for i in range(20):
        assert log.offset_for_timestamp(NOW_MS + 10 * i - 5) == (i, NOW_MS + 10 * i, 0)
    assert log.offset_for_timestamp(-3) == (19, NOW_MS + 190, 0)
    assert log.offset_for_timestamp(NOW_MS + 191) == (-1, -1, -1)


# ------------------------------------------------------------------------------------------------------- transactions


def marker(producer_id: int, epoch: int, commit: bool) -> bytes:
    record = Record(key=b"\0\0\0" + bytes([commit]), value=b"\0\0" + (0).to_bytes(4, "big"), timestamp_ms=NOW_MS)
    data = build_batch([record], producer_id=producer_id, producer_epoch=epoch, transactional=True)
    return with_field(data, 21, 2, 16 | 32)


def test_transactions(tmp_path: Path) -> None:
    """The LSO stays at the open transaction; an abort is listed to read_committed, also after a restart of either
    kind.
    """
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"plain"))
    log.append(batch(b"txn", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True))
    log.append(batch(b"after"))
    assert (log.last_stable_offset, log.high_watermark) == (1, 3)
    assert [base_of(b) for b in split(log.read(0, isolation=1).records)] == [0]
    assert log.append(marker(5, 0, commit=False), is_client=False).error == 0
    assert log.last_stable_offset == 4
    for clean in (True, False):
        got = log.read(0, isolation=1)
        assert [base_of(b) for b in split(got.records)] == [0, 1, 2, 3]
        assert [a[:3] for a in got.aborted] == [(5, 1, 3)]
        log.close(clean=clean)
        log = open_log(tmp_path / "t-0", clean=clean)
        assert log.last_stable_offset == 4


# ------------------------------------------------------------------------------------------------------ flush, faults


def test_flush_interval_holds_the_high_watermark(tmp_path: Path) -> None:
    """When flush.messages is reached the answer waits: the high watermark does not pass what is not on disk."""
    log = open_log(tmp_path / "t-0", config={"flush.messages": 2})
    assert log.append(batch(b"a")).flush_offset == 0
    assert log.high_watermark == 1
    waiting = log.append(batch(b"b"))
    assert (waiting.flush_offset, waiting.high_watermark_moved, log.high_watermark) == (2, False, 1)
    assert [base_of(b) for b in split(log.read(0).records)] == [0]
    assert log.probe(1) == (0, 0, False)
    assert log.flush_target == 2
    assert log.flush() == 2
    assert log.high_watermark == 2
    assert len(split(log.read(0).records)) == 2
    assert log.append(batch(b"c")).flush_offset == 0


def test_repeat_of_an_unflushed_batch_waits_too(tmp_path: Path) -> None:
    """A duplicate of a batch not yet on disk is not acknowledged before it either."""
    log = open_log(tmp_path / "t-0", config={"flush.messages": 1})
    data = batch(b"x", producer_id=9, producer_epoch=1, base_sequence=0)
    assert log.append(data).flush_offset == 1
    assert log.append(data).flush_offset == 1
    log.flush()
    assert log.append(data).flush_offset == 0


def test_disk_full(log: PartitionLog) -> None:
    """A write that fails half way is 56 and leaves no bytes; reads go on; appends work again afterwards."""
    log.append(batch(b"a"))
    size = log.size_bytes
    log._inject_fault(write_errno=28)
    assert log.append(batch(b"b" * 100)).error == 56
    assert os.path.getsize(Path(str(log.directory)) / f"{0:020d}.log") == size
    assert len(read_all(log)) == 1
    log._inject_fault()
    assert log.append(batch(b"c")).base_offset == 1


def test_failed_sync_ends_appends(tmp_path: Path) -> None:
    """After a failed fsync nothing more is acknowledged until the log is opened again; reads go on."""
    log = open_log(tmp_path / "t-0", config={"flush.messages": 1})
    log.append(batch(b"a"))
    log.flush()
    log.append(batch(b"b"))
    log._inject_fault(sync_errno=5)
    with pytest.raises(OSError, match="5"):
        log.flush()
    log._inject_fault()
    with pytest.raises(OSError, match="5"):
        log.flush()
    assert log.append(batch(b"c")).error == 56
    assert log.high_watermark == 1
    assert log.is_failed
    assert len(read_all(log)) == 1
    log.close(clean=False)
    assert open_log(tmp_path / "t-0").append(batch(b"d")).error == 0


# ----------------------------------------------------------------------------------------------------------- retention


def test_retention_by_size(tmp_path: Path) -> None:
    """Oldest segments go while the log stays at or above retention.bytes; files are removed after the delay."""
    size = len(batch(b"x"))
    log = open_log(tmp_path / "t-0", config={"segment.bytes": size, "retention.bytes": 3 * size, "retention.ms": -1})
    for _ in range(8):
        log.append(batch(b"x"))
    assert log.apply_retention(NOW_MS) == 5
    assert log.log_start_offset == 5
    assert log.read(4).error == 1
    assert len(read_all(log)) == 3
    assert len(list((tmp_path / "t-0").glob("*.log.deleted"))) == 5
    assert log.purge_deleted(NOW_MS + 59_999) == 0
    assert log.purge_deleted(NOW_MS + 60_000) == 5
    assert not list((tmp_path / "t-0").glob("*.deleted"))


def test_retention_by_time(tmp_path: Path) -> None:
    """A segment goes when its largest time stamp is MORE than retention.ms old; all of them: a new active one is
    rolled.
    """
    log = open_log(tmp_path / "t-0", config={"segment.ms": 1, "retention.ms": 1000})
    for stamp in (NOW_MS, NOW_MS + 10):
        log.append(batch(b"x", timestamp_ms=stamp))
    assert log.apply_retention(NOW_MS + 1000) == 0
    assert log.apply_retention(NOW_MS + 1001) == 1
    assert log.apply_retention(NOW_MS + 5000) == 1
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    assert log.apply_retention(NOW_MS + 9000) == 0  # the empty active segment stays
    assert log.append(batch(b"x")).base_offset == 2


def test_delete_records(tmp_path: Path) -> None:
    """The log start moves up, never down, never past the high watermark; retention then drops whole segments below
    it.
    """
    log = open_log(tmp_path / "t-0", config={"segment.bytes": 75})
    for _ in range(4):
        log.append(batch(b"x"))
    assert log.delete_records(2) == 2
    assert log.delete_records(1) == 2
    with pytest.raises(ValueError, match="high watermark"):
        log.delete_records(5)
    assert log.read(1).error == 1
    assert base_of(log.read(2).records) == 2
    assert log.apply_retention(NOW_MS) == 2
    assert log.delete_records(-1) == 4


def test_reads_survive_deletion(tmp_path: Path) -> None:
    """update_config takes effect at once; delete removes the folder and closes the log."""
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"x"))
    log.update_config({"max.message.bytes": 10})
    assert log.append(batch(b"x")).error == 10
    with pytest.raises(ValueError, match=r"segment\.bytes"):
        log.update_config({"segment.bytes": 0})
    log.delete()
    assert log.is_closed
    assert log.append(batch(b"x")).error == 10
    assert not list(tmp_path.iterdir())
    log.update_config({})
    assert log.append(batch(b"x")).error == 3
    with pytest.raises(ValueError, match="closed"):
        log.roll()


def test_in_memory() -> None:
    """An in-memory log appends, rolls, reads and forgets without a folder."""
    log = open_log(None, config={"segment.bytes": 300, "retention.bytes": 300}, in_memory=True)
    for _ in range(20):
        log.append(batch(b"x" * 50))
    assert len(read_all(log)) == 20
    assert len(log.segments()) > 5
    log.flush()
    log.apply_retention(NOW_MS)
    assert len(log.segments()) <= 3
    assert log.append(batch(b"x")).base_offset == 20
    log.delete()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"partition": -1}, ValueError),
        ({"topic_id": b"x"}, ValueError),
        ({"topic_id": "!!"}, ValueError),
        ({"clock": 3}, TypeError),
        ({"config": 5}, TypeError),
        ({"directory": None}, TypeError),
        ({"recovery_point": -1}, ValueError),
        ({"config": {"message.timestamp.type": "Never"}}, ValueError),
    ],
)
def test_arguments(tmp_path: Path, change: dict[str, object], error: type[Exception]) -> None:
    """Wrong arguments raise and leave nothing half made."""
    given = {
        "directory": tmp_path / "a",
        "topic": "t",
        "partition": 0,
        "topic_id": TOPIC_ID,
        "config": {},
        "clock": VirtualClock(NOW_MS),
    }
    with pytest.raises(error):
        PartitionLog(**(given | change))  # type: ignore[arg-type]


def test_folder_of_another_topic(tmp_path: Path) -> None:
    """A folder whose partition.metadata names another topic is refused by name."""
    open_log(tmp_path / "t-0").close()
    with pytest.raises(ValueError, match=r"partition\.metadata"):
        PartitionLog(tmp_path / "t-0", "t", 0, bytes(15) + b"\1", {}, VirtualClock(NOW_MS))


def test_preallocate_reserves_a_segment_and_gives_back_the_rest(tmp_path: Path) -> None:
    """The active segment has its blocks beforehand, no file is larger than its batches, sealed ones keep no spare."""
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        if not hasattr(os, "posix_fallocate"):
            pytest.skip("no fallocate here")
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    if probe.stat().st_blocks * 512 < 1 << 20:
        pytest.skip("this file system reserves nothing")
    folder = tmp_path / "t-0"
    log = open_log(folder, config={"preallocate": "true", "segment.bytes": 1 << 20})
    first = folder / f"{0:020d}.log"
    assert first.stat().st_size == 0
    assert first.stat().st_blocks * 512 >= 1 << 20
    log.append(batch(b"x"))
    log.roll()
    second = folder / f"{1:020d}.log"
    assert second.stat().st_blocks * 512 >= 1 << 20
    assert first.stat().st_size == len(batch(b"x"))
    assert first.stat().st_blocks * 512 < 1 << 20
    log.append(batch(b"y"))
    log.close()
    assert second.stat().st_blocks * 512 < 1 << 20
    assert len(read_all(open_log(folder, config={"preallocate": True}))) == 2
