"""Recommendation of quotas: for each entity the smallest one that throttles less than a share of its seconds.

It is found by judging the entity's own values with the sensors of a broker, rather than by a percentile of its traffic:
a quota of bytes per second is compared with a rate over eleven samples, so bursts weigh as they do there. The share is
that of the seconds in which the entity sent anything, so one that is busy for a minute a day counts by that minute.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kbroker.client.cluster_file import flow_text
from kbroker.common.quotas import CLIENT_ID, USER, QuotaEntity
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_place import TableName
from kbroker.spark.usage_views.usage import COLUMNS, usage_per_second
from kbroker.spark.whatif._replay import GIVEN_BACK, JUDGED, Counters
from kbroker.spark.whatif.feed import Windows
from kbroker.spark.whatif.group import ALONE, Shared, Sharing, Work, work_on_table
from kbroker.spark.whatif.quota_set import KEY_OF, user_of
from kbroker.spark.whatif.read import Array, Client, Events, Held, Log, Part, Values, clients_of, joined

#: Entities of the quotas: each pair of user and client id, each user, or each client id.
BY = ("user,client-id", "user", "client-id")
FINEST = {"Request": 0.01, "ControllerMutation": 0.01}  # step of limits; of the others, whole bytes a second
MARGIN = 1e-9
JOINED_VALUES = 1 << 20  # an entity with at most as many values has one part
NEED_SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("client_id", pa.string()),
        ("quota_type", pa.string()),
        ("limit", pa.float64()),
        ("seconds", pa.int64()),
        ("throttled_seconds", pa.int64()),
        ("peak", pa.float64()),
    ]
)


class Need(NamedTuple):
    """Need of one entity for one type of quota. The fields are those of NEED_SCHEMA.

    `seconds`: number of seconds in which it sent anything of the type; `throttled_seconds`, `share` (0..1): those in
    which `limit` would have delayed it. `peak`: its highest rate; a limit above it delays nothing.
    """

    user: str | None
    client_id: str | None
    quota_type: str
    limit: float
    seconds: int
    throttled_seconds: int
    peak: float

    @property
    def share(self) -> float:
        return self.throttled_seconds / self.seconds if self.seconds else 0.0

    @property
    def entity(self) -> QuotaEntity:
        names = {USER: self.user, CLIENT_ID: self.client_id}
        return QuotaEntity.of({kind: name for kind, name in names.items() if name is not None})


@dataclass(frozen=True)
class Recommendation:
    """Quotas for all entities: a default for each type, and separate quotas for the entities that need more.

    `headroom`: capacity and use of the broker's threads.
    """

    by: str
    share: float
    defaults: dict[str, float]
    outliers: list[Need]
    needs: list[Need]
    headroom: Headroom | None = None

    def quotas(self) -> dict[QuotaEntity, dict[str, float]]:
        """Return all quotas, as `kbroker quotas apply` takes them."""
        kinds = self.by.split(",")
        default = QuotaEntity.of(dict.fromkeys(kinds))
        found: dict[QuotaEntity, dict[str, float]] = {}
        if self.defaults:
            found[default] = {KEY_OF[kind]: limit for kind, limit in self.defaults.items()}
        for need in self.outliers:
            found.setdefault(need.entity, {})[KEY_OF[need.quota_type]] = need.limit
        return found


class Headroom(NamedTuple):
    """Capacity and use of the broker's threads, in percent of one thread.

    `capacity`: (num.io.threads + listeners x num.network.threads) x 100; `recommended`: use that all entities together
    are allowed by the recommended quotas.
    """

    capacity: float
    mean: float
    peak: float
    recommended: float

    @property
    def free(self) -> float:
        """Capacity that is free in the busiest second."""
        return self.capacity - self.peak


def capacity_percent(io_threads: int, network_threads: int, listeners: int = 1) -> float:
    """Return the capacity of a broker's threads, in percent of one thread."""
    return float((io_threads + listeners * network_threads) * 100)


def needs_of_table(
    spark: SparkSession,
    table: TableName,
    *,
    share: float = 0.01,
    by: str = BY[0],
    dates: Sequence[str] | None = None,
    windows: Windows | None = None,
) -> list[Need]:
    """Return the needs of the entities of a request log's table. Args: `share` of throttled seconds, 0..1, exclusive.

    Raises: TableError; PipelineError for impossible arguments.
    """
    _check(share, by)
    sharing = Sharing(ALONE if by == BY[0] else by, _shared(by))
    return _collected(work_on_table(spark, table, sharing, _work(share, by, windows), NEED_SCHEMA, dates))


def recommend(needs: Sequence[Need], *, share: float, by: str = BY[0], top: int = 5) -> Recommendation:
    """Return defaults that are enough for all but `top` entities of each type, and separate quotas for those.

    The default of a type is the highest need of the other entities: each of them stays below `share`.
    """
    defaults: dict[str, float] = {}
    outliers: list[Need] = []
    for quota_type in KEY_OF:
        ranked = sorted(
            (n for n in needs if n.quota_type == quota_type), key=lambda n: (-n.limit, n.user or "", n.client_id or "")
        )
        if not ranked:
            continue
        rest = ranked[top:]
        # Without other entities the smallest of the outliers is the default.
        defaults[quota_type] = rest[0].limit if rest else ranked[-1].limit
        outliers += [need for need in ranked[:top] if need.limit > defaults[quota_type]]
    return Recommendation(by, share, defaults, outliers, list(needs))


def yaml_text(found: Recommendation) -> str:
    """Return the recommendation as a file for `kbroker quotas apply`; comments state the cost of each quota."""
    lines = [
        f"# Recommended quotas by {found.by}: each entity throttled in less than {found.share:.2%} of its seconds.",
        "# Found on a log by open-loop replay: clients that are throttled would have sent less.",
    ]
    costs = {(need.entity, KEY_OF[need.quota_type]): need for need in found.outliers}
    for entity, values in found.quotas().items():
        lines.append(f"- entity: {flow_text(entity.names)}")
        lines.append("  quotas:")
        for key, value in values.items():
            need = costs.get((entity, key))
            cost = (
                f"throttled {need.throttled_seconds} of {need.seconds} s ({need.share:.2%})"
                if need
                else "default: enough for all others"
            )
            lines.append(f"    {key}: {_number(value)}  # {cost}")
    return "\n".join(lines) + ("\n" if found.quotas() else "\n[]\n")


def headroom_of(
    spark: SparkSession, table: TableName, found: Recommendation, capacity: float, dates: Sequence[str] | None = None
) -> Headroom:
    """Return the use of the broker's threads by a table's requests, and the use that the recommended quotas allow.

    Args: `capacity`: see `capacity_percent`. The mean is over the whole time from the first to the last second.
    """
    seconds = usage_per_second(read_table(spark, table, COLUMNS, dates))
    used = seconds.groupBy("second").agg(F.sum("request_time_us").alias("us"))
    row = used.agg(F.sum("us"), F.max("us"), F.min("second"), F.max("second")).collect()[0]
    if row[0] is None:
        return Headroom(capacity, 0.0, 0.0, 0.0)
    own = {need.entity: need.limit for need in found.outliers if need.quota_type == "Request"}
    entities = {need.entity for need in found.needs if need.quota_type == "Request"}
    allowed = sum(own.get(entity, found.defaults.get("Request", 0.0)) for entity in entities)
    elapsed = row[3] - row[2] + 1
    return Headroom(capacity, row[0] / elapsed / 1e4, row[1] / 1e4, allowed)


# ---------------------------------------------------------------- in the executors


def _needs(parts: Iterable[Part], share: float, by: str, windows: Windows) -> list[Need]:
    """Return the needs of the entities of a log. Args: `parts` of the log, as `settled` yields them."""
    numbers: dict[Client, int] = {}
    values = {quota_type: EntityValues() for quota_type in KEY_OF}
    for table, until_ms in parts:
        log = Log(table)
        client, clients = clients_of(log.table)
        entities = [_entity(by, *names) for names in clients]
        known = [-1 if one is None else numbers.setdefault(one, len(numbers)) for one in entities]
        by_row = np.array(known, np.int32)[client] if clients else np.zeros(0, np.int32)
        for quota_type, taken in values.items():
            events = log.events(quota_type, by_row)
            taken.add(by_row[events.row], events, until_ms)
    found = []
    for quota_type in KEY_OF:
        taken = values.pop(quota_type)  # frees it after its turn
        for number, (user, client_id) in enumerate(numbers):
            own = taken.of(number)
            if own is not None:
                found.append(Need(user, client_id, quota_type, *smallest_limit(own, quota_type, share, windows)))
    return found


def _entity(by: str, principal: str | None, client_id: str | None) -> Client | None:
    """Return the user and the client id of a client's entity; None if the client lacks the names."""
    user = user_of(principal)
    if (USER in by.split(",") and not user) or (CLIENT_ID in by.split(",") and not client_id):
        return None
    return (user if USER in by.split(",") else None, client_id if CLIENT_ID in by.split(",") else None)


def _shared(by: str) -> Shared:
    def shared(principal: str | None, client_id: str | None) -> Iterable[Hashable]:
        entity = _entity(by, principal, client_id)
        return [] if entity is None else [entity]

    return shared


def _work(share: float, by: str, windows: Windows | None) -> Work:
    def work(parts: Iterator[Part]) -> Iterator[pa.Table]:
        needs = _needs(parts, share, by, windows or Windows())
        yield pa.Table.from_pylist([need._asdict() for need in needs], NEED_SCHEMA)

    return work


def _collected(found: DataFrame) -> list[Need]:
    rows = found.toArrow().to_pylist()
    return sorted((Need(**row) for row in rows), key=lambda n: (n.quota_type, n.user or "", n.client_id or ""))


def _check(share: float, by: str) -> None:
    if not 0 < share <= 1:
        raise PipelineError(f"expected a share of throttled seconds above 0 and at most 100 %, got {share:.2%}")
    if by not in BY:
        raise PipelineError(f"expected quotas by {' or '.join(BY)}, got {by!r}")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


# ---------------------------------------------------------------- the smallest limit


class EntityValues:
    """Values of one quota type of a log, by entity, at 17 bytes each.

    Those of an entity with few values are joined; the parts of one with many are fed one after the other, so that
    nothing is copied.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Array, Values]] = []  # the beginning of each entity, and all values by entity
        self._held = Held()

    def add(self, owner: Array, events: Events, until_ms: int | None) -> None:
        """Add a part of the log. Args: `owner`: number of each value's entity; `until_ms`: as in `Replay.feed`."""
        events, owner = self._held.with_held(events, owner, until_ms)
        order = np.argsort(owner, kind="stable")
        begins = np.searchsorted(owner[order], np.arange(int(owner.max(initial=-1)) + 2))
        values = Values(events.time_ms[order], events.value[order], events.action[order])
        self._parts.append((begins, values))

    def of(self, number: int) -> list[Values] | None:
        """Return the values of an entity, in parts; None if it used nothing of the type."""
        found = []
        for begins, values in self._parts:
            if number + 1 < len(begins) and begins[number] < begins[number + 1]:
                found.append(values.taken(slice(int(begins[number]), int(begins[number + 1]))))
        if not any(bool(((part.action != GIVEN_BACK) & (part.value > 0)).any()) for part in found):
            return None
        return [joined(found)] if sum(map(len, found)) <= JOINED_VALUES else _by_seconds(found)


def _by_seconds(parts: Sequence[Values]) -> list[Values]:
    """Return the values in parts that end between two seconds, so that no second is in two; small parts are joined."""
    found: list[Values] = []
    waiting: list[Values] = []
    for part in parts:
        last = int(part.time_ms[-1]) // 1000 * 1000
        cut = int(np.searchsorted(part.time_ms, last))
        if cut == 0 or sum(map(len, waiting)) + len(part) < JOINED_VALUES // 16:
            waiting.append(part)
            continue
        found.append(joined([*waiting, part.taken(slice(0, cut))]))
        waiting = [part.taken(slice(cut, None))]
    return [*found, joined(waiting)] if waiting else found


def smallest_limit(
    parts: Sequence[Values], quota_type: str, share: float, windows: Windows
) -> tuple[float, int, int, float]:
    """Return the smallest limit that throttles less than `share` of the seconds; all and throttled seconds; peak rate.

    A rate does not depend on its limit, except for fetches, whose bytes are subtracted when they are delayed: less is
    counted then, so a limit that is enough without the subtraction is enough with it. The search goes down from there
    in steps that double, then halves the last step. The other types need the search too, since an excess worth less
    than half a millisecond is not a delay.
    """
    seconds = np.unique(np.concatenate([np.unique(part.time_ms[part.is_judged] // 1000) for part in parts]))
    allowed = max(0, math.ceil(share * len(seconds)) - 1)  # the maximum below the share
    finest = FINEST.get(quota_type, 1.0)
    counters = windows.counters()
    number = counters.add(quota_type)
    if quota_type == "ControllerMutation":
        high, peak = sum(float(np.sum(part.value[part.is_judged])) for part in parts) + 1, 0.0
    else:
        high, peak = _enough(counters, number, parts, allowed, seconds)

    def throttled(limit: float) -> int:
        counters.reset(number, limit)
        return sum(counters.throttled_seconds(number, part.time_ms, part.value, part.action) for part in parts)

    steps_high = max(1, int(np.ceil(high / finest - MARGIN)))
    while throttled(round(steps_high * finest, 2)) > allowed:
        steps_high *= 2
    step, steps_low = 1, steps_high - 1
    while steps_low > 0 and throttled(round(steps_low * finest, 2)) <= allowed:
        step *= 2
        steps_high, steps_low = steps_low, max(0, steps_low - step)  # 0 is not a quota, and is not tried
    while steps_high - steps_low > 1:
        middle = (steps_low + steps_high) // 2
        if throttled(round(middle * finest, 2)) > allowed:
            steps_low = middle
        else:
            steps_high = middle
    limit = round(steps_high * finest, 2)
    return limit, len(seconds), throttled(limit), peak


def _enough(
    counters: Counters, number: int, parts: Sequence[Values], allowed: int, seconds: Array
) -> tuple[float, float]:
    """Return the smallest rate that is exceeded in at most `allowed` seconds, and the highest rate."""
    highest = np.zeros(len(seconds))
    for part in parts:
        taken = part.taken(part.action != GIVEN_BACK)
        observed = np.zeros(len(taken))
        counters.observe(number, taken.time_ms, taken.value, observed)
        is_judged = taken.action == JUDGED
        np.maximum.at(highest, np.searchsorted(seconds, taken.time_ms[is_judged] // 1000), observed[is_judged])
    ranked = np.sort(highest)[::-1]
    return float(ranked[allowed]) if len(ranked) else 0.0, float(ranked[0]) if len(ranked) else 0.0
