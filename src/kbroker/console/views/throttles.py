"""Clients that quotas throttle: a map of the last ten minutes, and the latest verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.common.quotas import CLIENT_ID, IP, USER
from kbroker.common.shown_names import shown_name
from kbroker.common.units import counted
from kbroker.console.history import BIN_S, SECONDS, Bin, Throttled
from kbroker.console.paging import part_of
from kbroker.console.rendering import decided, judged, milliseconds
from kbroker.console.requests import Query
from kbroker.console.site import Site, View
from kbroker.quota.explanation import KEY_OF_TYPE
from kbroker.quota.verdict import Verdict

ROWS = 30  # maximum number of rows of the map on a page
VERDICTS = 50
SHADES = 6
BINS = SECONDS // BIN_S


class Cell(NamedTuple):
    """Ten seconds of a row; ``shade``: 1 (weak) to SHADES."""

    place: int
    shade: int
    title: str


class MapRow(NamedTuple):
    """One counter of the map. ``query``: parameters of its explanation."""

    who: str
    quota_type: str
    is_shadow: bool
    verdicts: int
    refused: int
    delay_ms: int
    cells: list[Cell]
    query: Mapping[str, str]


class ShownVerdict(NamedTuple):
    """A decision in words."""

    verdict: Verdict
    who: str
    decided: str
    observed: str
    limit: str


def throttles(site: Site, query: Query) -> View:
    """Return the map of counters whose names contain ``q``, the strongest first."""
    wanted = query.text("q").strip()
    found = site.local.history.throttled()
    now_s = site.clock.epoch_ms() // 1000
    first = now_s // BIN_S - BINS + 1
    highest = {is_shadow: _highest(found, is_shadow) for is_shadow in (False, True)}
    rows = [_row(who, bins, first, highest[who.is_shadow]) for who, bins in found.items()]
    rows = [row for row in rows if wanted.lower() in row.who.lower()]
    rows.sort(key=lambda row: (row.is_shadow, -row.delay_ms, -row.verdicts, row.who))
    part = part_of(rows, query, "throttles", ROWS)
    latest = [one for one in reversed(site.broker.verdicts) if wanted.lower() in who_of(one).lower()][:VERDICTS]
    values = {
        "part": part,
        "q": wanted,
        "bins": BINS,
        "from_ms": first * BIN_S * 1000,
        "to_ms": (first + BINS) * BIN_S * 1000,
        "shades": range(1, SHADES + 1),
        "scales": [(is_shadow, milliseconds(highest[is_shadow])) for is_shadow in (False, True) if highest[is_shadow]],
        "latest": [_shown(one) for one in latest],
        "missed_until_ms": site.local.history.missed_until_ms,
    }
    return View("Throttles", "throttles.html", values)


def _highest(found: Mapping[Throttled, Mapping[int, Bin]], is_shadow: bool) -> float:
    """Return the highest weight of a cell of enforced quotas or of shadows, whose delays grow because nothing waits."""
    weights = [_weight(one) for who, bins in found.items() if who.is_shadow is is_shadow for one in bins.values()]
    return max(weights, default=0.0)


def _weight(one: Bin) -> float:
    """Return the weight of a cell: its delay; a refusal counts as a short delay."""
    return one.delay_ms + 100.0 * one.refused


def _row(who: Throttled, bins: Mapping[int, Bin], first: int, highest: float) -> MapRow:
    cells = []
    for number, one in sorted(bins.items()):
        place = number - first
        if 0 <= place < BINS:
            strength = math.sqrt(_weight(one) / highest) if highest > 0 else 0
            refused = f", {one.refused:,} refused" if one.refused else ""
            title = f"{counted(one.verdicts, 'decision')}, {milliseconds(one.delay_ms)}{refused}"
            cells.append(Cell(place, max(1, math.ceil(SHADES * strength)), title))
    names = {USER: who.user, CLIENT_ID: who.client_id, IP: who.address}
    return MapRow(
        _who(who.user, who.client_id, who.address),
        who.quota_type,
        who.is_shadow,
        sum(one.verdicts for one in bins.values()),
        sum(one.refused for one in bins.values()),
        sum(one.delay_ms for one in bins.values()),
        cells,
        {kind: name for kind, name in names.items() if name},
    )


def _shown(one: Verdict) -> ShownVerdict:
    observed, limit = judged(KEY_OF_TYPE[one.quota_type], one.observed, one.limit)
    return ShownVerdict(one, who_of(one), decided(one.refused, one.delay_served_ms), observed, limit)


def who_of(verdict: Verdict) -> str:
    """Return the owner of the counter of a verdict, for people."""
    address = verdict.address if verdict.quota_type == "ConnectionRate" else ""
    return _who(verdict.user, verdict.client_tag, address)


def _who(user: str, client_id: str, address: str) -> str:
    parts = [f"{kind} {shown_name(name)}" for kind, name in (("user", user), ("client id", client_id)) if name]
    if address:
        parts.append(f"address {shown_name(address)}")
    return ", ".join(parts) or "all clients together"
