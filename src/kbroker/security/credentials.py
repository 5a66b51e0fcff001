"""SCRAM users: stored in the metadata file and read from memory; a request changes all its users or none.

Source: ``ScramControlManager``, ``ScramImage.describe``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.security import scram
from kbroker.metadata.metadata_store import MetadataStore

_TWICE = "A user credential cannot be altered twice in the same request"


class Upsertion(NamedTuple):
    """A user to be set, as in AlterUserScramCredentials: the client has salted the password."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion({self.user!r}, ...)"


class Deletion(NamedTuple):
    """A user's credential to be removed."""

    user: str
    mechanism: int


class ScramCredentials:
    """The SCRAM users of a broker.

    Threads: any. Lock: its own, held over the store's transaction; readers take none.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known = store.scram_credentials()  # replaced whole

    def find(self, mechanism: str, user: str) -> scram.Credential | None:
        """Return the credential of a user, or None."""
        return self._known.get((user, mechanism))

    def users(self) -> dict[str, dict[str, int]]:
        """Return the iterations by mechanism of every user, by name."""
        found: dict[str, dict[str, int]] = {}
        for (user, mechanism), credential in sorted(self._known.items()):
            found.setdefault(user, {})[mechanism] = credential.iterations
        return found

    def alter(self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]) -> dict[str, KafkaError | None]:
        """Apply the valid changes; return for each user the reason for its refusal, or None."""
        with self._lock:
            outcome: dict[str, KafkaError | None] = {}
            changes: list[Deletion | Upsertion] = [*deletions, *upsertions]
            for change in changes:
                if change.user in outcome:
                    if outcome[change.user] is None:
                        outcome[change.user] = KafkaError(Errors.DUPLICATE_RESOURCE, _TWICE)
                    continue
                outcome[change.user] = self._objection(change)
            known = dict(self._known)
            removed = [
                (change.user, scram.BY_NUMBER[change.mechanism].name)
                for change in deletions
                if outcome[change.user] is None
            ]
            stored = {}
            for change in upsertions:
                if outcome[change.user] is None:
                    mechanism = scram.BY_NUMBER[change.mechanism]
                    stored[change.user, mechanism.name] = scram.Credential.from_salted_password(
                        mechanism, change.salted_password, change.salt, change.iterations
                    )
            for key in removed:
                del known[key]
            known.update(stored)
            if removed or stored:
                try:
                    self._store.change_scram_credentials(stored, removed)
                    self._known = known
                except KafkaError as refusal:
                    outcome = {user: error or refusal for user, error in outcome.items()}
        return outcome

    def _objection(self, change: Deletion | Upsertion) -> KafkaError | None:
        if not change.user:
            return KafkaError(Errors.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        mechanism = scram.BY_NUMBER.get(change.mechanism)
        if mechanism is None:
            return KafkaError(Errors.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if isinstance(change, Deletion):
            if (change.user, mechanism.name) not in self._known:
                text = "Attempt to delete a user credential that does not exist"
                return KafkaError(Errors.RESOURCE_NOT_FOUND, text)
        elif change.iterations < scram.MIN_ITERATIONS:
            return KafkaError(Errors.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        elif change.iterations > scram.MAX_ITERATIONS:
            return KafkaError(Errors.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        return None
