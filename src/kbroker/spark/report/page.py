"""Page about a request log: usage, throttles, recommended quotas, and their effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, NamedTuple

from kbroker.common.quotas import CLIENT_ID, USER, QuotaEntity
from kbroker.common.shown_names import entity_name
from kbroker.spark import formatting as jobs
from kbroker.spark.report.data import ReportData
from kbroker.spark.report.document import LINES, render_page
from kbroker.spark.report.outliers import doubt_of, outliers
from kbroker.spark.report.plots import NO_QUOTA, Line, Plot, Text, byte_ticks, heat_map, line_plot, paired_bars
from kbroker.spark.report.throttled import advice, lead, limit_text
from kbroker.spark.whatif.feed import OPEN_LOOP
from kbroker.spark.whatif.quota_set import KEY_OF, TYPE_OF, QuotaSet
from kbroker.spark.whatif.recommend import Need, Recommendation

MAX_BARS = 24  # entities in a plot of quotas; all are in the table
OUTLIER = "outlier"


class Badged(NamedTuple):
    """A cell with a badge after its text, and the meaning of the badge."""

    text: str
    badge: str
    why: str


Cell = str | Badged


def render(data: ReportData, made_at: datetime, *, again_s: int | None = None) -> str:
    """Return the whole page.

    Args: `made_at`: the time stated on the page; `again_s`: seconds until a browser reloads it.
    """
    start, end = (datetime.fromtimestamp(s, timezone.utc) for s in (data.start_s, data.end_s))
    replayed = data.proposed is not None
    doubtful = (
        outliers(data.recommendation, partial(_limit_of, data), data.throttles.rows) if data.recommendation else {}
    )
    return render_page(
        "report.html",
        title=f"Quotas and usage, {_span(start, end)} UTC",
        source=data.source,
        made_at=made_at,
        again_s=again_s,
        cards=_cards(data),
        lead=lead(data.throttles),
        advice=advice(data.throttles, lambda row: doubt_of(row, doubtful)),
        usage=_usage(data),
        bin=_short(jobs.duration)(data.bin_s * 1000),
        throttled=_delays(data, data.held, "Delay in the log, by client and time"),
        throttles=_throttles(data),
        more_throttles=data.throttles.clients - len(data.throttles.rows),
        found=data.recommendation,
        quotas=_quotas(data, data.recommendation, doubtful) if data.recommendation else None,
        open_loop=f"{OPEN_LOOP[0].upper()}{OPEN_LOOP[1:]}",
        replayed=replayed,
        delayed=_delayed_requests(data) if replayed else None,
        proposed=_delays(data, _over_time(data, "delay_ms"), "Delay under the proposed quotas, by client and time")
        if replayed
        else None,
        delayed_seconds=_delayed_seconds(data) if replayed else None,
        header=_REPLAYED if replayed else _FOLLOWED,
        clients=[_row(client.name, client.totals) for client in data.clients],
        more_clients=[_row(name, totals) for name, totals in data.more_clients],
        others=data.others,
    )


def _cards(data: ReportData) -> list[tuple[str, str]]:
    total = data.totals
    cards = [
        (jobs.count(total["requests"]), "requests"),
        (jobs.count(total["clients"]), "clients"),
        (jobs.size(total["request_bytes"]), "received"),
        (jobs.size(total["response_bytes"]), "sent"),
        (jobs.duration(data.throttles.delay_ms), "of delay in the log"),
    ]
    if data.proposed is not None:
        return [*cards, (jobs.duration(total["delay_ms"]), "of delay under the proposed quotas")]
    return [*cards, (jobs.count(data.throttles.refused), "refused by quotas")]


def _usage(data: ReportData) -> Iterable[Plot]:
    colours: dict[str, int] = {}  # a client has one colour in both plots
    for measure, what in (("request_bytes", "Bytes received per second"), ("response_bytes", "Bytes sent per second")):
        ranked = sorted(data.clients, key=lambda c: -sum(c.over_time[measure]))[: LINES - 1]
        ranked = [client for client in ranked if sum(client.over_time[measure]) > 0]
        named = [[v / data.bin_s for v in client.over_time[measure]] for client in ranked]
        rest = [
            max(0.0, total / data.bin_s - sum(values))
            for total, values in zip(data.all_over_time[measure], _by_bin(named, len(data.bin_starts)), strict=True)
        ]
        taken = {colours[client.name] for client in ranked if client.name in colours}
        free = iter(colour for colour in range(1, LINES + 1) if colour not in taken)
        colours |= {client.name: next(free) for client in ranked if client.name not in colours}
        lines = [Line(c.name, values, colours[c.name]) for c, values in zip(ranked, named, strict=True)]
        if any(value > 0.5 for value in rest):
            lines.append(Line("all others", rest, 0, dashed=True))
        per_second = _short(lambda v: jobs.size(v) + "/s")
        yield line_plot(lines, data.start_s, data.end_s, per_second, what, byte_ticks)


def _over_time(data: ReportData, measure: str) -> list[tuple[str, list[float]]]:
    """Return a measure over time of the clients for which it is not 0."""
    return [(client.name, client.over_time[measure]) for client in data.clients if client.totals[measure] > 0]


def _delays(data: ReportData, held: Sequence[tuple[str, list[float]]], title: str) -> Plot | None:
    """Return a plot of delays over time; None without delays."""
    names, rows = [name for name, _ in held], [values for _, values in held]
    return heat_map(names, rows, data.start_s, data.end_s, jobs.duration, title, _highest(data)) if held else None


def _throttles(data: ReportData) -> list[list[Cell]]:
    return [
        [
            row.who,
            row.quota,
            row.limit_text,
            *(jobs.count(row.verdicts), jobs.count(row.refused)),
            *(jobs.duration(row.delay_ms), jobs.duration(row.longest_ms), jobs.share(row.share)),
        ]
        for row in data.throttles.rows
    ]


class _Quotas(NamedTuple):
    """Recommended quotas: a plot for each kind, and the rows of the table.

    `left_out`: number of entities that are only in the table; `outliers`: sentences about those with the badge.
    """

    plots: list[tuple[str, Plot]]
    rows: list[list[Cell]]
    left_out: int
    outliers: list[str]


def _quotas(data: ReportData, found: Recommendation, doubtful: Mapping[tuple[QuotaEntity, str], str]) -> _Quotas:
    needs = {(need.entity, need.quota_type): need for need in found.needs}
    default = QuotaEntity.of(dict.fromkeys(found.by.split(",")))
    rows: list[list[Cell]] = []
    marked: list[str] = []
    bars: dict[str, list[tuple[str, float | None, float | None]]] = {}
    for entity, key, value, is_own in _compared(data, found):
        name, need, had = entity_name(entity), needs.get((entity, TYPE_OF[key])), _current(data, entity, key)
        if need is not None or entity == default:  # an entity that sent nothing has no need
            bars.setdefault(TYPE_OF[key], []).append((name, had, value))
        recommended: Cell = limit_text(key, value)
        why = doubtful.get((entity, TYPE_OF[key])) if is_own else None
        if why is not None:
            recommended = Badged(limit_text(key, value), OUTLIER, f"{name} {why}")
            marked.append(f"{key} of {name}: it {why}.")
        now_text = UNKNOWN if data.current is None else limit_text(key, had)
        rows.append([name, key, now_text, recommended, *_cost(need, key, is_own)])
    kinds = {TYPE_OF[key] for values in found.quotas().values() for key in values}
    plots = []
    left_out = 0
    for kind in (kind for kind in KEY_OF if kind in kinds and kind in bars):
        left_out = max(left_out, len(bars[kind]) - MAX_BARS)
        names, now, then = zip(*bars[kind][:MAX_BARS], strict=True)
        text = partial(limit_text, KEY_OF[kind])
        title, missing = f"{kind}: current and recommended quota", UNKNOWN if data.current is None else NO_QUOTA
        plots.append((kind, paired_bars(names, now, then, text, title, _QUOTA_BARS, missing)))
    return _Quotas(plots, rows, max(0, left_out), marked)


_QUOTA_BARS = ("current", "recommended")
UNKNOWN = "not known"  # text for a current quota: quotas are in a broker or a file, not in the log


def _compared(data: ReportData, found: Recommendation) -> Iterable[tuple[QuotaEntity, str, float | None, bool]]:
    """Yield entity, key, recommended quota, and whether it is the entity's own, for all recommended and current quotas.

    An entity with a current quota and no recommended one gets the default.
    """
    recommended = found.quotas()
    for entity, values in recommended.items():
        for key, value in values.items():
            yield entity, key, value, True
    kinds = found.by.split(",")
    default = recommended.get(QuotaEntity.of(dict.fromkeys(kinds)), {})
    for entity, held in (data.current or {}).items():
        if sorted(entity.names) == sorted(kinds) and None not in entity.names.values():
            for key in held:
                if key in TYPE_OF and key not in recommended.get(entity, {}):
                    yield entity, key, default.get(key), False


def _delayed_requests(data: ReportData) -> Plot:
    over = data.all_over_time
    lines = [
        Line("in the log", [v / data.bin_s for v in over["logged_delayed"]], 0),
        Line("under the proposed quotas", [v / data.bin_s for v in over["delayed"]], 1),
    ]
    title = "Requests delayed per second, before and after"
    return line_plot(lines, data.start_s, data.end_s, lambda v: f"{v:,.10g}/s", title)


def _delayed_seconds(data: ReportData) -> Plot | None:
    measures = ("logged_delayed_seconds", "delayed_seconds")
    chosen = [client for client in data.clients if any(client.totals[measure] for measure in measures)]
    if not chosen:
        return None
    before, after = ([float(client.totals[measure]) for client in chosen] for measure in measures)
    title = "Seconds with a delay by client, before and after"
    legend = ("in the log", "under the proposed quotas")
    return paired_bars([client.name for client in chosen], before, after, lambda v: f"{v:,.0f} s", title, legend)


_TRAFFIC = ("Client", "Requests", "In", "Out")
_REPLAYED = (*_TRAFFIC, "Delay, log", "Delay, proposed", "Delayed", "Longest", "Seconds delayed")
_FOLLOWED = (*_TRAFFIC, "Most in/s", "Most out/s", "Connections")


def _row(name: str, t: Mapping[str, Any]) -> list[str]:
    cells = [name, jobs.count(t["requests"]), jobs.size(t["request_bytes"]), jobs.size(t["response_bytes"])]
    if "delay_ms" not in t:
        peaks = (jobs.size(t["request_bytes_peak"]), jobs.size(t["response_bytes_peak"]))
        return [*cells, *peaks, jobs.count(t["connections"])]
    return [
        *cells,
        jobs.duration(t["logged_delay_ms"]),
        jobs.duration(t["delay_ms"]),
        jobs.count(t["delayed"]),
        jobs.duration(t["longest_delay_ms"]),
        f"{t['delayed_seconds']:,} of {t['active_seconds']:,}",
    ]


def _span(start: datetime, end: datetime) -> str:
    """Return the time span as text, with seconds for a short log."""
    clock = "%H:%M:%S" if (end - start).total_seconds() < 1800 else "%H:%M"
    other_day = "%Y-%m-%d " if end.date() != start.date() else ""
    return f"{start:%Y-%m-%d} {start:{clock}} to {end:{other_day + clock}}"


def _short(text: Text) -> Text:
    """Return a function that formats like `text`, but omits a fraction of 0: 2 MiB/s for 2.0 MiB/s."""
    return lambda value: text(value).replace(".0 ", " ")


def _by_bin(rows: Sequence[Sequence[float]], bins: int) -> list[tuple[float, ...]]:
    """Return the values of all rows, bin by bin."""
    return list(zip(*rows, strict=True)) if rows else [()] * bins


def _highest(data: ReportData) -> float:
    """Return the highest value of both heat maps, so that their colours are comparable."""
    rows = [values for _, values in data.held]
    if data.proposed is not None:
        rows += [client.over_time["delay_ms"] for client in data.clients]
    return max((max(row, default=0.0) for row in rows), default=0.0)


def _current(data: ReportData, entity: QuotaEntity, key: str) -> float | None:
    """Return the current quota of an entity: its own, or a default, or None."""
    current = data.current or {}
    names = entity.names
    if entity in current or None in names.values():
        return current.get(entity, {}).get(key)
    return QuotaSet(current).judge(TYPE_OF[key], names.get(USER), names.get(CLIENT_ID)).limit


def _limit_of(data: ReportData, entity: QuotaEntity, quota_type: str) -> float | None:
    """Return the current quota of an entity by quota type; None if it has none, or it is unknown."""
    return None if data.current is None else _current(data, entity, KEY_OF[quota_type])


def _cost(need: Need | None, key: str, is_own: bool) -> list[str]:
    if not is_own:
        return [_peak(need, key) if need else "sent nothing", "by the default"]
    if need is None:
        return ["", "default: below the share for each"]
    return [_peak(need, key), f"{need.throttled_seconds:,} of {need.seconds:,} ({100 * need.share:.2f} %)"]


def _peak(need: Need, key: str) -> str:
    """Return the highest rate as text; "-" for a mutation quota, which is a token bucket."""
    return limit_text(key, round(need.peak, 2)) if need.peak else "-"
