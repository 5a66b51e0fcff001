"""Explanations of one client's quotas: by a kbroker's HTTP port, or by Kafka's protocol as far as that goes."""

from collections.abc import Mapping
from typing import Any

from kbroker.client.http_port import HttpPort
from kbroker.client.quota_changes import Values
from kbroker.client.quota_resolution import ResolvedQuota, resolve_quotas
from kbroker.common.quotas import QuotaEntity, enforced_key, is_shadow_key

PATH = "/quotas/explain"
#: What Kafka's protocol has no request for.
NOT_IN_THE_PROTOCOL = (
    "the rates now, what is left, waiting connections and verdicts: Kafka's protocol has no request for them"
)


def ask_explanation(
    port: HttpPort,
    user: str = "ANONYMOUS",
    client_id: str = "",
    address: str | None = None,
    *,
    connection: str | None = None,
    wanted: Mapping[QuotaEntity, Values] | None = None,
) -> dict[str, Any]:
    """What a kbroker's quotas make of one client, and what the ``wanted`` quotas would have made of it.

    The schema is in docs/explain.md. Raises: HttpPortError.
    """
    query: dict[str, str] = {"connection": connection} if connection is not None else {"user": user}
    if connection is None and client_id:
        query["client-id"] = client_id
    if connection is None and address is not None:
        query["ip"] = address
    found: dict[str, Any] = port.get(PATH, query)
    if wanted is None:
        return found
    resolved = {
        one.key: one
        for one in resolve_quotas(wanted, found["user"], found["client_id"], found["address"])
        if one.limit is not None and one.limit > 0 and not is_shadow_key(one.key)
    }
    if resolved:
        found = port.get(PATH, {**query, **{f"compare.{key}": repr(one.limit) for key, one in resolved.items()}})
    for quota in found["quotas"]:
        one = resolved.get(quota["quota"])
        if one is not None and quota["compare"] is not None:
            quota["compare"].update(_of_whom(one, quota["counted_for"]))
    return found


def _of_whom(one: ResolvedQuota, counted_for: Mapping[str, str] | None) -> dict[str, Any]:
    """Whose quota it is, and whether the counter there is counts the same clients as its own would."""
    names = None if one.counted_for is None else one.counted_for.names
    return {
        "level": one.level,
        "entity": None if one.entity is None else one.entity.names,
        "counted_for": names,
        "is_same_counter": names == counted_for,
    }


def explanation_of(
    resolved: list[ResolvedQuota], user: str, client_id: str, address: str | None, why: str
) -> dict[str, Any]:
    """As far as Kafka's protocol goes: which quotas apply, and why the others do not; the same schema.

    Args: ``why``: the reason that no more is known.
    """
    shadows = {enforced_key(one.key): one for one in resolved if is_shadow_key(one.key) and one.limit is not None}
    return {
        "source": "protocol",
        "missing": [f"{NOT_IN_THE_PROTOCOL} ({why})"],
        "user": user,
        "client_id": client_id,
        "address": address,
        "connection": None,
        "quotas": [
            {"quota": one.key, **_resolved(one), "shadow": _resolved(shadows[one.key]) if one.key in shadows else None}
            for one in resolved
            if not is_shadow_key(one.key)
        ],
    }


def _resolved(one: ResolvedQuota) -> dict[str, Any]:
    return {
        "limit": one.limit,
        "level": one.level,
        "entity": None if one.entity is None else one.entity.names,
        "levels": [level.json() for level in one.levels],
        "counted_for": None if one.counted_for is None else one.counted_for.names,
        "counter": None,
        "compare": None,
    }
