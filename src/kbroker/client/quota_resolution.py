"""Quotas that apply to one client: resolved from all quotas of a cluster, or explained by a broker's HTTP port."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker.client.http_port import HttpPort
from kbroker.common.quota_levels import APPLIES, LevelOutcome, QuotasOf, address_levels, client_levels
from kbroker.common.quotas import (
    CLIENT_ID,
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    IP,
    USER,
    QuotaEntity,
    enforced_key,
    is_shadow_key,
    resolve,
    shadow_key,
)

Values = Mapping[str, float]

PATH = "/quotas/explain"
#: Parts of an explanation that Kafka's protocol cannot provide.
NOT_IN_THE_PROTOCOL = (
    "the rates now, what is left, waiting connections and verdicts: Kafka's protocol has no request for them"
)


class ResolvedQuota(NamedTuple):
    """One quota for one client.

    ``limit``: None if unlimited. ``level``: 1 to 8, the most specific first; None if no quota applies, and for an
    address. ``entity``: the entity that the limit was set for. ``counted_for``: the clients that share the counter
    with this one, as an entity: a missing part means all. ``levels``: all levels in order.
    """

    key: str
    limit: float | None
    level: int | None
    entity: QuotaEntity | None
    counted_for: QuotaEntity | None
    levels: tuple[LevelOutcome, ...]


def resolve_quotas(
    found: Mapping[QuotaEntity, Values], user: str, client_id: str = "", address: str | None = None
) -> list[ResolvedQuota]:
    """Return the quotas that apply to a client, one per key; with its ``address``, connection_creation_rate too.

    A quota is followed by its shadow if any entity has one; shadows are resolved separately.
    Args: ``found``: all quotas of the cluster. ``client_id``: empty for a client that sends none.
    """

    def quotas_of(entity: QuotaEntity) -> Values:
        return found.get(entity, {})

    shadows = {key for values in found.values() for key in values if is_shadow_key(key)}

    def with_shadow(key: str) -> list[str]:
        return [key, shadow_key(key)] if shadow_key(key) in shadows else [key]

    keys = [one for key in sorted(CLIENT_KEYS) for one in with_shadow(key)]
    resolved = [_of_client(found, quotas_of, key, user, client_id) for key in keys]
    if address is not None:
        resolved += [_of_address(quotas_of, key, address) for key in with_shadow(CONNECTION_CREATION_RATE)]
    return resolved


def _of_address(quotas_of: QuotasOf, key: str, address: str) -> ResolvedQuota:
    levels = tuple(address_levels(quotas_of, key, address))
    winner = next((one for one in levels if one.outcome == APPLIES), None)
    if winner is None:
        return ResolvedQuota(key, None, None, None, None, levels)
    return ResolvedQuota(key, winner.limit, None, winner.entity, QuotaEntity.of({IP: address}), levels)


def _of_client(
    found: Mapping[QuotaEntity, Values], quotas_of: QuotasOf, key: str, user: str, client_id: str
) -> ResolvedQuota:
    levels = tuple(client_levels(quotas_of, key, user, client_id))
    winner, user_tag, client_tag = resolve(
        {entity for entity, values in found.items() if key in values}, user, client_id
    )
    if winner is None:
        return ResolvedQuota(key, None, None, None, None, levels)
    tags: dict[str, str | None] = {kind: tag for kind, tag in ((USER, user_tag), (CLIENT_ID, client_tag)) if tag}
    limit = found[winner.entity][key]
    return ResolvedQuota(key, limit, winner.level, winner.entity, QuotaEntity.of(tags) if tags else None, levels)


# ---------------------------------------------------------------- explanations


def ask_explanation(
    port: HttpPort,
    user: str = "ANONYMOUS",
    client_id: str = "",
    address: str | None = None,
    *,
    connection: str | None = None,
    wanted: Mapping[QuotaEntity, Values] | None = None,
) -> dict[str, Any]:
    """Return the effect of a broker's quotas on one client, and the effect that the ``wanted`` quotas would have had.

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
    """Return the quota's level and entity, and whether the existing counter has the same clients as its own would."""
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
    """Return an explanation in the same schema from Kafka's protocol alone: the quotas that apply, and why.

    Args: ``why``: the reason that the rest is missing.
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
