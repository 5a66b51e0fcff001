"""The groups that this broker coordinates, each found under its lock.

Lock order: a group's lock (of several groups: by group id), then ``OpenTransactions.lock`` and ``GroupShard.lock``.
Source: ``GroupMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kbroker.common.errors import Errors
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.group_shard import Group, GroupShard
from kbroker.coordinator.runtime import CoordinatorRuntime


class GroupMap:
    """Groups by id. Threads: any."""

    def __init__(self, runtime: CoordinatorRuntime[GroupShard]) -> None:
        self.runtime = runtime

    def all(self) -> list[Group]:
        """Return all groups; each is to be used under its lock."""
        found: list[Group] = []
        for shard in self.runtime.shards:
            with shard.lock:
                found += shard.groups.values()
        return found

    def ids(self) -> list[str]:
        """Return the ids of all groups."""
        return [group.group_id for group in self.all()]

    def find(self, group_id: str) -> Group | None:
        """Return a group, to be used under its lock; it may be dead by then. Raises: KafkaError as ``locked``."""
        shard = self._shard(group_id)
        if shard is None:
            return None
        with shard.lock:
            shard.check()
            return shard.groups.get(group_id)

    @contextmanager
    def locked(
        self, group_id: str, create: bool = False, make: Callable[[str], Group] = ClassicGroup
    ) -> Iterator[Group | None]:
        """Yield the group under its lock, if it is not dead; None without one. A group left without content is dropped.

        Args: ``create``: create a missing group with ``make``, and the topic if necessary.
        Raises: KafkaError COORDINATOR_NOT_AVAILABLE once closed; NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS if its
        partition of the offsets topic is not served.
        """
        if create:
            self.runtime.prepare()
        while True:
            shard = self._shard(group_id)
            if shard is None:
                yield None
                return
            with shard.lock:
                shard.check()  # under the lock: a partition that is unloaded gets no new groups
                group = shard.groups.get(group_id)
                if group is None and create:
                    shard.put(group := make(group_id))
            if group is None:
                yield None
                return
            with group.lock:
                if group.is_dead:
                    continue  # another thread dropped or replaced it meanwhile
                try:
                    yield group
                finally:
                    self.drop_unused(group)
                return

    def drop_unused(self, group: Group) -> None:
        """Drop a group that is left without content; the caller holds its lock."""
        if not group.is_dead and group.is_unused:
            group.shard.drop(group, Errors.UNKNOWN_MEMBER_ID)

    def replace(self, old: Group, new: Group) -> None:
        """Replace a group by another; both have the lock that the caller holds. ``old`` is dead."""
        old.shard.replace(old, new)

    def close(self) -> None:
        """Stop serving groups; delayed requests get NOT_COORDINATOR. Idempotent."""
        self.runtime.close()
        for shard in self.runtime.shards:
            shard.retire()

    def _shard(self, group_id: str) -> GroupShard | None:
        self.runtime.check_open()
        return self.runtime.find(group_id) if self.runtime.exists else None
