"""Quota entities as everybody sees them: types, keys, and which of several quotas counts for a client.

Source: ``ClientQuotaEntity``, ``QuotaConfig``, ``ClientQuotaManager``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product
from typing import NamedTuple

from kbroker.common.configs.config_def import ConfigType

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)

CLIENT_KEYS: Mapping[str, ConfigType] = {
    "consumer_byte_rate": ConfigType.LONG,
    "controller_mutation_rate": ConfigType.DOUBLE,
    "producer_byte_rate": ConfigType.LONG,
    "request_percentage": ConfigType.DOUBLE,
}
CONNECTION_CREATION_RATE = "connection_creation_rate"
IP_KEYS: Mapping[str, ConfigType] = {CONNECTION_CREATION_RATE: ConfigType.INT}

#: Before a key: its quota is judged and reported like an enforced one of the same value, and delays nothing. Not
#: Kafka's.
SHADOW_PREFIX = "shadow."

LONGEST_NAME_BYTES = 32_767  # of a string in Kafka's protocol

DEFAULT_NAME = "<default>"  # how people see the default entity; it is a name on no wire


def shadow_key(key: str) -> str:
    """The key of the shadow quota beside an enforced one: shadow.producer_byte_rate of producer_byte_rate."""
    return SHADOW_PREFIX + key


def is_shadow_key(key: str) -> bool:
    """Return whether a key is of a shadow quota."""
    return key.startswith(SHADOW_PREFIX)


def enforced_key(key: str) -> str:
    """The key of the enforced quota beside a shadow; an enforced quota's own key."""
    return key.removeprefix(SHADOW_PREFIX)


def with_shadows(keys: Mapping[str, ConfigType]) -> dict[str, ConfigType]:
    """Keys and those of their shadows, whose values are of the same type."""
    return {**keys, **{shadow_key(key): kind for key, kind in keys.items()}}


class QuotaEntity(NamedTuple):
    """Entity of a quota: a name for each entity type, None for the default of that type.

    ``parts`` are in the order of their types, each type once: make it with ``of``. It need not be a valid one.
    """

    parts: tuple[tuple[str, str | None], ...]

    @staticmethod
    def of(names: Mapping[str, str | None]) -> QuotaEntity:
        """The entity with these names by type."""
        return QuotaEntity(tuple(sorted(names.items(), key=_place)))

    @property
    def names(self) -> dict[str, str | None]:
        """Names by type."""
        return dict(self.parts)

    @property
    def parts_by_type(self) -> tuple[tuple[str, str | None], ...]:
        """The parts as Kafka's responses have them: a client before its user."""
        return tuple(sorted(self.parts, key=lambda part: part[0]))

    def __str__(self) -> str:
        return ", ".join(f"{kind} {shown_name(name)}" for kind, name in self.parts)


def check_name(kind: str, name: str | None) -> None:
    """Raises: ValueError for a name that no request can carry, with what was expected and found."""
    try:
        size_bytes = len((name or "").encode())
    except UnicodeEncodeError:
        raise ValueError(f"expected a {kind} in UTF-8, got {str(name)[:40]!a}") from None
    if size_bytes > LONGEST_NAME_BYTES:
        raise ValueError(f"expected a {kind} of at most {LONGEST_NAME_BYTES} bytes, got {size_bytes}")


def shown_name(name: str | None) -> str:
    """A name for display, quoted if it looks like the default's."""
    if name is None:
        return DEFAULT_NAME
    return f'"{name}"' if name.strip('"') == DEFAULT_NAME else name


def _place(part: tuple[str, str | None]) -> tuple[int, str]:
    kind = part[0]
    return (ENTITY_TYPES.index(kind) if kind in ENTITY_TYPES else len(ENTITY_TYPES), kind)


class Candidate(NamedTuple):
    """One of the eight levels as it is for one client: level 1 wins over level 2 and so on."""

    level: int
    entity: QuotaEntity


def levels(user: str, client_id: str) -> list[Candidate]:
    """The eight levels for a client, the most specific first, whether they can reach it or not."""
    users: tuple[tuple[tuple[str, str | None], ...], ...] = (((USER, user),), ((USER, None),), ())
    clients: tuple[tuple[tuple[str, str | None], ...], ...] = (((CLIENT_ID, client_id),), ((CLIENT_ID, None),), ())
    named = [user_part + client_part for user_part, client_part in product(users, clients)]  # in order of their types
    return [Candidate(level, QuotaEntity(parts)) for level, parts in enumerate(named, start=1) if parts]


def candidates(user: str, client_id: str) -> list[Candidate]:
    """The entities whose quota may count for a client, the most specific first.

    A client that sends no client id, or an empty one, is reached by quotas of its user alone: levels 3 and 6.
    """
    return [one for one in levels(user, client_id) if client_id or CLIENT_ID not in one.entity.names]


class Resolution(NamedTuple):
    """Return the winning level and entity for a client, None without a quota, and the tags of its counter.

    A counter is shared by all clients with the same tags: an empty tag stands for all users, or all client ids.
    """

    winner: Candidate | None
    user_tag: str
    client_id_tag: str


def kinds_of(limited: Collection[QuotaEntity]) -> set[frozenset[str]]:
    """The combinations of entity types that are there."""
    return {frozenset(entity.names) for entity in limited}


def resolve(
    limited: Collection[QuotaEntity], user: str, client_id: str, kinds: set[frozenset[str]] | None = None
) -> Resolution:
    """Return the entity, among those with a quota of one key, that applies to a client.

    While quotas of that key are set on one level only, that level decides about the counter whether it has an entity
    for this client or not. Args: ``kinds``: of ``limited``, for who asks often.
    """
    winner = next((one for one in candidates(user, client_id) if one.entity in limited), None)
    kinds = kinds_of(limited) if kinds is None else kinds
    if kinds <= {frozenset({CLIENT_ID})}:
        return Resolution(winner, "", client_id)
    if kinds == {frozenset({USER})}:
        return Resolution(winner, user, "")
    if kinds == {frozenset({USER, CLIENT_ID})}:
        return Resolution(winner, user, client_id)
    level = 8 if winner is None else winner.level
    return Resolution(winner, user if level <= 6 else "", "" if level in (3, 6) else client_id)
