"""A set of client quotas, from a file or a broker, and the counters to which it assigns clients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from kbroker.common.quotas import CLIENT_ID, CLIENT_KEYS, IP, USER, QuotaEntity, candidates, kinds_of, resolve

Values = Mapping[QuotaEntity, Mapping[str, float]]

#: The key that limits each type of quota, and the reverse.
KEY_OF = {
    "Produce": "producer_byte_rate",
    "Fetch": "consumer_byte_rate",
    "Request": "request_percentage",
    "ControllerMutation": "controller_mutation_rate",
}
TYPE_OF = {key: quota_type for quota_type, key in KEY_OF.items()}
ANONYMOUS = "ANONYMOUS"


class Tags(NamedTuple):
    """Name of a counter; an empty part means all users, or all client ids."""

    quota_type: str
    user: str
    client_id: str


class Judge(NamedTuple):
    """Counter of a client, its limit (None: none) and the level of the quota, 0 for none."""

    tags: Tags
    limit: float | None
    level: int


def user_of(principal: str | None) -> str:
    """Return a principal's name without its type, the form in quotas: alice of User:alice."""
    return "" if principal is None else principal.partition(":")[2] or principal


class QuotaSet:
    """Quotas by entity, without those of addresses: a request log has no record of connections that were not delayed.

    Args: `quotas`: values by key for each entity, as `kbroker quotas apply` reads them.
    Threads: any.
    """

    def __init__(self, quotas: Values) -> None:
        self.quotas = {entity: dict(values) for entity, values in quotas.items() if IP not in entity.names}
        self._limits: dict[str, dict[QuotaEntity, float]] = {key: {} for key in CLIENT_KEYS}
        for entity, values in self.quotas.items():
            for key, value in values.items():
                if key in self._limits:
                    self._limits[key][entity] = value
        self._kinds = {key: kinds_of(limited) for key, limited in self._limits.items()}

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Types of quota with a limit; values of the others are not counted."""
        return tuple(quota_type for quota_type, key in KEY_OF.items() if self._limits[key])

    @property
    def sharing(self) -> str:
        """Clients that may share a counter: none ("alone"), those of a "user" or "client-id", or any ("mixed")."""
        both, user, client = frozenset({USER, CLIENT_ID}), frozenset({USER}), frozenset({CLIENT_ID})
        kinds = set().union(*(self._kinds[KEY_OF[quota_type]] for quota_type in self.types))
        if kinds <= {both}:
            return "alone"
        if kinds <= {both, user}:
            return "user"
        return "client-id" if kinds <= {both, client} else "mixed"

    def judge(self, quota_type: str, principal: str | None, client_id: str | None) -> Judge:
        """Return the counter to which a client's values of a type go, and its limit."""
        limits = self._limits[KEY_OF[quota_type]]
        user, client = user_of(principal), client_id or ""
        found = resolve(limits, user, client, self._kinds[KEY_OF[quota_type]])
        tags = Tags(quota_type, found.user_tag, found.client_id_tag)
        if found.winner is None:
            return Judge(tags, None, 0)
        return Judge(tags, limits[found.winner.entity], found.winner.level)

    def limit_of(self, tags: Tags) -> float | None:
        """Return the limit of a counter by its name, as a broker looks it up when quotas change; None without one."""
        limits = self._limits[KEY_OF[tags.quota_type]]
        wanted = {kind for kind, name in ((USER, tags.user), (CLIENT_ID, tags.client_id)) if name}
        for one in candidates(tags.user, tags.client_id):
            if set(one.entity.names) == wanted and one.entity in limits:
                return limits[one.entity]
        return None
