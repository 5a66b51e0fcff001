"""The smallest quota that throttles one entity in less than a share of its seconds, found by judging its own values.

An entity's values come in parts that follow each other in time. Few of them become one part; those of an entity with
many stay as they are, and are fed to its counter one after the other, so that nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbroker.spark.whatif._replay import GIVEN_BACK, JUDGED, STRICT, Counters
from kbroker.spark.whatif.replay_core import Windows
from kbroker.spark.whatif.replay_events import Events
from kbroker.spark.whatif.time_parts import Held

FINEST = {"Request": 0.01, "ControllerMutation": 0.01}  # of the others, whole bytes a second
MARGIN = 1e-9
JOINED_VALUES = 1 << 20  # of an entity with fewer one part is made
Array = Any  # of numpy


@dataclass(frozen=True)
class Values:
    """Values of one entity and quota type, in the order in which a broker saw them."""

    time_ms: Array  # int64
    value: Array  # float64
    action: Array  # int8

    def __len__(self) -> int:
        return len(self.time_ms)

    @property
    def is_judged(self) -> Array:
        """Those that were judged, not counted only."""
        return (self.action == JUDGED) | (self.action == STRICT)

    def taken(self, places: Any) -> Values:
        """Some of them."""
        return Values(self.time_ms[places], self.value[places], self.action[places])


class EntityValues:
    """The values of one quota type of a log, by entity. 17 bytes each."""

    def __init__(self) -> None:
        self._parts: list[tuple[Array, Values]] = []  # where each entity begins, and all values by entity
        self._held = Held()

    def add(self, owner: Array, events: Events, until_ms: int | None) -> None:
        """A part of the log. Args: `owner`: the number of each value's entity; `until_ms`: as `Replay.feed`."""
        import numpy as np

        events, owner = self._held.with_held(events, owner, until_ms)
        order = np.argsort(owner, kind="stable")
        begins = np.searchsorted(owner[order], np.arange(int(owner.max(initial=-1)) + 2))
        values = Values(events.time_ms[order], events.value[order], events.action[order])
        self._parts.append((begins, values))

    def of(self, number: int) -> list[Values] | None:
        """The values of an entity; None if it never used anything of the type."""
        found = []
        for begins, values in self._parts:
            if number + 1 < len(begins) and begins[number] < begins[number + 1]:
                found.append(values.taken(slice(int(begins[number]), int(begins[number + 1]))))
        if not any(bool(((part.action != GIVEN_BACK) & (part.value > 0)).any()) for part in found):
            return None
        return [_joined(found)] if sum(map(len, found)) <= JOINED_VALUES else _by_seconds(found)

    def clear(self) -> None:
        """Forget all."""
        self._parts.clear()


def _joined(parts: Sequence[Values]) -> Values:
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    return Values(*(np.concatenate([getattr(part, name) for part in parts]) for name in Values.__dataclass_fields__))


def _by_seconds(parts: Sequence[Values]) -> list[Values]:
    """The same, cut between two seconds, so that none is in two parts; small parts are joined."""
    import numpy as np

    found: list[Values] = []
    waiting: list[Values] = []
    for part in parts:
        last = int(part.time_ms[-1]) // 1000 * 1000
        cut = int(np.searchsorted(part.time_ms, last))
        if cut == 0 or sum(map(len, waiting)) + len(part) < JOINED_VALUES // 16:
            waiting.append(part)
            continue
        found.append(_joined([*waiting, part.taken(slice(0, cut))]))
        waiting = [part.taken(slice(cut, None))]
    return [*found, _joined(waiting)] if waiting else found


def smallest_limit(
    parts: Sequence[Values], quota_type: str, share: float, windows: Windows
) -> tuple[float, int, int, float]:
    """The smallest limit with a share of throttled seconds below `share`; (limit, all seconds, throttled, peak rate).

    A rate does not depend on its limit, but for fetches, whose bytes are given back when they are delayed: then less is
    counted, so that the limit which is enough without that is enough with it. The search goes down from there, in steps
    that double, and halves the last one; also of the others, as an excess worth less than half a millisecond is none.
    """
    import numpy as np

    seconds = np.unique(np.concatenate([np.unique(part.time_ms[part.is_judged] // 1000) for part in parts]))
    allowed = max(0, math.ceil(share * len(seconds)) - 1)  # the most that is still below the share
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
        steps_high, steps_low = steps_low, max(0, steps_low - step)  # 0 is no quota, and never tried
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
    """The smallest rate that is exceeded in no more than `allowed` seconds, and the highest of all."""
    import numpy as np

    highest = np.zeros(len(seconds))
    for part in parts:
        taken = part.taken(part.action != GIVEN_BACK)
        observed = np.zeros(len(taken))
        counters.observe(number, taken.time_ms, taken.value, observed)
        is_judged = taken.action == JUDGED
        np.maximum.at(highest, np.searchsorted(seconds, taken.time_ms[is_judged] // 1000), observed[is_judged])
    ranked = np.sort(highest)[::-1]
    return float(ranked[allowed]) if len(ranked) else 0.0, float(ranked[0]) if len(ranked) else 0.0
