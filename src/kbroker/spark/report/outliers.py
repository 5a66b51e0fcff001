"""Outliers: entities whose recommended quota only grants their present use, not a share that they should have."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Iterable, Sequence

from kbroker.common.quotas import CLIENT_ID, USER, QuotaEntity
from kbroker.spark.report.throttled import Throttled
from kbroker.spark.whatif.recommend import Need, Recommendation

TIMES = 10  # an outlier needs at least this multiple of the need of the others, or of its current quota
OTHERS = 2  # minimum number of others for a comparison

Limits = Callable[[QuotaEntity, str], float | None]
Reasons = dict[tuple[QuotaEntity, str], str]


def outliers(found: Recommendation, limit_of: Limits, throttled: Iterable[Throttled]) -> Reasons:
    """Return the entities and quota types for which the recommendation only follows the traffic of the entity.

    They need far more than the others and were throttled, or would get more than now; or they were throttled and need
    far more than their quota.

    Args: `limit_of`: current quota of an entity and quota type; None if there is none or it is unknown.
    Returns: the reason for each, as a clause.
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
                continue  # it gets the default
            now = limit_of(need.entity, quota_type)
            was_throttled = any(_is_of(need, names) for names in held)
            usual = _usual(ranked, need.limit)
            if usual and need.limit >= TIMES * usual and (was_throttled or (now is not None and need.limit > now)):
                reasons[need.entity, quota_type] = _why(need.limit / usual, "half of the others do")
            elif now and need.limit >= TIMES * now and was_throttled:
                reasons[need.entity, quota_type] = _why(need.limit / now, "its quota allows")
    return reasons


def _why(factor: float, what: str) -> str:
    return f"takes {factor:,.0f} times as much as {what}: find the reason before you grant it"


def _usual(ranked: Sequence[float], own: float) -> float | None:
    """Return the median of the others, None if there are too few. Args: `ranked`: all needs, sorted."""
    if len(ranked) <= OTHERS:
        return None
    others = list(ranked)
    others.pop(bisect.bisect_left(others, own))
    return statistics.median(others)


def doubt_of(row: Throttled, reasons: Reasons) -> str | None:
    """Return the reason why a throttled client should not get more; None if it belongs to none of `outliers`."""
    for (entity, quota_type), why in reasons.items():
        names = entity.names
        need = Need(names.get(USER), names.get(CLIENT_ID), quota_type, 0.0, 0, 0, 0.0)
        if _is_of(need, (row.quota_type, row.user or None, row.client_id or None)):
            return why
    return None


def _is_of(need: Need, names: tuple[str | None, str | None, str | None]) -> bool:
    """Return whether a throttling counter belongs to an entity; a name that only one of them has is ignored."""
    quota_type, user, client_id = names
    if quota_type != need.quota_type or (user is None and client_id is None):
        return False
    return all(a is None or b is None or a == b for a, b in ((user, need.user), (client_id, need.client_id)))
