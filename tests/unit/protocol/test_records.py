"""Record batches: golden bytes, damage, the compression of clients, and decompression bombs."""

import gc
import gzip
import importlib.util
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

import cramjam
import pytest

from kbroker._core.codec.crc32c import crc32c
from kbroker.common.errors import Errors, ProtocolError
from kbroker.protocol._batch_builder import key_value_batch
from kbroker.protocol.compression import CompressionType
from kbroker.protocol.records import (
    Record,
    RecordBatchBuilder,
    batch_at,
    build_batch,
    columns,
    iter_batches,
    iter_records,
)
from tests.support.control_batches import build_control_batch

CODECS = list(CompressionType)
RECORDS = [
    Record(b"key", b"value", 1000, (("h", b"x"), ("null", None))),
    Record(None, b"", 1005),
    Record(b"", None, 999),
]


def reseal(batch: bytes | bytearray) -> bytes:
    """Return the batch with a correct length and checksum."""
    out = bytearray(batch)
    out[8:12] = struct.pack(">i", len(out) - 12)
    out[17:21] = struct.pack(">I", crc32c(bytes(out[21:])))
    return bytes(out)


def with_payload(codec: int, payload: bytes, count: int) -> bytes:
    """Return a batch of `count` records whose compressed bytes are `payload`."""
    head = bytearray(build_batch([]))
    head[21:23] = struct.pack(">h", codec)
    head[23:27] = struct.pack(">i", count - 1)
    head[57:61] = struct.pack(">i", count)
    return reseal(head + payload)


def refusals(data: bytes, match: str | None = None) -> set[Errors]:
    """Check that no reader accepts the batch; return the errors."""
    found = set()
    for read in (columns, lambda batch: list(iter_records(batch))):
        with pytest.raises(ProtocolError, match=match) as caught:
            read(data)
        found.add(caught.value.error)
    return found


def plain_records(count: int, value: bytes = b"v" * 100) -> bytes:
    """Return the uncompressed records of a batch."""
    return build_batch([(None, value)] * count)[61:]


def test_golden_batch() -> None:
    """A batch has the bytes that Kafka's tools read."""
    batch = build_batch([Record(b"k", b"v", 1000, (("h", b"x"),))], base_offset=7, producer_id=5, producer_epoch=2,
                        base_sequence=3, leader_epoch=4)  # fmt: skip
    assert batch[:17] == bytes.fromhex("0000000000000007 0000003e 00000004 02")
    assert batch[17:21] == struct.pack(">I", crc32c(batch[21:]))
    assert batch[21:61] == bytes.fromhex(
        "0000 00000000 00000000000003e8 00000000000003e8 0000000000000005 0002 00000003 00000001"
    )
    assert batch[61:] == bytes.fromhex("18 00 00 00 02 6b 02 76 02 02 68 02 78")


def test_header_fields() -> None:
    """Each header property reads its own field."""
    batch = batch_at(build_batch(RECORDS, compression=CompressionType.LZ4, base_offset=2**40, transactional=True,
                                 producer_id=9, producer_epoch=1, base_sequence=0))  # fmt: skip
    assert batch is not None
    assert (batch.base_offset, batch.last_offset, batch.last_offset_delta) == (2**40, 2**40 + 2, 2)
    assert (batch.magic, batch.compression, batch.record_count, batch.leader_epoch) == (2, 3, 3, -1)
    assert (batch.is_transactional, batch.is_control, batch.is_log_append_time) == (True, False, False)
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms, batch.has_delete_horizon) == (1000, 1005, False)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 1, 0)
    assert batch.is_crc_valid
    assert len(batch.raw) == batch.size_bytes


def test_a_flipped_control_bit_is_damage() -> None:
    """The checksum is verified before control batches are skipped, so that a flipped bit hides no records."""
    data = bytearray(build_batch(RECORDS))
    data[22] ^= 0x20
    assert refusals(bytes(data), "wrong checksum")


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back(codec: CompressionType) -> None:
    """Records are read as built: nulls, headers and timestamps are kept for every codec."""
    data = build_batch(RECORDS, compression=codec, base_offset=50)
    assert batch_at(data).compression == codec
    want = [Record(*r[:3], list(r.headers), 50 + i) for i, r in enumerate(RECORDS)]
    assert list(iter_records(data)) == want


def test_offsets_with_gaps_and_log_append_time() -> None:
    """Offset gaps, as compaction leaves them, are kept. With LogAppendTime, records have the batch's timestamp."""
    records = [Record(b"a", b"1", 5, (), 12), Record(b"b", b"2", 9, (), 17)]
    data = build_batch(records, base_offset=10, log_append_time=True)
    assert [(r.offset, r.timestamp_ms) for r in iter_records(data)] == [(12, 9), (17, 9)]
    builder = RecordBatchBuilder(0, base_offset=10)
    assert batch_at(builder.build(last_offset_delta=4)).last_offset == 14
    assert list(iter_records(builder.build(last_offset_delta=4))) == []


def test_control_batch() -> None:
    """A marker has Kafka's layout, which read-committed consumers depend on."""
    data = build_control_batch(commit=True, producer_id=7, producer_epoch=3, coordinator_epoch=1, timestamp_ms=99)
    batch = batch_at(data)
    assert (batch.attributes, batch.base_sequence, batch.producer_id, batch.record_count) == (0x30, -1, 7, 1)
    assert batch.records() == [(0, 99, bytes.fromhex("0000 0001"), bytes.fromhex("0000 00000001"), [])]
    assert list(iter_records(data)) == []
    assert columns(data).next_offset == 1
    assert len(columns(data, include_control=True).offsets) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_refused(codec: CompressionType) -> None:
    """A truncated batch is refused at every length and never read past its end."""
    data = build_batch(RECORDS, compression=codec)
    for end in range(1, len(data)):
        cut = bytes(bytearray(data[:end]))
        assert refusals(cut) == {Errors.CORRUPT_MESSAGE}
        assert len(columns(cut, allow_truncated=True).offsets) == 0
        assert list(iter_batches(cut, allow_truncated=True)) == []
        if end > 61:  # the length is valid, but the records are truncated
            with pytest.raises(ProtocolError):
                columns(reseal(cut))


@pytest.mark.parametrize("at", range(12, 80))
def test_every_flipped_bit_is_seen(at: int) -> None:
    """A change of any byte that the checksum covers is refused."""
    data = bytearray(build_batch(RECORDS))
    data[at] ^= 0x10
    if at in range(12, 16):
        assert len(list(iter_records(bytes(data)))) == 3  # leader epoch is outside the checksum
        return
    assert refusals(bytes(data))


@pytest.mark.parametrize(
    "record",
    [
        "ff ff ff ff 0f",  # negative length
        "fe ff ff ff 0f 00",  # length of 2^31 - 1
        "ff ff ff ff ff 01",  # varint of 6 bytes
        "0c 00 00 00 01 01 02 00",  # one header expected, none present
        "0e 00 00 00 01 01 fe ff",  # a header count that needs more bytes
        "0c 00 00 00 7e 01 00",  # key longer than the record
        "0e 00 00 00 01 01 02 01 01",  # null header key
        "0c 00 00 00 01 01 01",  # negative header count
        "0e 00 00 00 01 01 00 00",  # an extra byte
        "02 00",  # only the attributes
        "00",  # without attributes
    ],
)
def test_damaged_records_are_refused(record: str) -> None:
    """An invalid length inside a record is refused."""
    data = with_payload(0, bytes.fromhex(record), 1)
    assert refusals(data, "record")
    (batch,) = iter_batches(data)
    with pytest.raises(ProtocolError, match="record"):
        batch.records_from(0, 1, 1 << 20, 1)


@pytest.mark.parametrize("count", [-1, 0, 2, 2**31 - 1])
def test_record_count_must_be_true(count: int) -> None:
    """A wrong record count is refused before memory is allocated."""
    changed = bytearray(build_batch([(b"k", b"v")]))
    changed[57:61] = struct.pack(">i", count)
    data = reseal(changed)
    tracemalloc.start()
    try:
        assert refusals(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_impossible_batch_lengths_are_refused(length: int) -> None:
    """A batch length below the header's size is refused instead of stalling the reader."""
    data = bytearray(build_batch(RECORDS))
    data[8:12] = struct.pack(">i", length)
    for read in (columns, lambda d: list(iter_batches(d, allow_truncated=True))):
        with pytest.raises(ProtocolError):
            read(bytes(data))


def snappy_xerial(data: bytes, block: int) -> bytes:
    out = [b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)]
    for start in range(0, len(data), block):
        piece = bytes(cramjam.snappy.compress_raw(data[start : start + block]))
        out.append(struct.pack(">i", len(piece)) + piece)
    return b"".join(out)


def lz4_frame(data: bytes, **options: bool) -> bytes:
    encoder = cramjam.lz4.Compressor(**options)
    encoder.compress(data)
    return bytes(encoder.finish())


PAYLOADS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, gzip.compress),
    "gzip of two members": (1, lambda d: gzip.compress(d[:500]) + gzip.compress(d[500:])),
    "snappy of snappy-java": (2, lambda d: snappy_xerial(d, 7000)),
    "snappy raw": (2, lambda d: bytes(cramjam.snappy.compress_raw(d))),
    "lz4 with checksum, linked": (3, lambda d: lz4_frame(d, content_checksum=True)),
    "lz4 independent": (3, lambda d: lz4_frame(d, content_checksum=False, block_linked=False)),
    "zstd": (4, lambda d: bytes(cramjam.zstd.compress(d))),
    "zstd of two frames": (4, lambda d: bytes(cramjam.zstd.compress(d[:9])) + bytes(cramjam.zstd.compress(d[9:]))),
}
if importlib.util.find_spec("lz4"):
    lz4 = importlib.import_module("lz4.frame")
    everything = {"block_checksum": True, "content_checksum": True, "store_size": True, "block_size": 4}
    PAYLOADS["lz4 with every option"] = (3, lambda d: lz4.compress(d, **everything))


@pytest.mark.parametrize("case", PAYLOADS)
def test_every_way_clients_compress(case: str) -> None:
    """All framings of a codec that clients write are read."""
    codec, compress = PAYLOADS[case]
    data = with_payload(codec, compress(plain_records(5000)), 5000)
    assert columns(data).values[4999] == b"v" * 100
    assert [r.value for r in iter_records(data)] == [b"v" * 100] * 5000


@pytest.mark.parametrize("case", PAYLOADS)
def test_damaged_compression_is_refused(case: str) -> None:
    """Invalid compressed bytes are a ProtocolError."""
    codec, compress = PAYLOADS[case]
    payload = compress(plain_records(50))
    for bad in (b"", payload[:-1], payload[:9], payload[: len(payload) // 2], b"\xff" * 40, payload + b"\xff" * 7):
        with pytest.raises(ProtocolError):
            columns(with_payload(codec, bad, 50))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec: int) -> None:
    with pytest.raises(ProtocolError, match="decompressed"):
        columns(with_payload(codec, plain_records(1), 1))


@pytest.mark.slow
@pytest.mark.parametrize("case", PAYLOADS)
def test_bombs_end_at_the_cap(case: str) -> None:
    """A small batch cannot exceed the cap, although zstd expands one byte to 32,000."""
    codec, compress = PAYLOADS[case]
    bomb = with_payload(codec, compress(bytes(100_000_000)), 1)
    start = time.thread_time()
    with pytest.raises(ProtocolError, match="uncompressed"):
        columns(bomb, cap_bytes=1 << 20)
    with pytest.raises(ProtocolError, match="uncompressed"):
        batch_at(bomb).records(1 << 20)
    assert time.thread_time() - start < 0.5
    small = with_payload(codec, compress(plain_records(3)), 3)
    assert len(columns(small, cap_bytes=len(plain_records(3))).offsets) == 3  # exactly at the cap
    with pytest.raises(ProtocolError, match="uncompressed"):
        columns(small, cap_bytes=len(plain_records(3)) - 1)


PEAK = """
import resource, sys
from kbroker.common.errors import ProtocolError
from kbroker.protocol.records import columns
data = sys.stdin.buffer.read()
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
try:
    columns(data[:-1])  # damaged: loads what a codec needs
except ProtocolError:
    pass
before = peak()
try:
    columns(data, cap_bytes=1 << 20)
except ProtocolError as error:
    print("uncompressed" in str(error), peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="reads the peak of its memory")
@pytest.mark.parametrize("case", PAYLOADS)
def test_bombs_take_no_more_memory_than_the_cap(case: str) -> None:
    """Decompression stops at the cap instead of unpacking all 300 MB first."""
    codec, compress = PAYLOADS[case]
    bomb = with_payload(codec, compress(bytes(300_000_000)), 1)
    done = subprocess.run([sys.executable, "-c", PEAK], input=bomb, capture_output=True, timeout=120)
    refused, grown = done.stdout.split()
    assert refused == b"True"
    assert int(grown) < 40_000_000  # the cap, the library's own windows, and one step of decompression


def test_snappy_block_may_not_claim_what_it_cannot_hold() -> None:
    """A snappy block that claims more bytes than possible is refused."""
    for claim in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\xff\xff"):
        with pytest.raises(ProtocolError):
            columns(with_payload(2, claim + b"\x00" * 5, 1))


def test_cap_holds_over_all_batches() -> None:
    """The cap applies to the sum of all batches."""
    data = build_batch([(None, bytes(1000))] * 100, compression=CompressionType.ZSTD) * 20
    with pytest.raises(ProtocolError, match="uncompressed"):
        columns(data, cap_bytes=1_000_000)


def test_columns_are_buffers() -> None:
    """Columns are read-only buffers that numpy uses without a copy."""
    numpy = pytest.importorskip("numpy")
    got = columns(build_batch(RECORDS, base_offset=4) + build_batch(RECORDS, base_offset=7))
    assert got.offsets.format == "q"
    assert got.offsets.readonly
    assert numpy.asarray(got.offsets).tolist() == [4, 5, 6, 7, 8, 9]
    assert got.timestamps_ms.tolist() == [1000, 1005, 999] * 2
    assert list(got.keys) == [b"key", None, b""] * 2  # type: ignore[call-overload]
    assert list(got.values) == [b"value", b"", None] * 2  # type: ignore[call-overload]
    assert got.keys.valid.tolist() == [0b11101101]  # bits after the last row are set
    assert got.values.offsets.format == got.header_offsets.format == "i"
    assert got.keys.offsets.tolist() == [0, 3, 3, 3, 6, 6, 6]
    assert bytes(got.keys.data) == b"keykey"
    assert got.header_offsets.tolist() == [0, 2, 2, 2, 4, 4, 4]
    assert list(got.header_keys) == [b"h", b"null"] * 2  # type: ignore[call-overload]
    assert list(got.header_values) == [b"x", None] * 2  # type: ignore[call-overload]
    assert got.next_offset == 10
    assert (got.keys[-6], len(got.keys)) == (b"key", 6)
    with pytest.raises(IndexError):
        got.keys[6]
    empty = columns(b"")
    assert (empty.offsets.tolist(), empty.keys.offsets.tolist(), empty.next_offset) == ([], [0], -1)
    assert numpy.asarray(empty.offsets).size == 0


def test_columns_from_an_offset() -> None:
    """Records before the requested offset, with which a fetch response may begin, are omitted."""
    data = build_batch(RECORDS, base_offset=4, compression=CompressionType.GZIP)
    assert columns(data, min_offset=6).offsets.tolist() == [6]
    assert columns(data, min_offset=6).header_offsets.tolist() == [0, 0]


def test_builder_refuses_wrong_arguments_and_goes_on() -> None:
    """A refused record leaves no bytes in the batch, and the builder can be used further."""
    builder = RecordBatchBuilder()
    builder.append(b"a", b"1", 5)
    for args, error in (
        ((b"a", "text"), TypeError),
        ((5, b"a"), TypeError),
        ((b"a", b"b", 0, [("h", "text")]), TypeError),
        ((b"a", b"b", 0, [(b"h", b"bytes")]), TypeError),
        ((b"a", b"b", 0, [(None, b"bytes")]), TypeError),
        ((b"a", b"b", 0, (), 0), ValueError),
        ((b"a", b"b", 0, (), 2**31), OverflowError),
    ):
        with pytest.raises(error):
            builder.append(*args)
    builder.append(b"b", b"2", 6)
    assert [r.value for r in iter_records(builder.build())] == [b"1", b"2"]
    with pytest.raises(ValueError, match="compression must be"):
        RecordBatchBuilder(5)
    with pytest.raises(ValueError, match="last_offset_delta must be >= 1"):
        builder.build(0)


def test_what_we_compress_java_can_read() -> None:
    """LZ4 blocks are independent, because Java's reader refuses linked blocks, cramjam's default."""
    data = build_batch([(None, b"x" * 1000)] * 1000, compression=CompressionType.LZ4)
    assert data[61:65] == b"\x04\x22\x4d\x18"
    assert data[65] & 0xE0 == 0x60  # version 01, blocks independent
    data = build_batch([(None, b"x" * 1000)] * 100, compression=CompressionType.SNAPPY)
    assert data[61:77] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def test_compression_names() -> None:
    """Each config value selects its codec, and unknown values are refused."""
    assert [CompressionType.of_config_name(c.config_name) for c in CODECS] == CODECS
    assert CompressionType.of_config_name("none") is CompressionType.NONE
    for bad in ("producer", "LZ4", "", "brotli"):
        with pytest.raises(ValueError, match="unknown compression type"):
            CompressionType.of_config_name(bad)


def test_nothing_is_left_behind() -> None:
    """Reading, refusing and building batches leaks no memory."""

    def work(rounds: int) -> None:
        for _ in range(rounds):
            for codec in CODECS:
                data = build_batch(RECORDS, compression=codec)
                columns(data)
                list(iter_records(data))
                assert refusals(data[:-1])
                assert refusals(reseal(data[:-1]))

    work(50)
    gc.collect()
    blocks = sys.getallocatedblocks()
    work(200)
    gc.collect()
    assert abs(sys.getallocatedblocks() - blocks) < 100


def test_keys_and_values_are_the_batch_that_the_builder_makes() -> None:
    pairs = [(b"key", b"value"), (b"gone", None), (None, memoryview(b"x")), (b"", b"")]
    records = [Record(key, None if value is None else bytes(value), 1000) for key, value in pairs]
    assert key_value_batch(pairs, 1000) == build_batch(records)
    owned = build_batch(records, producer_id=7, producer_epoch=3, base_sequence=0, transactional=True)
    assert key_value_batch(pairs, 1000, 7, 3) == owned
    with pytest.raises(TypeError):
        key_value_batch([(b"key", "text")], 1000)  # type: ignore[list-item]
