"""The sticky assignor of tasks: active and standby tasks stay where they are as long as the load stays even.

The load of a process is its number of tasks per member. The active copy of a task and its standby copies are all on
different processes. Ties are broken as in Kafka, by the order of Java's hash maps and heaps.
Warm-up tasks are not assigned, as in Kafka 4.3. Source: ``StickyTaskAssignor``, ``ProcessState``; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.common.java._string_hash import string_hash
from kbroker.common.java.java_hash import hash_map_order, hash_order
from kbroker.common.java.java_priority_queue import JavaPriorityQueue
from kbroker.common.loggers import get_logger
from kbroker.coordinator.streams_group.tasks import TargetTasks

logger = get_logger(__name__)

NAME = "sticky"
STANDBY_REPLICAS = "num.standby.replicas"


class Task(NamedTuple):
    """A task."""

    subtopology_id: str
    partition: int


class MemberSpec(NamedTuple):
    """A member with its current target assignment."""

    process_id: str
    target: TargetTasks


class SubtopologySpec(NamedTuple):
    """A subtopology. ``is_stateful``: it has changelog topics."""

    task_count: int
    is_stateful: bool


class _Member(NamedTuple):
    process: _Process
    member_id: str


class _Process:
    """A process and the tasks of its members. ``counts``: number of tasks by member."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.tasks: set[Task] = set()
        self.load = 0.0
        self._task_count = 0
        self._members_by_load: JavaPriorityQueue[list[str | int]] | None = None

    def add_member(self, member_id: str) -> None:
        self.counts[member_id] = 0

    def add(self, member_id: str, task: Task) -> int:
        """Give a task to a member; return the number of its tasks."""
        self._members_by_load = None
        return self._add(member_id, task)

    def _add(self, member_id: str, task: Task) -> int:
        self._task_count += 1
        self.tasks.add(task)
        self.counts[member_id] += 1
        self.load = self._task_count / len(self.counts)
        return self.counts[member_id]

    def add_to_least_loaded(self, task: Task) -> tuple[str, int]:
        """Give a task to the member with the fewest; return the member and the number of its tasks."""
        if self._members_by_load is None:
            rows: list[list[str | int]] = [[one, self.counts[one]] for one in hash_map_order(self.counts)]
            self._members_by_load = JavaPriorityQueue(rows, lambda row: int(row[1]))
        row = self._members_by_load.poll()
        member_id = str(row[0])
        row[1] = self._add(member_id, task)
        self._members_by_load.add(row)
        return member_id, self.counts[member_id]


class _Quota:
    """Maximum number of tasks that a member may keep so that the rest is spread evenly over the other members."""

    def __init__(self, task_count: int, member_count: int) -> None:
        self._tasks = task_count
        self._members = member_count
        self.per_member = -(-task_count // member_count)

    def note(self, count: int) -> None:
        """Note that a member now has ``count`` tasks."""
        if count == self.per_member:
            self._members -= 1
            self._tasks -= count
            self.per_member = -(-self._tasks // self._members) if self._members else 0


def assign(
    members: Mapping[str, MemberSpec], subtopologies: Mapping[str, SubtopologySpec], standby_replicas: int
) -> dict[str, TargetTasks]:
    """Return the target assignment of each member.

    Args: ``members``: in the order in which they enter Kafka's map; ``subtopologies``: sorted by id.
    """
    return _Assignment(members, subtopologies, standby_replicas).made()


class _Assignment:
    """One run of the assignor."""

    def __init__(
        self, members: Mapping[str, MemberSpec], subtopologies: Mapping[str, SubtopologySpec], standby_replicas: int
    ) -> None:
        self._members = members
        self._standby_replicas = standby_replicas
        self._active = [Task(one, i) for one, spec in subtopologies.items() for i in range(spec.task_count)]
        self._stateful = [task for task in self._active if subtopologies[task.subtopology_id].is_stateful]
        self._active_quota = _Quota(len(self._active), len(members))
        self._quota = _Quota(len(self._active) + standby_replicas * len(self._stateful), len(members))
        self._processes: dict[str, _Process] = {}
        self._was_active: dict[Task, _Member] = {}
        self._was_standby: dict[Task, list[_Member]] = {}
        self._active_of: dict[str, dict[str, set[int]]] = {one: {} for one in members}
        self._standby_of: dict[str, dict[str, set[int]]] = {one: {} for one in members}
        for member_id in hash_map_order(members):
            spec = members[member_id]
            process = self._processes.setdefault(spec.process_id, _Process())
            process.add_member(member_id)
            member = _Member(process, member_id)
            for one, partitions in spec.target.active.items():
                for index in partitions:
                    self._was_active[Task(one, index)] = member
            for one, partitions in spec.target.standby.items():
                for index in partitions:
                    self._was_standby.setdefault(Task(one, index), []).append(member)

    def made(self) -> dict[str, TargetTasks]:
        """Assign all tasks; return them by member."""
        self._assign_active()
        if self._standby_replicas:
            self._assign_standby()
        return {
            member_id: TargetTasks(
                {one: frozenset(partitions) for one, partitions in self._active_of[member_id].items()},
                {one: frozenset(partitions) for one, partitions in self._standby_of[member_id].items()},
            )
            for member_id in self._members
        }

    def _processes_by_load(self) -> JavaPriorityQueue[_Process]:
        smallest = 1
        while smallest < len(self._members):
            smallest *= 2
        names = hash_order(self._processes, string_hash, smallest_table=smallest)
        return JavaPriorityQueue((self._processes[name] for name in names), lambda process: process.load)

    def _note_active(self, member_id: str, task: Task, count: int) -> None:
        self._active_of[member_id].setdefault(task.subtopology_id, set()).add(task.partition)
        self._active_quota.note(count)
        self._quota.note(count)

    def _note_standby(self, member_id: str, task: Task, count: int) -> None:
        self._standby_of[member_id].setdefault(task.subtopology_id, set()).add(task.partition)
        self._quota.note(count)

    def _keeps(self, member: _Member, quota: _Quota) -> bool:
        return member.process.counts[member.member_id] < quota.per_member

    def _assign_active(self) -> None:
        left = sorted(self._active, key=_by_partition)
        for former in (self._was_active.get, lambda task: self._least_loaded(self._was_standby.get(task), None)):
            tasks, left = left, []
            for task in tasks:
                member = former(task)
                if member is not None and self._keeps(member, self._active_quota):
                    self._note_active(member.member_id, task, member.process.add(member.member_id, task))
                else:
                    left.append(task)
        queue = self._processes_by_load()
        for task in sorted(left):
            process = queue.poll()
            self._note_active(*_with(task, process.add_to_least_loaded(task)))
            queue.add(process)

    def _assign_standby(self) -> None:
        to_least_loaded: list[tuple[Task, int]] = []
        for task in sorted(self._stateful, key=_by_partition, reverse=True):
            for number in range(self._standby_replicas):
                member = self._was_active.get(task)
                if member is None or task in member.process.tasks or not self._keeps(member, self._quota):
                    member = self._least_loaded(self._was_standby.get(task), task)
                    if member is None or not self._keeps(member, self._quota):
                        to_least_loaded.append((task, self._standby_replicas - number))
                        break
                self._note_standby(member.member_id, task, member.process.add(member.member_id, task))
        to_least_loaded.sort(reverse=True)
        queue = self._processes_by_load()
        missing = 0
        for task, count in to_least_loaded:
            for number in range(count):
                if not self._add_standby(queue, task):
                    missing += count - number
                    break
        if missing:
            logger.warning("%d standby tasks cannot be assigned: start more instances of the application", missing)

    def _add_standby(self, queue: JavaPriorityQueue[_Process], task: Task) -> bool:
        """Give a standby task to the least loaded process without the task; return False if there is none."""
        polled = []
        is_found = False
        while len(queue):
            process = queue.poll()
            polled.append(process)
            if task not in process.tasks:
                self._note_standby(*_with(task, process.add_to_least_loaded(task)))
                is_found = True
                break
        for process in reversed(polled):
            queue.add(process)
        return is_found

    def _least_loaded(self, members: list[_Member] | None, task: Task | None) -> _Member | None:
        """Return the least loaded of the members that had a standby task.

        Args: ``task``: None if the process may have the task already. As in Kafka, the first member's process decides
        at the end whether there is a candidate.
        """
        if not members:
            return None
        found = members[0]
        load, count = found.process.load, found.process.counts[found.member_id]
        for member in members[1:]:
            process = member.process
            if process.load < load and (task is None or task not in process.tasks):
                other = process.counts[member.member_id]
                if other < count:
                    load, count, found = process.load, other, member
        return found if task is None or task not in members[0].process.tasks else None


def _by_partition(task: Task) -> tuple[int, str]:
    return task.partition, task.subtopology_id


def _with(task: Task, added: tuple[str, int]) -> tuple[str, Task, int]:
    return added[0], task, added[1]
