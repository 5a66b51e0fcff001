"""The page about a request log: usage, throttles, recommended quotas, what if."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from html import escape

from kbroker.common.quotas import CLIENT_ID, USER, QuotaEntity
from kbroker.spark import formatting as jobs
from kbroker.spark.report.data import ReportData
from kbroker.spark.report.document import LINES, cards, document, legend, table
from kbroker.spark.report.plots import Line, Text, byte_ticks, heat_map, line_plot, paired_bars
from kbroker.spark.whatif.quota_set import KEY_OF, TYPE_OF, QuotaSet
from kbroker.spark.whatif.recommend import Need, Recommendation
from kbroker.spark.whatif.replay_core import OPEN_LOOP


def render(data: ReportData, made_at: datetime) -> str:
    """The whole page. Args: `made_at`: the time that the page states."""
    start, end = (datetime.fromtimestamp(s, timezone.utc) for s in (data.start_s, data.end_s))
    title = f"Quotas and usage, {_span(start, end)} UTC"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(data.source)} · made {made_at:%Y-%m-%d %H:%M} UTC by kbroker</p>',
        _cards(data),
        *_usage(data),
        *_throttled(data),
        *_recommended(data),
        *_what_if(data),
        *_clients(data),
    ]
    return document(title, body)


def _cards(data: ReportData) -> str:
    total = data.totals
    return cards(
        [
            (jobs.count(total["requests"]), "requests"),
            (jobs.count(total["clients"]), "clients"),
            (jobs.size(total["request_bytes"]), "received"),
            (jobs.size(total["response_bytes"]), "sent"),
            (jobs.duration(total["logged_delay_ms"]), "of delay in the log"),
            (jobs.duration(total["delay_ms"]), "of delay under the proposed quotas"),
        ]
    )


def _usage(data: ReportData) -> Iterable[str]:
    yield "<h2>Usage over time</h2>"
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
        yield f"<h3>{what}</h3>" + line_plot(
            lines, data.start_s, data.end_s, _short(lambda v: jobs.size(v) + "/s"), what, byte_ticks
        )
    yield f'<p class="soft">Of the clients with the most; averages over {_bin(data)}.</p>'


def _throttled(data: ReportData) -> Iterable[str]:
    yield "<h2>Who was throttled, and when</h2>"
    held = [client for client in data.clients if client.totals["logged_delay_ms"] > 0]
    if not held:
        yield "<p>Nobody: no response in this log carried a throttle time.</p>"
        return
    yield heat_map(
        [client.name for client in held],
        [client.over_time["logged_delay_ms"] for client in held],
        data.start_s,
        data.end_s,
        jobs.duration,
        "Delay in the log, by client and time",
        _highest(data),
    )
    yield (
        f'<p class="soft">Delay sent to clients, per {_bin(data)}; stronger is more, the strongest is '
        f"{jobs.duration(_highest(data))}.</p>"
    )


def _recommended(data: ReportData) -> Iterable[str]:
    found = data.recommendation
    if found is None:
        return
    yield "<h2>Recommended quotas</h2>"
    yield (
        f"<p>The smallest that would have throttled each entity ({escape(found.by)}) in less than "
        f"{found.share:.2%} of the seconds in which it sent anything. The default holds for each entity without a "
        "separate quota.</p>"
    )
    needs = {(need.entity, need.quota_type): need for need in found.needs}
    rows, names, now, then = [], [], [], []
    for entity, key, value, is_own in _compared(data, found):
        need = needs.get((entity, TYPE_OF[key]))
        had = _current(data, entity, key)
        names.append(f"{_entity(entity)} · {TYPE_OF[key]}")
        now.append(had)
        then.append(value)
        rows.append([_entity(entity), key, _limit(key, had), _limit(key, value), *_cost(need, key, is_own)])
    kinds = {TYPE_OF[key] for values in found.quotas().values() for key in values}
    for kind in (kind for kind in KEY_OF if kind in kinds):
        at = [i for i, name in enumerate(names) if name.endswith(f" · {kind}")]
        key = KEY_OF[kind]
        yield f"<h3>{escape(kind)}</h3>" + paired_bars(
            [names[i].rpartition(" · ")[0] for i in at],
            [now[i] for i in at],
            [then[i] for i in at],
            lambda v, key=key: _limit(key, v),  # type: ignore[misc]
            f"{kind}: current and recommended quota",
        )
    yield legend(("current", "recommended"))
    yield table(["Entity", "Quota", "Current", "Recommended", "Peak rate", "Seconds throttled"], rows, numbers=2)
    if found.headroom is not None:
        room = found.headroom
        yield (
            f'<p class="note">Threads: {room.capacity:,.0f} % to give (100 % is one thread). Used {room.mean:,.1f} % '
            f"on average and {room.peak:,.1f} % in the busiest "
            f"second, so {room.free:,.1f} % were free; all recommended "
            f"request quotas together allow {room.recommended:,.1f} %.</p>"
        )


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


def _what_if(data: ReportData) -> Iterable[str]:
    yield "<h2>What if: before and after</h2>"
    yield f'<p class="note">The log replayed under the proposed quotas. {OPEN_LOOP[0].upper()}{OPEN_LOOP[1:]}.</p>'
    over = data.all_over_time
    yield "<h3>Requests delayed per second</h3>" + line_plot(
        [
            Line("in the log", [v / data.bin_s for v in over["logged_delayed"]], 0),
            Line("under the proposed quotas", [v / data.bin_s for v in over["delayed"]], 1),
        ],
        data.start_s,
        data.end_s,
        lambda v: f"{v:,.10g}",
        "Requests delayed per second, before and after",
    )
    held = [client for client in data.clients if client.totals["delay_ms"] > 0]
    if not held:
        yield "<p>Under the proposed quotas no client would have been delayed.</p>"
        return
    yield "<h3>Delay under the proposed quotas</h3>" + heat_map(
        [client.name for client in held],
        [client.over_time["delay_ms"] for client in held],
        data.start_s,
        data.end_s,
        jobs.duration,
        "Delay under the proposed quotas, by client and time",
        _highest(data),
    )
    chosen = [
        client for client in data.clients if client.totals["delayed_seconds"] or client.totals["logged_delayed_seconds"]
    ]
    yield "<h3>Seconds with a delay</h3>" + paired_bars(
        [client.name for client in chosen],
        [float(client.totals["logged_delayed_seconds"]) for client in chosen],
        [float(client.totals["delayed_seconds"]) for client in chosen],
        lambda v: f"{v:,.0f} s",
        "Seconds with a delay by client, before and after",
    )
    yield legend(("in the log", "under the proposed quotas"))


def _clients(data: ReportData) -> Iterable[str]:
    yield "<h2>Clients</h2>"
    rows = []
    for client in data.clients:
        t = client.totals
        rows.append(
            [
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
        )
    header = ["Client", "Requests", "In", "Out", "Delay, log", "Delay, proposed", "Delayed", "Longest", "Seconds"]
    yield table(header, rows, numbers=1)
    if data.others:
        yield f'<p class="soft">{data.others:,} more clients are in the sums.</p>'


def _span(start: datetime, end: datetime) -> str:
    """From when to when, as exact as a short log needs."""
    clock = "%H:%M:%S" if (end - start).total_seconds() < 1800 else "%H:%M"
    other_day = "%Y-%m-%d " if end.date() != start.date() else ""
    return f"{start:%Y-%m-%d} {start:{clock}} to {end:{other_day + clock}}"


def _bin(data: ReportData) -> str:
    """How long a bin of time is."""
    return _short(jobs.duration)(data.bin_s * 1000)


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


def _entity(entity: QuotaEntity) -> str:
    return str(entity)


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
