"""Rolls, indexes, reads, timestamps and transactions."""

from pathlib import Path

import pytest

from kbroker.log._partition_log import PartitionLog
from kbroker.log.segment._segment import OpenFileCache
from kbroker.protocol.compression import CompressionType
from kbroker.protocol.records import RecordBatchBuilder
from tests.support.compaction import marker
from tests.support.log_files import NOW_MS, base_of, batch, gzip_batch, open_log, read_all
from tests.support.wire import split


def test_roll_by_size(tmp_path: Path) -> None:
    """A segment is rolled when the new batch does not fit, with Kafka's base offsets and file names."""
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
    """segment.ms is compared with the time from the first append's timestamp to the new one's."""
    log = open_log(tmp_path / "t-0", config={"segment.ms": 1000})
    for stamp in (NOW_MS, NOW_MS + 1000, NOW_MS + 1001):
        log.append(batch(b"x", timestamp_ms=stamp))
    assert [s.base_offset for s in log.segments()] == [0, 2]


def test_roll_when_an_index_is_full(tmp_path: Path) -> None:
    """A full time index rolls the segment."""
    log = open_log(tmp_path / "t-0", config={"segment.index.bytes": 36, "index.interval.bytes": 0})
    stamps = iter(range(NOW_MS, NOW_MS + 100))
    for _ in range(8):
        log.append(batch(b"x", timestamp_ms=next(stamps)))
    assert len(log.segments()) > 1


def test_index_entries(tmp_path: Path) -> None:
    """An entry is added after more than index.interval.bytes since the last one, and none by the first append."""
    size = len(batch(b"x"))
    log = open_log(tmp_path / "t-0", config={"index.interval.bytes": size})
    counts = []
    for _ in range(6):
        log.append(batch(b"x"))
        counts.append(log.segments()[0].offset_entries)
    assert counts == [0, 0, 1, 1, 2, 2]
    data = (tmp_path / "t-0" / f"{0:020d}.index").read_bytes()
    assert data[:8] == (2).to_bytes(4, "big") + (2 * size).to_bytes(4, "big")


def test_read_bounds(log: PartitionLog) -> None:
    """A read outside the log gets error 1, at the end it is empty, and within a batch it returns the whole batch."""
    log.append(batch(b"a", b"b", b"c"))
    log.append(batch(b"d"))
    assert log.read(-1).error == 1
    assert log.read(5).error == 1
    assert log.read(4) == (0, 4, 4, 0, b"", 0, [])
    assert base_of(log.read(2).records) == 0
    assert base_of(log.read(3).records) == 3


def test_read_limits(log: PartitionLog) -> None:
    """A read is cut at max_bytes; min_one returns the first batch whole, otherwise an oversized batch is omitted."""
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
    """A read begins with the batch that contains the offset, in every segment and for any index entries."""
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
    """The first record at or after a time is found in segments of any codec; -3 finds the maximum timestamp."""
    log = open_log(tmp_path / "t-0", config={"segment.bytes": 400, "index.interval.bytes": 0})
    for i in range(20):
        make = gzip_batch if i % 2 else batch
        log.append(make(b"x", timestamp_ms=NOW_MS + 10 * i))
    for i in range(20):
        assert log.offset_for_timestamp(NOW_MS + 10 * i - 5) == (i, NOW_MS + 10 * i, 0)
    assert log.offset_for_timestamp(-3) == (19, NOW_MS + 190, 0)
    assert log.offset_for_timestamp(NOW_MS + 191) == (-1, -1, -1)


def test_transactions(tmp_path: Path) -> None:
    """The last stable offset is at the open transaction; aborts are listed for read_committed, after restarts too."""
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"plain"))
    log.append(batch(b"txn", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True))
    log.append(batch(b"after"))
    assert (log.last_stable_offset, log.high_watermark) == (1, 3)
    assert [base_of(b) for b in split(log.read(0, isolation=1).records)] == [0]
    assert log.append(marker(5, commit=False), is_client=False).error == 0
    assert log.last_stable_offset == 4
    for clean in (True, False):
        got = log.read(0, isolation=1)
        assert [base_of(b) for b in split(got.records)] == [0, 1, 2, 3]
        assert [a[:3] for a in got.aborted] == [(5, 1, 3)]
        log.close(clean=clean)
        log = open_log(tmp_path / "t-0", clean=clean)
        assert log.last_stable_offset == 4


@pytest.mark.soak
def test_offset_for_timestamp_in_a_batch_of_many_bytes(tmp_path: Path) -> None:
    """A batch is searched that has more than 256 MiB when it is unpacked; a Produce may have sixteen times its size."""
    log = open_log(tmp_path / "t-0", config={"max.message.bytes": 20 << 20})
    builder = RecordBatchBuilder(compression=CompressionType.ZSTD)
    builder.append(None, bytes(257 << 20), NOW_MS)
    assert log.append(builder.build()).error == 0
    assert log.offset_for_timestamp(NOW_MS) == (0, NOW_MS, 0)


def test_offset_for_timestamp_is_below_the_readable_end(tmp_path: Path) -> None:
    """The first record of an open transaction is found only by readers of uncommitted records."""
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"x"))
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    log.append(batch(b"y", timestamp_ms=NOW_MS + 10, **options))
    assert log.last_stable_offset == 1
    assert log.offset_for_timestamp(NOW_MS + 5, isolation=0) == (1, NOW_MS + 10, 0)
    assert log.offset_for_timestamp(NOW_MS + 5, isolation=1) == (-1, -1, -1)
