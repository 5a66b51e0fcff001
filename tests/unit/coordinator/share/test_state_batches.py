"""Combination of a share partition's batches: the higher delivery count, and then state, applies to each offset."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.share.persister import StateBatch
from kbroker.coordinator.share.state_batches import combine

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4


@pytest.mark.parametrize(
    ("batches", "start", "expected"),
    [
        ([], -1, []),
        ([(0, 9, 0, 1)], -1, [(0, 9, 0, 1)]),
        ([(0, 9, 0, 1)], 5, [(5, 9, 0, 1)]),
        ([(0, 9, 0, 1)], 10, []),
        ([(0, 9, 0, 1), (10, 19, 0, 1)], -1, [(0, 19, 0, 1)]),
        ([(0, 9, 0, 1), (11, 19, 0, 1)], -1, [(0, 9, 0, 1), (11, 19, 0, 1)]),
        ([(0, 9, 0, 1), (3, 5, 2, 1)], -1, [(0, 2, 0, 1), (3, 5, 2, 1), (6, 9, 0, 1)]),
        ([(0, 9, 2, 1), (3, 5, 0, 2)], -1, [(0, 2, 2, 1), (3, 5, 0, 2), (6, 9, 2, 1)]),
        ([(0, 9, 2, 2), (3, 15, 0, 1)], -1, [(0, 9, 2, 2), (10, 15, 0, 1)]),
        ([(5, 9, 2, 1), (0, 5, 4, 1)], 2, [(2, 5, 4, 1), (6, 9, 2, 1)]),
    ],
)
def test_overlaps(batches: list[tuple[int, ...]], start: int, expected: list[tuple[int, ...]]) -> None:
    assert [*combine([StateBatch(*one) for one in batches], start)] == expected


BATCHES = st.lists(
    st.tuples(
        st.integers(0, 30), st.integers(0, 9), st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED]), st.integers(1, 5)
    ).map(lambda one: StateBatch(one[0], one[0] + one[1], one[2], one[3])),
    min_size=2,
    max_size=12,
)


@given(BATCHES, st.integers(-1, 35))
def test_each_offset_has_the_best_of_its_batches(batches: list[StateBatch], start: int) -> None:
    """The combined batches are sorted and minimal too."""
    found = combine(batches, start)
    expected: dict[int, tuple[int, int]] = {}
    for first, last, state, count in batches:
        for offset in range(max(first, start), last + 1):
            expected[offset] = max(expected.get(offset, (0, -1)), (count, state))
    seen = {offset: (one.delivery_count, one.delivery_state) for one in found for offset in range(one[0], one[1] + 1)}
    assert seen == expected
    for before, after in pairwise(found):
        assert before.last_offset < after.first_offset
        assert before.last_offset + 1 < after.first_offset or before[2:] != after[2:]
