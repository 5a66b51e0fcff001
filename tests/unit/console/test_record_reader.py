"""Records of a partition for a page: where it begins, where it ends, what it leaves out."""

from collections.abc import Iterator

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import KafkaError
from kbroker.console import record_reader
from kbroker.console.record_reader import HEADERS, PAGE_BYTES, first_offset, read_records
from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.compression import CompressionType
from kbroker.protocol.records import Record, build_batch

T0 = 1_700_000_000_000


@pytest.fixture
def log() -> Iterator[PartitionLog]:
    made = PartitionLog(None, "t", 0, bytes(16), {"max.message.bytes": 64 << 20}, VirtualClock(T0), in_memory=True)
    yield made
    made.close()


def append(
    log: PartitionLog, *values: bytes | None, at: int = T0, codec: CompressionType = CompressionType.NONE
) -> None:
    rows = [Record(b"k", value, at + i, [("h", b"1"), ("n", None)]) for i, value in enumerate(values)]
    done = log.append(build_batch(rows, compression=codec), api_version=9)
    assert done.error == 0


def test_from_an_offset(log: PartitionLog) -> None:
    append(log, *(b"%d" % i for i in range(10)))
    append(log, b"x", None, codec=CompressionType.ZSTD)
    found = read_records(log, 8, 3)
    assert [(one.offset, one.value) for one in found.records] == [(8, b"8"), (9, b"9"), (10, b"x")]
    assert found.records[0].headers == ((b"h", b"1"), (b"n", None))
    assert found.next_offset == 11
    rest = read_records(log, 11, 100)
    assert [one.value for one in rest.records] == [None]
    assert rest.next_offset == log.high_watermark == 12
    assert read_records(log, 12, 5) == ([], 12, "")


def test_where_a_page_begins(log: PartitionLog) -> None:
    append(log, *(b"v" for _ in range(50)))
    assert first_offset(log, offset=7, time_ms=None, count=20) == 7
    assert first_offset(log, offset=700, time_ms=None, count=20) == 50
    assert first_offset(log, offset=None, time_ms=None, count=20) == 30
    assert first_offset(log, offset=None, time_ms=T0 + 13, count=20) == 13
    assert first_offset(log, offset=None, time_ms=T0 + 99, count=20) == 50
    log.delete_records(40)
    assert first_offset(log, offset=3, time_ms=None, count=20) == 40
    with pytest.raises(KafkaError):
        read_records(log, 3, 1)


def test_a_page_ends_with_the_record_that_makes_it_large(log: PartitionLog) -> None:
    """A page of a hundred records of ten megabytes is not a gigabyte."""
    for _ in range(3):
        append(log, bytes(PAGE_BYTES + 1))
    found = read_records(log, 0, 100)
    assert (len(found.records), found.next_offset) == (1, 1)
    assert len(read_records(log, 1, 100).records) == 1


def test_a_bomb_is_named(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch that grows to more than is taken nothing is shown, but why."""
    monkeypatch.setattr(record_reader, "CAP_BYTES", 1 << 20)
    append(log, b"before", codec=CompressionType.ZSTD)
    append(log, bytes(2 << 20), codec=CompressionType.ZSTD)
    found = read_records(log, 0, 10)
    assert found.records == []
    assert "cannot be shown" in found.problem


def test_headers_count_too(log: PartitionLog) -> None:
    """Of a record with very many only the first are held, and a page of large ones ends early."""
    large = [("h", bytes(PAGE_BYTES + 1)), *((f"n{number}", b"") for number in range(99))]
    for _ in range(2):
        assert log.append(build_batch([Record(b"k", b"v", T0, large)]), api_version=9).error == 0
    (record,) = read_records(log, 0, 100).records
    assert (len(record.headers), record.header_count) == (HEADERS, 100)
