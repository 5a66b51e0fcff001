"""Limits, splits, and the source offset in a checkpoint."""

import json
from bisect import bisect_left
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.datasource.offsets import INITIAL_OFFSET, SourceOffset, is_initial
from kbroker.spark.datasource.planning import OffsetRange, limited, limited_by_time, split
from kbroker.spark.errors import PipelineError

Offsets = dict[tuple[str, int], int]
A, B, C = ("t", 0), ("t", 1), ("u", 0)


@pytest.mark.parametrize(
    ("limit", "begins", "ends", "found"),
    [
        (300, {A: 0, B: 50}, {A: 900, B: 150}, {A: 270, B: 80}),  # in proportion to the available offsets
        (10, {A: 0, B: 0}, {A: 100_000, B: 1}, {A: 9, B: 1}),  # a share below one offset is one offset
        (10, {A: 0, B: 5}, {A: 9, B: 5}, {A: 9, B: 5}),  # fewer offsets than the limit
    ],
)
def test_a_limit_is_divided(limit: int, begins: Offsets, ends: Offsets, found: Offsets) -> None:
    assert limited(limit, begins, ends) == found


@given(st.lists(st.lists(st.integers(0, 1 << 41), max_size=30).map(sorted), min_size=1, max_size=4), st.integers(1, 40))
def test_a_limit_by_time_cuts_all_partitions_at_one_time(times: list[list[int]], limit: int) -> None:
    """Each batch ends at a later time, and exceeds its limit only by records of one millisecond."""
    partitions = {("t", number): one for number, one in enumerate(times)}
    begins, ends = dict.fromkeys(partitions, 0), {tp: len(one) for tp, one in partitions.items()}
    since_ms = 0
    while sum(ends.values()) - sum(begins.values()) > limit:

        def ends_at(time_ms: int, begins: Offsets = begins) -> Offsets:
            return {tp: max(begins[tp], bisect_left(one, time_ms)) for tp, one in partitions.items()}

        found, since_ms = limited_by_time(limit, begins, ends, ends_at, since_ms)
        assert found == ends_at(since_ms)
        taken = [time for tp, one in partitions.items() for time in one[begins[tp] : found[tp]]]
        assert taken
        assert len(taken) <= limit or len(set(taken)) == 1
        begins = found


@pytest.mark.parametrize(
    ("sizes", "max_records", "parts"),
    [
        ([100, 100], None, [(0, 0, 50), (0, 50, 100), (1, 0, 50), (1, 50, 100)]),
        ([1000, 10], None, [(0, 0, 333), (0, 333, 666), (0, 666, 1000), (1, 0, 10)]),  # only a large one is split
        ([0], 10, []),
    ],
)
def test_partitions_are_split_for_four_tasks(
    sizes: list[int], max_records: int | None, parts: list[tuple[int, int, int]]
) -> None:
    found = split([OffsetRange("t", number, 0, size) for number, size in enumerate(sizes)], 4, max_records)
    assert [(part.partition, part.from_offset, part.until_offset) for part in found] == parts


sizes = st.lists(st.integers(0, 300), max_size=6)


@given(sizes, st.none() | st.integers(1, 40), st.none() | st.integers(1, 200))
def test_a_split_loses_and_doubles_nothing(
    sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    """The parts of each range are adjacent."""
    ranges = [OffsetRange("t", i, 7, 7 + size) for i, size in enumerate(sizes)]
    found = split(ranges, min_partitions, max_records)
    for one in ranges:
        parts = [r for r in found if r.partition == one.partition]
        edges = [7] + [r.until_offset for r in parts]
        assert [r.from_offset for r in parts] == edges[:-1]
        assert edges[-1] == one.until_offset
        assert all(r.size > 0 and (max_records is None or r.size <= max_records) for r in parts)


@given(st.integers(1, 1000), sizes)
def test_a_limit_moves_on_and_not_beyond(limit: int, sizes: list[int]) -> None:
    """Each partition with records advances within its end; the sum exceeds the limit by at most one per partition."""
    begins, ends = {("t", i): 3 for i in range(len(sizes))}, {("t", i): 3 + size for i, size in enumerate(sizes)}
    found = limited(limit, begins, ends)
    assert all(begins[tp] < found[tp] <= ends[tp] or ends[tp] == begins[tp] for tp in ends)
    assert sum(found.values()) - sum(begins.values()) <= limit + len(sizes)


def test_an_offset_comes_back_from_the_checkpoint() -> None:
    """Offsets, topic ids and the start are restored from JSON, whose order is deterministic."""
    start = SourceOffset({A: 3, B: 0}, {"t": UUID(int=5)})
    offset = SourceOffset({C: 1, ("t", 10): 4, B: 2}, {"u": UUID(int=6), "t": UUID(int=5)}, start)
    text = json.dumps(offset.to_json())
    assert SourceOffset.from_json(json.loads(text)) == offset
    assert text.startswith('{"t": {"1": 2, "10": 4}, "u": {"0": 1}, "#topicIds"')
    assert is_initial(json.loads(json.dumps(INITIAL_OFFSET)))
    assert not is_initial(offset.to_json())


def test_the_official_connectors_offset_is_read() -> None:
    """A query may continue from the offset of the official source."""
    assert SourceOffset.from_json({"t": {"0": 5}}) == SourceOffset({A: 5})


@pytest.mark.parametrize("found", [7, "x", [1], {"a": 1}, {"t": {"x": 1}}, {"t": {"0": "1"}}, {"t": {"0": -1}}])
def test_another_sources_offset_is_refused(found: object) -> None:
    """An offset of a file or rate source is refused in a sentence."""
    with pytest.raises(PipelineError, match="belongs to another query"):
        SourceOffset.from_json(found)


def test_timestamps_beyond_all_times_do_not_stop_a_stream() -> None:
    """Records with timestamps in microseconds are limited by offsets if no time separates them."""
    begins, ends = {("t", 0): 0, ("t", 1): 0}, {("t", 0): 100, ("t", 1): 10}
    found, since_ms = limited_by_time(60, begins, ends, lambda time_ms: begins, -1)
    assert (found, since_ms) == (limited(60, begins, ends), -1)
