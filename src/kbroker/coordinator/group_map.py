"""The groups that this broker coordinates, each found under its lock.

Lock order: a group's lock (of several groups: by group id), then ``OpenTransactions.lock`` and ``GroupShard.lock``.
Source: ``GroupMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

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
        """Return a group, to be used under its lock; it may be dead by then. None if it does not exist.

        Raises: KafkaError as ``locked``.
        """
        return self.find_or_make(group_id, None)

    def locked(
        self,
        group_id: str,
        create: bool = False,
        make: Callable[[str], Group] = ClassicGroup,
        shard: GroupShard | None = None,
    ) -> AbstractContextManager[Group | None]:
        """Yield the group, never a dead one, under its lock; None without one. A group left without content is dropped.

        Args: ``create``: create a missing group with ``make``, and the topic if necessary. ``shard``: that of the
        group; a caller that holds the lock of another group passes it, since the look-up may wait for that lock.
        Raises: KafkaError COORDINATOR_NOT_AVAILABLE once closed; NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS if its
        partition of the offsets topic is not served.
        """
        return _LockedGroup(self, group_id, make if create else None, shard)

    def find_or_make(
        self, group_id: str, make: Callable[[str], Group] | None, shard: GroupShard | None = None
    ) -> Group | None:
        """Return a group, to be used under its lock; make a missing one if ``make`` is given.

        Returns: None if the group or the offsets topic does not exist.

        Raises: KafkaError as ``locked``.
        """
        shard = shard or self._shard(group_id)
        if shard is None:
            return None
        with shard.lock:
            shard.check()  # under the lock: a partition that is unloaded gets no new groups
            group = shard.groups.get(group_id)
            if group is None and make is not None:
                shard.put(group := make(group_id))
            return group

    def drop_unused(self, group: Group) -> None:
        """Drop a group that is left without content; the caller holds its lock."""
        if not group.is_dead and group.is_unused:
            group.shard.drop(group, Errors.UNKNOWN_MEMBER_ID)

    def replace(self, old: Group, new: Group) -> None:
        """Replace a dead group by another with the same lock, which the caller holds."""
        old.shard.replace(old, new)

    def close(self) -> None:
        """Stop serving groups; delayed requests get NOT_COORDINATOR. Idempotent."""
        self.runtime.close()
        for shard in self.runtime.shards:
            shard.retire()

    def _shard(self, group_id: str) -> GroupShard | None:
        self.runtime.check_open()
        return self.runtime.find(group_id) if self.runtime.exists else None


class _LockedGroup:
    """A group under its lock, for ``GroupMap.locked``. A class: a generator would cost each request 2 us more."""

    __slots__ = ("_group", "_group_id", "_groups", "_make", "_shard")

    def __init__(
        self, groups: GroupMap, group_id: str, make: Callable[[str], Group] | None, shard: GroupShard | None
    ) -> None:
        self._groups = groups
        self._group_id = group_id
        self._make = make
        self._shard = shard
        self._group: Group | None = None

    def __enter__(self) -> Group | None:
        if self._make is not None:
            self._groups.runtime.prepare()
        while True:
            group = self._groups.find_or_make(self._group_id, self._make, self._shard)
            if group is None:
                return None
            group.lock.acquire()
            if not group.is_dead:
                self._group = group
                return group
            group.lock.release()  # another thread dropped or replaced it meanwhile

    def __exit__(self, *failure: object) -> None:
        group = self._group
        if group is not None:
            try:
                self._groups.drop_unused(group)
            finally:
                group.lock.release()
