"""SCRAM users: the valid changes of a request are stored together, all or none.

Source: ``ScramControlManager``, ``ScramImage.describe``.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.feature_versions import SCRAM_LEVEL
from kbroker.common.security import scram
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.record_forms import credential_body
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record

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
    """The SCRAM users of a cluster. Threads: any."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def find(self, mechanism: str, user: str) -> scram.Credential | None:
        """Return the credential of a user, or None."""
        return self._controller.image.scram_credentials.get((user, mechanism))

    def users(self) -> dict[str, dict[str, int]]:
        """Return the iterations by mechanism of every user, sorted by name."""
        found: dict[str, dict[str, int]] = {}
        for (user, mechanism), credential in sorted(self._controller.image.scram_credentials.items()):
            found.setdefault(user, {})[mechanism] = credential.iterations
        return found

    def alter(self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]) -> dict[str, KafkaError | None]:
        """Apply the valid changes; return for each user the reason for its refusal, or None."""
        outcome: dict[str, KafkaError | None] = {}

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            changes: list[Deletion | Upsertion] = [*deletions, *upsertions]
            for change in changes:
                if change.user not in outcome:
                    outcome[change.user] = _objection(change, image)
                elif outcome[change.user] is None:
                    outcome[change.user] = KafkaError(Errors.DUPLICATE_RESOURCE, _TWICE)
            records = []
            for change in changes:
                if outcome[change.user] is not None:
                    continue
                mechanism = scram.BY_NUMBER[change.mechanism]
                if isinstance(change, Deletion):
                    body = {"Name": change.user, "Mechanism": mechanism.number}
                    records.append(metadata_record("RemoveUserScramCredentialRecord", body))
                elif not change.salted_password:  # Java's HMAC refuses an empty key: Kafka's error for its exception
                    outcome[change.user] = KafkaError(Errors.UNKNOWN_SERVER_ERROR)
                else:
                    credential = scram.Credential.from_salted_password(
                        mechanism, change.salted_password, change.salt, change.iterations
                    )
                    body = credential_body(change.user, mechanism.name, credential)
                    records.append(metadata_record("UserScramCredentialRecord", body))
            return records

        try:
            self._controller.change(plan, frees_space=not upsertions)
        except KafkaError as refusal:
            outcome = {user: error or refusal for user, error in outcome.items()}
        return outcome


def _objection(change: Deletion | Upsertion, image: MetadataImage) -> KafkaError | None:
    if image.level < SCRAM_LEVEL:
        return KafkaError(Errors.UNSUPPORTED_VERSION, "The current metadata.version does not support SCRAM")
    if not change.user:
        return KafkaError(Errors.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = scram.BY_NUMBER.get(change.mechanism)
    if mechanism is None:
        return KafkaError(Errors.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, Deletion):
        if (change.user, mechanism.name) not in image.scram_credentials:
            text = "Attempt to delete a user credential that does not exist"
            return KafkaError(Errors.RESOURCE_NOT_FOUND, text)
    elif change.iterations < scram.MIN_ITERATIONS:
        return KafkaError(Errors.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif change.iterations > scram.MAX_ITERATIONS:
        return KafkaError(Errors.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    return None
