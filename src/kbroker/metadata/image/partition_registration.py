"""State of a partition in the metadata log: replicas, leader and epochs. Source: ``PartitionRegistration``."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.protocol.codec import Body

NO_LEADER = -1
NO_LEADER_CHANGE = -2  # in a PartitionChangeRecord

#: Leader recovery states.
RECOVERED, RECOVERING = 0, 1
NO_RECOVERY_CHANGE = -1  # in a PartitionChangeRecord

#: Ids that name no directory of a broker, see ``DirectoryId``. A partition record without directories, as
#: Kafka before 3.7 writes it, means MIGRATING for each replica.
MIGRATING, UNASSIGNED, LOST = (UUID(int=number) for number in range(3))
RESERVED_IDS = 100  # directory ids below this number have a special meaning


class PartitionRegistration(NamedTuple):
    """State of a partition. ``directories``: one per replica; ``elr``: eligible leader replicas (KIP-966)."""

    replicas: tuple[int, ...]
    directories: tuple[UUID, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    leader: int
    leader_recovery_state: int
    leader_epoch: int
    partition_epoch: int
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @classmethod
    def from_record(cls, body: Body) -> "PartitionRegistration":
        """Return the state in a PartitionRecord. Raises: MetadataReplayError for an invalid value."""
        replicas = _tuple(body["Replicas"])
        registration: PartitionRegistration = _share(
            cls(
                replicas,
                _directories(body.get("Directories"), len(replicas), body),
                _tuple(body["Isr"]),
                _tuple(body.get("RemovingReplicas")),
                _tuple(body.get("AddingReplicas")),
                body.get("Leader", NO_LEADER),
                _recovery_state(body.get("LeaderRecoveryState", RECOVERED), body),
                body["LeaderEpoch"],
                body["PartitionEpoch"],
                _tuple(body.get("EligibleLeaderReplicas")),
                _tuple(body.get("LastKnownElr")),
            )
        )
        return registration

    def merge(self, body: Body) -> "PartitionRegistration":
        """Return the state after a PartitionChangeRecord; its absent fields change nothing.

        The partition epoch rises with each record, the leader epoch with each record that names a leader, even the
        same one. Raises: MetadataReplayError for an invalid value.
        """
        get = body.get
        replicas, directories = get("Replicas"), get("Directories")
        isr, removing, adding = get("Isr"), get("RemovingReplicas"), get("AddingReplicas")
        elr, last_known_elr = get("EligibleLeaderReplicas"), get("LastKnownElr")
        leader = get("Leader", NO_LEADER_CHANGE)
        state = get("LeaderRecoveryState", NO_RECOVERY_CHANGE)
        new_replicas = self.replicas if replicas is None else _tuple(replicas)
        if directories is None:
            new_directories = self._directories_for(len(new_replicas), body)
        else:
            new_directories = _directories(directories, len(new_replicas), body)
        registration: PartitionRegistration = _share(
            PartitionRegistration(
                new_replicas,
                new_directories,
                self.isr if isr is None else _tuple(isr),
                self.removing_replicas if removing is None else _tuple(removing),
                self.adding_replicas if adding is None else _tuple(adding),
                self.leader if leader == NO_LEADER_CHANGE else leader,
                self.leader_recovery_state if state == NO_RECOVERY_CHANGE else _recovery_state(state, body),
                self.leader_epoch + (leader != NO_LEADER_CHANGE),
                self.partition_epoch + 1,
                self.elr if elr is None else _tuple(elr),
                self.last_known_elr if last_known_elr is None else _tuple(last_known_elr),
            )
        )
        return registration

    def _directories_for(self, replicas: int, body: Body) -> tuple[UUID, ...]:
        """Return the directories for this number of replicas; only if all are MIGRATING can the number differ."""
        before = self.directories
        if len(before) == replicas:
            return before
        return _directories(() if before.count(MIGRATING) == len(before) else before, replicas, body)

    def to_record(self, topic_id: UUID, partition: int, *, has_directories: bool = True, has_elr: bool = True) -> Body:
        """Return the body of the PartitionRecord that has this state.

        Args:
            has_directories: false for a record version without directories.
            has_elr: false unless the feature is enabled; empty lists are absent in either case.
        """
        body: Body = {
            "PartitionId": partition,
            "TopicId": topic_id,
            "Replicas": list(self.replicas),
            "Isr": list(self.isr),
            "RemovingReplicas": list(self.removing_replicas),
            "AddingReplicas": list(self.adding_replicas),
            "Leader": self.leader,
            "LeaderRecoveryState": self.leader_recovery_state,
            "LeaderEpoch": self.leader_epoch,
            "PartitionEpoch": self.partition_epoch,
        }
        if has_directories:
            body["Directories"] = list(self.directories)
        if has_elr and self.elr:
            body["EligibleLeaderReplicas"] = list(self.elr)
        if has_elr and self.last_known_elr:
            body["LastKnownElr"] = list(self.last_known_elr)
        return body


@lru_cache(maxsize=4096)
def _share(value: Any) -> Any:
    """Return the first of equal tuples: partitions in the same state share one object."""
    return value


def _tuple(numbers: Any) -> Any:
    return _share(tuple(numbers)) if numbers else ()


def _directories(directories: Sequence[UUID] | None, replicas: int, body: Body) -> tuple[UUID, ...]:
    if directories and len(directories) != replicas:
        raise MetadataReplayError(
            f"{_place(body)}: expected a directory for each of {replicas} replicas, found {len(directories)}"
        )
    found: tuple[UUID, ...] = _share(tuple(directories) if directories else (MIGRATING,) * replicas)
    return found


def _recovery_state(state: int, body: Body) -> int:
    if state not in (RECOVERED, RECOVERING):
        raise MetadataReplayError(f"{_place(body)}: expected leader recovery state 0 or 1, found {state}")
    return state


def _place(body: Body) -> str:
    return f"partition {body['PartitionId']} of topic id {body['TopicId']}"
