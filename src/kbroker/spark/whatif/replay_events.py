"""Rows of a request log as what a replay feeds to counters: one value each, in the order in which a broker saw them.

Where a row has the values that the broker recorded, they are taken; else they are made of sizes and times as the broker
would: Produce the request's bytes, Fetch the response's, Request the handler's time and, once the response is away, the
network thread's. The bytes of a fetch are given back if it is delayed. Columns are numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker.spark.whatif._replay import COUNTED, GIVEN_BACK, JUDGED, STRICT
from kbroker.spark.whatif.quota_set import Tags

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

PRODUCE, FETCH, METADATA, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 0, 1, 3, 19, 20, 37
NOT_JUDGED = (17, 36)  # the exchange of SASL comes before quotas
PERCENT_PER_US = 100 / 1e6
_UPDATED = {
    "sequence": "int64",
    "time_ms": "int64",
    "value": "float64",
    "checked": "bool",
}  # of an update, as numpy has it
SPARSE = 16  # how many more places than numbers a list of the places that are taken may have

#: What is read of a log, whatever the quotas are; `updates` where they are wanted.
COLUMNS = (
    *("time", "sequence", "api_key", "api_version", "principal", "client_id", "throttle_time_ms"),
    *("request_bytes", "response_bytes", "local_time_us", "network_time_us"),
    *("send_time_us", "response_queue_time_us", "repeated", "updates"),
)


@dataclass
class Events:
    """Values of one type of quota. `sequence`: their order where times are equal."""

    row: np.ndarray[Any, Any]  # int32: of the table
    time_ms: np.ndarray[Any, Any]  # int64
    value: np.ndarray[Any, Any]  # float64
    action: np.ndarray[Any, Any]  # int8
    sequence: np.ndarray[Any, Any]  # int64

    def __len__(self) -> int:
        return len(self.row)

    def taken(self, places: np.ndarray[Any, Any]) -> Events:
        """Some of them, or all in another order."""
        return Events(*(getattr(self, name)[places] for name in self.__dataclass_fields__))

    def in_order(self) -> Events:
        """By time, and by sequence where the time is the same; untouched if they are so already."""
        import numpy as np

        later = np.diff(self.time_ms)
        if np.all((later > 0) | ((later == 0) & (np.diff(self.sequence) >= 0))):
            return self
        order = np.argsort(self.sequence, kind="stable")
        return self.taken(order[np.argsort(self.time_ms[order], kind="stable")])


@dataclass(frozen=True)
class Updates:
    """The flattened `updates` of a table. `tag`: number of the counter, whose name is in `tags`."""

    row: np.ndarray[Any, Any]
    tag: np.ndarray[Any, Any]
    tags: list[Tags]
    sequence: np.ndarray[Any, Any]
    time_ms: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]
    checked: np.ndarray[Any, Any]

    @staticmethod
    def of(table: pa.Table) -> Updates | None:
        """None where the table has none."""
        found = flattened(table, "updates")
        if found is None:
            return None
        row, field = found
        tag, names = numbered([field(name) for name in ("quota_type", "user", "client_id")])
        return Updates(
            row,
            tag,
            [Tags(kind or "", user or "", client_id or "") for kind, user, client_id in names],
            *(_values(field, name, kind) for name, kind in _UPDATED.items()),
        )


def _values(field: Callable[[str], Any], name: str, kind: str) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = field(name).to_numpy(zero_copy_only=False)
    return found.astype(kind, copy=False)


def numbered(columns: Sequence[Any]) -> tuple[np.ndarray[Any, Any], list[tuple[Any, ...]]]:
    """Of columns of the same length: each combination of their values as a number, and the combinations by number."""
    code, steps = _coded(columns)
    names: list[tuple[Any, ...]] = [()]
    for distinct, values in steps:
        pairs = (divmod(one, len(values)) for one in distinct.tolist())
        names = [(*names[before], values[own]) for before, own in pairs]
    return code, names


def _coded(columns: Sequence[Any]) -> tuple[np.ndarray[Any, Any], list[tuple[np.ndarray[Any, Any], list[Any]]]]:
    """The numbers of `numbered`; and for each column which (number so far, place of the value) there are, as one
    number, with the column's values.
    """
    import numpy as np
    import pyarrow as pa

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


def _distinct(code: np.ndarray[Any, Any], limit: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The distinct ones of numbers from 0 to below `limit`, in order, and of each number its place among them."""
    import numpy as np

    if limit > SPARSE * len(code):  # sorted: in few of the places would be anything
        return np.unique(code, return_inverse=True)
    place = np.zeros(limit, np.int32)
    place[code] = 1
    distinct = np.flatnonzero(place)
    place[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct, place[code]


def in_one(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; pyarrow would copy even a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def lists_of(table: pa.Table, name: str) -> tuple[np.ndarray[Any, Any], Callable[[str], Any]] | None:
    """Of a column of lists where each row's elements begin, and behind them where the last ones end; and a function
    from a field's name to its column of all elements. None: there are no elements.
    """
    import numpy as np
    import pyarrow.compute as pc

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


def flattened(table: pa.Table, name: str) -> tuple[np.ndarray[Any, Any], Callable[[str], Any]] | None:
    """Of a column of lists: the row of each element, and a function from a field's name to its column. None: empty."""
    import numpy as np

    found = lists_of(table, name)
    if found is None:
        return None
    ends, field = found
    return np.repeat(np.arange(len(ends) - 1, dtype=np.int32), np.diff(ends)), field


def numbers(table: pa.Table, name: str, kind: str = "int64") -> np.ndarray[Any, Any]:
    """A column of numbers; what is missing is 0."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if name not in table.column_names:
        return np.zeros(table.num_rows, kind)
    column = in_one(table.column(name))
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if column.null_count:
        column = pc.fill_null(column, 0)
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(kind, copy=False)


def answered_us(table: pa.Table) -> np.ndarray[Any, Any]:
    """By row when the response was ready, microseconds since 1970; then a request is judged."""
    sent, waited = numbers(table, "send_time_us"), numbers(table, "response_queue_time_us")
    found: np.ndarray[Any, Any] = numbers(table, "time") - sent - waited
    return found


class Log:
    """A table of rows, seen as values of each type of quota. Rows without a request carry none.

    Args: `table`: any of COLUMNS; `row`s are its places.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table = table.combine_chunks()  # once, not at each look at a column
        self._updates = flattened(table, "updates")
        self._kind = None if self._updates is None else numbered([self._updates[1]("quota_type")])
        self.api_key = self._api_keys()
        self.answered_us = answered_us(table)

    def _api_keys(self) -> np.ndarray[Any, Any]:
        import pyarrow.compute as pc

        column = in_one(self.table.column("api_key"))
        column = pc.fill_null(column, -1) if column.null_count else column
        found: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
        return found

    def events(self, quota_type: str, counter: np.ndarray[Any, Any]) -> Events:
        """The values of a type, in order. Args: `counter`: by row, below 0 for rows that nothing limits."""
        import numpy as np

        parts = []
        made = counter >= 0
        if self._updates is not None:
            logged = self._logged(quota_type, counter)
            parts.append(logged)
            made = made.copy()
            made[logged.row] = False
        rows = np.flatnonzero(made & self._judged(quota_type)).astype(np.int32)
        parts += self._made(quota_type, rows)
        return joined(parts).in_order() if parts else _events(rows, 0, 0, JUDGED, 0)

    def _judged(self, quota_type: str) -> np.ndarray[Any, Any]:
        """The rows that a broker would judge by this type."""
        import numpy as np

        if quota_type == "Produce":
            return np.asarray(self.api_key == PRODUCE)
        if quota_type == "Fetch":
            return np.asarray(self.api_key == FETCH)
        if quota_type == "Request":
            unanswered = (self.api_key == PRODUCE) & (numbers(self.table, "response_bytes") == 0)  # acks=0 is exempt
            return np.asarray((self.api_key >= 0) & ~np.isin(self.api_key, NOT_JUDGED) & ~unanswered)
        return np.zeros(len(self.api_key), bool)  # how many mutations a request asked for only an update says

    def _made(self, quota_type: str, rows: np.ndarray[Any, Any]) -> list[Events]:
        """Values of rows that have none, of their sizes and times. Places 0 to 2 within a row keep its order."""
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

    def _logged(self, quota_type: str, counter: np.ndarray[Any, Any]) -> Events:
        """Values that the broker recorded. What a delayed fetch was given back is decided anew."""
        import numpy as np
        import pyarrow as pa

        assert self._updates is not None
        assert self._kind is not None
        rows, field = self._updates
        number, kinds = self._kind
        of_type = np.array([kind == (quota_type,) for kind in kinds], bool)
        at = np.flatnonzero(of_type[number] & (counter[rows] >= 0))
        row = rows[at]
        sequence, time_ms, value, checked = (_values(field, name, kind)[at] for name, kind in _UPDATED.items())
        tag, _ = _coded([field(name).take(pa.array(at)) for name in ("user", "client_id")])
        action = np.where(checked, JUDGED, COUNTED).astype(np.int8)
        if quota_type == "ControllerMutation":
            action[self.knows_error_89()[row]] = STRICT
        elif quota_type == "Fetch":
            action[value < 0] = GIVEN_BACK
            value = np.abs(value)
        # A counter that stays as it was keeps its own order; where several become one, records say who came first.
        sequence = sequence * 4
        kept = _of_one(counter[row], tag, int(counter.max(initial=0)) + 1)
        if not kept.all():
            place = numbers(self.table, "sequence")[row] * 4 + np.where(action == COUNTED, 2, action == GIVEN_BACK)
            sequence = np.where(kept, sequence, place)
        found = Events(row, time_ms, value, action, sequence)
        if quota_type != "Fetch":
            return found
        returned = np.zeros(len(counter), bool)
        returned[row[action == GIVEN_BACK]] = True
        more = found.taken(np.flatnonzero((action == JUDGED) & ~returned[row]))  # not delayed then, perhaps now
        more.action[:] = GIVEN_BACK
        more.sequence += 1
        return joined([found, more])

    def knows_error_89(self) -> np.ndarray[Any, Any]:
        """Rows whose mutations are refused, not delayed, where the quota is overdrawn."""
        import numpy as np

        key, version = self.api_key, numbers(self.table, "api_version")
        return np.asarray(
            (key == METADATA)
            | ((key == CREATE_TOPICS) & (version >= 6))
            | ((key == CREATE_PARTITIONS) & (version >= 3))
            | ((key == DELETE_TOPICS) & (version >= 5))
        )


def joined(parts: Sequence[Events]) -> Events:
    """All of them, one behind the other."""
    import numpy as np

    return Events(*(np.concatenate([getattr(part, name) for part in parts]) for name in Events.__dataclass_fields__))


def _of_one(group: np.ndarray[Any, Any], value: np.ndarray[Any, Any], groups: int) -> np.ndarray[Any, Any]:
    """Whether all values of an element's group are the same."""
    import numpy as np

    low, high = np.full(groups, 2**31 - 1, np.int32), np.full(groups, -1, np.int32)
    np.minimum.at(low, group, value)
    np.maximum.at(high, group, value)
    return np.asarray((low == high)[group])


def _events(rows: Any, time_ms: Any, value: Any, action: int, sequence: Any) -> Events:
    import numpy as np

    n = len(rows)
    spread = [np.broadcast_to(np.asarray(x), n) for x in (time_ms, value, action, sequence)]
    kinds = (np.int64, np.float64, np.int8, np.int64)
    return Events(rows, *(np.ascontiguousarray(x, kind) for x, kind in zip(spread, kinds, strict=True)))
