"""Quotas that a log suggests: per entity the smallest one that would have throttled less than so many of its seconds.

Found by judging the entity's own values with the sensors of a broker, not by a percentile of its traffic: a quota of
bytes per second is compared with a rate over eleven samples, so bursts weigh as they do there. An entity's share is
that of the seconds in which it sent anything, so one that is busy for a minute a day counts by that minute.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common.quotas import CLIENT_ID, USER, QuotaEntity
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.table_place import TableName
from kbroker.spark.whatif.counter_groups import ALONE, Part, Shared, Sharing, Work, work_on_rows, work_on_table
from kbroker.spark.whatif.quota_set import KEY_OF, user_of
from kbroker.spark.whatif.replay_core import Windows, pairs_of
from kbroker.spark.whatif.replay_events import Log
from kbroker.spark.whatif.smallest_limit import EntityValues, smallest_limit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Whose quotas: an entity for each pair, for each user, or for each client id.
BY = ("user,client-id", "user", "client-id")


class Need(NamedTuple):
    """What one entity needs of one type of quota.

    `seconds`: in which it sent anything of the type; `throttled_seconds`, `share` (0..1): in which `limit` would have
    delayed it. `peak`: the highest rate that it reached, by which no limit above it ever delays.
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
    """Quotas for all: a default for each type, and separate quotas for the entities that need more.

    `headroom`: what the broker's threads have to give, and what is used of it, in percent of one thread.
    """

    by: str
    share: float
    defaults: dict[str, float]
    outliers: list[Need]
    needs: list[Need]
    headroom: Headroom | None = None
    notes: list[str] = field(default_factory=list)

    def quotas(self) -> dict[QuotaEntity, dict[str, float]]:
        """All of it, as `kbroker quotas apply` takes it."""
        kinds = self.by.split(",")
        default = QuotaEntity.of(dict.fromkeys(kinds))
        found: dict[QuotaEntity, dict[str, float]] = {}
        if self.defaults:
            found[default] = {KEY_OF[kind]: limit for kind, limit in self.defaults.items()}
        for need in self.outliers:
            found.setdefault(need.entity, {})[KEY_OF[need.quota_type]] = need.limit
        return found


class Headroom(NamedTuple):
    """`capacity`: (num.io.threads + listeners x num.network.threads) x 100. All in percent of one thread."""

    capacity: float
    mean: float
    peak: float
    recommended: float  # what all entities together may use under the recommended quotas

    @property
    def free(self) -> float:
        """What is left at the busiest moment."""
        return self.capacity - self.peak


def capacity_percent(io_threads: int, network_threads: int, listeners: int = 1) -> float:
    """What a broker has to give to requests, in percent of one thread."""
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
    """What each entity of a request log's table needs. Args: `share`: of its seconds, 0..1, to stay below.

    Raises: TableError, PipelineError for arguments that cannot be.
    """
    _check(share, by)
    return _collected(work_on_table(spark, table, _sharing(by), _work(share, by, windows), need_schema(), dates))


def needs_of_rows(
    rows: DataFrame, *, share: float = 0.01, by: str = BY[0], windows: Windows | None = None
) -> list[Need]:
    """The same of any DataFrame with columns of the request log."""
    _check(share, by)
    return _collected(work_on_rows(rows, _shared(by), _work(share, by, windows), need_schema()))


def recommend(needs: Sequence[Need], *, share: float, by: str = BY[0], top: int = 5) -> Recommendation:
    """Defaults that are enough for all but `top` entities of each type, and separate quotas for those.

    The default of a type is the highest need of the entities that are left: each of them stays below `share`.
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
        # If no entity is left, the smallest of the outliers is the default.
        defaults[quota_type] = rest[0].limit if rest else ranked[-1].limit
        outliers += [need for need in ranked[:top] if need.limit > defaults[quota_type]]
    return Recommendation(by, share, defaults, outliers, list(needs))


def yaml_text(found: Recommendation) -> str:
    """The recommendation as a file for `kbroker quotas apply`; comments say what each quota would have cost."""
    import json

    lines = [
        f"# Recommended quotas by {found.by}: each entity throttled in less than {found.share:.2%} of its seconds.",
        "# Found on a log by open-loop replay: clients that are throttled would have sent less.",
    ]
    lines += [f"# {note}" for note in found.notes]
    costs = {(need.entity, KEY_OF[need.quota_type]): need for need in found.outliers}
    for entity, values in found.quotas().items():
        names = ", ".join(f"{kind}: {json.dumps(name)}" for kind, name in entity.parts)
        lines.append(f"- entity: {{{names}}}")
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


# ---------------------------------------------------------------- in the executors


def need_schema() -> pa.Schema:
    """Columns of the needs, as a job yields them."""
    import pyarrow as pa

    text, number, real = pa.string(), pa.int64(), pa.float64()
    names = [("user", text), ("client_id", text), ("quota_type", text), ("limit", real), ("seconds", number)]
    return pa.schema([*names, ("throttled_seconds", number), ("peak", real)])


def _needs(parts: Iterable[Part], share: float, by: str, windows: Windows) -> list[Need]:
    """What each entity of a log needs. Args: `parts`: of it, as `settled` gives them."""
    import numpy as np

    numbers: dict[tuple[str | None, str | None], int] = {}
    values = {quota_type: EntityValues() for quota_type in KEY_OF}
    for table, until_ms in parts:
        log = Log(table)
        pair, pairs = pairs_of(log.table)
        entities = [_entity(by, *names) for names in pairs]
        known = [-1 if one is None else numbers.setdefault(one, len(numbers)) for one in entities]
        by_row = np.array(known, np.int32)[pair] if len(pairs) else np.zeros(0, np.int32)
        for quota_type, taken in values.items():
            events = log.events(quota_type, by_row)
            taken.add(by_row[events.row], events, until_ms)
    found = []
    for quota_type, taken in values.items():
        for number, (user, client_id) in enumerate(numbers):
            own = taken.of(number)
            if own is not None:
                found.append(Need(user, client_id, quota_type, *smallest_limit(own, quota_type, share, windows)))
        taken.clear()
    return found


def _entity(by: str, principal: str | None, client_id: str | None) -> tuple[str | None, str | None] | None:
    """User and client id of the entity that a client belongs to; None: it has no name to be found by."""
    user = user_of(principal)
    if (USER in by.split(",") and not user) or (CLIENT_ID in by.split(",") and not client_id):
        return None
    return (user if USER in by.split(",") else None, client_id if CLIENT_ID in by.split(",") else None)


def _shared(by: str) -> Shared:
    def shared(principal: str | None, client_id: str | None) -> Iterable[Hashable]:
        entity = _entity(by, principal, client_id)
        return [] if entity is None else [entity]

    return shared


def _sharing(by: str) -> Sharing:
    return Sharing(ALONE if by == BY[0] else by, _shared(by))


def _work(share: float, by: str, windows: Windows | None) -> Work:
    def work(parts: Iterator[Part]) -> Iterator[pa.Table]:
        import pyarrow as pa

        needs = _needs(parts, share, by, windows or Windows())
        yield pa.Table.from_pylist([need._asdict() for need in needs], need_schema())

    return work


def _collected(found: DataFrame) -> list[Need]:
    rows = found.toArrow().to_pylist()
    return sorted((Need(**row) for row in rows), key=lambda n: (n.quota_type, n.user or "", n.client_id or ""))


def _check(share: float, by: str) -> None:
    if not 0 < share <= 1:
        raise PipelineError(f"the share of throttled seconds must be above 0 and at most 100 %, not {share:.2%}")
    if by not in BY:
        raise PipelineError(f"quotas can be for {', '.join(BY)}, not for {by}")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


def headroom_of(
    spark: SparkSession,
    table: TableName,
    found: Recommendation,
    capacity: float,
    dates: Sequence[str] | None = None,
) -> Headroom:
    """What a table's requests have used of the broker's threads, beside what the recommended quotas would allow.

    Args: `capacity`: see `capacity_percent`. The mean is over the whole time from the first to the last second.
    """
    from pyspark.sql import functions as F

    from kbroker.spark.tables.table import read_table
    from kbroker.spark.usage_views.usage import COLUMNS, usage_per_second

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
