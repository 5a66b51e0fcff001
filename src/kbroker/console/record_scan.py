"""Search for records in partitions, forwards or backwards, in steps that are limited in time and bytes."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.console.record_reader import LogRecord, read_records
from kbroker.console.wire_partition import WirePartition
from kbroker.decoders.decoders import DecodedRecord, Decoders
from kbroker.decoders.expression import Expression

STEP_MS = 150  # maximum time of one step; the chunk that exceeds it is the last
STEP_BYTES = 32 << 20  # maximum size of keys and values of one step
STEP_RECORDS = 200_000
CHUNK = 5000  # maximum number of records of one read
_LOOK_AT_CLOCK = 64  # records between two reads of the clock; it is also read for each decoded record
FIRST_WINDOW = 500  # offsets of the first window backwards; each next window is twice as long, up to CHUNK
DECODED_BYTES = 1 << 20  # a longer key or value is not decoded, and filters examine its beginning


class Match(NamedTuple):
    """A record that was found. ``decoded``: None if it was not decoded."""

    partition: int
    record: LogRecord
    decoded: DecodedRecord | None

    @property
    def decoded_whole(self) -> DecodedRecord | None:
        """Return the decoded record; None if it was not decoded, or only the beginning of its key or value was."""
        return self.decoded if max(self.record.key_bytes, self.record.value_bytes) <= DECODED_BYTES else None


class Filters(NamedTuple):
    """Conditions of a search; empty ones are true for each record.

    ``key``, ``value``: text that the bytes or their decoded text contain; ``header``: NAME or NAME=TEXT;
    ``until_ms``: time before which the record was created.
    """

    key: str = ""
    value: str = ""
    header: str = ""
    expression: Expression | None = None
    until_ms: int | None = None

    @property
    def are_set(self) -> bool:
        """Return whether a record may fail a condition."""
        return bool(self.key or self.value or self.header or self.expression or self.until_ms is not None)


class Step(NamedTuple):
    """Result of one step.

    ``found``: in the order of time; ``marks``: per partition, the offset where the next step begins (backwards: before
    which it ends); ``looked``: number of examined records; ``is_complete``: nothing is left in this direction;
    ``problems``: sentences about records that were left out.
    """

    found: list[Match]
    marks: dict[int, int]
    looked: int
    is_complete: bool
    problems: list[str]


class Scan:
    """Search in partitions of one topic.

    Args: ``decoders``: None to decode nothing, unless a filter needs it; ``clock``: measures STEP_MS;
    ``read_ahead``: requests the records of several partitions at once, before each is read; ``value_bytes``: maximum
    length of keys and values; the rest is cut off.
    Raises (from the steps): KafkaError, BrokerConnectionError, ExpressionError, MissingPackageError.
    """

    def __init__(
        self,
        topic: str,
        partitions: Mapping[int, WirePartition],
        clock: BaseClock,
        filters: Filters,
        decoders: Decoders | None = None,
        read_ahead: Callable[[Mapping[int, int]], None] = lambda offsets: None,
        value_bytes: int = DECODED_BYTES,
    ) -> None:
        self._topic, self._partitions, self._clock, self._filters = topic, partitions, clock, filters
        self._decoders = decoders or (Decoders() if filters.expression is not None else None)
        self._read_ahead, self._value_bytes = read_ahead, value_bytes
        self._reset()

    def _reset(self) -> None:
        self._rounds, self._looked, self._bytes = 0, 0, 0
        self._deadline_ms = self._clock.now_ms() + STEP_MS
        self._problems: list[str] = []

    def _has_ended(self) -> bool:
        return self._looked >= STEP_RECORDS or self._bytes >= STEP_BYTES or self._clock.now_ms() >= self._deadline_ms

    def _goes_on(self, found: Mapping[int, list[Match]], count: int) -> bool:
        """Count a round, and return whether it begins; the first one always does."""
        self._rounds += 1
        return self._rounds == 1 or (sum(map(len, found.values())) < count and not self._has_ended())

    def _ends_round(self, left: int) -> bool:
        """Return whether the step ends although partitions are left; note as a problem that they were not read.

        Without filters only STEP_BYTES ends it early: the result has the first records of all partitions.
        """
        if self._filters.are_set:
            return self._has_ended()
        if left and self._bytes >= STEP_BYTES:
            self._problems.append(
                f"{left} more partitions were not read: the records have too many bytes for one page."
            )
            return True
        return False

    def forward(self, positions: Mapping[int, int], count: int) -> Step:
        """Return the first ``count`` matches from positions on."""
        self._reset()
        marks = {p: max(at, self._partitions[p].log_start_offset) for p, at in positions.items()}
        found: dict[int, list[Match]] = {p: [] for p in marks}
        size = CHUNK if self._filters.are_set else count
        has_moved = True
        while has_moved and self._goes_on(found, count):
            has_moved = False
            active = [p for p, at in marks.items() if at < self._partitions[p].high_watermark]
            self._read_ahead({p: marks[p] for p in active})
            for number, p in enumerate(active):
                records, after = self._read(p, self._partitions[p], marks[p], size)
                left = self._examine(p, records, found[p], count)
                after = after if left is None else left.offset
                has_moved = has_moved or after > marks[p]
                marks[p] = after
                if self._ends_round(len(active) - number - 1):
                    break
        chosen, left_out = _first(found, count, lambda one: one.record.timestamp_ms)
        marks |= {one.partition: one.record.offset for one in left_out}
        ends = all(at >= self._partitions[p].high_watermark for p, at in marks.items())
        return self._step(chosen, marks, ends)

    def backward(self, ends: Mapping[int, int], count: int) -> Step:
        """Return the last ``count`` matches before offsets."""
        self._reset()
        marks = {p: min(at, self._partitions[p].high_watermark) for p, at in ends.items()}
        found: dict[int, list[Match]] = {p: [] for p in marks}  # the latest first
        width = FIRST_WINDOW if self._filters.are_set else count
        while self._goes_on(found, count):
            active = [p for p, at in marks.items() if at > self._partitions[p].log_start_offset]
            if not active:
                break
            starts = {p: max(self._partitions[p].log_start_offset, marks[p] - width) for p in active}
            self._read_ahead(starts)
            for number, (p, start) in enumerate(starts.items()):
                left = self._examine(p, self._window(p, start, marks[p])[::-1], found[p], count)
                marks[p] = start if left is None else left.offset + 1
                if self._ends_round(len(active) - number - 1):
                    break
            width = min(2 * width, CHUNK)
        chosen, left_out = _first(found, count, lambda one: -one.record.timestamp_ms)
        marks |= {one.partition: one.record.offset + 1 for one in left_out}
        are_at_start = all(at <= self._partitions[p].log_start_offset for p, at in marks.items())
        return self._step(chosen[::-1], marks, are_at_start)

    def _step(self, found: list[Match], marks: dict[int, int], is_complete: bool) -> Step:
        return Step(found, marks, self._looked, is_complete, self._problems)

    def _window(self, partition: int, start: int, end: int) -> list[LogRecord]:
        """Return the records between two offsets; those beyond STEP_BYTES are left out and noted as a problem."""
        log, found = self._partitions[partition].until(end), list[LogRecord]()
        while start < end:
            records, after = self._read(partition, log, start, end - start)
            found += records
            if after >= end:
                break
            if self._bytes >= STEP_BYTES or after <= start:
                self._problems.append(
                    f"Records of partition {partition} from offset {after:,} to {end - 1:,} are not shown: they have "
                    "too many bytes for one page. Show them from that offset."
                )
                break
            start = after
        return found

    def _read(self, partition: int, log: WirePartition, offset: int, count: int) -> tuple[Sequence[LogRecord], int]:
        found = read_records(log, offset, count, self._value_bytes)
        if found.problem:
            self._problems.append(f"Partition {partition}: {found.problem}")
        self._bytes += sum(len(one.key or b"") + len(one.value or b"") for one in found.records)
        return found.records, found.next_offset

    def _examine(
        self, partition: int, records: Sequence[LogRecord], found: list[Match], count: int
    ) -> LogRecord | None:
        """Add the matches among records; return the first one that was not examined, None if all were.

        At least one is examined; the search ends when there are enough matches, or when the time of the step is over.
        """
        look = _LOOK_AT_CLOCK if self._decoders is None else 1
        for number, record in enumerate(records):
            if number and (len(found) >= count or (number % look == 0 and self._ends_round(0))):
                return record
            self._looked += 1
            match = self._match(partition, record)
            if match is not None:
                found.append(match)
        return None

    def _match(self, partition: int, record: LogRecord) -> Match | None:
        filters = self._filters
        if filters.until_ms is not None and record.timestamp_ms >= filters.until_ms:
            return None
        if filters.header and not _has_header(record, filters.header):
            return None
        decoded = None
        if self._decoders is not None:
            decoded = decoded_record(self._decoders, self._topic, partition, record)
        key = None if decoded is None or decoded.key is None else decoded.key.text
        value = None if decoded is None or decoded.value is None else decoded.value.text
        if filters.key and not _contains(filters.key, record.key, key):
            return None
        if filters.value and not _contains(filters.value, record.value, value):
            return None
        if filters.expression is not None and decoded is not None and not filters.expression.matches(decoded):
            return None
        return Match(partition, record, decoded)


def decoded_record(decoders: Decoders, topic: str, partition: int, record: LogRecord) -> DecodedRecord:
    """Return a record of a log, decoded; of longer keys and values only the first DECODED_BYTES."""
    headers = [(name.decode("utf-8", "replace"), value) for name, value in record.headers]
    key, value = (None if data is None else data[:DECODED_BYTES] for data in (record.key, record.value))
    return decoders.record(topic, partition, record.offset, record.timestamp_ms, key, value, headers)


def _first(
    found: Mapping[int, list[Match]], count: int, order: Callable[[Match], int]
) -> tuple[list[Match], list[Match]]:
    """Return the first matches of all partitions, and the next one of each partition that has more.

    Those of each partition stay in their own order.
    """
    chosen = list(islice(heapq.merge(*found.values(), key=order), count))
    taken = Counter(one.partition for one in chosen)
    return chosen, [matches[taken[p]] for p, matches in found.items() if taken[p] < len(matches)]


def _contains(wanted: str, data: bytes | None, text: str | None) -> bool:
    return data is not None and (wanted.encode() in data or (text is not None and wanted in text))


def _has_header(record: LogRecord, wanted: str) -> bool:
    name, equals, text = wanted.partition("=")
    return any(
        found == name.encode() and (not equals or (value is not None and text.encode() in value))
        for found, value in record.headers
    )
