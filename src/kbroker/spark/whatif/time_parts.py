"""A long log in parts that follow each other in time, so that no more than an hour of it is in memory.

Files of a table hold the rows of an hour by the time at which a response was away, and a request was judged a little
before. So the last rows of an hour wait for the next one. What a request adds to a counter later, when its response is
away, is fed with the part to which that time belongs (`Held`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kbroker.spark.whatif._replay import COUNTED
from kbroker.spark.whatif.replay_events import Events, answered_us, joined, lists_of

if TYPE_CHECKING:
    import pyarrow as pa

Array = Any  # of numpy


PART_ROWS = 100_000  # hours with fewer rows are taken together
FEW_ROWS = 64


def settled(hours: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, int | None]]:
    """The rows of consecutive hours in parts, each with the time before which its requests were judged, and those of
    the next ones not (milliseconds since 1970); None of the last one.

    What was judged more than an hour before its response was away comes late, with the hour of its response.
    """
    import numpy as np
    import pyarrow as pa

    held: pa.Table | None = None
    held_ms = np.zeros(0, np.int64)
    for table in _large(hours):
        judged_ms = _judged_ms(table)
        if held is None:
            held, held_ms = table, judged_ms
            continue
        border_ms = int(judged_ms.min())
        is_before = held_ms < border_ms
        if is_before.all():
            yield held, border_ms
            held, held_ms = table, judged_ms
            continue
        if is_before.any():
            yield _without(held, np.flatnonzero(~is_before)), border_ms
        waiting = held.filter(pa.array(~is_before))
        held = pa.concat_tables([waiting, table], promote_options="permissive")
        held_ms = np.concatenate([held_ms[~is_before], judged_ms])
    if held is not None:
        yield held, None


class Held:
    """Values that are only counted, of rows whose part has passed before their time. Threads: one at a time."""

    def __init__(self) -> None:
        self._waiting: tuple[Events, Array] | None = None

    def with_held(self, events: Events, key: Array, until_ms: int | None) -> tuple[Events, Array]:
        """The values of a part in order, with what has waited for it, without what is not due before `until_ms`.

        Args: `key`: of each value, the number of its counter or entity. A value that has waited is of the first row.
        """
        import numpy as np

        if self._waiting is not None:
            before, keys = self._waiting
            before.row[:] = 0
            events, key = joined([before, events]), np.concatenate([keys, key])
            order = np.lexsort((events.sequence, events.time_ms))
            events, key = events.taken(order), key[order]
            self._waiting = None
        if until_ms is None:
            return events, key
        waits = (events.action == COUNTED) & (events.time_ms >= until_ms)
        if waits.any():
            self._waiting = events.taken(waits), key[waits]
            events, key = events.taken(~waits), key[~waits]
        return events, key


def _large(hours: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in fewer tables, as each one costs some time; none is empty."""
    import pyarrow as pa

    waiting: list[pa.Table] = []
    for table in hours:
        waiting.append(table)
        if sum(one.num_rows for one in waiting) >= PART_ROWS:
            yield pa.concat_tables(waiting, promote_options="permissive").combine_chunks()
            waiting = []
    if any(one.num_rows for one in waiting):
        yield pa.concat_tables(waiting, promote_options="permissive").combine_chunks()


def _without(table: pa.Table, rows: Array) -> pa.Table:
    """A table without some of its rows, which are few as a rule: then nothing is copied."""
    import numpy as np
    import pyarrow as pa

    if len(rows) > FEW_ROWS:
        kept = np.ones(table.num_rows, bool)
        kept[rows] = False
        return table.filter(pa.array(kept))
    begins, ends = [0, *(rows + 1).tolist()], [*rows.tolist(), table.num_rows]
    return pa.concat_tables([table.slice(begin, end - begin) for begin, end in zip(begins, ends, strict=True)])


def _judged_ms(table: pa.Table) -> Array:
    """By row when it was judged, milliseconds since 1970: by its first value, else when its response was ready."""
    import numpy as np

    first: Array = answered_us(table) // 1000
    found = lists_of(table, "updates")
    if found is not None:
        ends, field = found
        rows = np.flatnonzero(np.diff(ends))
        time_ms = field("time_ms")
        if time_ms.null_count:
            time_ms = time_ms.fill_null(2**62)
        values = time_ms.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        first[rows] = np.minimum(first[rows], np.minimum.reduceat(values, ends[rows]))
    return first
