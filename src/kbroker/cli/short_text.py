"""Short texts for narrow tables: names that clients choose, times, rates; control characters are escaped."""

from __future__ import annotations

import re
from typing import Any

from kbroker.common.printable import beginning, columns_of
from kbroker.common.printable import printable as escaped

ELLIPSIS = "…"
_WHY = {
    "response_unsent": "client does not read",
    "memory_pool": "waits for memory",
    "refusal_delayed": "login refused",
}
_NETWORK_THREAD = re.compile(r"data-plane-kafka-network-thread-\d+-ListenerName\((?P<listener>.*)\)-.*-(?P<number>\d+)")


def printable(text: object, most: int | None = None) -> str:
    """Return a text that a client may have chosen in printable form, cut to ``most`` columns of a terminal."""
    shown = escaped(str(text)[: 10 * (most or 1000)])
    if most is None or columns_of(shown) <= most:
        return shown
    return beginning(shown, most - 1) + ELLIPSIS


def padded(text: str, columns: int, *, right: bool) -> str:
    """Return the text padded with spaces to at least ``columns`` columns of a terminal."""
    spaces = " " * (columns - columns_of(text))
    return spaces + text if right else text + spaces


def or_dash(text: object, most: int | None) -> str:
    """Return the printable text; a dash if it is empty."""
    return "-" if text is None or text == "" else printable(text, most)


def short_time(ms: float | None) -> str:
    """Return a time in at most six characters: 0.42ms, 12ms, 3.1s, 2m05s, 3h07m; a dash for None."""
    if ms is None:
        return "-"
    if ms < 10:
        return f"{ms:.2f}ms" if ms < 1 else f"{ms:.1f}ms"
    if ms < 999.5:
        return f"{ms:.0f}ms"
    seconds = ms / 1000
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes = int(seconds / 60 + 1e-9)
    if minutes < 60:
        return f"{minutes}m{int(seconds) % 60:02d}s"
    if minutes < 100 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes // (24 * 60)}d"


def short_number(number: float | None) -> str:
    """Return a number in at most five characters, or six with a sign: 0, 0.012, 950, 12.3k, 4.0M; a dash for None."""
    if number is None:
        return "-"
    if 0 < abs(number) < 0.1:
        return f"{number:.0e}" if abs(number) < 0.001 else f"{number:.{1 if abs(number) < 0.01 else 2}g}"
    for factor, letter in ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P")):
        shown = number / factor
        if abs(shown) < 999.5:
            return (
                f"{shown:.0f}{letter}"
                if shown >= 100 or (not letter and shown == int(shown))
                else f"{shown:.1f}{letter}"
            )
    return f"{number:.0e}"


def percent(share: float | None) -> str:
    """Return a share of 0 to 1 as percent."""
    return "-" if share is None else f"{100 * share:.0f}%"


def thread_name(name: str) -> str:
    """Return a thread's name without the common prefix: network thread 0 (PLAINTEXT)."""
    found = _NETWORK_THREAD.fullmatch(name)
    if found:
        return f"network thread {found['number']} ({found['listener']})"
    return name.removeprefix("data-plane-kafka-").removeprefix("kafka-")


def why_muted(connection: dict[str, Any], most: int = 26) -> str:
    """Return the reasons why a connection is not read, the most important first."""
    words = []
    for reason in connection["muted"]:
        if reason == "throttled":
            by = connection.get("throttled_by")
            words.append(f"throttled ({by})" if by else "throttled")
        elif reason == "batch_in_flight":
            words.append(f"{connection['in_flight']} in flight")
        else:
            words.append(_WHY.get(reason, reason))
    if not words and connection["frame_bytes"]:
        words.append(
            f"read {short_number(connection['frame_arrived_bytes'])} of {short_number(connection['frame_bytes'])}B"
        )
    return printable(", ".join(words), most) if words else "-"


def time_left(connection: dict[str, Any]) -> str:
    """Return the time for which a connection stays muted; a dash if it is not known."""
    for key in ("throttle_left_ms", "refusal_left_ms"):
        if connection[key] is not None:
            return short_time(connection[key])
    return "-"
