"""Delegation token of a broker (KIP-48, KIP-373). Its secret is computed, and never stored."""

from typing import NamedTuple

USER_TYPE = "User"


class Principal(NamedTuple):
    """Kafka's principal: a type, which is "User", and a name."""

    type: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "Principal":
        """Return the principal of "User:alice"."""
        kind, _, name = text.partition(":")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


class DelegationToken(NamedTuple):
    """A token, valid until ``expiry_ms`` and renewable up to ``max_ms``, in milliseconds since 1970."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issue_ms: int
    max_ms: int
    expiry_ms: int

    def is_expired(self, now_ms: int) -> bool:
        """Return whether the token has expired."""
        return self.max_ms < now_ms or self.expiry_ms < now_ms

    def may_be_renewed_by(self, principal: Principal) -> bool:
        """Return whether the principal is its owner or one of its renewers."""
        return principal == self.owner or principal in self.renewers

    @property
    def principals(self) -> frozenset[Principal]:
        """Principals of the token: its owner, its requester and its renewers."""
        return frozenset((self.owner, self.requester, *self.renewers))
