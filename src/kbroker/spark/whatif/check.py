"""Comparison of a request log with itself: its values, fed again in the broker's own order, and its verdicts.

Each value goes to a cold counter, and each verdict of the log is matched with the value that it judged. A counter may
have several epochs (`assign_epochs`), each of which begins cold. Where values are missing, because records were dropped
or not sampled, the state of the counter is unknown from there to the end of the epoch, and so are its delays: they are
reported as unknown and not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, StructField, StructType

from kbroker.spark.session_kind import parallelism
from kbroker.spark.whatif._replay import COUNTED, JUDGED, STRICT, Counters
from kbroker.spark.whatif.feed import Windows
from kbroker.spark.whatif.quota_set import KEY_OF, QuotaSet, Tags
from kbroker.spark.whatif.read import Array, Log, numbers, tagged, updated

NONE = -(2**62)  # no delay: no verdict, or no value
#: Time after the end of an epoch within which a value may still come: network time, counted after the response is sent.
LATE_MS = 600_000
_TIME_BITS = 41  # milliseconds of a log: 69 years


#: Columns of `replay_updates`; `sequence` and `time` are those of the record.
UPDATES_SCHEMA = pa.schema(
    [
        ("broker", pa.int64()),
        ("sequence", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("quota_type", pa.string()),
        ("user", pa.string()),
        ("client_id", pa.string()),
        ("time_ms", pa.int64()),  # when the value was judged
        ("delay_ms", pa.int64()),  # by the replay; null: no value in the log belongs to the verdict
        ("logged_ms", pa.int64()),  # by the log, capped; null: no verdict
        ("refused", pa.bool_()),
        ("unknown", pa.bool_()),  # values are missing before it
        ("missing", pa.int64()),  # number of missing values, in the one row of an incomplete epoch; else 0
    ]
)


class Checked(NamedTuple):
    """Numbers of verdicts that are equal, different, only in the log, and only in the replay of its values.

    `unknown` verdicts, whose counters lack earlier values, are not among these. `incomplete`: number of epochs that
    lack values; `missing`: number of these values.
    """

    equal: int
    different: int
    only_logged: int
    only_replayed: int
    unknown: int
    incomplete: int
    missing: int


def replay_exact(rows: DataFrame, quotas: QuotaSet, windows: Windows | None = None) -> DataFrame:
    """Return the delays that follow from the values in the log, beside the log's own verdicts, as UPDATES_SCHEMA.

    Args: `rows`: of one broker or several, from their start on; `quotas`: in force at the time.
    """
    groups = 4 * parallelism(rows.sparkSession)
    plain = ("time", "broker", "sequence", "api_key", "api_version", "send_time_us", "response_queue_time_us")
    # Values and verdicts are read together: a second reading would see more of a growing log, and its values would be
    # missing in the first.
    one = rows.select(*plain, F.explode(_values_and_verdicts(rows)).alias("one"))
    update, verdict = F.col("one.updates"), F.col("one.verdicts")
    # A missing name is empty, as in `replay_updates`: a counter must not be in two groups.
    names = [F.coalesce(update[name], verdict[name], F.lit("")) for name in ("quota_type", "user", "client_id")]
    counter = F.xxhash64(F.coalesce("broker", F.lit(0)), *names)
    values = one.select(
        *plain,
        F.when(update.isNotNull(), F.array(update)).alias("updates"),
        F.when(verdict.isNotNull(), F.array(verdict)).alias("verdicts"),
        F.pmod(counter, F.lit(groups)).alias("group"),
    )

    def work(table: pa.Table) -> pa.Table:
        return replay_updates(table, quotas, windows)

    return values.groupBy("group").applyInArrow(work, from_arrow_schema(UPDATES_SCHEMA))


def _values_and_verdicts(rows: DataFrame) -> Column:
    """Return, by row, the elements of both lists in one list, as structs in which either updates or verdicts is set."""
    names = ("updates", "verdicts")
    element = StructType([StructField(name, cast(ArrayType, rows.schema[name].dataType).elementType) for name in names])

    def tagged(name: str) -> Column:
        def element_of(one: Column) -> Column:
            return F.struct(
                *((one if kind.name == name else F.lit(None).cast(kind.dataType)).alias(kind.name) for kind in element)
            )

        return F.coalesce(F.transform(name, element_of), F.array().cast(ArrayType(element)))

    return F.concat(*map(tagged, names))


def check(replayed: DataFrame) -> Checked:
    """Count the results of `replay_exact`."""
    delay, logged = F.col("delay_ms"), F.col("logged_ms")
    is_known, is_verdict = ~F.col("unknown"), F.col("missing") == 0
    row = replayed.agg(
        F.count_if(is_known & (delay == logged)),
        F.count_if(is_known & (delay != logged)),
        F.count_if(is_known & delay.isNull()),
        F.count_if(is_known & logged.isNull()),
        F.count_if(~is_known & is_verdict),
        F.count_if(~is_verdict),
        F.sum("missing"),
    ).collect()[0]
    return Checked(*(count or 0 for count in row))


# ---------------------------------------------------------------- in the executors


def replay_updates(table: pa.Table, quotas: QuotaSet, windows: Windows | None = None) -> pa.Table:
    """Feed the values of a log to cold counters, exactly as the broker recorded them, and return the delays.

    Args: `quotas`: in force; `table`: all rows that have values of its counters; a row may have some of its record's
    values and verdicts.
    Returns: UPDATES_SCHEMA, a row for each delay of the replay or the log, each refusal, and each incomplete epoch.
    """
    windows = windows or Windows()
    log = _Recorded(table, windows)
    if len(log.tag) == 0 and len(log.verdict_tag) == 0:
        return UPDATES_SCHEMA.empty_table()
    counter, tags, missing = log.counters()
    counters = windows.counters(expires=False)
    for tag in tags:
        counters.add(log.names[tag][1].quota_type, quotas.limit_of(log.names[tag][1]))
    delay = _run(log, counters, counter)
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


def _run(log: _Recorded, counters: Counters, counter: Array) -> Array:
    """Return the delay of each value, in the order of `log`."""
    n = len(counter)
    delay = np.zeros(n, np.int32)
    columns = ((counter, np.int32), (log.time_ms, np.int64), (log.value, np.float64), (log.action, np.int8))
    number, time_ms, value, action = (np.ascontiguousarray(column, kind) for column, kind in columns)
    counters.run(number, time_ms, value, action, np.zeros(n, np.int32), delay, np.zeros(1, np.int32))
    return delay.astype(np.int64)


class _Recorded:
    """Values and refused mutations of a log in one sequence, and its verdicts.

    `counters` sorts the values as they are fed: by counter, then by sequence.
    """

    def __init__(self, table: pa.Table, windows: Windows) -> None:
        self.table = table
        log = Log(table)
        self.names: list[tuple[int, Tags]] = []
        self._numbers: dict[tuple[int, Tags], int] = {}
        self.broker = numbers(table, "broker")
        self._verdicts(log, windows)
        refusals = np.flatnonzero(self.refused)
        n = len(refusals)
        of_verdicts = (self.verdict_row, self.verdict_tag, self.verdict_sequence, self.verdict_ms)
        judged = (*(column[refusals] for column in of_verdicts), np.ones(n), np.full(n, STRICT, np.int8))
        parts: list[tuple[Array, ...]] = [(*judged, refusals)]  # `verdict`: the number of a refusal's verdict, else -1
        updates = tagged(log.table, "updates")
        if updates is not None:
            row, number, tags, field = updates
            at = _of_clients(number, tags)
            row, number = row[at], number[at]
            sequence, time_ms, value, checked = (column[at] for column in updated(field))
            # Mutations of clients that support error 89 are judged before they count
            is_strict = np.array([tag.quota_type == "ControllerMutation" for tag in tags], bool)[number]
            is_strict &= log.knows_error_89()[row]
            action = np.where(is_strict, STRICT, np.where(checked, JUDGED, COUNTED)).astype(np.int8)
            tag = self._tags(row, number, tags)
            parts.insert(0, (row, tag, sequence, time_ms, value, action, np.full(len(row), -1)))
        self.row, self.tag, self.sequence, self.time_ms, self.value, self.action, self.verdict = map(
            np.concatenate, zip(*parts, strict=True)
        )

    @property
    def is_refusal(self) -> Array:
        """Return whether each value is a mutation that was judged but not recorded."""
        return np.asarray(self.verdict >= 0)

    @property
    def is_mutation(self) -> Array:
        """Return whether each value is of a controller mutation."""
        of_tag: Array = np.array([name[1].quota_type == "ControllerMutation" for name in self.names], bool)
        return np.asarray(of_tag[self.tag])

    def _tags(self, row: Array, number: Array, tags: Sequence[Tags]) -> Array:
        """Return the number of each element's counter, after adding new ones to `names`; each broker has its own."""
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
        """Set the verdicts of client quotas; `verdict_logged`: the delay of each on its own."""
        found = tagged(log.table, "verdicts")
        self.verdict_row, self.verdict_tag = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.verdict_sequence, self.verdict_ms = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.verdict_logged, self.refused = np.zeros(0, np.int64), np.zeros(0, bool)
        if found is None:
            return
        row, number, tags, field = found
        at = _of_clients(number, tags)

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
        """Number the epochs of all counters, and sort the values as they are fed.

        Returns: the number of each value's epoch, ascending; the tag of each epoch; the number of values that are
        missing right before each value.
        """
        n = len(self.row)
        is_value = ~self.is_refusal
        values = np.flatnonzero(is_value)
        epoch = np.zeros(n, np.int64)
        epoch[values] = assign_epochs(self.tag[values], self.sequence[values], self.time_ms[values])
        pair = self.tag.astype(np.int64) * (n + 2) + epoch
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
        """Assign each refusal to the epoch of its time, and to a place in it if the log has none (`pair`, `sequence`).

        Returns: for each value, whether it is a refusal by a counter without earlier values in the log.
        """
        lost = np.zeros(n, bool)
        refusals = np.flatnonzero(self.is_refusal)
        if len(refusals) == 0:
            return lost
        order = values[np.lexsort((pair[values], self.time_ms[values], self.tag[values]))]
        when = (self.tag[order].astype(np.int64) << _TIME_BITS) + self.time_ms[order] - base
        latest = np.maximum.accumulate(pair[order]) if len(order) else pair[order]  # epochs are numbered by time
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
        """Return for each value the delay of its verdict in the log, or NONE; and the verdicts without a value."""
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
        """Return the number of each row's record; several rows may have parts of one record."""
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
        """Return rows of UPDATES_SCHEMA."""
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
        return pa.table(columns, schema=UPDATES_SCHEMA)


def _of_clients(number: Array, tags: Sequence[Tags]) -> Array:
    """Return the elements whose quota type is one of clients: not of connections, and known to this version."""
    return np.flatnonzero(np.array([tag.quota_type in KEY_OF for tag in tags], bool)[number])


def _highest(group: Array, value: Array) -> Array:
    """Return the highest value so far of each element's group; the elements of a group are adjacent."""
    if len(group) == 0:
        return value
    _, number = np.unique(group, return_inverse=True)
    width = int(value.max()) + 1
    if width * int(number.max() + 1) >= 2**62:
        return value  # no broker assigns such numbers
    found: Array = np.maximum.accumulate(number.astype(np.int64) * width + np.maximum(value, 0)) % width
    return found


def _incomplete(names: list[tuple[int, Tags]], missing: Array) -> pa.Table:
    """Return a row for each incomplete epoch."""
    schema = UPDATES_SCHEMA
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


# ---------------------------------------------------------------- epochs


def assign_epochs(counter: Array, sequence: Array, time_ms: Array) -> Array:
    """Return the epoch of each value, from 0 in the order of time. Args: columns of equal length, in any order.

    A counter is deleted when it has been idle for an hour or another needs its place, and by a restart. The next
    counter of its name numbers values from 1 again, so a repeated number belongs to another epoch. Missing numbers
    belong to dropped records.
    """
    epoch = np.zeros(len(counter), np.int32)
    order = np.lexsort((sequence, counter))
    again = (np.diff(counter[order]) == 0) & (np.diff(sequence[order]) == 0)
    several = np.isin(counter, np.unique(counter[order][1:][again]))
    at = np.flatnonzero(several)
    if len(at) == 0:
        return epoch
    at = at[np.lexsort((sequence[at], time_ms[at], counter[at]))]
    who, number = counter[at], sequence[at]
    is_first = np.concatenate([[True], np.diff(who) != 0])
    begins = is_first | (number == 1)
    run = np.cumsum(begins)
    epoch[at] = run - np.repeat(run[is_first], np.diff(np.append(np.flatnonzero(is_first), len(at))))
    follows = np.concatenate([[False], np.diff(number) == 1])
    for tangled in np.unique(who[~(begins | follows)]).tolist():  # epochs that overlap, or lack numbers
        places = at[who == tangled]
        epoch[places] = _untangled(sequence[places].tolist(), time_ms[places].tolist())
    return epoch


class _Epoch:
    """Numbers of an epoch so far."""

    __slots__ = ("highest", "last_ms", "missing", "taken")

    def __init__(self) -> None:
        self.taken: set[int] = set()
        self.highest = 0
        self.missing = 1  # the lowest missing number
        self.last_ms = 0

    def take(self, number: int, time_ms: int) -> None:
        self.taken.add(number)
        self.highest = max(self.highest, number)
        self.last_ms = max(self.last_ms, time_ms)
        while self.missing in self.taken:
            self.missing += 1


def _untangled(numbers: list[int], times_ms: list[int]) -> list[int]:
    """Return the epoch of each value of one counter, in the order of times (and numbers, where those are equal).

    A value belongs to the latest epoch if it is the next one there or fills a gap; to an earlier epoch that it
    continues; to the latest if its number is not used there; else it begins an epoch.
    """
    epochs: list[_Epoch] = []
    found = []
    for number, time_ms in zip(numbers, times_ms, strict=True):
        place = _place(epochs, number, time_ms)
        if place == len(epochs):
            epochs.append(_Epoch())
        epochs[place].take(number, time_ms)
        found.append(place)
    return found


def _place(epochs: list[_Epoch], number: int, time_ms: int) -> int:
    if not epochs:
        return 0
    latest = len(epochs) - 1
    if number in (epochs[latest].highest + 1, epochs[latest].missing):
        return latest
    for place in range(latest - 1, -1, -1):
        if number == epochs[place].highest + 1 and time_ms - epochs[place].last_ms <= LATE_MS:
            return place
    return latest if number not in epochs[latest].taken else len(epochs)
