"""Results of a replay: a row for each delay, sums by client and second, and sums by client and bin of time.

Sums are made in the tasks, so that a task yields a row per client and bin rather than one per second.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kbroker.spark.whatif._replay import STRICT
from kbroker.spark.whatif.feed import ORDER, Outcome
from kbroker.spark.whatif.read import Array, Client, numbers

#: Counts of each client and second, and the longest of its delays.
COUNTS = ("requests", "request_bytes", "response_bytes", "logged_delayed", "logged_delay_ms", "delayed", "delay_ms")
LONGEST = "longest_delay_ms"
_CLIENT = [("principal", pa.string()), ("client_id", pa.string())]
#: Columns of sums by bin, by the operation that merges them.
_SUMMED = (*COUNTS, "active_seconds", "logged_delayed_seconds", "delayed_seconds")
_HIGHEST = (LONGEST, "last_second")
_LOWEST = ("first_second",)
_MERGE_ROWS = 200_000  # sums are merged when there are more, and twice as many as after the last merge
_TIME_BITS = 34  # number of a key's bits that hold the seconds since 1970
_NEVER = 2**_TIME_BITS - 1
#: Seconds that are older than the last second of a part by more than this get no more rows from the next part.
SETTLING_SECONDS = 600

#: Columns of `verdict_rows`. `sequence` of the record; `user`, `counter_client_id` of the counter.
VERDICT_SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),  # when the response was sent
        ("sequence", pa.int64()),
        *_CLIENT,
        ("quota_type", pa.string()),
        ("user", pa.string()),
        ("counter_client_id", pa.string()),
        ("level", pa.int32()),
        ("limit", pa.float64()),
        ("time_ms", pa.int64()),  # when the value was judged
        ("delay_ms", pa.int64()),
        ("served_ms", pa.int64()),
        ("refused", pa.bool_()),
    ]
)
#: Columns of `second_rows`.
SECONDS_SCHEMA = pa.schema([*_CLIENT, *((name, pa.int64()) for name in ("second", *COUNTS, LONGEST))])
#: Columns of `ClientSums`. `bin`: seconds since 1970 at which it begins, 0 for a single bin. `first_second`,
#: `last_second`: those with a delay under the replayed quotas; null without one.
SUMS_SCHEMA = pa.schema([*_CLIENT, *((name, pa.int64()) for name in ("bin", *_SUMMED, *_HIGHEST, *_LOWEST))])


def verdict_rows(outcome: Outcome) -> pa.Table:
    """Return a row for each delay; if two quotas delay a request, one of its rows has the served throttle time."""
    log, winner = outcome.log, _winners(outcome)
    parts = [VERDICT_SCHEMA.empty_table()]
    for found in outcome.delays:
        at = np.flatnonzero(found.delay_ms != 0)
        row, delay = found.events.row[at], found.delay_ms[at]
        judges = [outcome.judges[found.quota_type][one] for one in outcome.client[row]]
        columns = {
            "time": log.table.column("time").take(pa.array(row)).cast(pa.timestamp("us", "UTC")),
            "sequence": numbers(log.table, "sequence")[row],
            **_names(outcome.clients, outcome.client[row]),
            "quota_type": [found.quota_type] * len(at),
            "user": [judge.tags.user for judge in judges],
            "counter_client_id": [judge.tags.client_id for judge in judges],
            "level": [judge.level for judge in judges],
            "limit": [judge.limit for judge in judges],
            "time_ms": found.events.time_ms[at],
            "delay_ms": delay,
            "served_ms": np.where(winner[row] == ORDER.index(found.quota_type), outcome.served_ms[row], 0),
            "refused": found.events.action[at] == STRICT,
        }
        parts.append(pa.table(columns, schema=VERDICT_SCHEMA))
    return pa.concat_tables(parts)


def _winners(outcome: Outcome) -> Array:
    """Return by row the type whose delay is served: the longest, and Request where two are equal."""
    winner = np.zeros(len(outcome.served_ms), np.int8)
    best = np.zeros(len(outcome.served_ms), np.int32)
    for found in outcome.delays:  # Request comes first
        longest = np.zeros(len(best), np.int32)
        np.maximum.at(longest, found.events.row, found.delay_ms)
        winner[longest > best] = ORDER.index(found.quota_type)
        best = np.maximum(best, longest)
    return winner


def second_rows(outcome: Outcome) -> pa.Table:
    """Return the traffic and the delays of each client by second.

    Rows of one client and second that are not adjacent give several rows, which are to be added up.
    """
    client, second, counted = _by_second(outcome)
    columns = dict(zip((*COUNTS, LONGEST), counted, strict=True))
    return pa.table({**_names(outcome.clients, client), "second": second, **columns}, schema=SECONDS_SCHEMA)


def _by_second(outcome: Outcome) -> tuple[Array, Array, Array]:
    """Return the client and the second of each row of `second_rows`, and its columns COUNTS and LONGEST."""
    log = outcome.log
    rows = np.flatnonzero(log.api_key >= 0)
    if len(rows) == 0:
        return rows, rows, np.zeros((len(COUNTS) + 1, 0), np.int64)
    # a time that no broker can have written must not become a part of the client's number in a key
    client, second = outcome.client[rows], np.clip(log.answered_us[rows] // 1_000_000, 0, _NEVER - 1)
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(client) != 0) | (np.diff(second) != 0)]))
    logged, served = numbers(log.table, "throttle_time_ms")[rows], outcome.served_ms[rows].astype(np.int64)
    values = {
        "requests": np.maximum(numbers(log.table, "repeated")[rows], 1),
        "request_bytes": numbers(log.table, "request_bytes")[rows],
        "response_bytes": numbers(log.table, "response_bytes")[rows],
        "logged_delayed": logged > 0,
        "logged_delay_ms": logged,
        "delayed": served > 0,
        "delay_ms": served,
    }
    sums = [np.add.reduceat(values[name].astype(np.int64), starts) for name in COUNTS]
    return client[starts], second[starts], np.stack([*sums, np.maximum.reduceat(served, starts)])


def _names(clients: list[Client], number: Array) -> dict[str, pa.Array]:
    return {
        name: pa.array([client[at] for client in clients], pa.string()).take(pa.array(number))
        for at, name in enumerate(("principal", "client_id"))
    }


class ClientSums:
    """Sums by client and bin over outcomes that follow each other in time.

    A second may continue in the next part, so the last ones of a part wait for it: each counts once.
    Args: `bin_s`: length of a bin in seconds; None: one for the whole log.
    """

    def __init__(self, bin_s: int | None = None) -> None:
        self._bin_s = bin_s
        self._numbers: dict[Client, int] = {}
        self._key = np.zeros(0, np.int64)  # keys of the seconds that wait
        self._counted = np.zeros((len(COUNTS) + 1, 0), np.int64)
        self._sums: list[tuple[Array, ...]] = []
        self._rows = self._merged_rows = 0

    def add(self, outcome: Outcome) -> None:
        """Add the next part."""
        client, second, counted = _by_second(outcome)
        if len(client) == 0:
            return
        known = self._numbers
        number = np.array([known.setdefault(names, len(known)) for names in outcome.clients], np.int64)
        key = np.concatenate([self._key, number[client] << _TIME_BITS | second])
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
        """Yield all sums, if any."""
        self._take(self._key, self._counted)
        if not self._sums:
            return
        key, sums, highest, lowest = _merged(self._sums)
        never = lowest[0] == _NEVER
        values = dict(zip((*_SUMMED, *_HIGHEST, *_LOWEST), np.concatenate([sums, highest, lowest]), strict=True))
        columns = {
            **_names(list(self._numbers), key >> _TIME_BITS),
            "bin": key & _NEVER,
            **{name: pa.array(values[name], mask=never if name.endswith("_second") else None) for name in values},
        }
        yield pa.table(columns, schema=SUMS_SCHEMA)

    def _take(self, key: Array, counted: Array) -> None:
        """Add sums of whole seconds, each once, in the order of their keys."""
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
    """Merge sums of several parts: keys, and the columns _SUMMED, _HIGHEST and _LOWEST."""
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
    """Return the distinct values of sorted numbers, and the index at which each begins."""
    starts = np.flatnonzero(np.concatenate([[True], np.diff(key) != 0]))
    return key[starts], starts


# ---------------------------------------------------------------- sums of sums, by Spark


def added_up(parts: DataFrame) -> DataFrame:
    """Add up rows of `second_rows` of one client and second."""
    sums = [F.sum(name).alias(name) for name in COUNTS]
    return parts.groupBy("principal", "client_id", "second").agg(*sums, F.max(LONGEST).alias(LONGEST))


def by_client(rows: DataFrame) -> DataFrame:
    """Return each client's sums over all seconds or bins, the longest delay first.

    Beside COUNTS and LONGEST: in how many seconds the client sent anything (`active_seconds`), was delayed
    (`logged_delayed_seconds`), and would have been delayed (`delayed_seconds`), with the first and last of the latter.
    Args: `rows` of `replay_table` or `replay_bins`.
    """
    if "second" in rows.columns:
        is_delayed = F.col("delayed") > 0
        delayed_second = F.when(is_delayed, F.col("second"))
        bins = {
            "active_seconds": F.lit(1),
            "logged_delayed_seconds": (F.col("logged_delayed") > 0).cast("long"),
            "delayed_seconds": is_delayed.cast("long"),
            "first_second": delayed_second,
            "last_second": delayed_second,
        }
        rows = rows.withColumns(bins)
    sums = ("active_seconds", *COUNTS)
    found = rows.groupBy("principal", "client_id").agg(
        *(F.sum(name).alias(name) for name in sums),
        F.max(LONGEST).alias(LONGEST),
        *(F.sum(name).alias(name) for name in ("logged_delayed_seconds", "delayed_seconds")),
        F.timestamp_seconds(F.min("first_second")).alias("first_delay"),
        F.timestamp_seconds(F.max("last_second")).alias("last_delay"),
    )
    return found.orderBy(*map(F.desc, ("delay_ms", "logged_delay_ms", "requests")), "principal", "client_id")


def totals_of(clients: DataFrame) -> dict[str, int]:
    """Return the totals of `by_client`: requests, logged_delay_ms, delayed, delay_ms, and the number of `clients`."""
    names = ("requests", "logged_delay_ms", "delayed", "delay_ms")
    row = clients.agg(*(F.sum(name).alias(name) for name in names), F.count("*").alias("clients")).collect()[0]
    return {name: row[name] or 0 for name in (*names, "clients")}
