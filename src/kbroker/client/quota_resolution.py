"""Which of all quotas apply to one client, and why the others do not."""

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.client.quota_changes import Values
from kbroker.common.quota_levels import APPLIES, LevelOutcome, QuotasOf, address_levels, client_levels
from kbroker.common.quotas import CLIENT_ID, CLIENT_KEYS, CONNECTION_CREATION_RATE, IP, USER, QuotaEntity, resolve


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

    Args: ``found``: all quotas of the cluster. ``client_id``: empty for a client that sends none.
    """

    def quotas_of(entity: QuotaEntity) -> Values:
        return found.get(entity, {})

    resolved = [_of_client(found, quotas_of, key, user, client_id) for key in sorted(CLIENT_KEYS)]
    if address is not None:
        key = CONNECTION_CREATION_RATE
        levels = address_levels(quotas_of, key, address)
        winner = next((one for one in levels if one.outcome == APPLIES), None)
        counted_for = None if winner is None else QuotaEntity.of({IP: address})
        resolved.append(
            ResolvedQuota(
                key,
                None if winner is None else winner.limit,
                None,
                None if winner is None else winner.entity,
                counted_for,
                tuple(levels),
            )
        )
    return resolved


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
