"""The page about a request log: usage, throttles, recommended quotas, what if."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import NamedTuple

from kbroker.common.quotas import CLIENT_ID, USER, QuotaEntity
from kbroker.spark import formatting as jobs
from kbroker.spark.report.data import Client, ReportData
from kbroker.spark.report.document import LINES, render_page
from kbroker.spark.report.plots import Line, Plot, Text, byte_ticks, heat_map, line_plot, paired_bars
from kbroker.spark.whatif.quota_set import KEY_OF, TYPE_OF, QuotaSet
from kbroker.spark.whatif.recommend import Need, Recommendation
from kbroker.spark.whatif.replay_core import OPEN_LOOP


def render(data: ReportData, made_at: datetime) -> str:
    """The whole page. Args: `made_at`: the time that the page states."""
    start, end = (datetime.fromtimestamp(s, timezone.utc) for s in (data.start_s, data.end_s))
    return render_page(
        "report.html",
        title=f"Quotas and usage, {_span(start, end)} UTC",
        source=data.source,
        made_at=made_at,
        cards=_cards(data),
        usage=_usage(data),
        bin=_short(jobs.duration)(data.bin_s * 1000),
        throttled=_delays(data, "logged_delay_ms", "Delay in the log, by client and time"),
        highest=jobs.duration(_highest(data)),
        found=data.recommendation,
        quotas=_quotas(data, data.recommendation) if data.recommendation else None,
        open_loop=f"{OPEN_LOOP[0].upper()}{OPEN_LOOP[1:]}",
        delayed=_delayed_requests(data),
        proposed=_delays(data, "delay_ms", "Delay under the proposed quotas, by client and time"),
        delayed_seconds=_delayed_seconds(data),
        clients=[_row(client) for client in data.clients],
        others=data.others,
    )


def _cards(data: ReportData) -> list[tuple[str, str]]:
    total = data.totals
    return [
        (jobs.count(total["requests"]), "requests"),
        (jobs.count(total["clients"]), "clients"),
        (jobs.size(total["request_bytes"]), "received"),
        (jobs.size(total["response_bytes"]), "sent"),
        (jobs.duration(total["logged_delay_ms"]), "of delay in the log"),
        (jobs.duration(total["delay_ms"]), "of delay under the proposed quotas"),
    ]


def _usage(data: ReportData) -> Iterable[Plot]:
    colours: dict[str, int] = {}  # a client has one colour in both plots
    for measure, what in (("request_bytes", "Bytes received per second"), ("response_bytes", "Bytes sent per second")):
        ranked = sorted(data.clients, key=lambda c: -sum(c.over_time[measure]))[: LINES - 1]
        ranked = [client for client in ranked if sum(client.over_time[measure]) > 0]
        named = [[v / data.bin_s for v in client.over_time[measure]] for client in ranked]
        rest = [
            max(0.0, total / data.bin_s - sum(values))
            for total, values in zip(
                data.all_over_time[measure],
                _by_bin(named, len(data.bin_starts)),
                strict=True,
            )
        ]
        taken = {colours[client.name] for client in ranked if client.name in colours}
        free = iter(colour for colour in range(1, LINES + 1) if colour not in taken)
        colours |= {client.name: next(free) for client in ranked if client.name not in colours}
        lines = [Line(c.name, values, colours[c.name]) for c, values in zip(ranked, named, strict=True)]
        if any(value > 0.5 for value in rest):
            lines.append(Line("all others", rest, 0, dashed=True))
        per_second = _short(lambda v: jobs.size(v) + "/s")
        yield line_plot(lines, data.start_s, data.end_s, per_second, what, byte_ticks)


def _delays(data: ReportData, measure: str, title: str) -> Plot | None:
    """The delay of those clients that had one, over time; None where no client had one."""
    held = [client for client in data.clients if client.totals[measure] > 0]
    names, rows = [client.name for client in held], [client.over_time[measure] for client in held]
    return heat_map(names, rows, data.start_s, data.end_s, jobs.duration, title, _highest(data)) if held else None


class _Quotas(NamedTuple):
    """The recommended quotas: a plot for each kind, and the rows of the table."""

    plots: list[tuple[str, Plot]]
    rows: list[list[str]]


def _quotas(data: ReportData, found: Recommendation) -> _Quotas:
    needs = {(need.entity, need.quota_type): need for need in found.needs}
    rows = []
    bars: dict[str, list[tuple[str, float | None, float | None]]] = {}
    for entity, key, value, is_own in _compared(data, found):
        name, need, had = str(entity), needs.get((entity, TYPE_OF[key])), _current(data, entity, key)
        bars.setdefault(TYPE_OF[key], []).append((name, had, value))
        rows.append([name, key, _limit(key, had), _limit(key, value), *_cost(need, key, is_own)])
    kinds = {TYPE_OF[key] for values in found.quotas().values() for key in values}
    plots = []
    for kind in (kind for kind in KEY_OF if kind in kinds):
        names, now, then = zip(*bars[kind], strict=True)
        text = partial(_limit, KEY_OF[kind])
        plots.append((kind, paired_bars(names, now, then, text, f"{kind}: current and recommended quota")))
    return _Quotas(plots, rows)


def _compared(data: ReportData, found: Recommendation) -> Iterable[tuple[QuotaEntity, str, float | None, bool]]:
    """Entity, key, recommended quota, and whether the entity has a separate one: all that are recommended or in force.

    An entity with a current quota and no recommended one comes under the default.
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
    return line_plot(lines, data.start_s, data.end_s, lambda v: f"{v:,.10g}", title)


def _delayed_seconds(data: ReportData) -> Plot:
    measures = ("logged_delayed_seconds", "delayed_seconds")
    chosen = [client for client in data.clients if any(client.totals[measure] for measure in measures)]
    before, after = ([float(client.totals[measure]) for client in chosen] for measure in measures)
    title = "Seconds with a delay by client, before and after"
    return paired_bars([client.name for client in chosen], before, after, lambda v: f"{v:,.0f} s", title)


def _row(client: Client) -> list[str]:
    t = client.totals
    return [
        client.name,
        jobs.count(t["requests"]),
        jobs.size(t["request_bytes"]),
        jobs.size(t["response_bytes"]),
        jobs.duration(t["logged_delay_ms"]),
        jobs.duration(t["delay_ms"]),
        jobs.count(t["delayed"]),
        jobs.duration(t["longest_delay_ms"]),
        f"{t['delayed_seconds']:,} of {t['active_seconds']:,}",
    ]


def _span(start: datetime, end: datetime) -> str:
    """From when to when, as exact as a short log needs."""
    clock = "%H:%M:%S" if (end - start).total_seconds() < 1800 else "%H:%M"
    other_day = "%Y-%m-%d " if end.date() != start.date() else ""
    return f"{start:%Y-%m-%d} {start:{clock}} to {end:{other_day + clock}}"


def _short(text: Text) -> Text:
    """The same without a fraction of nothing: 2 MiB/s for 2.0 MiB/s."""
    return lambda value: text(value).replace(".0 ", " ")


def _by_bin(rows: Sequence[Sequence[float]], bins: int) -> list[tuple[float, ...]]:
    """The values of all rows, bin by bin."""
    return list(zip(*rows, strict=True)) if rows else [()] * bins


def _highest(data: ReportData) -> float:
    """Of both heat maps, so that their colours mean the same."""
    measures = ("logged_delay_ms", "delay_ms")
    return max((max(c.over_time[m], default=0.0) for c in data.clients for m in measures), default=0.0)


def _current(data: ReportData, entity: QuotaEntity, key: str) -> float | None:
    """The quota that counts for an entity now: its own, or that of a default."""
    current = data.current or {}
    names = entity.names
    if entity in current or None in names.values():
        return current.get(entity, {}).get(key)
    return QuotaSet(current).judge(TYPE_OF[key], names.get(USER), names.get(CLIENT_ID)).limit


def _limit(key: str, value: float | None) -> str:
    if value is None:
        return "no quota"
    if key.endswith("byte_rate"):
        return jobs.size(value) + "/s"
    return f"{value:,.10g} %" if key == "request_percentage" else f"{value:,.10g}/s"


def _cost(need: Need | None, key: str, is_own: bool) -> list[str]:
    if not is_own:
        return [_limit(key, round(need.peak, 2)) if need else "", "by the default"]
    if need is None:
        return ["", "default: below the share for each"]
    return [_limit(key, round(need.peak, 2)), f"{need.throttled_seconds:,} of {need.seconds:,} ({need.share:.2%})"]
