"""Replay of one table of rows in this process: who would have been delayed under a set of quotas, by how much, when.

An open loop: the clients of the log do not react. One that is delayed would have sent less afterwards; here it sends
what the log says, so delays come out too many rather than too few. Counters begin cold, as after a start of the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker.spark.whatif._replay import STRICT, Counters
from kbroker.spark.whatif.quota_set import Judge, QuotaSet, Tags
from kbroker.spark.whatif.replay_events import Events, Log, numbered, numbers
from kbroker.spark.whatif.time_parts import Held

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

OPEN_LOOP = "open loop: clients do not react to these delays, as real ones would"
#: Fetch last: what a fetch is given back depends on the other delay too, and nothing depends on Fetch.
ORDER = ("Request", "Produce", "ControllerMutation", "Fetch")
#: What is counted of each client and second, and the highest of its delays.
COUNTS = ("requests", "request_bytes", "response_bytes", "logged_delayed", "logged_delay_ms", "delayed", "delay_ms")
LONGEST = "longest_delay_ms"


@dataclass(frozen=True)
class Windows:
    """Settings of the broker: quota.window.num, quota.window.size.seconds, and the same of the controller's quota."""

    samples: int = 11
    seconds: int = 1
    controller_samples: int = 11
    controller_seconds: int = 1

    def counters(self, *, expires: bool = True) -> Counters:
        """Cold counters with these windows. Args: `expires`: those idle for an hour become cold again."""
        return Counters(
            samples=self.samples,
            window_ms=self.seconds * 1000,
            controller_samples=self.controller_samples,
            controller_window_ms=self.controller_seconds * 1000,
            expires=expires,
        )


@dataclass
class Delays:
    """The values of a type that were judged, with what they cost."""

    quota_type: str
    events: Events
    delay_ms: np.ndarray[Any, Any]


@dataclass
class Outcome:
    """What a replay says of a table. `served_ms`: by row, the throttle time its client would have been sent."""

    table: pa.Table
    log: Log
    pair: np.ndarray[Any, Any]  # by row
    pairs: list[tuple[str | None, str | None]]
    judges: dict[str, list[Judge]]  # by pair
    delays: list[Delays]
    served_ms: np.ndarray[Any, Any]

    def verdicts(self) -> pa.Table:
        """A row for each delay, as VERDICT_FIELDS; of a request that two quotas delay, one carries what is served."""
        import numpy as np
        import pyarrow as pa

        winner = self._winners()
        parts = []
        for found in self.delays:
            at = np.flatnonzero(found.delay_ms != 0)
            if len(at) == 0:
                continue
            row, delay = found.events.row[at], found.delay_ms[at]
            judges = [self.judges[found.quota_type][p] for p in self.pair[row]]
            served = np.where(winner[row] == ORDER.index(found.quota_type), self.served_ms[row], 0)
            columns = {
                "time": self.table.column("time").take(pa.array(row)).cast(pa.timestamp("us", "UTC")),
                "sequence": pa.array(numbers(self.table, "sequence")[row], pa.int64()),
                **self._names(self.pair[row]),
                "quota_type": pa.array([found.quota_type] * len(at), pa.string()),
                "user": pa.array([judge.tags.user for judge in judges], pa.string()),
                "counter_client_id": pa.array([judge.tags.client_id for judge in judges], pa.string()),
                "level": pa.array([judge.level for judge in judges], pa.int32()),
                "limit": pa.array([judge.limit for judge in judges], pa.float64()),
                "time_ms": pa.array(found.events.time_ms[at], pa.int64()),
                "delay_ms": pa.array(delay, pa.int64()),
                "served_ms": pa.array(served, pa.int64()),
                "refused": pa.array(found.events.action[at] == STRICT, pa.bool_()),
            }
            parts.append(pa.table(columns, schema=verdict_schema()))
        return pa.concat_tables(parts) if parts else verdict_schema().empty_table()

    def _winners(self) -> np.ndarray[Any, Any]:
        """By row the type whose delay is served: the longest, and Request where two are as long."""
        import numpy as np

        winner = np.zeros(len(self.served_ms), np.int8)
        best = np.zeros(len(self.served_ms), np.int32)
        for found in self.delays:  # Request comes first
            longest = np.zeros(len(best), np.int32)
            np.maximum.at(longest, found.events.row, found.delay_ms)
            winner[longest > best] = ORDER.index(found.quota_type)
            best = np.maximum(best, longest)
        return winner

    def seconds(self) -> pa.Table:
        """What each client did and would have suffered, by second, as `seconds_schema`.

        Rows of one client and second that do not lie together give several rows: to be added up.
        """
        import pyarrow as pa

        pair, second, counted = self.by_second()
        columns = dict(zip((*COUNTS, LONGEST), counted, strict=True))
        return pa.table({**self._names(pair), "second": second, **columns}, schema=seconds_schema())

    def by_second(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The same as numbers: of each row the pair, the second, and a column with COUNTS and LONGEST."""
        import numpy as np

        rows = np.flatnonzero(self.log.api_key >= 0)
        if len(rows) == 0:
            return rows, rows, np.zeros((len(COUNTS) + 1, 0), np.int64)
        pair, second = self.pair[rows], self.log.answered_us[rows] // 1_000_000
        starts = np.flatnonzero(np.concatenate([[True], (np.diff(pair) != 0) | (np.diff(second) != 0)]))
        logged, served = numbers(self.table, "throttle_time_ms")[rows], self.served_ms[rows].astype(np.int64)
        values = {
            "requests": np.maximum(numbers(self.table, "repeated")[rows], 1),
            "request_bytes": numbers(self.table, "request_bytes")[rows],
            "response_bytes": numbers(self.table, "response_bytes")[rows],
            "logged_delayed": logged > 0,
            "logged_delay_ms": logged,
            "delayed": served > 0,
            "delay_ms": served,
        }
        sums = [np.add.reduceat(values[name].astype(np.int64), starts) for name in COUNTS]
        return pair[starts], second[starts], np.stack([*sums, np.maximum.reduceat(served, starts)])

    def _names(self, pair: np.ndarray[Any, Any]) -> dict[str, pa.Array]:
        import pyarrow as pa

        return {
            name: pa.array([names[at] for names in self.pairs], pa.string()).take(pa.array(pair))
            for at, name in enumerate(("principal", "client_id"))
        }


def verdict_schema() -> pa.Schema:
    """Columns of `Outcome.verdicts`."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    return pa.schema(
        [
            ("time", pa.timestamp("us", "UTC")),  # when the response was away
            ("sequence", number),  # of the record
            ("principal", text),
            ("client_id", text),
            ("quota_type", text),
            ("user", text),  # of the counter
            ("counter_client_id", text),
            ("level", pa.int32()),
            ("limit", pa.float64()),
            ("time_ms", number),  # when it was judged
            ("delay_ms", number),
            ("served_ms", number),
            ("refused", pa.bool_()),
        ]
    )


def seconds_schema() -> pa.Schema:
    """Columns of `Outcome.seconds`."""
    import pyarrow as pa

    names = ("second", *COUNTS, LONGEST)
    return pa.schema([("principal", pa.string()), ("client_id", pa.string()), *((name, pa.int64()) for name in names)])


class Replay:
    """Counters under a set of quotas; tables that are fed one after the other find what the ones before have left.

    Threads: one at a time.
    """

    def __init__(self, quotas: QuotaSet, windows: Windows | None = None) -> None:
        self.quotas = quotas
        self.counters = (windows or Windows()).counters()
        self._numbers: dict[Tags, int] = {}
        self._held = {kind: Held() for kind in quotas.types}
        self._judges: dict[str, dict[tuple[str | None, str | None], Judge]] = {kind: {} for kind in quotas.types}

    def feed(self, table: pa.Table, until_ms: int | None = None) -> Outcome:
        """Judge the rows of a table, in the order of their times.

        Args: `until_ms`: the next table's rows are judged from then on, so what is only counted then waits for it.
        """
        import numpy as np

        log = Log(table)
        table = log.table
        pair, pairs = pairs_of(table)
        judges = {kind: [self._judge(kind, names) for names in pairs] for kind in self.quotas.types}
        served = np.zeros(table.num_rows, np.int32)
        delays = []
        for quota_type in ORDER:
            if quota_type not in judges:
                continue
            by_pair = np.array([self._number(judge) for judge in judges[quota_type]], np.int32)
            events = log.events(quota_type, by_pair[pair])
            events, counter = self._held[quota_type].with_held(events, by_pair[pair[events.row]], until_ms)
            delay = np.zeros(len(events), np.int32)
            self.counters.run(counter, events.time_ms, events.value, events.action, events.row, delay, served)
            delays.append(Delays(quota_type, events, delay))
        return Outcome(table, log, pair, pairs, judges, delays, served)

    def _judge(self, kind: str, names: tuple[str | None, str | None]) -> Judge:
        """Whose counter a client's values go to: looked up once for each client."""
        known = self._judges[kind]
        found = known.get(names)
        if found is None:
            found = known[names] = self.quotas.judge(kind, *names)
        return found

    def _number(self, judge: Judge) -> int:
        """Of a counter, made if there is none; -1 where nothing limits: that would be counted for nothing."""
        if judge.limit is None:
            return -1
        number = self._numbers.get(judge.tags)
        if number is None:
            number = self._numbers[judge.tags] = self.counters.add(judge.tags.quota_type, judge.limit)
        return number


def pairs_of(table: pa.Table) -> tuple[np.ndarray[Any, Any], list[tuple[str | None, str | None]]]:
    """The (principal, client id) of each row, as a number, and the list of them."""
    number, names = numbered([table.column("principal"), table.column("client_id")])
    return number, [(principal, client_id) for principal, client_id in names]
