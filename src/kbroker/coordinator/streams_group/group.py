"""A streams group: its members, its epochs, the topology, the target assignment, and the state derived from them.

The state changes only by ``replay`` of a record that has been written or loaded, except for the configured topology,
the requested shutdown and the epoch of the endpoints, which no record keeps.
Threads: ``StreamsGroup.lock``, which the caller holds, guards the whole group.
Source: ``StreamsGroup``, ``GroupMetadataManager.replay``; KIP-1071.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType

from kbroker.coordinator.group_offsets import GroupOffsets
from kbroker.coordinator.modern_group.group import ModernGroup, ModernGroupState
from kbroker.coordinator.streams_group import records
from kbroker.coordinator.streams_group.internal_topics import ConfiguredTopology
from kbroker.coordinator.streams_group.member import StreamsGroupMember
from kbroker.coordinator.streams_group.records import GroupEpoch
from kbroker.coordinator.streams_group.tasks import NO_TARGET, NOTHING_ASSIGNED, AssignedTasks, TargetTasks, Tasks
from kbroker.coordinator.streams_group.topology import StreamsTopology

STREAMS = "streams"
Place = tuple[str, int]  # subtopology and partition


class StreamsGroup(ModernGroup):
    """A group of a streams application."""

    KIND = STREAMS
    FORMATS, RECORDS, MEMBER = records.FORMATS, records.RECORDS, StreamsGroupMember
    UNASSIGNED = MappingProxyType(
        {
            "member_epoch": -1,
            "previous_member_epoch": -1,
            "assigned": NOTHING_ASSIGNED,
            "pending_revocation": NOTHING_ASSIGNED,
        }
    )
    members: dict[str, StreamsGroupMember]
    targets: dict[str, TargetTasks]

    def __init__(self, group_id: str, lock: threading.RLock | None = None, offsets: GroupOffsets | None = None) -> None:
        super().__init__(group_id, lock, offsets)
        self.topology: StreamsTopology | None = None
        self.readers: Mapping[str, str] = {}  # by topic: the subtopology that reads it
        self.validated_topology_epoch = 0
        self.assignment_configs: Mapping[str, str] = {}
        self.configured: ConfiguredTopology | None = None
        self.shutdown_member_id: str | None = None  # the first one that requested the shutdown of the application
        self.endpoint_epoch = 0
        self.active_processes: dict[Place, str] = {}  # the process that has or revokes each active task
        self.standby_processes: dict[Place, set[str]] = {}
        self.warmup_processes: dict[Place, set[str]] = {}

    def _state_with_members(self) -> ModernGroupState:
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return ModernGroupState.NOT_READY
        return super()._state_with_members()

    def is_subscribed(self, topic: str) -> bool:
        """Return whether the application reads this topic; False for a group without members."""
        return bool(self.members) and topic in self.readers

    def target(self, member_id: str) -> TargetTasks:
        """Return the target assignment of a member."""
        return self.targets.get(member_id, NO_TARGET)

    # ------------------------------------------------------------ changes

    def request_shutdown(self, member_id: str) -> None:
        """Request the shutdown of the application; the request ends when the last member has left."""
        if self.shutdown_member_id is None:
            self.shutdown_member_id = member_id

    def _replay_epoch(self, value: GroupEpoch) -> None:
        self.epoch, self.metadata_hash, self.validated_topology_epoch, self.assignment_configs = value

    def _replay_other(self, kind: int, name: str, value: StreamsTopology | None) -> None:
        if kind == records.TOPOLOGY:
            self.topology, self.readers = value, {} if value is None else value.readers()

    def _set_member(self, member_id: str, old: StreamsGroupMember | None, new: StreamsGroupMember | None) -> None:
        if old is not None:
            self._release(old.assigned, old.process_id)
            self._release(old.pending_revocation, old.process_id)
        if new is not None:
            self.members[member_id] = new
            self._own(new.assigned, new.process_id)
            self._own(new.pending_revocation, new.process_id)
            return
        self.members.pop(member_id, None)
        if not self.members:
            self.shutdown_member_id = None

    def _release(self, tasks: AssignedTasks, process_id: str) -> None:
        for one, partitions in tasks.active.items():
            for partition in partitions:
                if self.active_processes.get((one, partition)) == process_id:
                    del self.active_processes[one, partition]
        for processes, some in ((self.standby_processes, tasks.standby), (self.warmup_processes, tasks.warmup)):
            for place in _places(some):
                present = processes.get(place)
                if present is not None:
                    present.discard(process_id)
                    if not present:
                        del processes[place]

    def _own(self, tasks: AssignedTasks, process_id: str) -> None:
        for one, partitions in tasks.active.items():
            for partition in partitions:
                self.active_processes[one, partition] = process_id
        for processes, some in ((self.standby_processes, tasks.standby), (self.warmup_processes, tasks.warmup)):
            for place in _places(some):
                processes.setdefault(place, set()).add(process_id)


def _places(tasks: Tasks) -> list[Place]:
    return [(one, partition) for one, partitions in tasks.items() for partition in partitions]
