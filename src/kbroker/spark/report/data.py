"""Data of a report, reduced by Spark to the size of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kbroker.common.quotas import QuotaEntity
from kbroker.common.shown_names import client_name
from kbroker.spark.report.throttled import Throttles
from kbroker.spark.usage_views.usage import ENTITY, all_equal
from kbroker.spark.whatif.recommend import Recommendation
from kbroker.spark.whatif.sum import by_client

BINS = 180
TOP = 12  # clients in the plots
LISTED = 1000  # clients in the table
MEASURES = ("requests", "request_bytes", "response_bytes", "logged_delay_ms", "delay_ms", "logged_delayed", "delayed")
Quotas = Mapping[QuotaEntity, Mapping[str, float]]


@dataclass(frozen=True)
class Client:
    """A client's sums, and its measures over time, one value per bin."""

    name: str
    totals: dict[str, Any]
    over_time: dict[str, list[float]]


@dataclass(frozen=True)
class ReportData:
    """Data of a page. Times are seconds since 1970; `bin_s` is the length of a bin of time.

    `clients`: those with the longest delay, then the most requests; `more_clients`: the sums of the next clients;
    `others`: number of the remaining clients. `held`: the delay over time of throttled clients, by name. `proposed`:
    None without a replay.
    """

    source: str
    start_s: int
    end_s: int
    bin_s: int
    clients: list[Client]
    more_clients: list[tuple[str, dict[str, Any]]]
    others: int
    all_over_time: dict[str, list[float]]
    totals: dict[str, int]
    throttles: Throttles
    held: list[tuple[str, list[float]]]
    recommendation: Recommendation | None = None
    current: Quotas | None = None
    proposed: Quotas | None = None

    @property
    def bin_starts(self) -> list[int]:
        return list(range(self.start_s, self.end_s, self.bin_s))


def gather(
    bins: DataFrame,
    bin_s: int,
    source: str,
    proposed: Quotas,
    throttles: Throttles,
    *,
    recommendation: Recommendation | None = None,
    current: Quotas | None = None,
) -> ReportData | None:
    """Reduce the sums of a replay (`replay_bins`) to the size of a page; None without sums.

    Args: `bin_s`: length of a bin in seconds; `proposed`: the replayed quotas; `throttles` of the same log; `current`:
    the current quotas, if known.
    """
    bins = bins.cache()
    try:
        span = bins.agg(F.min("bin"), F.max("bin")).collect()[0]
        if span[0] is None:
            return None
        start = int(span[0])
        count = (int(span[1]) - start) // bin_s + 1
        summed = [row.asDict() for row in by_client(bins).collect()]
        ranked = sorted(summed, key=lambda r: (-r["delay_ms"] - r["logged_delay_ms"], -r["requests"]))
        place = F.floor((F.col("bin") - start) / bin_s).cast("int").alias("place")
        sums = [F.sum(name).alias(name) for name in MEASURES]
        everything = bins.groupBy(place).agg(*sums).collect()
        cells = with_keys(bins, ENTITY, ranked[:TOP]).groupBy(*ENTITY, place).agg(*sums).collect()
    finally:
        bins.unpersist()
    clients = shown_clients(ranked[:TOP], cells, count)
    return ReportData(
        source,
        start,
        start + count * bin_s,
        bin_s,
        clients,
        **sums_of_clients(ranked, everything, count, TOP),
        throttles=throttles,
        held=[(one.name, one.over_time["logged_delay_ms"]) for one in clients if one.totals["logged_delay_ms"] > 0],
        recommendation=recommendation,
        current=current,
        proposed=proposed,
    )


def with_keys(rows: DataFrame, names: Sequence[str], keys: Sequence[Mapping[str, str | None]]) -> DataFrame:
    """Return the rows whose columns ``names`` have one of the combinations ``keys``, in which any value may be null."""
    columns = {f"_{name}": pa.array([key[name] for key in keys], pa.string()) for name in names}
    wanted = rows.sparkSession.createDataFrame(pa.table(columns))
    return rows.join(F.broadcast(wanted), all_equal(names), "left_semi")


def shown_clients(
    ranked: Sequence[dict[str, Any]], cells: Sequence[Any], bins: int, names: Sequence[str] = MEASURES
) -> list[Client]:
    """Return clients with their measures over time. Args: ``cells``: sums by client and `place`."""
    clients = []
    for row in ranked:
        own = [cell for cell in cells if all(cell[name] == row[name] for name in ENTITY)]
        clients.append(Client(_name(row), row, over_time(own, bins, names)))
    return clients


def sums_of_clients(
    ranked: Sequence[dict[str, Any]], cells: Sequence[Any], bins: int, top: int, names: Sequence[str] = MEASURES
) -> dict[str, Any]:
    """Return the fields of `ReportData` that cover all clients. Args: ``cells``: sums of all by `place`."""
    return {
        "more_clients": [(_name(row), row) for row in ranked[top:LISTED]],
        "others": max(0, len(ranked) - max(top, LISTED)),
        "all_over_time": over_time(cells, bins, names),
        "totals": {**{name: sum(row[name] for row in ranked) for name in names}, "clients": len(ranked)},
    }


def _name(row: Mapping[str, Any]) -> str:
    return client_name(*(row[name] for name in ENTITY))


def over_time(rows: Sequence[Any], bins: int, names: Sequence[str]) -> dict[str, list[float]]:
    """Return each measure over time, as one value per bin. Args: `rows`: sums, each with the `place` of its bin."""
    found = {name: [0.0] * bins for name in names}
    for row in rows:
        for name in names:
            found[name][row["place"]] += float(row[name])
    return found
