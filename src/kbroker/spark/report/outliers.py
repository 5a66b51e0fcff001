"""Entities for which a recommended quota would be a reward: it grants what a client takes, not what it should have."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Iterable, Sequence

from kbroker.common.quotas import CLIENT_ID, USER, QuotaEntity
from kbroker.spark.report.throttled import Throttled
from kbroker.spark.whatif.recommend import Need, Recommendation

TIMES = 10  # as much as the others need, or as it may use now
OTHERS = 2  # with fewer there is nothing to compare with

Limits = Callable[[QuotaEntity, str], float | None]
Reasons = dict[tuple[QuotaEntity, str], str]


def outliers(found: Recommendation, limit_of: Limits, throttled: Iterable[Throttled]) -> Reasons:
    """Entities and quota types for which the recommendation only follows what the entity takes.

    Those are the ones that need far more than the others and were throttled, or would get more than now; and those
    that were throttled and need far more than their quota.

    Args: `limit_of`: the quota in force of an entity and quota type, None where there is none or it is not known.
    Returns: why, as what can be said of each.
    """
    held = {(row.quota_type, row.user or None, row.client_id or None) for row in throttled}
    by_type: dict[str, list[Need]] = {}
    for need in found.needs:
        by_type.setdefault(need.quota_type, []).append(need)
    reasons = {}
    for quota_type, needs in by_type.items():
        ranked = sorted(need.limit for need in needs)
        for need in needs:
            if need.limit <= found.defaults.get(quota_type, 0.0):
                continue  # it gets what all get
            now = limit_of(need.entity, quota_type)
            was_throttled = any(_is_of(need, names) for names in held)
            usual = _usual(ranked, need.limit)
            if usual and need.limit >= TIMES * usual and (was_throttled or (now is not None and need.limit > now)):
                what = "half of the others do"
                reasons[need.entity, quota_type] = _why(need.limit / usual, what)
            elif now and need.limit >= TIMES * now and was_throttled:
                reasons[need.entity, quota_type] = _why(need.limit / now, "its quota allows")
    return reasons


def _why(factor: float, what: str) -> str:
    return f"takes {factor:,.0f} times as much as {what}: find out why before you grant it"


def _usual(ranked: Sequence[float], own: float) -> float | None:
    """The median of the others. Args: `ranked`: all needs in order."""
    if len(ranked) <= OTHERS:
        return None
    others = list(ranked)
    others.pop(bisect.bisect_left(others, own))
    return statistics.median(others)


def doubt_of(row: Throttled, reasons: Reasons) -> str | None:
    """Why the one that was throttled should not get more; None: none of `outliers` is its entity."""
    for (entity, quota_type), why in reasons.items():
        names = entity.names
        need = Need(names.get(USER), names.get(CLIENT_ID), quota_type, 0.0, 0, 0, 0.0)
        if _is_of(need, (row.quota_type, row.user or None, row.client_id or None)):
            return why
    return None


def _is_of(need: Need, names: tuple[str | None, str | None, str | None]) -> bool:
    """Whether a counter that throttled is that of an entity: a name that only one of the two has does not differ."""
    quota_type, user, client_id = names
    if quota_type != need.quota_type or (user is None and client_id is None):
        return False
    return all(a is None or b is None or a == b for a, b in ((user, need.user), (client_id, need.client_id)))
