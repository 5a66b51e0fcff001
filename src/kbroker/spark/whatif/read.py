"""Rows of a request log as the values that a replay feeds to counters, in the order in which a broker recorded them.

Where a row has the values that the broker recorded, these are taken. Else they are derived from sizes and times as the
broker would: Produce counts the request's bytes, Fetch the response's, Request the handler's time and, after the
response is sent, the network thread's. The bytes of a fetch are subtracted again if it is delayed.

A long log is read in parts that follow each other in time, so that at most an hour of it is in memory (`settled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kbroker.spark.whatif._replay import COUNTED, GIVEN_BACK, JUDGED, STRICT
from kbroker.spark.whatif.quota_set import Tags

V = TypeVar("V", bound="Values")
Array: TypeAlias = np.ndarray[Any, Any]
Client = tuple[str | None, str | None]  # principal and client id
Part = tuple[pa.Table, int | None]  # see `settled`
Field = Callable[[str], Any]  # maps the name of a struct's field to its column

PRODUCE, FETCH, METADATA, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 0, 1, 3, 19, 20, 37
NOT_JUDGED = (17, 36)  # the exchange of SASL comes before quotas
PERCENT_PER_US = 100 / 1e6
PART_ROWS = 100_000  # hours with fewer rows are joined
FEW_ROWS = 64
SPARSE = 16  # maximum ratio of possible to actual numbers for counting instead of sorting
#: Fields of an update, with their numpy types.
_UPDATED = {"sequence": "int64", "time_ms": "int64", "value": "float64", "checked": "bool"}
#: Columns of the log that every replay reads.
COLUMNS = (
    *("time", "sequence", "api_key", "api_version", "principal", "client_id", "throttle_time_ms"),
    *("request_bytes", "response_bytes", "local_time_us", "network_time_us"),
    *("send_time_us", "response_queue_time_us", "repeated", "updates"),
)


@dataclass
class Values:
    """Values of one type of quota, in the order in which a broker recorded them, as columns."""

    time_ms: Array  # int64
    value: Array  # float64
    action: Array  # int8

    def __len__(self) -> int:
        return len(self.time_ms)

    @property
    def is_judged(self) -> Array:
        """Return whether each value was judged, rather than only counted."""
        return np.asarray((self.action == JUDGED) | (self.action == STRICT))

    def taken(self: V, places: Any) -> V:
        """Return the values at some places, in the order of `places`."""
        return type(self)(*(getattr(self, name)[places] for name in self.__dataclass_fields__))


@dataclass
class Events(Values):
    """Values of the rows of a table. `sequence`: their order where times are equal."""

    row: Array  # int32: of the table
    sequence: Array  # int64

    def in_order(self) -> Events:
        """Return the values by time, then by sequence; self if they are sorted."""
        later = np.diff(self.time_ms)
        if np.all((later > 0) | ((later == 0) & (np.diff(self.sequence) >= 0))):
            return self
        order = np.argsort(self.sequence, kind="stable")
        return self.taken(order[np.argsort(self.time_ms[order], kind="stable")])


def joined(parts: Sequence[V]) -> V:
    """Concatenate values; those of one part are not copied."""
    if len(parts) == 1:
        return parts[0]
    kind = type(parts[0])
    return kind(*(np.concatenate([getattr(part, name) for part in parts]) for name in kind.__dataclass_fields__))


class Log:
    """Rows of a request log, as values of each type of quota. Rows without a request have none.

    Args: `table`: has COLUMNS, or some of them.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table = table.combine_chunks()  # once, not at each access to a column
        self._updates = flattened(table, "updates")
        self._kind = None if self._updates is None else numbered([self._updates[1]("quota_type")])
        column = in_one(table.column("api_key"))
        self.api_key: Array = (pc.fill_null(column, -1) if column.null_count else column).to_numpy(zero_copy_only=False)
        self.answered_us = answered_us(table)

    def events(self, quota_type: str, counter: Array) -> Events:
        """Return the values of a type, in order. Args: `counter`: by row, negative for rows that nothing limits."""
        parts = []
        derived = counter >= 0
        if self._updates is not None:
            logged = self._logged(quota_type, counter)
            parts.append(logged)
            derived = derived.copy()
            derived[logged.row] = False
        rows = np.flatnonzero(derived & self._judged(quota_type)).astype(np.int32)
        parts += self._derived(quota_type, rows)
        return joined(parts).in_order() if parts else _events(rows, 0, 0, JUDGED, 0)

    def _judged(self, quota_type: str) -> Array:
        """Return whether a broker judges each row by this type."""
        if quota_type == "Produce":
            return np.asarray(self.api_key == PRODUCE)
        if quota_type == "Fetch":
            return np.asarray(self.api_key == FETCH)
        if quota_type == "Request":
            unanswered = (self.api_key == PRODUCE) & (numbers(self.table, "response_bytes") == 0)  # acks=0 is exempt
            return np.asarray((self.api_key >= 0) & ~np.isin(self.api_key, NOT_JUDGED) & ~unanswered)
        return np.zeros(len(self.api_key), bool)  # only updates have the number of mutations of a request

    def _derived(self, quota_type: str, rows: Array) -> list[Events]:
        """Derive values of rows without updates. Places 0 to 2 within a row keep the order of its values."""
        if len(rows) == 0:
            return []
        times, order = self.answered_us[rows] // 1000, numbers(self.table, "sequence")[rows] * 4
        if quota_type == "Request":
            handler = numbers(self.table, "local_time_us")[rows] * PERCENT_PER_US
            network = numbers(self.table, "network_time_us")[rows] * PERCENT_PER_US
            sent = numbers(self.table, "time")[rows] // 1000
            found = [_events(rows, times, handler, JUDGED, order)]
            return [*found, _events(rows, sent, network, COUNTED, order + 2)] if network.any() else found
        size = numbers(self.table, "request_bytes" if quota_type == "Produce" else "response_bytes", "float64")[rows]
        found = [_events(rows, times, size, JUDGED, order)]
        return found if quota_type == "Produce" else [*found, _events(rows, times, size, GIVEN_BACK, order + 1)]

    def _logged(self, quota_type: str, counter: Array) -> Events:
        """Return the values that the broker recorded. Subtracted bytes of delayed fetches are computed again."""
        assert self._updates is not None
        assert self._kind is not None
        rows, field = self._updates
        number, kinds = self._kind
        of_type = np.array([kind == (quota_type,) for kind in kinds], bool)
        at = np.flatnonzero(of_type[number] & (counter[rows] >= 0))
        row = rows[at]
        sequence, time_ms, value, checked = (column[at] for column in updated(field))
        tag, _ = _coded([field(name).take(pa.array(at)) for name in ("user", "client_id")])
        action = np.where(checked, JUDGED, COUNTED).astype(np.int8)
        if quota_type == "ControllerMutation":
            action[self.knows_error_89()[row]] = STRICT
        elif quota_type == "Fetch":
            action[value < 0] = GIVEN_BACK
            value = np.abs(value)
        # The values of one counter keep their own order; where several counters become one, records give the order.
        sequence = sequence * 4
        kept = _of_one(counter[row], tag, int(counter.max(initial=0)) + 1)
        if not kept.all():
            place = numbers(self.table, "sequence")[row] * 4 + np.where(action == COUNTED, 2, action == GIVEN_BACK)
            sequence = np.where(kept, sequence, place)
        found = Events(time_ms, value, action, row, sequence)
        if quota_type != "Fetch":
            return found
        returned = np.zeros(len(counter), bool)
        returned[row[action == GIVEN_BACK]] = True
        more = found.taken(
            np.flatnonzero((action == JUDGED) & ~returned[row])
        )  # not delayed in the log, perhaps in the replay
        more.action[:] = GIVEN_BACK
        more.sequence += 1
        return joined([found, more])

    def knows_error_89(self) -> Array:
        """Return whether each row's mutations are refused, rather than delayed, when the quota is exceeded."""
        key, version = self.api_key, numbers(self.table, "api_version")
        return np.asarray(
            (key == METADATA)
            | ((key == CREATE_TOPICS) & (version >= 6))
            | ((key == CREATE_PARTITIONS) & (version >= 3))
            | ((key == DELETE_TOPICS) & (version >= 5))
        )


def _events(rows: Array, time_ms: Any, value: Any, action: int, sequence: Any) -> Events:
    spread = [np.broadcast_to(np.asarray(x), len(rows)) for x in (time_ms, value, action, rows, sequence)]
    kinds = (np.int64, np.float64, np.int8, np.int32, np.int64)
    return Events(*(np.ascontiguousarray(x, kind) for x, kind in zip(spread, kinds, strict=True)))


def _of_one(group: Array, value: Array, groups: int) -> Array:
    """Return whether all values of each element's group are equal."""
    low, high = np.full(groups, 2**31 - 1, np.int32), np.full(groups, -1, np.int32)
    np.minimum.at(low, group, value)
    np.maximum.at(high, group, value)
    return np.asarray((low == high)[group])


# ---------------------------------------------------------------- parts of a long log


def settled(hours: Iterable[pa.Table]) -> Iterator[Part]:
    """Yield the rows of consecutive hours in parts, each with the time at which the judging of the next part begins.

    That time is in milliseconds since 1970, and None for the last part. Files of a table hold the rows of an hour by
    the times of their responses, and a request is judged a little earlier, so the last rows of an hour wait for the
    next one. A request that was judged more than an hour before its response was sent comes late, with the hour of the
    response.
    """
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
    """Values that wait for the part in which they are due: network time, counted after the response of a row is sent.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._waiting: tuple[Events, Array] | None = None

    def with_held(self, events: Events, key: Array, until_ms: int | None) -> tuple[Events, Array]:
        """Return the values of a part and those that waited for it, in order; those due from `until_ms` on wait.

        Args: `key`: number of the counter or entity of each value. Values that waited refer to row 0.
        """
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
    """Join small tables, since each one has a fixed cost; yield no empty one."""
    waiting: list[pa.Table] = []
    for table in hours:
        waiting.append(table)
        if sum(one.num_rows for one in waiting) >= PART_ROWS:
            yield pa.concat_tables(waiting, promote_options="permissive").combine_chunks()
            waiting = []
    if any(one.num_rows for one in waiting):
        yield pa.concat_tables(waiting, promote_options="permissive").combine_chunks()


def _without(table: pa.Table, rows: Array) -> pa.Table:
    """Return a table without some rows. Up to FEW_ROWS are left out without copying; usually they are few."""
    if len(rows) > FEW_ROWS:
        kept = np.ones(table.num_rows, bool)
        kept[rows] = False
        return table.filter(pa.array(kept))
    begins, ends = [0, *(rows + 1).tolist()], [*rows.tolist(), table.num_rows]
    return pa.concat_tables([table.slice(begin, end - begin) for begin, end in zip(begins, ends, strict=True)])


def _judged_ms(table: pa.Table) -> Array:
    """Return the time at which each row was judged, in ms since 1970: that of its first value, else of its response."""
    first = answered_us(table) // 1000
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


# ---------------------------------------------------------------- columns


def numbers(table: pa.Table, name: str, kind: str = "int64") -> Array:
    """Return a column of numbers, with 0 for missing ones."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, kind)
    column = in_one(table.column(name))
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if column.null_count:
        column = pc.fill_null(column, 0)
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(kind, copy=False)


def answered_us(table: pa.Table) -> Array:
    """Return the time at which each response was ready, and its request judged, in microseconds since 1970."""
    return numbers(table, "time") - numbers(table, "send_time_us") - numbers(table, "response_queue_time_us")


def clients_of(table: pa.Table) -> tuple[Array, list[Client]]:
    """Return the number of each row's client, and the clients by number. A missing column is null."""
    has, missing = table.column_names, pa.chunked_array([pa.nulls(table.num_rows, pa.string())])
    number, names = numbered([table.column(n) if n in has else missing for n in ("principal", "client_id")])
    return number, [(principal, client_id) for principal, client_id in names]


def numbered(columns: Sequence[Any]) -> tuple[Array, list[tuple[Any, ...]]]:
    """Number the combinations of the values of columns; return the numbers by row, and the combinations by number."""
    code, steps = _coded(columns)
    names: list[tuple[Any, ...]] = [()]
    for distinct, values in steps:
        pairs = (divmod(one, len(values)) for one in distinct.tolist())
        names = [(*names[before], values[own]) for before, own in pairs]
    return code, names


def _coded(columns: Sequence[Any]) -> tuple[Array, list[tuple[Array, list[Any]]]]:
    """Return the numbers of `numbered`, and for each column its values and the pairs of (number so far, value) found.

    A pair is one number: the number so far times the count of values, plus the place of the value.
    """
    code, count = np.zeros(len(columns[0]), np.int32), 1
    steps = []
    for column in columns:
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            if not encoded.num_chunks:
                return code, [(np.zeros(0, np.int64), [])]
            encoded = in_one(encoded.unify_dictionaries())
        values, places = encoded.dictionary.to_pylist(), encoded.indices
        if places.null_count:
            places = places.fill_null(len(values))
            values.append(None)
        own = places.to_numpy(zero_copy_only=False)
        if count > 1:
            own = np.multiply(code, len(values), dtype=np.int64) + own
        distinct, code = _distinct(own, count * len(values))
        count = len(distinct)
        steps.append((distinct, values))
    return code.astype(np.int32, copy=False), steps


def _distinct(code: Array, limit: int) -> tuple[Array, Array]:
    """Return the distinct values of numbers from 0 to below `limit`, sorted, and each number's index among them."""
    if limit > SPARSE * len(code):
        return np.unique(code, return_inverse=True)
    place = np.zeros(limit, np.int32)
    place[code] = 1
    distinct = np.flatnonzero(place)
    place[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct, place[code]


def in_one(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; pyarrow would copy even a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def lists_of(table: pa.Table, name: str) -> tuple[Array, Field] | None:
    """Return the offsets of a column of lists, with the end of the last one, and the fields of all elements.

    None if there are no elements.
    """
    if name not in table.column_names:
        return None
    column = in_one(table.column(name))
    if column.null_count == len(column):
        return None
    elements = pc.list_flatten(column)
    if len(elements) == 0:
        return None
    if column.null_count:
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        ends = np.concatenate([[0], np.cumsum(counts)])
    else:
        ends = column.offsets.to_numpy()
        ends = ends - ends[0]
    return ends, lambda field: pc.struct_field(elements, field)


def flattened(table: pa.Table, name: str) -> tuple[Array, Field] | None:
    """Return the row of each element of a column of lists, and the fields of all elements; None if there are none."""
    found = lists_of(table, name)
    if found is None:
        return None
    ends, field = found
    return np.repeat(np.arange(len(ends) - 1, dtype=np.int32), np.diff(ends)), field


def tagged(table: pa.Table, name: str) -> tuple[Array, Array, list[Tags], Field] | None:
    """Return `flattened` updates or verdicts with the number of each one's counter, and the counters; None if none."""
    found = flattened(table, name)
    if found is None:
        return None
    row, field = found
    number, names = numbered([field(one) for one in Tags._fields])
    return row, number, [Tags(*(part or "" for part in one)) for one in names], field


def updated(field: Field) -> list[Array]:
    """Return sequence, time_ms, value and checked of updates."""
    return [field(name).to_numpy(zero_copy_only=False).astype(kind, copy=False) for name, kind in _UPDATED.items()]
