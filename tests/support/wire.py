"""Raw Kafka frames, built and read without the broker's codec, including frames that no client library sends."""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, API_VERSIONS = 0, 1, 2, 3, 10, 18
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, DESCRIBE_CONFIGS = 19, 20, 22, 32
CREATE_PARTITIONS, DESCRIBE_CLUSTER = 37, 60
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0x82F63B78 if value & 1 else value >> 1
        table.append(value)
    return table


_CRC = _crc_table()
LONG_BYTES = 1 << 15


@functools.cache
def _compiled_crc32c() -> Callable[[bytes], int] | None:
    """Return aiokafka's function, if installed, for long data: Python code needs 0.1 s for a megabyte."""
    try:
        from aiokafka.record._crecords import crc32c_cython
    except ImportError:
        return None
    found: Callable[[bytes], int] = crc32c_cython
    return found


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of data, computed by code that is independent of the broker's."""
    if len(data) >= LONG_BYTES and (compiled := _compiled_crc32c()) is not None:
        return compiled(data)
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def uvarint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def varint(n: int) -> bytes:
    return uvarint((n << 1) ^ (n >> 63) if n < 0 else n << 1)


def text(value: str | bytes | None) -> bytes:
    """Return a string with its int16 length."""
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">h", len(data)) + data


def compact(value: str) -> bytes:
    """Return a compact string."""
    data = value.encode()
    return uvarint(len(data) + 1) + data


def header(
    key: int, version: int, correlation: int = 1, client_id: str | None = "raw", *, flexible: bool = False
) -> bytes:
    """Return a request header v1, or v2 if flexible."""
    plain = struct.pack(">hhi", key, version, correlation) + text(client_id)
    return plain + b"\0" if flexible else plain


def sized(data: bytes | None) -> bytes:
    """Return bytes with their varint length, as in records."""
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    delta: int,
    value: bytes | None,
    *,
    key: bytes | None = None,
    timestamp_delta: int = 0,
    headers: Sequence[tuple[str, bytes | None]] = (),
    header_count: int | None = None,
) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(delta) + sized(key) + sized(value)
    body += varint(len(headers) if header_count is None else header_count)
    body += b"".join(sized(name.encode()) + sized(data) for name, data in headers)
    return varint(len(body)) + body


def batch(
    values: Sequence[bytes] = (b"value",),
    *,
    records: bytes | None = None,
    base_offset: int = 0,
    length: int | None = None,
    leader_epoch: int = -1,
    magic: int = 2,
    crc: int | None = None,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    timestamp_ms: int | None = None,
    max_timestamp_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    count: int | None = None,
) -> bytes:
    """Return a record batch of format 2; every field can have a wrong value."""
    now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    newest = now if max_timestamp_ms is None else max_timestamp_ms
    body = b"".join(record(i, v) for i, v in enumerate(values)) if records is None else records
    number = len(values) if count is None else count
    last = len(values) - 1 if last_offset_delta is None else last_offset_delta
    producer = (producer_id, producer_epoch, base_sequence)
    checked = struct.pack(">hiqqqhii", attributes, last, now, newest, *producer, number) + body
    whole = 4 + 1 + 4 + len(checked) if length is None else length
    found = crc32c(checked) if crc is None else crc
    return struct.pack(">qiibI", base_offset, whole, leader_epoch, magic, found) + checked


def split(records: bytes) -> list[bytes]:
    """Return the whole batches of a read; an incomplete last batch is left out."""
    found = []
    while len(records) >= 61:
        size = int.from_bytes(records[8:12], "big") + 12
        if size > len(records):
            break
        found.append(records[:size])
        records = records[size:]
    return found


def offset_after(data: bytes) -> int:
    """Return the offset after the last record of a batch."""
    base, delta = struct.unpack_from(">q15xi", data)
    return int(base + delta + 1)


def produce(topic: str, partition: int, records: bytes | None, **how: Any) -> bytes:
    """Return a Produce request, v3 to v8, for one partition."""
    return produce_to(topic, [partition], records, **how)


def produce_to(
    topic: str,
    partitions: Sequence[int],
    records: bytes | None,
    *,
    acks: int = 1,
    version: int = 7,
    transactional_id: str | None = None,
) -> bytes:
    """Return a Produce request, v3 to v8, with the same records for several partitions."""
    data = struct.pack(">i", -1) if records is None else struct.pack(">i", len(records)) + records
    return (
        header(PRODUCE, version)
        + text(transactional_id)
        + struct.pack(">hii", acks, 30000, 1)
        + text(topic)
        + struct.pack(">i", len(partitions))
        + b"".join(struct.pack(">i", partition) + data for partition in partitions)
    )


def fetch(
    topic: str,
    partitions: Iterable[int] = (0,),
    *,
    offset: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    session: tuple[int, int] | None = None,
    isolation: int = 0,
) -> bytes:
    """Return a Fetch request for partitions of one topic: v4, or v7 with the id and epoch of a session."""
    limits = struct.pack(">iiiib", -1, max_wait_ms, min_bytes, max_bytes, isolation)
    if session is None:
        entries = [struct.pack(">iqi", p, offset, partition_max_bytes) for p in partitions]
    else:
        entries = [struct.pack(">iqqi", p, offset, -1, partition_max_bytes) for p in partitions]
        limits += struct.pack(">ii", *session)
    return (
        header(FETCH, 4 if session is None else 7)
        + limits
        + struct.pack(">i", 1)
        + text(topic)
        + struct.pack(">i", len(entries))
        + b"".join(entries)
        + (b"" if session is None else struct.pack(">i", 0))
    )


def list_offsets(topic: str, partition: int, timestamp_ms: int) -> bytes:
    """Return a ListOffsets request v1; a timestamp of -1 looks up the end offset, -2 the log start offset."""
    return (
        header(LIST_OFFSETS, 1)
        + struct.pack(">ii", -1, 1)
        + text(topic)
        + struct.pack(">iiq", 1, partition, timestamp_ms)
    )


def create_topic(
    name: str | bytes,
    partitions: int,
    replication_factor: int = 1,
    timeout_ms: int = 10000,
    configs: Mapping[str, str] | None = None,
) -> bytes:
    """Return a CreateTopics request v2."""
    given = configs or {}
    return (
        header(CREATE_TOPICS, 2)
        + struct.pack(">i", 1)
        + text(name)
        + struct.pack(">ihii", partitions, replication_factor, 0, len(given))
        + b"".join(text(part) for row in given.items() for part in row)
        + struct.pack(">ib", timeout_ms, 0)
    )


class Closed(Exception):
    """The broker closed the connection."""


class Connection:
    """Socket that sends and receives frames."""

    def __init__(self, bootstrap: str, timeout: float = 10.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self.socket.settimeout(timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send_raw(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError):
            raise Closed from None

    def send(self, request: bytes) -> None:
        """Send one request with its length prefix."""
        self.send_raw(struct.pack(">i", len(request)) + request)

    def _exactly(self, size: int) -> bytes:
        parts, have = [], 0
        while have < size:
            try:
                part = self.socket.recv(min(size - have, 1 << 20))
            except (ConnectionResetError, BrokenPipeError):
                raise Closed from None
            if not part:
                raise Closed
            parts.append(part)
            have += len(part)
        return b"".join(parts)

    def receive(self) -> bytes:
        """Return the next response without its length; the correlation id is its first four bytes."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def ask(self, request: bytes) -> bytes:
        self.send(request)
        return self.receive()

    def is_closed_within(self, seconds: float) -> bool:
        """Return True if the broker closes the connection in time; data before that is discarded."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(1 << 16):
                    return True
            except ConnectionError:
                return True
            except TimeoutError:
                return False
        return False


@contextlib.contextmanager
def crowd(bootstrap: str, count: int) -> Iterator[list[Connection]]:
    """Open many connections, and close them together at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Connection(bootstrap)) for _ in range(count)]


@dataclass(frozen=True)
class Produced:
    error_code: int
    base_offset: int


def produced(response: bytes) -> Produced:
    """Read the response to `produce` (v3-v8)."""
    (length,) = struct.unpack_from(">h", response, 8)
    _, _, error_code, base_offset = struct.unpack_from(">iihq", response, 10 + length)
    return Produced(error_code, base_offset)


@dataclass(frozen=True)
class Fetched:
    error_code: int
    high_watermark: int
    records: bytes

    def batches(self) -> list[tuple[int, int, int, int]]:
        """Return base offset, codec, record count and max timestamp of each complete batch."""
        rows = [struct.unpack_from(">q13xh12xq14xi", one) for one in split(self.records)]
        return [(base, attributes & 7, count, newest_ms) for base, attributes, newest_ms, count in rows]


def fetched(response: bytes) -> Fetched:
    """Read the first partition of the response to `fetch` (v4)."""
    (length,) = struct.unpack_from(">h", response, 12)
    at = 14 + length + 4
    _, error_code, high_watermark, _, aborted = struct.unpack_from(">ihqqi", response, at)
    at += 26 + max(aborted, 0) * 16
    (size,) = struct.unpack_from(">i", response, at)
    return Fetched(error_code, high_watermark, response[at + 4 : at + 4 + max(size, 0)])


def first_topic_error(response: bytes) -> int:
    """Return the error code of the first topic in a response to CreateTopics v2-v4."""
    (length,) = struct.unpack_from(">h", response, 12)
    (code,) = struct.unpack_from(">h", response, 14 + length)
    return int(code)


def ranges(bootstrap: str) -> dict[int, tuple[int, int]]:
    """Return the advertised version range of each API key."""
    with Connection(bootstrap) as connection:
        response = connection.ask(header(API_VERSIONS, 0))
    error, count = struct.unpack_from(">hi", response, 4)
    assert error == 0
    return {k: (low, high) for k, low, high in struct.iter_unpack(">hhh", response[10 : 10 + 6 * count])}


def responses(bootstrap: str, within: float = 1.0) -> bool:
    """Return whether ApiVersions receives a response without an error on a new connection in time."""
    try:
        with Connection(bootstrap, timeout=within) as connection:
            response = connection.ask(header(API_VERSIONS, 0, 77))
    except (OSError, Closed):
        return False
    return struct.unpack_from(">ih", response) == (77, 0)


def end_offset(bootstrap: str, topic: str, partition: int = 0) -> int:
    """Return the offset that the next record will get."""
    with Connection(bootstrap) as connection:
        response = connection.ask(list_offsets(topic, partition, -1))
    (length,) = struct.unpack_from(">h", response, 8)
    _, _, error, _, offset = struct.unpack_from(">iihqq", response, 10 + length)
    assert error == 0, f"ListOffsets of {topic}-{partition}: error {error}"
    return int(offset)


def is_ready(bootstrap: str, topic: str, partition: int = 0) -> bool:
    """Return whether a created partition has a leader; other brokers need a moment to elect it."""
    try:
        end_offset(bootstrap, topic, partition)
    except AssertionError:
        return False
    return True
