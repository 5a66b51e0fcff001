"""Quota entities: their types, their keys, and the quota that applies to a client.

Source: ``ClientQuotaEntity``, ``QuotaConfig``, ``ClientQuotaManager``.
"""

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

#: Prefix of a shadow quota's key. A shadow is evaluated and reported like an enforced quota of the same value, but does
#: not delay. Not in Kafka.
SHADOW_PREFIX = "shadow."

LONGEST_NAME_BYTES = 32_767  # of a string in Kafka's protocol

DEFAULT_NAME = "<default>"  # display name of the default entity; not sent on the wire


def shadow_key(key: str) -> str:
    """Return the key of the shadow of an enforced quota: shadow.producer_byte_rate for producer_byte_rate."""
    return SHADOW_PREFIX + key


def is_shadow_key(key: str) -> bool:
    """Return whether a key belongs to a shadow quota."""
    return key.startswith(SHADOW_PREFIX)


def enforced_key(key: str) -> str:
    """Return the key of the enforced quota of a shadow; an enforced quota's key unchanged."""
    return key.removeprefix(SHADOW_PREFIX)


def with_shadows(keys: Mapping[str, ConfigType]) -> dict[str, ConfigType]:
    """Return the keys and those of their shadows, whose values have the same type."""
    return {**keys, **{shadow_key(key): kind for key, kind in keys.items()}}


class QuotaEntity(NamedTuple):
    """Entity of a quota: a name for each entity type, None for the default of that type.

    ``parts`` are in the order of their types, each type once: create it with ``of``. It may be invalid.
    """

    parts: tuple[tuple[str, str | None], ...]

    @staticmethod
    def of(names: Mapping[str, str | None]) -> "QuotaEntity":
        """Return the entity with these names by type."""
        return QuotaEntity(tuple(sorted(names.items(), key=_place)))

    @property
    def names(self) -> dict[str, str | None]:
        """Names by type."""
        return dict(self.parts)

    @property
    def parts_by_type(self) -> tuple[tuple[str, str | None], ...]:
        """Parts in the order of Kafka's responses: a client before its user."""
        return tuple(sorted(self.parts, key=lambda part: part[0]))

    def __str__(self) -> str:
        return ", ".join(f"{kind} {shown_name(name)}" for kind, name in self.parts)


def check_name(kind: str, name: str | None) -> None:
    """Check that a request can carry a name. Raises: ValueError with the expected and the actual size."""
    try:
        size_bytes = len((name or "").encode())
    except UnicodeEncodeError:
        raise ValueError(f"expected a {kind} in UTF-8, got {str(name)[:40]!a}") from None
    if size_bytes > LONGEST_NAME_BYTES:
        raise ValueError(f"expected a {kind} of at most {LONGEST_NAME_BYTES} bytes, got {size_bytes}")


def shown_name(name: str | None) -> str:
    """Return a name for display, quoted if it resembles the default's."""
    if name is None:
        return DEFAULT_NAME
    return f'"{name}"' if name.strip('"') == DEFAULT_NAME else name


def _place(part: tuple[str, str | None]) -> tuple[int, str]:
    kind = part[0]
    return (ENTITY_TYPES.index(kind) if kind in ENTITY_TYPES else len(ENTITY_TYPES), kind)


class Candidate(NamedTuple):
    """One of the eight levels for one client: level 1 takes precedence over level 2 and so on."""

    level: int
    entity: QuotaEntity


def levels(user: str, client_id: str) -> list[Candidate]:
    """Return the eight levels for a client, the most specific first, even those that cannot apply to it."""
    users: tuple[tuple[tuple[str, str | None], ...], ...] = (((USER, user),), ((USER, None),), ())
    clients: tuple[tuple[tuple[str, str | None], ...], ...] = (((CLIENT_ID, client_id),), ((CLIENT_ID, None),), ())
    named = [user_part + client_part for user_part, client_part in product(users, clients)]  # in order of their types
    return [Candidate(level, QuotaEntity(parts)) for level, parts in enumerate(named, start=1) if parts]


def candidates(user: str, client_id: str) -> list[Candidate]:
    """Return the entities whose quota may apply to a client, the most specific first.

    Only quotas of its user, levels 3 and 6, apply to a client that sends no client id, or an empty one.
    """
    return [one for one in levels(user, client_id) if client_id or CLIENT_ID not in one.entity.names]


class Resolution(NamedTuple):
    """Applicable level and entity for a client, None without a quota, and the tags of its counter.

    All clients with the same tags share a counter: an empty tag means all users, or all client ids.
    """

    winner: Candidate | None
    user_tag: str
    client_id_tag: str


def kinds_of(limited: Collection[QuotaEntity]) -> set[frozenset[str]]:
    """Return the combinations of entity types that occur."""
    return {frozenset(entity.names) for entity in limited}


def resolve(
    limited: Collection[QuotaEntity], user: str, client_id: str, kinds: set[frozenset[str]] | None = None
) -> Resolution:
    """Return the entity, among those with a quota of one key, that applies to a client.

    While quotas of that key are set on one level only, that level determines the counter even without an entity for
    this client. Args: ``kinds``: the result of ``kinds_of(limited)``, which frequent callers keep.
    """
    winner = next((one for one in candidates(user, client_id) if one.entity in limited), None)
    kinds = kinds_of(limited) if kinds is None else kinds
    if kinds <= {frozenset({CLIENT_ID})}:
        return Resolution(winner, "", client_id)
    if kinds == {frozenset({USER})}:
        return Resolution(winner, user, "")
    if kinds == {frozenset({USER, CLIENT_ID})}:
        return Resolution(winner, user, client_id)
    level = next((one.level for one in levels(user, client_id) if one.entity in limited), 8)
    return Resolution(winner, user if level <= 6 else "", "" if level in (3, 6) else client_id)
