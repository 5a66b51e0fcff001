"""SCRAM users of any Kafka cluster: the client salts the password, which is never sent."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.client.cluster import Cluster, check
from kbroker.client.connection import Body
from kbroker.common.errors import Errors, ignoring
from kbroker.common.security import scram

DESCRIBE_USER_SCRAM_CREDENTIALS, ALTER_USER_SCRAM_CREDENTIALS = 50, 51
DEFAULT_ITERATIONS = 8192


class Credential(NamedTuple):
    """One credential of a user."""

    user: str
    mechanism: str
    iterations: int


class Users:
    """Requests about SCRAM users over a `Cluster`, which the caller owns.

    Raises (all methods): KafkaError with the user and the broker's message; BrokerConnectionError.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def credentials(self) -> Sequence[Credential]:
        """Return the credentials of every user, sorted by user."""
        return [Credential(user, *one) for user, found in self.list().items() for one in found.items()]

    def credentials_if_any(self) -> Sequence[Credential] | None:
        """Return the credentials; None if the cluster stores none (before Kafka 2.7, with KRaft before 3.5)."""
        with ignoring(Errors.UNSUPPORTED_VERSION):
            return self.credentials()
        return None

    def list(self) -> Mapping[str, Mapping[str, int]]:
        """Return the iterations by mechanism of every user, sorted by name. Raises: KafkaError."""
        response = self._cluster.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, {"Users": None}, "describing users")
        found: dict[str, dict[str, int]] = {}
        for result in sorted(response["Results"], key=lambda result: str(result["User"])):
            check(result["ErrorCode"], f"user {result['User']!r}", result["ErrorMessage"])
            found[result["User"]] = {
                scram.BY_NUMBER[info["Mechanism"]].name: info["Iterations"]
                for info in result["CredentialInfos"]
                if info["Mechanism"] in scram.BY_NUMBER
            }
        return found

    def set(self, user: str, mechanism: str, password: str, iterations: int = DEFAULT_ITERATIONS) -> None:
        """Add a user, or change the password.

        Args:
            user: the name in the principal `User:name`.
            mechanism: SCRAM-SHA-256 or SCRAM-SHA-512.
            password: any text.
            iterations: 4096 to 16384; more iterations slow down attacks, and each login.

        Raises: ValueError for an unknown mechanism, and as `check_name`; KafkaError.
        """
        check_name(user)
        how, salt = _mechanism(mechanism), scram.make_salt()
        upsertion = {
            "Name": user,
            "Mechanism": how.number,
            "Iterations": iterations,
            "Salt": salt,
            "SaltedPassword": how.salted_password(password, salt, max(1, iterations)),
        }
        self._alter([], [upsertion])

    def remove(self, user: str, mechanism: str) -> None:
        """Remove a user's credential of one mechanism. Raises: ValueError for an unknown mechanism."""
        self._alter([{"Name": user, "Mechanism": _mechanism(mechanism).number}], [])

    def _alter(self, deletions: Sequence[Body], upsertions: Sequence[Body]) -> None:
        body = {"Deletions": [*deletions], "Upsertions": [*upsertions]}
        response = self._cluster.request(ALTER_USER_SCRAM_CREDENTIALS, body)
        for result in response["Results"]:
            check(result["ErrorCode"], f"user {result['User']!r}", result["ErrorMessage"])


def check_name(user: str) -> None:
    """Check the name of a new user. Raises: ValueError for a name whose logins brokers refuse, with any password."""
    if not user.isascii():
        raise ValueError(f"expected a name of ASCII characters, to which Kafka limits SCRAM, got {user!r}")


def _mechanism(name: str) -> scram.Mechanism:
    if name not in scram.MECHANISMS:
        raise ValueError(f"mechanism must be one of {', '.join(scram.MECHANISMS)}, got {name!r}")
    return scram.MECHANISMS[name]
