"""Hostile frames: the name, the bytes and the required fate of each, which is the same with Apache Kafka.

A fate is `closed` (the broker closes the connection), `waits` (the connection stays open for more bytes), `response`,
or `any` (the broker may respond or close the connection; only its health is checked).
"""

import struct
from dataclasses import dataclass

from tests.support import wire
from tests.support.wire import header, text, uvarint

LIMIT = 100 * 1024 * 1024  # socket.request.max.bytes
BILLIONS = 2**31 - 1


@dataclass(frozen=True)
class Frame:
    """Bytes to send unchanged, with or without a length prefix, and the fate of the connection."""

    name: str
    data: bytes
    fate: str


def framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


def sizes() -> list[Frame]:
    """Return frames with wrong lengths, each alone and followed by bytes."""
    found = []
    for name, size, fate in [
        ("-1", -1, "closed"),
        ("min int32", -(2**31), "closed"),
        ("limit + 1", LIMIT + 1, "closed"),
        ("1.5 GB", 1_500_000_000, "closed"),
        ("2^31-1", BILLIONS, "closed"),
        ("the limit", LIMIT, "waits"),
    ]:
        prefix = struct.pack(">i", size)
        found += [Frame(f"size {name}", prefix, fate), Frame(f"size {name}, bytes follow", prefix + b"x" * 64, fate)]
    found += [
        Frame("size 0", struct.pack(">i", 0), "closed"),
        Frame("size 3", struct.pack(">i", 3) + b"\0\x12\0", "closed"),
        Frame("half a length", b"\0\0", "waits"),
        Frame("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "closed"),
        Frame("TLS hello", bytes.fromhex("16030100c8010000c40303") + bytes(190), "closed"),
        Frame("SSH banner", b"SSH-2.0-OpenSSH_9.2\r\n", "closed"),
        Frame("two megabytes of 0xff", b"\xff" * (1 << 21), "closed"),
    ]
    return found


def headers() -> list[Frame]:
    """Return frames with headers that no client sends."""
    return [
        Frame("API key 999", framed(header(999, 0)), "closed"),
        Frame("API key -1", framed(header(-1, 0)), "closed"),
        Frame("API key 32767", framed(header(32767, 0)), "closed"),
        Frame("client id past the frame", framed(struct.pack(">hhih", 18, 0, 1, 32767) + b"x"), "closed"),
        Frame("client id of length -2", framed(struct.pack(">hhih", 18, 0, 1, -2)), "response"),
        Frame("client id of 30 KB", framed(header(18, 0, 1, "x" * 30000)), "response"),
        Frame("header ends after the key", framed(struct.pack(">h", 18)), "closed"),
        Frame("header without client id", framed(struct.pack(">hhi", 3, 1, 1)), "closed"),
        Frame("20 million header tags, none there", framed(header(18, 3) + uvarint(20_000_000)), "closed"),
        Frame("tag count of 2^32-1", framed(header(18, 3) + b"\xff\xff\xff\xff\x0f"), "closed"),
        Frame("tag count in ten bytes", framed(header(18, 3) + b"\xff" * 9 + b"\x01"), "closed"),
        Frame(
            "tag longer than the frame",
            framed(header(18, 3) + uvarint(1) + uvarint(5) + uvarint(1000) + b"x"),
            "closed",
        ),
        Frame("tag twice", framed(header(18, 3) + uvarint(2) + b"\x05\x00\x05\x00" + b"\x02a\x02b\x00"), "any"),
        Frame("tags out of order", framed(header(18, 3) + uvarint(2) + b"\x09\x00\x05\x00" + b"\x02a\x02b\x00"), "any"),
        Frame("zeros", framed(bytes(40)), "closed"),
    ]


def million_tags() -> Frame:
    """Return a frame with 1.5 million tags, for which the broker must not allocate several times their size."""
    tags = b"".join(uvarint(i) + b"\0" for i in range(1_500_000))
    return Frame(
        "1.5 million header tags", framed(header(18, 3) + uvarint(1_500_000) + tags + b"\x02a\x02b\x00"), "any"
    )


def versions(ranges: dict[int, tuple[int, int]]) -> list[Frame]:
    """Return a request of every advertised API for each of three versions outside the API's range."""
    found = []
    for key, (_, high) in sorted(ranges.items()):
        for version in (-1, high + 1, 32767):
            request = header(key, version, flexible=True) + bytes(8)
            fate = "response" if key == wire.API_VERSIONS else "closed"
            found.append(Frame(f"key {key} version {version}", framed(request), fate))
    return found


def i32(n: int) -> bytes:
    return struct.pack(">i", n)


def transactions() -> list[Frame]:
    """Return frames of the transaction APIs: wrong array lengths, the longest names, numbers at their limits."""
    who = text("t" * 32767) + struct.pack(">qh", -(2**63), -32768)
    billions = uvarint(BILLIONS + 1)
    longest = uvarint(32769) + b"t" * 32768
    return [
        Frame("AddPartitionsToTxn: 2^31-1 topics", framed(header(24, 0) + who + i32(BILLIONS)), "closed"),
        Frame(
            "AddPartitionsToTxn: 2^31-1 partitions",
            framed(header(24, 0) + who + i32(1) + text("x") + i32(BILLIONS)),
            "closed",
        ),
        Frame("AddPartitionsToTxn: no topics, unknown id", framed(header(24, 0) + who + i32(0)), "response"),
        Frame("AddPartitionsToTxn: 2^31-1 transactions", framed(header(24, 5, flexible=True) + billions), "closed"),
        Frame("AddOffsetsToTxn: unknown id", framed(header(25, 0) + who + text("")), "response"),
        Frame("EndTxn: unknown id", framed(header(26, 0) + who + b"\x01"), "response"),
        Frame("EndTxn: ends early", framed(header(26, 0) + who), "closed"),
        Frame("EndTxn: name of 32 KiB", framed(header(26, 5, flexible=True) + longest + bytes(12)), "any"),
        Frame("WriteTxnMarkers: 2^31-1 markers", framed(header(27, 1, flexible=True) + billions), "closed"),
        Frame("WriteTxnMarkers: none", framed(header(27, 1, flexible=True) + b"\x01\x00"), "response"),
        Frame("DescribeTransactions: 2^31-1 names", framed(header(65, 0, flexible=True) + billions), "closed"),
        Frame("ListTransactions: 2^31-1 states", framed(header(66, 0, flexible=True) + billions), "closed"),
        Frame(
            "ListTransactions: a pattern that backtracks",
            framed(header(66, 2, flexible=True) + b"\x01\x01" + struct.pack(">q", -1) + b"\x07(a*)*b" + b"\x00"),
            "response",
        ),
        Frame(
            "InitProducerId: name of 32 KiB",
            framed(header(22, 4, flexible=True) + longest + struct.pack(">iqh", 1000, -1, -1) + b"\x00"),
            "any",
        ),
    ]


def long_names() -> list[Frame]:
    """Return frames with names one byte longer than Kafka accepts, which the native handlers decode."""
    longest = uvarint(32769) + b"t" * 32768
    one_topic = b"\x02" + longest + b"\x01\x00"
    fetch = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, -1)
    return [
        Frame("Produce: topic", framed(header(0, 9, flexible=True) + b"\0" + bytes(6) + one_topic + b"\0"), "closed"),
        Frame(
            "Produce: transactional id",
            framed(header(0, 9, flexible=True) + longest + bytes(6) + b"\x01\x00"),
            "closed",
        ),
        Frame("Fetch: topic", framed(header(1, 12, flexible=True) + fetch + one_topic + b"\x01\x01\x00"), "closed"),
        Frame(
            "Fetch: forgotten topic",
            framed(header(1, 12, flexible=True) + fetch + b"\x01" + one_topic + b"\x01\x00"),
            "closed",
        ),
        Frame("Fetch: rack", framed(header(1, 12, flexible=True) + fetch + b"\x01\x01" + longest + b"\0"), "closed"),
        Frame("ListOffsets: topic", framed(header(2, 6, flexible=True) + bytes(5) + one_topic + b"\0"), "closed"),
        Frame(
            "CreateAcls: principal of 1 MB",
            framed(header(30, 3, flexible=True) + b"\x02\x02\x02t\x03" + uvarint((1 << 20) + 1) + b"p" * (1 << 20)),
            "closed",
        ),
    ]


def bodies(topic: str) -> list[Frame]:
    """Return requests whose arrays, strings and varints have wrong lengths."""
    metadata0, metadata9 = header(3, 1), header(3, 9, flexible=True)
    produce_head = header(0, 7) + text(None) + struct.pack(">hi", 1, 1000)
    fetch_head = header(1, 4) + struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0)
    frames = [
        Frame("Metadata: array of -2", framed(metadata0 + i32(-2)), "any"),
        Frame("Metadata: 2^31-1 topics", framed(metadata0 + i32(BILLIONS)), "closed"),
        Frame("Metadata v0: null array", framed(header(3, 0) + i32(-1)), "closed"),
        Frame("Metadata: more topics than bytes", framed(metadata0 + i32(1000) + text("a")), "closed"),
        Frame(
            "Metadata: topic name past the frame", framed(metadata0 + i32(1) + struct.pack(">h", 3000) + b"a"), "closed"
        ),
        Frame("Metadata: topic name of length -5", framed(metadata0 + i32(1) + struct.pack(">h", -5)), "closed"),
        Frame("Metadata: null topic name", framed(metadata0 + i32(1) + struct.pack(">h", -1)), "closed"),
        Frame("Metadata: bytes that are not UTF-8", framed(metadata0 + i32(1) + text(b"\xff\xfe\xc3")), "any"),
        Frame("Metadata v9: varint of five bytes", framed(metadata9 + b"\xff\xff\xff\xff\x0f"), "closed"),
        Frame("Metadata v9: varint of ten bytes", framed(metadata9 + b"\xff" * 9 + b"\x01"), "closed"),
        Frame("Metadata v9: varint without end", framed(metadata9 + b"\xff\xff"), "closed"),
        Frame("Metadata v9: non-minimal varint", framed(metadata9 + b"\x81\x80\x00\x00\x00\x00\x00"), "any"),
        Frame("Metadata v9: 20 million tags", framed(metadata9 + b"\x01\x00\x00\x00" + uvarint(20_000_000)), "closed"),
        Frame("ApiVersions with trailing bytes", framed(header(18, 0) + bytes(100)), "any"),
        Frame("Metadata with trailing bytes", framed(metadata0 + i32(0) + bytes(100)), "any"),
        Frame("Produce: -2 topics", framed(produce_head + i32(-2)), "closed"),
        Frame("Produce: null topics", framed(produce_head + i32(-1)), "closed"),
        Frame("Produce: 2^31-1 topics", framed(produce_head + i32(BILLIONS)), "closed"),
        Frame("Produce: 2^31-1 partitions", framed(produce_head + i32(1) + text(topic) + i32(BILLIONS)), "closed"),
        Frame(
            "Produce: records longer than the frame",
            framed(produce_head + i32(1) + text(topic) + i32(1) + i32(0) + i32(BILLIONS) + b"x"),
            "closed",
        ),
        Frame(
            "Produce: records of size -7",
            framed(produce_head + i32(1) + text(topic) + i32(1) + i32(0) + i32(-7)),
            "any",
        ),
        Frame("Produce: ends in the header", framed(header(0, 7) + b"\xff"), "closed"),
        Frame("Fetch: 2^31-1 topics", framed(fetch_head + i32(BILLIONS)), "closed"),
        Frame("Fetch: null topics", framed(fetch_head + i32(-1)), "closed"),
        Frame("Fetch: 2^31-1 partitions", framed(fetch_head + i32(1) + text(topic) + i32(BILLIONS)), "closed"),
        Frame(
            "Fetch: topic name past the frame", framed(fetch_head + i32(1) + struct.pack(">h", 999) + b"a"), "closed"
        ),
        Frame("ListOffsets: 2^31-1 topics", framed(header(2, 1) + i32(-1) + i32(BILLIONS)), "closed"),
        Frame("CreateTopics: 2^31-1 topics", framed(header(19, 2) + i32(BILLIONS)), "closed"),
        Frame(
            "CreateTopics: 2^31-1 configs",
            framed(header(19, 2) + i32(1) + text("x") + struct.pack(">ihii", 1, 1, 0, BILLIONS)),
            "closed",
        ),
        Frame("DeleteTopics: 2^31-1 names", framed(header(20, 1) + i32(BILLIONS)), "closed"),
        Frame("DescribeConfigs: 2^31-1 resources", framed(header(32, 1) + i32(BILLIONS)), "closed"),
        Frame(
            "DescribeConfigs: resource type 99",
            framed(header(32, 1) + i32(1) + b"\x63" + text("x") + i32(-1) + b"\0"),
            "any",
        ),
        Frame(
            "DescribeConfigs: a name of NUL and newline",
            framed(header(32, 1) + i32(1) + b"\x02" + text("\0\n../../etc") + i32(-1) + b"\0"),
            "response",
        ),
        Frame("CreatePartitions: 2^31-1 topics", framed(header(37, 0) + i32(BILLIONS)), "closed"),
        Frame(
            "InitProducerId: transactional id of 32 KB", framed(header(22, 0) + text("t" * 32000) + i32(60000)), "any"
        ),
        *transactions(),
        *long_names(),
        Frame("InitProducerId: ends early", framed(header(22, 0) + struct.pack(">h", 100)), "closed"),
    ]
    return frames


@dataclass(frozen=True)
class BadBatch:
    """Records of one Produce request and its allowed error codes; with any code but 0 nothing may be appended."""

    name: str
    records: bytes | None
    codes: tuple[int, ...]


CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TXN_STATE_CODES, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD = (
    2,
    10,
    (48, 53),
    76,
    87,
)
# Kafka responds with -1 if its validation throws an unexpected exception. The comparison suites check the exact codes
# of the other batches; here any refusal is accepted.
REFUSED = (-1, CORRUPT_MESSAGE, INVALID_RECORD)
OLD_FORMAT = (*REFUSED, 35, 43)


def bad_batches() -> list[BadBatch]:
    """Return record batches with wrong fields."""
    good = wire.batch([b"one", b"two"])
    old = struct.pack(">qi", 0, 14 + 4) + bytes(18)
    return [
        BadBatch("wrong CRC", wire.batch(crc=12345), (CORRUPT_MESSAGE,)),
        BadBatch("magic 3", wire.batch(magic=3), REFUSED),
        BadBatch("magic 0", wire.batch(magic=0), OLD_FORMAT),
        BadBatch("magic 1", wire.batch(magic=1), OLD_FORMAT),
        BadBatch("an old message set", old, OLD_FORMAT),
        BadBatch("magic -1", wire.batch(magic=-1), REFUSED),
        BadBatch("2^31-1 records claimed", wire.batch(count=BILLIONS), REFUSED),
        BadBatch("no record claimed", wire.batch(count=0), REFUSED),
        BadBatch("-5 records claimed", wire.batch(count=-5), REFUSED),
        BadBatch("batch length 0", wire.batch(length=0), REFUSED),
        BadBatch("batch length -1", wire.batch(length=-1), REFUSED),
        BadBatch("batch length 2^31-1", wire.batch(length=BILLIONS), REFUSED),
        BadBatch("last offset delta too small", wire.batch([b"a", b"b"], last_offset_delta=0), REFUSED),
        BadBatch("last offset delta too large", wire.batch([b"a"], last_offset_delta=9), REFUSED),
        BadBatch("codec 7", wire.batch(attributes=7), (*REFUSED, UNSUPPORTED_COMPRESSION_TYPE)),
        BadBatch("control bit", wire.batch(attributes=0x20), REFUSED),
        BadBatch("gzip of other bytes", wire.batch(attributes=1), REFUSED),
        BadBatch("zstd of other bytes", wire.batch(attributes=4), REFUSED),
        BadBatch(
            "two billion headers", wire.batch([b"a"], records=wire.record(0, b"a", header_count=BILLIONS)), REFUSED
        ),
        BadBatch("record longer than the batch", wire.batch([b"a"], records=wire.varint(5000) + b"\0\0\0"), REFUSED),
        BadBatch("record of length -1", wire.batch([b"a"], records=wire.varint(-1)), REFUSED),
        BadBatch("records missing", wire.batch([b"a"], records=b""), REFUSED),
        BadBatch(
            "offset deltas out of order",
            wire.batch([b"a", b"b"], records=wire.record(1, b"a") + wire.record(0, b"b")),
            (0, *REFUSED),
        ),
        BadBatch("two batches", good + good, REFUSED),
        BadBatch("half a batch", good[:40], REFUSED),
        BadBatch("a batch of zeros", bytes(100), REFUSED),
        BadBatch("base offset 77", wire.batch(base_offset=77), REFUSED),
        BadBatch("base offset -1", wire.batch(base_offset=-1), REFUSED),
        BadBatch("too large", wire.batch([bytes(1_100_000)]), (MESSAGE_TOO_LARGE,)),
        BadBatch(
            "an unknown producer's epoch -1",
            wire.batch(producer_id=55, producer_epoch=-1, base_sequence=0),
            (0, *REFUSED, 47),
        ),
        BadBatch("transactional bit alone", wire.batch(attributes=0x10), (*REFUSED, *INVALID_TXN_STATE_CODES)),
    ]
