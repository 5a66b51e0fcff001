"""Screen of `kbroker top`: a header of three lines, one table and a footer, in 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kbroker.cli.short_text import or_dash, percent, printable, short_number, short_time, time_left, why_muted
from kbroker.client.usage import Usage
from kbroker.common.printable import columns_of
from kbroker.common.units import counted

_SHORT = {
    "memory_pool": "want memory",
    "batch_in_flight": "in flight",
    "response_unsent": "do not read",
    "refusal_delayed": "refused",
}
NARROWEST = 12  # minimum width of the first column while other columns can be left out
FRAME_LINES = 6  # the header and the footer, and the table's own header
Cell = str
Key = Callable[[Any], Any]


class Column(NamedTuple):
    """A column: its title, its text and its sort key; numbers are sorted in descending order first."""

    title: str
    text: Callable[[Any], Cell]
    key: Key
    is_number: bool = True
    width: int | None = None


class View(NamedTuple):
    """A table: the source of its rows, and the initial sort column."""

    name: str
    rows: Callable[[Usage], Sequence[Any]]
    columns: tuple[Column, ...]
    first_sort: int
    nothing: str


def _or_below_zero(value: float | None) -> float:
    return -1.0 if value is None else value


def _connections(usage: Usage) -> Sequence[Any]:
    if usage.xray is None:
        return ()
    return [c for c in usage.xray["connections"]["shown"] if c["muted"] or c["frame_bytes"]]


def _throttle(client: Any) -> str:
    if not client.throttled:
        return "no memory" if client.memory_muted else "-"
    return f"{'+'.join(client.throttled_by) or 'yes'} {short_time(client.throttle_left_ms)}"


def _address(connection: Any) -> str:
    return printable(f"{connection['address']}:{connection['port']}", 21)


VIEWS: tuple[View, ...] = (
    View(
        "clients",
        lambda usage: usage.clients,
        (
            Column("CLIENT", lambda c: or_dash(c.client_id, 18), lambda c: c.client_id, False),
            Column(
                "PRINCIPAL", lambda c: printable(c.principal.removeprefix("User:"), 11), lambda c: c.principal, False
            ),
            Column("CONN", lambda c: str(c.connections), lambda c: c.connections),
            Column("REQ/S", lambda c: short_number(c.requests_per_s), lambda c: _or_below_zero(c.requests_per_s)),
            Column("IN B/S", lambda c: short_number(c.bytes_in_per_s), lambda c: _or_below_zero(c.bytes_in_per_s)),
            Column("OUT B/S", lambda c: short_number(c.bytes_out_per_s), lambda c: _or_below_zero(c.bytes_out_per_s)),
            Column("POOL", lambda c: short_number(c.memory_pool_bytes), lambda c: c.memory_pool_bytes),
            Column("THROTTLED BY", _throttle, lambda c: (c.throttled, c.throttle_left_ms, c.memory_muted), True, 15),
        ),
        4,
        "no client is connected",
    ),
    View(
        "not read",
        _connections,
        (
            Column("CLIENT", lambda c: or_dash(c["client_id"], 16), lambda c: c["client_id"], False),
            Column("ADDRESS", _address, _address, False),
            Column("WHY", why_muted, why_muted, False),
            Column("LEFT", time_left, lambda c: c["throttle_left_ms"] or 0),
            Column("WORKS", lambda c: short_time(c["in_flight_ms"]), lambda c: c["in_flight_ms"] or 0),
        ),
        3,
        "every connection is read",
    ),
    View(
        "topics",
        lambda usage: usage.topics,
        (
            Column("TOPIC", lambda t: printable(t.topic, 44), lambda t: t.topic, False),
            Column("PARTS", lambda t: str(t.partitions), lambda t: t.partitions),
            Column("RECORDS/S", lambda t: short_number(t.records_per_s), lambda t: _or_below_zero(t.records_per_s)),
            Column("RECORDS", lambda t: short_number(t.records), lambda t: t.records),
        ),
        2,
        "no topics",
    ),
    View(
        "groups",
        lambda usage: usage.groups,
        (
            Column("GROUP", lambda g: printable(g.group, 36), lambda g: g.group, False),
            Column("STATE", lambda g: printable(g.state, 19), lambda g: g.state, False),
            Column("TOPICS", lambda g: str(g.topics), lambda g: g.topics),
            Column("LAG", lambda g: short_number(g.lag), lambda g: _or_below_zero(g.lag)),
            Column("LAG/S", lambda g: short_number(g.lag_per_s), lambda g: g.lag_per_s or 0.0),
        ),
        3,
        "no groups",
    ),
    View(
        "slowest",
        lambda usage: () if usage.xray is None else usage.xray["requests"]["slowest"],
        (
            Column("API", lambda r: printable(r["api"], 16), lambda r: r["api"], False),
            Column("CLIENT", lambda r: or_dash(r["client_id"], 13), lambda r: r["client_id"], False),
            Column("QUEUE", lambda r: short_time(r["request_queue_ms"]), lambda r: r["request_queue_ms"]),
            Column("LOCAL", lambda r: short_time(r["local_ms"]), lambda r: r["local_ms"]),
            Column("REMOTE", lambda r: short_time(r["remote_ms"]), lambda r: r["remote_ms"]),
            Column("SEND", lambda r: short_time(r["send_ms"]), lambda r: r["send_ms"]),
            Column("THROT", lambda r: short_time(r["throttle_ms"] or None), lambda r: r["throttle_ms"]),
            Column("TOTAL", lambda r: short_time(r["total_ms"]), lambda r: r["total_ms"]),
        ),
        7,
        "no request so far",
    ),
)


class State(NamedTuple):
    """Selected view, by number; the column by which its rows are sorted, whether ascending, and the first row."""

    view: int = 0
    sort: int | None = None
    is_ascending: bool = False
    first: int = 0

    @property
    def column(self) -> int:
        """The sort column."""
        return VIEWS[self.view].first_sort if self.sort is None else self.sort


def sorted_rows(usage: Usage, state: State) -> list[Any]:
    """Return the sorted rows of the view."""
    view = VIEWS[state.view]
    column = view.columns[state.column]
    return sorted(view.rows(usage), key=column.key, reverse=column.is_number != state.is_ascending)


def table_of(usage: Usage, state: State, most: int, width: int) -> Table | Text:
    """Return the view's table: at most ``most`` rows from ``state.first`` on, in ``width`` columns of a terminal.

    A narrow terminal shows fewer columns, but always the first and the sort column; only the first column is cut.
    Without rows, return the text that explains why.
    """
    view = VIEWS[state.view]
    rows = sorted_rows(usage, state)
    if not rows:
        missing = usage.xray_missing if usage.xray is None and state.view in (0, 1, 4) else view.nothing
        return Text(printable(missing, 400), style="yellow" if missing is usage.xray_missing else "dim")
    rows = rows[state.first : state.first + most]
    arrow = "▲" if state.is_ascending == view.columns[state.column].is_number else "▼"
    titles = [column.title + (arrow if number == state.column else "") for number, column in enumerate(view.columns)]
    cells = [[column.text(row) for column in view.columns] for row in rows]
    widths = [max(map(columns_of, texts)) for texts in zip(titles, *cells, strict=True)]
    widths = [max(found, column.width or 0) for found, column in zip(widths, view.columns, strict=True)]
    shown = _fitting(widths, state.column, width)
    left = max(1, width - sum(1 + widths[number] for number in shown[1:]))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=False)
    for number in shown:
        table.add_column(
            Text(titles[number], style="bold reverse" if number == state.column else "bold"),
            justify="right" if view.columns[number].is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=widths[number] if number else min(widths[0], left),
        )
    for row, texts in zip(rows, cells, strict=True):
        is_throttled = state.view == 0 and (row.throttled or row.memory_muted)
        # Text: markup in a client's name has no effect
        table.add_row(*(Text(texts[number]) for number in shown), style="yellow" if is_throttled else None)
    return table


def _fitting(widths: Sequence[int], sort: int, width: int) -> list[int]:
    """Return the numbers of the columns that fit; drop others from the right, but not the first and the sort column."""
    shown = list(range(len(widths)))
    while len(shown) > 1 and min(widths[0], NARROWEST) + sum(1 + widths[number] for number in shown[1:]) > width:
        dropped = next((number for number in reversed(shown[1:]) if number != sort), None)
        if dropped is None:
            break
        shown.remove(dropped)
    return shown


def head_of(usage: Usage, server: str, note: str = "", is_paused: bool = False) -> list[Text]:
    """Return three lines about the whole broker."""
    first = Text.assemble(("kbroker top", "bold"), f"  {server}  ", no_wrap=True, overflow="ellipsis")
    if is_paused:
        first.append("paused  ", style="bold yellow")
    if note:
        first.append(printable(note, 200), style="bold red")
    else:
        first.append(f"look {short_time(usage.took_ms)}", style="dim")
    return [first, *_facts(usage)]


def _line(text: str, style: str = "") -> Text:
    """Return a text that a narrow terminal cuts."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _facts(usage: Usage) -> list[Text]:
    xray = usage.xray
    if xray is None:
        rate = sum(t.records_per_s or 0 for t in usage.topics)
        groups = counted(len(usage.groups), "group")
        return [
            Text(f"{counted(len(usage.topics), 'topic')}, {short_number(rate)} records/s, {groups}", no_wrap=True),
            _line(f"clients are not shown: {printable(usage.xray_missing, 200)}", style="yellow"),
        ]
    muted = ", ".join(f"{n} {_SHORT.get(why, why)}" for why, n in xray["connections"]["muted"].items() if n)
    waiting = ", ".join(f"{n} {name}" for name, n in ((p["name"], p["delayed"]) for p in xray["purgatories"]) if n)
    pool = xray["memory_pool"]
    used = "" if pool is None else f"  pool {percent(1 - pool['available_bytes'] / pool['size_bytes'])} used"
    queue = xray["queues"][0]
    network = [
        t["idle_share"] for t in xray["threads"] if "network-thread" in t["name"] and t["idle_share"] is not None
    ]
    network_idle = percent(sum(network) / len(network)) if network else "-"
    sums = [
        sum(getattr(c, name) or 0 for c in usage.clients)
        for name in ("requests_per_s", "bytes_in_per_s", "bytes_out_per_s")
    ]
    return [
        _line(
            f"{short_number(sums[0])} req/s  {short_number(sums[1])}B/s in  {short_number(sums[2])}B/s out  "
            f"{xray['connections']['open']} conn{f', {muted}' if muted else ''}"
        ),
        _line(
            f"idle: network {network_idle}, handlers {percent(xray['handlers_idle_share'])}  "
            f"queue {queue['depth']}/{queue['capacity']}  python {xray['queues'][1]['depth']}{used}  "
            f"waiting: {waiting or 'none'}"
        ),
    ]


def foot_of(state: State) -> Text:
    """Return the line with the views and the keys."""
    foot = _line("")
    for number, view in enumerate(VIEWS):
        style = "bold reverse" if number == state.view else ""
        foot.append(f"{number + 1} {view.name}", style=style)
        foot.append(" ")
    foot.append(" s sort  r reverse  ↑↓  q quit", style="dim")
    return foot


def screen_of(
    usage: Usage | None, state: State, server: str, size: tuple[int, int], *, note: str = "", is_paused: bool = False
) -> Group:
    """Return the whole screen. Args: ``size``: columns and lines of the terminal."""
    if usage is None:
        waiting = Text.assemble(
            ("kbroker top", "bold"), f"  {server}\n\n", (printable(note, 400) or "looking ...", "red" if note else "")
        )
        return Group(waiting)
    return Group(
        *head_of(usage, server, note, is_paused),
        Text(""),
        table_of(usage, state, max(1, size[1] - FRAME_LINES), size[0]),
        foot_of(state),
    )
