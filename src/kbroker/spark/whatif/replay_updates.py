"""Replay of what a broker itself recorded: each value into a cold counter, in the broker's own order.

Beside the delays that follow stand those in the log: a verdict is matched with the value that it judged. A counter may
live more than once (see `counter_lives`); each life begins cold. Where values are missing, because records were dropped
or never chosen, what the counter holds is not known from there to the end of that life, and neither are its delays:
they are given as unknown, not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker.spark.whatif._replay import COUNTED, JUDGED, LIMIT, STRICT
from kbroker.spark.whatif.counter_epochs import assign_epochs
from kbroker.spark.whatif.quota_set import QuotaSet, Tags
from kbroker.spark.whatif.replay_core import Windows
from kbroker.spark.whatif.replay_events import Log, Updates, flattened, numbered, numbers

if TYPE_CHECKING:
    import pyarrow as pa

NONE = -(2**62)  # no delay: no verdict, or no value
_TIME_BITS = 41  # milliseconds of a log: 69 years
Array = Any  # of numpy


@dataclass(frozen=True)
class Change:
    """Quotas that were in force from a time on, milliseconds since 1970."""

    from_ms: int
    quotas: QuotaSet


def updates_schema() -> pa.Schema:
    """Columns of `replay_updates`."""
    import pyarrow as pa

    text, number, flag = pa.string(), pa.int64(), pa.bool_()
    return pa.schema(
        [
            ("broker", number),
            ("sequence", number),  # of the record, as the next one
            ("time", pa.timestamp("us", "UTC")),
            ("quota_type", text),
            ("user", text),
            ("client_id", text),
            ("time_ms", number),  # when it was judged
            ("delay_ms", number),  # of the replay; null: no value in the log belongs to the verdict
            ("logged_ms", number),  # of the log, after its cap; null: no verdict
            ("refused", flag),
            ("unknown", flag),  # values are missing before it
            ("missing", number),  # how many, in the one row that stands for a life which lacks some; else 0
        ]
    )


def replay_updates(
    table: pa.Table, quotas: QuotaSet, changes: Sequence[Change] = (), windows: Windows | None = None
) -> pa.Table:
    """Feed the values of a log to cold counters, exactly as the broker recorded them: the delays it decided on.

    Args: `quotas`: those in force at the log's beginning; `changes`: later ones. `table`: all rows that have a value of
        its counters; each row may have some of its record's values and verdicts.
    Returns: `updates_schema`: a row for each delay of the replay or the log, each refusal, and each life that lacks
        values.
    """
    import numpy as np
    import pyarrow as pa

    windows = windows or Windows()
    log = _Recorded(table, windows)
    if len(log.tag) == 0 and len(log.verdict_tag) == 0:
        return updates_schema().empty_table()
    counter, tags, missing = log.counters()
    counters = windows.counters(expires=False)
    for tag in tags:
        counters.add(log.names[tag][1].quota_type, quotas.limit_of(log.names[tag][1]))
    delay = _run(log, counters, counter, [log.names[tag][1] for tag in tags], changes)
    lacking = np.zeros(len(tags), np.int64)
    np.add.at(lacking, counter, missing)
    so_far = np.cumsum(missing)
    starts = np.searchsorted(counter, np.arange(len(tags)))
    unknown = so_far > (so_far - missing)[starts][counter]
    logged, unmatched = log.verdicts_by_value()
    shown = np.flatnonzero((delay > 0) | (logged != NONE) | log.is_refusal | ((delay != 0) & log.is_mutation))
    parts = [
        log.shown(log.row[shown], log.tag[shown], log.time_ms[shown], delay[shown], logged[shown],
                  log.action[shown] == STRICT, unknown[shown]),
        log.shown(log.verdict_row[unmatched], log.verdict_tag[unmatched], log.verdict_ms[unmatched],
                  np.full(len(unmatched), NONE), log.verdict_logged[unmatched], log.refused[unmatched],
                  np.zeros(len(unmatched), bool)),
        _incomplete([log.names[tags[i]] for i in np.flatnonzero(lacking)], lacking[lacking > 0]),
    ]  # fmt: skip
    return pa.concat_tables(parts)


def _run(log: _Recorded, counters: Any, counter: Array, tags: list[Tags], changes: Sequence[Change]) -> Array:
    """The delay of each value, in the order of `log`, with each counter's new limit where it came into force."""
    import numpy as np

    columns = [counter, log.time_ms, log.value, log.action]
    kept = np.ones(len(counter), bool)
    for change in changes:
        limits = np.array([change.quotas.limit_of(tag) or 2.0**63 for tag in tags])
        ends = np.searchsorted(columns[0], np.arange(len(tags)), "right")
        places, start = [], 0
        for end in ends.tolist():
            later = np.flatnonzero(columns[1][start:end] >= change.from_ms)
            places.append(start + int(later[0]) if len(later) else end)
            start = end
        new: tuple[Any, ...] = (np.arange(len(tags), dtype=np.int32), change.from_ms, limits, LIMIT)
        columns = [np.insert(column, places, values) for column, values in zip(columns, new, strict=True)]
        kept = np.insert(kept, places, False)
    n = len(kept)
    delay = np.zeros(n, np.int32)
    kinds = (np.int32, np.int64, np.float64, np.int8)
    given = [np.ascontiguousarray(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    counters.run(*given, np.zeros(n, np.int32), delay, np.zeros(1, np.int32))
    return delay[kept].astype(np.int64)


class _Recorded:
    """Values and refused mutations of a log, in one sequence; verdicts beside them.

    `counters` brings values into the order in which they are fed: by counter, then by number.
    """

    def __init__(self, table: pa.Table, windows: Windows) -> None:
        import numpy as np

        self.table = table
        log = Log(table)
        self.names: list[tuple[int, Tags]] = []
        self._numbers: dict[tuple[int, Tags], int] = {}
        self.broker = numbers(table, "broker")
        self._verdicts(log, windows)
        updates = Updates.of(log.table)
        if updates is None:
            self.row, self.tag = np.zeros(0, np.int32), np.zeros(0, np.int32)
            self.sequence, self.time_ms = np.zeros(0, np.int64), np.zeros(0, np.int64)
            self.value, self.action = np.zeros(0), np.zeros(0, np.int8)
        else:
            self.row, self.sequence, self.time_ms, self.value = (
                *(updates.row, updates.sequence, updates.time_ms, updates.value),
            )
            self.tag = self._tags(updates.row, updates.tag, updates.tags)
            self.action = _actions(log, updates)
        refusals = np.flatnonzero(self.refused)
        n = len(refusals)
        self.verdict = np.concatenate([np.full(len(self.row), -1), refusals])  # of a refusal
        self.row = np.concatenate([self.row, self.verdict_row[refusals]])
        self.tag = np.concatenate([self.tag, self.verdict_tag[refusals]])
        self.sequence = np.concatenate([self.sequence, self.verdict_sequence[refusals]])
        self.time_ms = np.concatenate([self.time_ms, self.verdict_ms[refusals]])
        self.value = np.concatenate([self.value, np.ones(n)])
        self.action = np.concatenate([self.action, np.full(n, STRICT, np.int8)])

    @property
    def is_refusal(self) -> Array:
        """Mutations that were judged but not recorded."""
        return self.verdict >= 0

    @property
    def is_mutation(self) -> Array:
        """Values of controller mutations."""
        import numpy as np

        return np.array([name[1].quota_type == "ControllerMutation" for name in self.names], bool)[self.tag]

    def _tags(self, row: Array, number: Array, tags: Sequence[Tags]) -> Array:
        """The counters of elements: of each broker its own."""
        import numpy as np

        if len(row) == 0:
            return np.zeros(0, np.int32)
        pair = self.broker[row] * max(len(tags), 1) + number
        distinct, short = np.unique(pair, return_inverse=True)
        known = []
        for one in distinct.tolist():
            broker, at = divmod(one, max(len(tags), 1))
            name = (broker, tags[at])
            if name not in self._numbers:
                self._numbers[name] = len(self.names)
                self.names.append(name)
            known.append(self._numbers[name])
        return np.array(known, np.int32)[short]

    def _verdicts(self, log: Log, windows: Windows) -> None:
        """Verdicts of client quotas; `verdict_logged`: what each put on the client by itself."""
        import numpy as np
        import pyarrow.compute as pc

        found = flattened(log.table, "verdicts")
        self.verdict_row, self.verdict_tag = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.verdict_sequence, self.verdict_ms = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.verdict_logged, self.refused = np.zeros(0, np.int64), np.zeros(0, bool)
        if found is None:
            return
        row, field = found
        number, names = numbered([field(name) for name in ("quota_type", "user", "client_id")])
        tags = [Tags(kind or "", user or "", client_id or "") for kind, user, client_id in names]
        of_client = np.array([tag.quota_type != "ConnectionRate" for tag in tags], bool)[number]
        at = np.flatnonzero(of_client)

        def column(name: str, otherwise: Array | int) -> Array:
            values = field(name)
            known = pc.is_valid(values).to_numpy(zero_copy_only=False)
            filled = pc.fill_null(values, 0).to_numpy(zero_copy_only=False).astype(np.int64)
            return np.where(known, filled, otherwise)[at]

        self.verdict_row = row[at]
        self.verdict_tag = self._tags(row[at], number[at], tags)
        self.verdict_sequence = column("sequence", NONE)
        self.verdict_ms = column("time_ms", log.answered_us[row] // 1000)
        asked = column("delay_asked_ms", 0)
        cap = np.array([windows.seconds * 1000 if tag.quota_type == "Request" else 2**62 for tag in tags])[number[at]]
        narrow = (np.minimum(asked, cap) + 2**31) % 2**32 - 2**31  # an int of Java, as it is sent to the client
        self.verdict_logged = narrow
        self.refused = pc.fill_null(field("refused"), False).to_numpy(zero_copy_only=False).astype(bool)[at]

    def counters(self) -> tuple[Array, list[int], Array]:
        """Number the lives of all counters, and bring all values into the order in which they are fed.

        Returns: the counter of each value, ascending; the tag of each counter; how many values are missing right before
            each value.
        """
        import numpy as np

        n = len(self.row)
        is_value = ~self.is_refusal
        values = np.flatnonzero(is_value)
        life = np.zeros(n, np.int64)
        life[values] = assign_epochs(self.tag[values], self.sequence[values], self.time_ms[values])
        pair = self.tag.astype(np.int64) * (n + 2) + life
        base = int(self.time_ms.min()) if n else 0
        lost = self._place_refusals(values, pair, base, n)
        distinct, counter = np.unique(pair, return_inverse=True)
        tags = (distinct // (n + 2)).tolist()
        order = np.lexsort((self.time_ms, self.is_refusal, self.sequence, counter))
        for name in ("verdict", "row", "tag", "sequence", "time_ms", "value", "action"):
            setattr(self, name, getattr(self, name)[order])
        counter, lost = counter[order].astype(np.int32), lost[order]
        is_first = np.concatenate([[True], np.diff(counter) != 0])[:n]
        before = np.where(is_first, 0, np.concatenate([[0], self.sequence[:-1]])[:n])
        missing = np.maximum(self.sequence - before - ~self.is_refusal, 0)
        return counter, tags, np.where(lost & is_first, np.maximum(missing, 1), missing)

    def _place_refusals(self, values: Array, pair: Array, base: int, n: int) -> Array:
        """Give each refusal the life that was there, and a place in it if the log states none (in `pair`, `sequence`).

        Returns: by value whether it is a refusal by a counter of which the log has nothing before it.
        """
        import numpy as np

        lost = np.zeros(n, bool)
        refusals = np.flatnonzero(self.is_refusal)
        if len(refusals) == 0:
            return lost
        order = values[np.lexsort((pair[values], self.time_ms[values], self.tag[values]))]
        when = (self.tag[order].astype(np.int64) << _TIME_BITS) + self.time_ms[order] - base
        latest = np.maximum.accumulate(pair[order]) if len(order) else pair[order]  # lives are numbered by time
        asked = (self.tag[refusals].astype(np.int64) << _TIME_BITS) + self.time_ms[refusals] - base
        place = np.searchsorted(when, asked, "right") - 1
        known = (place >= 0) & (self.tag[order][place] == self.tag[refusals] if len(order) else False)
        lost[refusals[~known]] = True
        pair[refusals[known]] = latest[place[known]]
        pair[refusals[~known]] = self.tag[refusals[~known]].astype(np.int64) * (n + 2) + n + 1
        unpublished = self.sequence[refusals] == NONE
        so_far = _highest(pair[order], self.sequence[order])
        last = np.where(known, so_far[np.maximum(place, 0)] if len(order) else 0, 0)
        self.sequence[refusals[unpublished]] = last[unpublished]
        return lost

    def verdicts_by_value(self) -> tuple[Array, Array]:
        """By value what the log's verdict on it put on the client, NONE without one; verdicts on nothing in the log."""
        import numpy as np

        logged = np.full(len(self.row), NONE)
        refusals = np.flatnonzero(self.is_refusal)
        logged[refusals] = self.verdict_logged[self.verdict[refusals]]
        verdicts = np.flatnonzero(~self.refused)
        if len(verdicts) == 0:
            return logged, verdicts
        record = self._records()
        judged = np.flatnonzero(~self.is_refusal & (self.action != COUNTED))
        key = record[self.row[judged]] * len(self.names) + self.tag[judged]
        order = np.argsort(key, kind="stable")
        judged, key = judged[order], key[order]
        wanted = record[self.verdict_row[verdicts]] * len(self.names) + self.verdict_tag[verdicts]
        low, high = np.searchsorted(key, wanted, "left"), np.searchsorted(key, wanted, "right")
        one = high - low == 1
        logged[judged[low[one]]] = self.verdict_logged[verdicts[one]]
        unmatched = high == low
        for i in np.flatnonzero(high - low > 1).tolist():  # a request with several mutations, not refused
            places = judged[low[i] : high[i]]
            exact = places[self.sequence[places] == self.verdict_sequence[verdicts[i]]]
            if len(exact) == 0:
                unmatched[i] = True
            else:
                logged[exact[0]] = self.verdict_logged[verdicts[i]]
        return logged, verdicts[unmatched]

    def _records(self) -> Array:
        """By row the number of its record: rows may have parts of one."""
        import numpy as np

        keys = (numbers(self.table, "time"), numbers(self.table, "sequence"), self.broker)
        order = np.lexsort(keys)
        changes = np.zeros(len(order), bool)
        for key in keys:
            changes[1:] |= np.diff(key[order]) != 0
        record = np.zeros(len(order), np.int64)
        record[order] = np.cumsum(changes)
        return record

    def shown(
        self, row: Array, tag: Array, time_ms: Array, delay: Array, logged: Array, refused: Array, unknown: Array
    ) -> pa.Table:
        """Rows of `updates_schema`."""
        import pyarrow as pa

        names = [self.names[i][1] for i in tag.tolist()]
        columns = {
            "broker": pa.array(self.broker[row], pa.int64()),
            "sequence": pa.array(numbers(self.table, "sequence")[row], pa.int64()),
            "time": pa.array(numbers(self.table, "time")[row], pa.timestamp("us", "UTC")),
            "quota_type": pa.array([name.quota_type for name in names], pa.string()),
            "user": pa.array([name.user for name in names], pa.string()),
            "client_id": pa.array([name.client_id for name in names], pa.string()),
            "time_ms": pa.array(time_ms, pa.int64()),
            "delay_ms": pa.array(delay, pa.int64(), mask=delay == NONE),
            "logged_ms": pa.array(logged, pa.int64(), mask=logged == NONE),
            "refused": pa.array(refused, pa.bool_()),
            "unknown": pa.array(unknown, pa.bool_()),
            "missing": pa.array([0] * len(names), pa.int64()),
        }
        return pa.table(columns, schema=updates_schema())


def _actions(log: Log, updates: Updates) -> Array:
    """What the broker did with each value: mutations of a client that knows error 89 are judged before they count."""
    import numpy as np

    is_mutation = np.array([tag.quota_type == "ControllerMutation" for tag in updates.tags], bool)[updates.tag]
    strict = is_mutation & log.knows_error_89()[updates.row]
    return np.where(strict, STRICT, np.where(updates.checked, JUDGED, COUNTED)).astype(np.int8)


def _highest(group: Array, value: Array) -> Array:
    """The highest value of an element's group so far; groups lie together."""
    import numpy as np

    if len(group) == 0:
        return value
    _, number = np.unique(group, return_inverse=True)
    width = int(value.max()) + 1
    if width * int(number.max() + 1) >= 2**62:
        return value  # numbers that no broker gives
    found: Array = np.maximum.accumulate(number.astype(np.int64) * width + np.maximum(value, 0)) % width
    return found


def _incomplete(names: list[tuple[int, Tags]], missing: Array) -> pa.Table:
    """A row for each life that lacks values."""
    import pyarrow as pa

    schema = updates_schema()
    rows = [
        {
            **dict.fromkeys(schema.names),
            **tags._asdict(),
            "broker": broker,
            "refused": False,
            "unknown": True,
            "missing": int(count),
        }
        for (broker, tags), count in zip(names, missing.tolist(), strict=True)
    ]
    return pa.Table.from_pylist(rows, schema)
