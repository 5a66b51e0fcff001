"""Searches in partitions: matches, the next step's offsets, and the limits of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.console import record_scan
from kbroker.console.record_scan import Filters, Scan, Step
from kbroker.decoders.decoders import Decoders
from kbroker.decoders.expression import Expression
from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.records import Record, build_batch
from tests.support.log_files import memory_log

pytest.importorskip("jmespath")

T0 = 1_700_000_000_000
NO_FILTERS = Filters()


class Partition:
    """Log with the interface of a WirePartition."""

    def __init__(self, log: PartitionLog, end: int | None = None) -> None:
        self._log = log
        self.log_start_offset = log.log_start_offset
        self.high_watermark = log.high_watermark if end is None else end
        self.reads = 0

    def until(self, end: int) -> Partition:
        return Partition(self._log, min(end, self.high_watermark))

    def read(self, offset: int, max_bytes: int, *, min_one: bool) -> Any:
        self.reads += 1
        return self._log.read(offset, max_bytes, min_one=min_one)

    def offset_for_timestamp(self, time_ms: int) -> Any:
        return self._log.offset_for_timestamp(time_ms)


@pytest.fixture
def logs() -> Mapping[int, PartitionLog]:
    """Return two partitions with a record for each even and odd second, every tenth second with a header."""
    made = {p: memory_log("t", p, VirtualClock(T0), config={"max.message.bytes": 64 << 20}) for p in (0, 1)}
    for p, log in made.items():
        for batch in range(10):
            rows = []
            for n in range(100):
                second = 2 * (100 * batch + n) + p
                value = b'{"n": %d, "text": "x%d"}' % (second, second)
                rows.append(Record(b"k%d" % p, value, T0 + 1000 * second, [("ten", b"y")] if second % 10 == 0 else []))
            assert log.append(build_batch(rows), api_version=9).error == 0
    return made


def scan(logs: Mapping[int, PartitionLog], filters: Filters = NO_FILTERS, decoders: Decoders | None = None) -> Scan:
    partitions: Any = {p: Partition(log) for p, log in logs.items()}
    return Scan("t", partitions, VirtualClock(T0), filters, decoders)


def seconds(step: Step) -> list[int]:
    return [(one.record.timestamp_ms - T0) // 1000 for one in step.found]


def test_forwards_in_the_order_of_time(logs: Mapping[int, PartitionLog]) -> None:
    """Consecutive steps return each record once."""
    marks, found = {0: 0, 1: 0}, list[int]()
    for _ in range(3):
        step = scan(logs).forward(marks, 7)
        found += seconds(step)
        marks = step.marks
    assert found == list(range(21))
    assert not step.is_complete
    step = scan(logs).forward({0: 995, 1: 999}, 100)
    assert (seconds(step), step.is_complete, step.marks) == (
        [1990, 1992, 1994, 1996, 1998, 1999],
        True,
        {0: 1000, 1: 1000},
    )


def test_backwards_in_the_order_of_time(logs: Mapping[int, PartitionLog]) -> None:
    marks, found = {0: 1000, 1: 1000}, list[int]()
    for _ in range(3):
        step = scan(logs).backward(marks, 7)
        found = seconds(step) + found
        marks = step.marks
    assert found == list(range(2000 - 21, 2000))
    step = scan(logs).backward({0: 2, 1: 1}, 100)
    assert (seconds(step), step.is_complete) == ([0, 1, 2], True)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        (Filters(key="k1"), [1, 3, 5]),
        (Filters(value='"x12'), [12, 120, 121]),
        (Filters(header="ten"), [0, 10, 20]),
        (Filters(header="ten=y", key="k0"), [0, 10, 20]),
        (Filters(header="ten=z"), []),
        (Filters(expression=Expression("value.n >= `1997`")), [1997, 1998, 1999]),
        (Filters(until_ms=T0 + 2000), [0, 1]),
        (Filters(value="nothing"), []),
    ],
)
def test_filters(logs: Mapping[int, PartitionLog], filters: Filters, wanted: Sequence[int]) -> None:
    step = scan(logs, filters).forward({0: 0, 1: 0}, 3)
    assert seconds(step) == wanted
    if len(wanted) < 3:
        assert (step.is_complete, step.looked) == (True, 2000)


def test_backwards_with_a_filter_until_enough_are_found(logs: Mapping[int, PartitionLog]) -> None:
    step = scan(logs, Filters(header="ten")).backward({0: 1000, 1: 1000}, 4)
    assert seconds(step) == [1960, 1970, 1980, 1990]
    again = scan(logs, Filters(header="ten")).backward(step.marks, 2)
    assert seconds(again) == [1940, 1950]


def test_a_filter_sees_decoded_text(logs: Mapping[int, PartitionLog]) -> None:
    decoders = Decoders(value="hex")
    step = scan(logs, Filters(value=b"x1999".hex()), decoders).forward({0: 0, 1: 0}, 5)
    assert seconds(step) == [1999]


def test_a_step_ends_in_time_and_the_next_goes_on(
    logs: Mapping[int, PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with few matches ends and has the number of examined records; no record is examined twice."""
    monkeypatch.setattr(record_scan, "STEP_RECORDS", 300)
    monkeypatch.setattr(record_scan, "CHUNK", 100)
    marks, looked, found = {0: 0, 1: 0}, 0, list[int]()
    for _ in range(20):
        step = scan(logs, Filters(value='"x1999"')).forward(marks, 5)
        assert 0 < step.looked <= 300
        marks, looked, found = step.marks, looked + step.looked, found + seconds(step)
        if step.is_complete:
            break
    assert (looked, found) == (2000, [1999])


def test_the_clock_ends_a_step(logs: Mapping[int, PartitionLog], monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 10_000, 100))
    late: Any = SimpleNamespace(now_ms=lambda: next(times))
    monkeypatch.setattr(record_scan, "CHUNK", 100)
    partitions: Any = {p: Partition(log) for p, log in logs.items()}
    step = Scan("t", partitions, late, Filters(value="nothing")).forward({0: 0, 1: 0}, 5)
    assert (step.is_complete, step.looked) == (False, 100)
    costly = Filters(expression=Expression("value.n == `-1`"))  # each record may take 0.1 s
    step = Scan("t", partitions, late, costly).forward({0: 0, 1: 0}, 5)
    assert (step.is_complete, step.looked) == (False, 2)


def test_records_with_too_many_bytes_are_named(
    logs: Mapping[int, PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_scan, "STEP_BYTES", 1000)
    monkeypatch.setattr("kbroker.console.record_reader.PAGE_BYTES", 500)
    step = scan({0: logs[0]}).backward({0: 1000}, 100)
    assert "are not shown: they have too many bytes for one page" in step.problems[0]
    assert step.marks == {0: 900}


def test_the_first_records_of_all_partitions_are_read_however_late(logs: Mapping[int, PartitionLog]) -> None:
    """Without filters, a page lacks no partition when the machine is busy."""
    times = iter(range(0, 100_000, 1000))
    late: Any = SimpleNamespace(now_ms=lambda: next(times))
    partitions: Any = {p: Partition(log) for p, log in logs.items()}
    asked: list[Mapping[int, int]] = []
    step = Scan("t", partitions, late, NO_FILTERS, read_ahead=asked.append).backward({0: 1000, 1: 1000}, 4)
    assert (seconds(step), step.problems) == ([1996, 1997, 1998, 1999], [])
    assert asked == [{0: 996, 1: 996}]
