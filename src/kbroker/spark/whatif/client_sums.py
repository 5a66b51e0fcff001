"""What a replay says of each client, added up where its rows are: a task yields a row per client, not per second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kbroker.spark.whatif.replay_core import COUNTS, Outcome

if TYPE_CHECKING:
    import pyarrow as pa

Array = Any  # of numpy

#: Columns of the sums, and how each is made of several.
_SUMMED = (*COUNTS, "active_seconds", "logged_delayed_seconds", "delayed_seconds")
_HIGHEST = ("longest_delay_ms", "last_second")
_LOWEST = ("first_second",)
_MERGE_ROWS = 200_000  # sums are put together when there are so many, and twice as many as after the last time
_TIME_BITS = 34  # of a key: seconds since 1970
_NEVER = 2**_TIME_BITS - 1
#: A second that is so much older than the last one of a part gets no more rows with the next part.
SETTLING_SECONDS = 600


def sums_schema() -> pa.Schema:
    """Columns of the sums. `bin`: seconds since 1970 at which it begins, 0 where there is one only.

    `first_second`, `last_second`: in which something would have been delayed, null: in none.
    """
    import pyarrow as pa

    names = [("principal", pa.string()), ("client_id", pa.string()), ("bin", pa.int64())]
    return pa.schema([*names, *((name, pa.int64()) for name in (*_SUMMED, *_HIGHEST, *_LOWEST))])


class ClientSums:
    """Adds up what a replay says of parts of a log that follow each other in time.

    Args: `bin_s`: how long a bin of time is, in seconds; None: one for the whole log.

    A second may go on in the next part, so the last ones of a part wait for it: each counts once.
    """

    def __init__(self, bin_s: int | None = None) -> None:
        import numpy as np

        self._bin_s = bin_s
        self._numbers: dict[tuple[str | None, str | None], int] = {}
        self._key = np.zeros(0, np.int64)  # of the seconds that wait
        self._counted = np.zeros((len(COUNTS) + 1, 0), np.int64)
        self._sums: list[tuple[Array, ...]] = []
        self._rows = self._merged_rows = 0

    def add(self, outcome: Outcome) -> None:
        """The next part."""
        import numpy as np

        pair, second, counted = outcome.by_second()
        if len(pair) == 0:
            return
        numbers = self._numbers
        number = np.array([numbers.setdefault(names, len(numbers)) for names in outcome.pairs], np.int64)
        key = np.concatenate([self._key, number[pair] << _TIME_BITS | second])
        counted = np.concatenate([self._counted, counted], axis=1)
        order = np.argsort(key, kind="stable")
        key, starts = _runs(key[order])
        counted = counted[:, order]
        sums = np.add.reduceat(counted[:-1], starts, axis=1)
        longest = np.maximum.reduceat(counted[-1], starts)
        counted = np.concatenate([sums, longest[None]])
        waits = (key & _NEVER) >= int(second.max()) - SETTLING_SECONDS  # the next part begins in the last one
        self._key, self._counted = key[waits], counted[:, waits]
        self._take(key[~waits], counted[:, ~waits])

    def end(self) -> Iterator[pa.Table]:
        """All sums."""
        import numpy as np
        import pyarrow as pa

        self._take(self._key, self._counted)
        if not self._sums:
            return
        key, sums, highest, lowest = _merged(self._sums)
        who = pa.array(key >> _TIME_BITS)
        never = lowest[0] == _NEVER
        values = dict(zip((*_SUMMED, *_HIGHEST, *_LOWEST), np.concatenate([sums, highest, lowest]), strict=True))
        schema = sums_schema()
        columns = {
            "principal": pa.array([names[0] for names in self._numbers], pa.string()).take(who),
            "client_id": pa.array([names[1] for names in self._numbers], pa.string()).take(who),
            "bin": key & _NEVER,
            **{name: pa.array(values[name], mask=never if name.endswith("_second") else None) for name in values},
        }
        yield pa.table(columns, schema=schema)

    def _take(self, key: Array, counted: Array) -> None:
        """Sums of whole seconds, each once, in the order of their keys."""
        import numpy as np

        if len(key) == 0:
            return
        second = key & _NEVER
        of = dict(zip(COUNTS, counted[:-1], strict=True))
        delayed = of["delayed"] > 0
        sums = np.concatenate([counted[:-1], np.ones((1, len(key)), np.int64), [of["logged_delayed"] > 0, delayed]])
        highest = np.stack([counted[-1], np.where(delayed, second, -1)])
        lowest = np.where(delayed, second, _NEVER)[None]
        place = key >> _TIME_BITS << _TIME_BITS
        if self._bin_s is not None:
            place |= second // self._bin_s * self._bin_s
        self._sums.append(_merged([(place, sums, highest, lowest)]))
        self._rows += len(self._sums[-1][0])
        if self._rows > max(_MERGE_ROWS, 2 * self._merged_rows):
            self._sums = [_merged(self._sums)]
            self._rows = self._merged_rows = len(self._sums[0][0])


def _merged(parts: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Sums of several parts in one: keys, and columns that are summed, of which the highest, and the lowest counts."""
    import numpy as np

    key, sums, highest, lowest = (
        parts[0] if len(parts) == 1 else [np.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True)]
    )
    order = np.argsort(key, kind="stable")
    key, starts = _runs(key[order])
    return (
        key,
        np.add.reduceat(sums[:, order], starts, axis=1),
        np.maximum.reduceat(highest[:, order], starts, axis=1),
        np.minimum.reduceat(lowest[:, order], starts, axis=1),
    )


def _runs(key: Array) -> tuple[Array, Array]:
    """Of numbers in order: the distinct ones, and where each begins."""
    import numpy as np

    starts = np.flatnonzero(np.concatenate([[True], np.diff(key) != 0]))
    return key[starts], starts
