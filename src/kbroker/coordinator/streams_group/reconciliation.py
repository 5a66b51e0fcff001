"""Reconciliation of a member with its target assignment: tasks to keep, to revoke, and to wait for.

A member revokes all tasks outside its target before its epoch rises. An active task is assigned when no member has it,
and any task when no other member of the process has it.
Source: ``CurrentAssignmentBuilder``; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.streams_group.group import StreamsGroup
from kbroker.coordinator.streams_group.member import MemberState, StreamsGroupMember
from kbroker.coordinator.streams_group.tasks import NOTHING_ASSIGNED, ActiveTasks, AssignedTasks, TargetTasks, Tasks

IN_UNKNOWN_STATE = "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin."


def reconcile(
    group: StreamsGroup, member: StreamsGroupMember, epoch: int, target: TargetTasks, owned: TargetTasks | None
) -> StreamsGroupMember:
    """Return the member after the next step towards a target assignment; the same one if nothing changes.

    Args: ``owned``: the tasks that the member reports, None if it reports none.
    Raises: KafkaError FENCED_MEMBER_EPOCH for a member in a state of a later release.
    """
    step = _Step(group, member, epoch, target, owned)
    if member.state is MemberState.STABLE:
        return member if member.member_epoch == epoch else step.following(member.member_epoch)
    if member.state is MemberState.UNREVOKED_TASKS:
        if owned is None or owned.has_any(member.pending_revocation):
            return member
        return step.following(member.member_epoch + 1)
    if member.state is MemberState.UNRELEASED_TASKS:
        return step.following(member.member_epoch)
    if owned is None or not owned.is_empty:
        raise KafkaError(Errors.FENCED_MEMBER_EPOCH, IN_UNKNOWN_STATE)
    return step.following(epoch)


class _Step:
    """Input of one step of a reconciliation; ``_has_unreleased``: a task of the target is not free yet."""

    def __init__(
        self,
        group: StreamsGroup,
        member: StreamsGroupMember,
        epoch: int,
        target: TargetTasks,
        owned: TargetTasks | None,
    ) -> None:
        self._group = group
        self._member = member
        self._epoch = epoch
        self._target = target
        self._owned = owned
        self._has_unreleased = False

    def following(self, member_epoch: int) -> StreamsGroupMember:
        """Return the member after the step. Args: ``member_epoch``: its epoch while it has to revoke tasks."""
        member, target = self._member, self._target
        active = {one: frozenset(partitions) for one, partitions in member.assigned.active.items()}
        kept_active, lost_active, new_active = self._split(active, target.active, self._is_active_unreleased)
        kept_standby, lost_standby, new_standby = self._split(
            member.assigned.standby, target.standby, self._is_unreleased
        )
        kept_warmup, lost_warmup, new_warmup = self._split(member.assigned.warmup, target.warmup, self._is_unreleased)
        epochs = member.assigned.active
        kept = AssignedTasks(_at(kept_active, epochs), kept_standby, kept_warmup)
        lost = AssignedTasks(_at(lost_active, epochs), lost_standby, lost_warmup)
        if not lost.is_empty and (self._owned is None or self._owned.has_any(lost)):
            return member.at(member_epoch)._replace(
                state=MemberState.UNREVOKED_TASKS, assigned=kept, pending_revocation=lost
            )
        added = AssignedTasks(
            {one: dict.fromkeys(partitions, self._epoch) for one, partitions in new_active.items()},
            new_standby,
            new_warmup,
        )
        return member.at(self._epoch)._replace(
            state=MemberState.UNRELEASED_TASKS if self._has_unreleased else MemberState.STABLE,
            assigned=kept if added.is_empty else kept.merged(added),
            pending_revocation=NOTHING_ASSIGNED,
        )

    def _split(
        self, present: Tasks, wanted: Tasks, is_unreleased: Callable[[str, int], bool]
    ) -> tuple[Tasks, Tasks, Tasks]:
        """Return the tasks of one role that are kept, lost, and new and free; note whether a new one is not free."""
        kept: dict[str, frozenset[int]] = {}
        lost: dict[str, frozenset[int]] = {}
        new: dict[str, frozenset[int]] = {}
        for one in dict.fromkeys([*wanted, *present]):
            has, wants = present.get(one, frozenset()), wanted.get(one, frozenset())
            missing = wants - has
            free = frozenset(partition for partition in missing if not is_unreleased(one, partition))
            self._has_unreleased |= len(free) < len(missing)
            for found, partitions in ((kept, has & wants), (lost, has - wants), (new, free)):
                if partitions:
                    found[one] = partitions
        return kept, lost, new

    def _is_active_unreleased(self, subtopology_id: str, partition: int) -> bool:
        group, place = self._group, (subtopology_id, partition)
        return place in group.active_processes or self._is_passive_here(place)

    def _is_unreleased(self, subtopology_id: str, partition: int) -> bool:
        place = subtopology_id, partition
        return self._group.active_processes.get(place) == self._member.process_id or self._is_passive_here(place)

    def _is_passive_here(self, place: tuple[str, int]) -> bool:
        group, process_id = self._group, self._member.process_id
        return process_id in group.standby_processes.get(place, ()) or process_id in group.warmup_processes.get(
            place, ()
        )


def _at(tasks: Tasks, epochs: ActiveTasks) -> ActiveTasks:
    """Return active tasks with the epochs at which they were assigned."""
    return {one: {partition: epochs[one][partition] for partition in partitions} for one, partitions in tasks.items()}
