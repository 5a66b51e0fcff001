"""Combination of the batches of a share partition's state into batches that do not overlap.

Source: ``PersisterStateBatchCombiner``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from kbroker.coordinator.share.persister import UNINITIALIZED_OFFSET, StateBatch


def combine(batches: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Return batches in the order of their offsets, without those before ``start_offset`` (-1: none are left out).

    Where batches overlap, the higher delivery count wins, then the higher delivery state. Adjacent batches with equal
    counts and states become one.
    """
    rows = [batch for batch in batches if start_offset == UNINITIALIZED_OFFSET or batch.last_offset >= start_offset]
    rows = [row if row.first_offset >= start_offset else row._replace(first_offset=start_offset) for row in rows]
    if len(rows) < 2:
        return tuple(rows)
    rows.sort(reverse=True)
    open_rows: list[tuple[int, int, int]] = []  # negative delivery count, negative state, last offset
    found: list[StateBatch] = []
    position = 0
    while rows or open_rows:
        if not open_rows:
            position = rows[-1].first_offset
        while rows and rows[-1].first_offset <= position:
            row = rows.pop()
            heapq.heappush(open_rows, (-row.delivery_count, -row.delivery_state, row.last_offset))
        count, state, last = open_rows[0]
        if last < position:
            heapq.heappop(open_rows)
            continue
        end = min(last, rows[-1].first_offset - 1) if rows else last
        previous = found[-1] if found else None
        if previous is not None and previous[1:] == (position - 1, -state, -count):
            found[-1] = previous._replace(last_offset=end)
        else:
            found.append(StateBatch(position, end, -state, -count))
        position = end + 1
    return tuple(found)
