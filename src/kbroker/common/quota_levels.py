"""Resolution of a client's quota: the level that applies, and the reason why each other level does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kbroker.common.quotas import CLIENT_ID, IP, QuotaEntity, levels

APPLIES = "applies"
OVERRIDDEN = "overridden"  # a more specific level has a quota too
NOT_SET = "not set"
NO_CLIENT_ID = "no client id"  # quotas of client ids do not apply to a client that sends none

#: Returns the quotas of an entity by key, empty without quotas.
QuotasOf = Callable[[QuotaEntity], Mapping[str, float]]


class LevelOutcome(NamedTuple):
    """Outcome of one level for one client and one key.

    ``level``: 1 (the most specific) to 8; for an address, 1 is its own quota, 2 the default. ``entity``: entity of the
    level. ``limit``: None if it is not set. ``outcome``: APPLIES, OVERRIDDEN, NOT_SET or NO_CLIENT_ID.
    """

    level: int
    entity: QuotaEntity
    limit: float | None
    outcome: str

    def json(self) -> dict[str, Any]:
        """Return the level as JSON values."""
        return {"level": self.level, "entity": self.entity.names, "limit": self.limit, "outcome": self.outcome}


def client_levels(quotas_of: QuotasOf, key: str, user: str, client_id: str) -> list[LevelOutcome]:
    """Return the eight levels for a client, the most specific first; ``client_id``: empty if the client sends none."""
    entities = [one.entity for one in levels(user, client_id)]
    return _outcomes(quotas_of, key, entities, lambda entity: bool(client_id) or CLIENT_ID not in entity.names)


def address_levels(quotas_of: QuotasOf, key: str, address: str) -> list[LevelOutcome]:
    """Return the two levels for an address: its own quota, and the default of all addresses."""
    entities = [QuotaEntity.of({IP: address}), QuotaEntity.of({IP: None})]
    return _outcomes(quotas_of, key, entities, lambda entity: True)


def _outcomes(
    quotas_of: QuotasOf, key: str, entities: list[QuotaEntity], reaches: Callable[[QuotaEntity], bool]
) -> list[LevelOutcome]:
    outcomes = []
    is_decided = False
    for level, entity in enumerate(entities, 1):
        limit = quotas_of(entity).get(key)
        if not reaches(entity):
            outcome = NO_CLIENT_ID
        elif limit is None:
            outcome = NOT_SET
        else:
            outcome = OVERRIDDEN if is_decided else APPLIES
            is_decided = True
        outcomes.append(LevelOutcome(level, entity, limit, outcome))
    return outcomes
