"""Records of a partition for a page: the first record, the last record, and omitted records."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import KafkaError
from kbroker.console import record_reader
from kbroker.console.record_reader import HEADERS, PAGE_BYTES, first_offset, read_records
from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.compression import CompressionType
from kbroker.protocol.records import Record, build_batch
from tests.support.fixtures import fixture_of
from tests.support.log_files import memory_log

T0 = 1_700_000_000_000
log = fixture_of(lambda: memory_log(clock=VirtualClock(T0), config={"max.message.bytes": 64 << 20}))


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
    assert first_offset(log, 7, 0) == 7
    assert first_offset(log, 700, 0) == 50
    assert first_offset(log, None, T0 + 13) == 13
    assert first_offset(log, None, T0 + 99) == 50
    log.delete_records(40)
    assert first_offset(log, 3, 0) == 40
    with pytest.raises(KafkaError):
        read_records(log, 3, 1)


def test_a_page_ends_with_the_record_that_makes_it_large(log: PartitionLog) -> None:
    """Records of ten megabytes end a page early, so that a hundred of them are not a gigabyte."""
    for _ in range(3):
        append(log, bytes(PAGE_BYTES + 1))
    found = read_records(log, 0, 100)
    assert (len(found.records), found.next_offset) == (1, 1)
    assert len(read_records(log, 1, 100).records) == 1


@pytest.mark.parametrize("codec", [one for one in CompressionType if one is not CompressionType.NONE])
def test_records_too_far_inside_a_large_batch_are_left_out(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, codec: CompressionType
) -> None:
    """The page has the records before the limit, names the others, and the next page begins after the batch."""
    monkeypatch.setattr(record_reader, "CAP_BYTES", 1 << 20)
    append(log, b"before", codec=codec)
    append(log, *[bytes(300_000)] * 10, codec=codec)
    append(log, b"after", codec=codec)
    found = read_records(log, 0, 3)
    assert [one.offset for one in found.records] == [0, 1, 2]
    assert (found.next_offset, found.problem) == (3, "")
    found = read_records(log, 0, 10)
    assert [one.offset for one in found.records] == [0, 1, 2, 3, 11]
    assert (found.next_offset, found.problem) == (
        12,
        "Records from offset 4 to 10 are not shown: they are after the first 1.0 MiB of their batch, uncompressed.",
    )
    found = read_records(log, 9, 1)
    assert (found.records[0].offset, found.problem[:29]) == (11, "Records from offset 9 to 10 a")


def test_a_page_ends_behind_a_damaged_batch(tmp_path: Path) -> None:
    """The next page begins after the damaged batch, so that later records can be reached."""
    with contextlib.closing(
        PartitionLog(str(tmp_path), "t", 0, bytes(16), {"max.message.bytes": 64 << 20}, VirtualClock(T0))
    ) as log:
        for values in ([b"before"], [b"lost", b"lost"], [b"behind"]):
            append(log, *values)
        file = tmp_path / f"{0:020}.log"
        file.write_bytes(file.read_bytes().replace(b"lost", b"l0st"))
        found = read_records(log, 0, 10)
        assert [one.value for one in found.records] == [b"before"]
        assert (found.next_offset, found.problem.partition(":")[0]) == (3, "The batch at offset 1 cannot be shown")
        assert read_records(log, 2, 10)[:2] == ([], 3)
        assert [one.value for one in read_records(log, 3, 10).records] == [b"behind"]


def test_values_are_cut(log: PartitionLog) -> None:
    """A page holds the part of a value that it shows, and the length of the whole value."""
    append(log, b"0123456789", None)
    (first, second) = read_records(log, 0, 2, 4).records
    assert (first.value, first.value_bytes, first.key, first.key_bytes) == (b"0123", 10, b"k", 1)
    assert (second.value, second.value_bytes) == (None, -1)


def test_headers_count_too(log: PartitionLog) -> None:
    """Only the first headers of a record are held, and a page of large headers ends early."""
    large = [("h", bytes(PAGE_BYTES + 1)), *((f"n{number}", b"") for number in range(99))]
    for _ in range(2):
        assert log.append(build_batch([Record(b"k", b"v", T0, large)]), api_version=9).error == 0
    (record,) = read_records(log, 0, 100).records
    assert (len(record.headers), record.header_count) == (HEADERS, 100)


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_a_page_within_a_large_batch(log: PartitionLog, codec: CompressionType) -> None:
    """A page may begin with any record of a batch and continue with the next batch."""
    append(log, *(b"%d" % number for number in range(1000)), codec=codec)
    append(log, b"behind")
    for first, count in ((0, 3), (500, 3), (998, 3), (999, 1), (999, 9)):
        found = read_records(log, first, count)
        values = [b"%d" % offset if offset < 1000 else b"behind" for offset in range(first, min(first + count, 1001))]
        assert [(one.offset, one.value) for one in found.records] == list(enumerate(values, first))
        assert found.next_offset == first + len(values)


PEAK = """
import sys
from kbroker._core.clock import VirtualClock
from kbroker.console.record_reader import read_records
from kbroker.log._partition_log import PartitionLog
def peak():
    with open("/proc/self/status") as status:  # the highest of resource.getrusage is the parent's, if that was higher
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
clock = VirtualClock(1_700_000_000_000)
log = PartitionLog(None, "t", 0, bytes(16), {"max.message.bytes": 64 << 20}, clock, in_memory=True)
assert log.append(sys.stdin.buffer.read(), api_version=9).error == 0
before = peak()
found = read_records(log, 0, 3, 2052)
print(len(found.records), found.next_offset, peak() - before)
"""


def peak_of(batch: bytes) -> tuple[int, int, int]:
    """Return the number of records on a page, the next offset, and the growth of peak memory in bytes."""
    ran = subprocess.run([sys.executable, "-c", PEAK], input=batch, capture_output=True, check=True)
    found, next_offset, taken_bytes = map(int, ran.stdout.split())
    return found, next_offset, taken_bytes


def test_many_tiny_records_and_headers_take_no_memory_of_a_page() -> None:
    """A batch of kilobytes with two million headers, 45 MB as columns, costs a page of fifty little memory."""
    rows = [
        Record(None, None, T0),
        Record(None, None, T0, [("", None)] * 2_000_000),
        *[Record(None, None, T0)] * 200_000,
    ]
    batch = build_batch(rows, compression=CompressionType.ZSTD)
    assert peak_of(batch)[:2] == (3, 3)
    assert peak_of(batch)[2] < 16 << 20


@pytest.mark.parametrize("codec", [CompressionType.ZSTD, CompressionType.GZIP, CompressionType.LZ4])
def test_the_first_records_of_a_highly_compressible_batch_take_little_memory(codec: CompressionType) -> None:
    """A page of a batch of 200 MB, uncompressed, decompresses only the batch's first records."""
    batch = build_batch([Record(None, bytes(500_000), T0)] * 400, compression=codec)
    found, next_offset, taken_bytes = peak_of(batch)
    assert (found, next_offset) == (3, 3)
    assert taken_bytes < 16 << 20


def test_a_page_ends_when_much_was_uncompressed_for_it(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends early in a hundred batches that each have a megabyte of headers, which are not shown."""
    monkeypatch.setattr(record_reader, "UNPACKED_BYTES", 1 << 20)
    headers = [("", None)] * 200_000  # two bytes each
    for _ in range(6):
        batch = build_batch([Record(b"k", b"v", T0, headers)], compression=CompressionType.ZSTD)
        assert log.append(batch, api_version=9).error == 0
    found = read_records(log, 0, 100)
    assert (len(found.records), found.next_offset, found.problem) == (3, 3, "")
    assert len(read_records(log, 3, 100).records) == 3
