"""Authorization of requests (Kafka's ``AuthHelper``). Without an authorizer every request is allowed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from kbroker.common.errors import KafkaError

if TYPE_CHECKING:  # imported by the handlers that need it
    from kbroker.common.security.acls import Operation, ResourceType
    from kbroker.security.authorizer.authorizer import Authorizer
    from kbroker.security.authorizer.checks import Check

CLUSTER_NAME = "kafka-cluster"


class Client(Protocol):
    """Fields of a request on which the authorizer's decisions depend."""

    @property
    def api_key(self) -> int: ...
    @property
    def principal(self) -> str: ...
    @property
    def client_host(self) -> str: ...


class AuthHelper:
    """Decisions about requests.

    Args: ``authorizer``: None allows everything.
    Threads: any.
    """

    def __init__(self, authorizer: Authorizer | None = None) -> None:
        self.authorizer = authorizer

    def allows(self, client: Client, check: Check, name: str = CLUSTER_NAME, references: int = 1) -> bool:
        """Return whether the client is allowed the operation of ``check`` on the resource ``name``.

        The decision is counted, and noted for the log.

        Args: ``references``: number of times that the request names the resource, for the log.
        """
        authorizer = self.authorizer
        if authorizer is None:
            return True
        allowed = authorizer.rules.permitted(check.kind, name, client.principal, client.client_host)
        is_allowed = bool(allowed >> check.operation & 1)
        authorizer.rules.count(is_allowed, not is_allowed)
        if authorizer.rules.notes_allowed if is_allowed else check.is_logged:
            who = client.principal, client.client_host, client.api_key
            authorizer.rules.note(is_allowed, *who, check.operation, check.kind, name, references)
        return is_allowed

    def require(self, client: Client, check: Check, name: str = CLUSTER_NAME) -> None:
        """Check that the client is allowed an operation. Raises: KafkaError with the error of ``check``."""
        if not self.allows(client, check, name):
            raise KafkaError(check.error)

    def allowed(self, client: Client, check: Check, names: Iterable[str]) -> Collection[str]:
        """Return those of ``names`` for which the client is allowed the operation; each is checked once."""
        counts: dict[str, int] = {}
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        if self.authorizer is None:
            return counts.keys()
        return {name for name, count in counts.items() if self.allows(client, check, name, count)}

    def allows_any(self, client: Client, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the client is allowed an operation on at least one resource of a type."""
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows_any(client.principal, client.client_host, operation, kind)

    def operations(self, client: Client, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the field of authorized operations: a bit for each that the type has and the client may do."""
        from kbroker.common.security.acls import OPERATIONS, bits

        existing = bits(*OPERATIONS[kind])
        if self.authorizer is None:
            return existing
        return existing & self.authorizer.permitted(kind, name, client.principal, client.client_host)
