"""Explanation of one client's quotas for people: at most 80 columns, with control characters escaped."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from kbroker.cli.output import styled
from kbroker.cli.plain_characters import BARS
from kbroker.common.printable import beginning, columns_of, printable
from kbroker.common.quota_limits import BYTE_RATES, PERCENTAGE, limit_text, number_text
from kbroker.common.quotas import ENTITY_TYPES, shown_name
from kbroker.common.units import counted, rounded_bytes, rounded_duration

WIDTH = 80
LABEL = 13
MOST_BARS = 40
SHOWN_VERDICTS = 8

Found = Mapping[str, Any]


def show_explanation(found: Found, compared_with: str | None) -> None:
    """Print an explanation. Args: ``compared_with``: name of the file whose quotas it is compared with."""
    for line in _lines(found, compared_with):
        click.echo(line)


def _lines(found: Found, compared_with: str | None) -> Iterator[str]:
    yield from _head(found)
    without = []
    for quota in found["quotas"]:
        if quota["limit"] is None and quota["counter"] is None and quota["shadow"] is None and not quota["compare"]:
            without.append(quota)
            continue
        yield ""
        yield from _quota(quota, found.get("time_ms", 0), compared_with)
    if without:
        yield ""
        yield from _wrapped(f"no quota applies: {', '.join(quota['quota'] for quota in without)}")
    for text in found.get("missing", ()):
        yield ""
        yield from _wrapped(f"not known: {text}")
    if found.get("verdicts"):
        yield ""
        yield from _verdicts(found)


def _head(found: Found) -> Iterator[str]:
    client_id = found["client_id"]
    parts = [f"user {found['user']}", f"client-id {client_id}" if client_id else "no client id"]
    if found["address"]:
        parts.append(f"from {found['address']}")
    yield styled(_fit(", ".join(parts)), bold=True)
    if "connections" not in found:
        return
    count, waiting = found["connections"], found["waiting"]
    if not found["is_known"]:
        yield from _wrapped("the broker has neither a connection, a counter nor a verdict of this client")
    else:
        yield _fit(f"{counted(count, 'open connection')}, {len(waiting) or 'none'} throttled now")
    others = [one for one in found["client_ids"] if one != client_id]
    if others and not count:
        names = ", ".join(one or "none" for one in others)
        yield from _wrapped(f"connected as this user now: client id {names}")
    for one in waiting[:5]:
        left = "for a time" if one["left_ms"] is None else f"{rounded_duration(one['left_ms'])} more"
        yield _fit(f"  waits {left}: {one['connection']} ({one['quota'] or 'quota not known'})")
    if len(waiting) > 5:
        yield f"  and {len(waiting) - 5} more"


def _quota(quota: Found, now_ms: int, compared_with: str | None) -> Iterator[str]:
    key, limit, counter = quota["quota"], quota["limit"], quota["counter"]
    yield styled(_fit(f"{key}  {'no limit' if limit is None else limit_text(key, limit)}"), fg="cyan", bold=True)
    if limit is not None:
        yield _row("set for", f"{_level(quota)}{entity_text(quota['entity'])}")
    if quota["counted_for"]:
        yield _row("counted for", _who(quota["counted_for"]))
    if counter is not None:
        yield from _counter(key, counter, now_ms)
    elif "is_enabled" in quota:
        yield _row(
            "rate now", "not counted yet" if quota["is_enabled"] else "not counted: no quota of this type is set"
        )
    yield from _other_levels(quota)
    shadow = quota["shadow"]
    if shadow is not None:
        yield from _shadow(key, shadow, None if counter is not None else now_ms)
    if quota["compare"]:
        yield from _compared(key, quota, compared_with or "compared")


def _counter(key: str, counter: Found, now_ms: int) -> Iterator[str]:
    limit = counter["limit"]
    share = f", {100 * counter['observed'] / limit:.0f} % of the limit" if limit else ""
    yield _row(
        "rate now", f"{rate_text(key, counter['observed'])} over {rounded_duration(counter['window_ms'])}{share}"
    )
    yield _samples(key, counter, now_ms)
    if counter["tokens"] is not None:
        yield _row("tokens", f"{counter['tokens']:.6g} of {counter['most_tokens']:.6g}")
    elif counter["left"] is not None and counter["left"] >= 0:
        yield _row("left now", amount_text(key, counter["left"]))
    if counter["delay_ms"] > 0:
        asked = counter["asked_ms"]
        capped = f" ({rounded_duration(asked)} by the formula)" if asked > counter["delay_ms"] else ""
        yield _row("next request", f"waits {rounded_duration(counter['delay_ms'])}{capped}")
    elif limit is not None:
        yield _row("next request", "does not wait")


def _samples(key: str, counter: Found, now_ms: int) -> str:
    bars, largest = chart(counter, now_ms)
    covers = f"last {rounded_duration(len(bars) * counter['sample_ms'])}"
    return _row(covers, f"{bars}  full bar {amount_text(key, largest)} in {rounded_duration(counter['sample_ms'])}")


def chart(counter: Found, now_ms: int) -> tuple[str, float]:
    """Return the samples as bars, the latest at the right, and the value of a full bar."""
    sample_ms, count = counter["sample_ms"], min(counter["sample_count"] + 1, MOST_BARS)
    sums = [0.0] * count
    for sample in counter["samples"]:
        age = (now_ms - sample["start_ms"]) // sample_ms
        if 0 <= age < count:
            sums[count - 1 - age] += max(sample["value"] or 0.0, 0.0)
    largest = max(sums)
    bars = "".join(_bar(value, largest) for value in sums)
    return bars, largest


def _bar(value: float, largest: float) -> str:
    if value <= 0 or largest <= 0:
        return "·"
    return BARS[min(len(BARS), math.ceil(value / largest * len(BARS))) - 1]


def _other_levels(quota: Found) -> Iterator[str]:
    """Yield the reasons that other levels do not apply; one line for all levels without a quota."""
    for one in quota["levels"]:
        if one["outcome"] in ("applies", "not set") or one["limit"] is None:
            continue
        why = f"level {quota['level']} comes first" if one["outcome"] == "overridden" else "it sends no client id"
        text = f"{one['level']} {entity_text(one['entity'])} {limit_text(quota['quota'], one['limit'])}"
        yield _row("lost", f"{_fit(text, WIDTH - LABEL - len(why) - 4)}: {why}")
    unset = [str(one["level"]) for one in quota["levels"] if one["limit"] is None]
    if unset:
        yield _row("not set", f"level{'s' if len(unset) > 1 else ''} {', '.join(unset)}")


def _shadow(key: str, shadow: Found, now_ms: int | None) -> Iterator[str]:
    """Yield the lines of a shadow quota. Args: ``now_ms``: None if the same traffic is already drawn."""
    if shadow["limit"] is None:
        return
    yield _row("shadow", f"{limit_text(key, shadow['limit'])}, {_level(shadow)}{entity_text(shadow['entity'])}")
    counter = shadow["counter"]
    if counter is None:
        yield _row("", "not counted yet")
        return
    would = f"would delay {rounded_duration(counter['delay_ms'])}" if counter["delay_ms"] > 0 else "would not delay"
    observed = (
        f"{counter['tokens']:.6g} tokens" if counter["tokens"] is not None else rate_text(key, counter["observed"])
    )
    yield _row("", f"now {observed}, {would}")
    if now_ms is not None:
        yield _samples(key, counter, now_ms)


def _compared(key: str, quota: Found, name: str) -> Iterator[str]:
    compare = quota["compare"]
    whose = f", {_level(compare)}{entity_text(compare['entity'])}" if compare.get("entity") else ""
    yield _row(_fit(name, LABEL - 2), f"{limit_text(key, compare['limit'])}{whose}")
    now = compare["now"]
    if now is None:
        yield _row("", "no traffic was counted, so the effect is unknown")
        return
    samples = counted(len(compare["samples"]), "sample")
    if compare["delayed"]:
        longest = rounded_duration(compare["longest_delay_ms"])
        yield _row("", f"would have delayed at {compare['delayed']} of {samples}, {longest} at most")
    else:
        yield _row("", f"would have delayed at none of {samples}")
    yield _row(
        "", f"now it would delay {rounded_duration(now['delay_ms'])}" if now["delay_ms"] else "now it would not delay"
    )
    if not compare["is_complete"]:
        yield _row("", "earlier traffic is unknown: the first delays may be longer")
    if compare.get("is_same_counter") is False:
        theirs = _who(compare["counted_for"]) if compare["counted_for"] else "nothing"
        yield _row("", f"other clients: counted for {theirs}")


def _verdicts(found: Found) -> Iterator[str]:
    shown = found["verdicts"][:SHOWN_VERDICTS]
    more = len(found["verdicts"]) > len(shown) or found["verdicts_truncated"]
    yield styled(f"LAST {len(shown)} VERDICTS (UTC)" if more else "LAST VERDICTS (UTC)", bold=True)
    for one in shown:
        at = time.strftime("%H:%M:%S", time.gmtime(one["time_ms"] / 1000)) + f".{one['time_ms'] % 1000:03d}"
        key = one["quota"]
        kind = "shadow" if one["is_shadow"] else "delay"
        served_ms = one["delay_served_ms"]
        what = f"{kind} {rounded_duration(served_ms)}" if served_ms > 0 else f"shorter {kind}"
        if one["refused"]:
            what = "shadow refusal" if one["is_shadow"] else "refused"
        who = "" if one["is_own"] else f" ({one['client_id'] or 'no client id'})"
        is_bucket = key == "controller_mutation_rate"
        seen = f"{one['observed']:.6g} tokens" if is_bucket else rate_text(key, one["observed"])
        yield _fit(f"  {at}  {key}  {seen} of {limit_text(key, one['limit'])}  {what}{who}")


# ---------------------------------------------------------------- words


def entity_text(names: Mapping[str, str | None] | None) -> str:
    """Return an entity as text."""
    if not names:
        return "-"
    return printable(", ".join(f"{kind} {shown_name(names[kind])}" for kind in ENTITY_TYPES if kind in names))


def _who(tags: Mapping[str, str]) -> str:
    """Return the clients that share a counter."""
    if "ip" in tags:
        return f"ip {tags['ip']}"
    if "client-id" not in tags:
        return f"user {tags['user']}, all its clients"
    return (
        f"client-id {tags['client-id']}, all users"
        if "user" not in tags
        else f"user {tags['user']}, client-id {tags['client-id']}"
    )


def _level(quota: Found) -> str:
    """Return the level; empty for an address."""
    is_address = "ip" in (quota["entity"] or {})
    return "" if quota["level"] is None or is_address else f"level {quota['level']}: "


def rate_text(key: str, value: float | None) -> str:
    """Return a measured rate, rounded."""
    if value is None:
        return "-"
    if key in BYTE_RATES:
        return f"{rounded_bytes(value)}/s"
    return f"{value:.4g} %" if key == PERCENTAGE else f"{value:.4g}/s"


def amount_text(key: str, value: float) -> str:
    """Return the amount that may be used at once."""
    if key in BYTE_RATES:
        return rounded_bytes(value)
    if key == PERCENTAGE:  # percent of a thread, for a second
        return f"{rounded_duration(value * 10)} of one thread"
    return number_text(float(int(value)))


def _row(label: str, text: str) -> str:
    return _fit(f"  {label:<{LABEL - 2}} {text}")


def _fit(text: str, width: int = WIDTH) -> str:
    """Return the text in printable form, at most ``width`` columns wide; the middle of a longer text is left out."""
    shown = printable(text[: 4 * WIDTH] + text[-4 * WIDTH :] if len(text) > 8 * WIDTH else text)
    if columns_of(shown) <= width:
        return shown
    tail = beginning(shown[::-1], width // 3)[::-1]
    return f"{beginning(shown, width - 1 - columns_of(tail))}…{tail}"


def _wrapped(text: str) -> Iterable[str]:
    return map(_fit, textwrap.wrap(printable(text), WIDTH, subsequent_indent="  "))
