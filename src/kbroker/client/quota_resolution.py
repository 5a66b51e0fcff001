"""Which of all quotas apply to one client, and why the others do not."""

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.client.quota_changes import Values
from kbroker.common.quota_levels import APPLIES, LevelOutcome, QuotasOf, address_levels, client_levels
from kbroker.common.quotas import (
    CLIENT_ID,
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    IP,
    USER,
    QuotaEntity,
    is_shadow_key,
    resolve,
    shadow_key,
)


class ResolvedQuota(NamedTuple):
    """One quota for one client.

    ``limit``: None where nothing limits it. ``level``: of the eight, 1 the most specific; None where nothing applies,
    and for an address. ``entity``: which the limit was set for. ``counted_for``: who shares the counter with this
    client, as an entity: a part that it does not have stands for all. ``levels``: all there are, in their order.
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
    """What applies to a client, by key; its ``address``, if given, adds connection_creation_rate.

    Behind a quota comes its shadow, if any entity has one; its levels are looked through apart.
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
    tags: dict[str, str | None] = {}
    if user_tag:
        tags[USER] = user_tag
    if client_tag:
        tags[CLIENT_ID] = client_tag
    limit = found[winner.entity][key]
    return ResolvedQuota(key, limit, winner.level, winner.entity, QuotaEntity.of(tags) if tags else None, levels)
