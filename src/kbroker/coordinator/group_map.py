"""The groups that this broker coordinates, each found under its lock.

Lock order: a group's lock (of several groups: by group id), then the map's.
Source: ``GroupMetadataManager``, ``CoordinatorRuntime``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.offsets_log import OffsetsLog

Group = ClassicGroup | ConsumerGroup
Dismiss = Callable[[Group, Errors], None]


class GroupMap:
    """Groups by id.

    Args: ``dismiss`` makes a group DEAD, under its lock; its delayed requests get the error.
    Threads: any.
    """

    def __init__(self, log: OffsetsLog, dismiss: Dismiss) -> None:
        self._log = log
        self._dismiss = dismiss
        self._lock = threading.Lock()
        self._groups: dict[str, Group] = {}
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether no group is served any more."""
        return self._closed

    def ids(self) -> list[str]:
        """All ids."""
        with self._lock:
            return list(self._groups)

    def all(self) -> list[Group]:
        """All groups, each to be looked at under its lock."""
        with self._lock:
            return list(self._groups.values())

    def find(self, group_id: str) -> Group | None:
        """The group, to be looked at under its lock: it may be dead by then. Raises: KafkaError as ``locked``."""
        with self._lock:
            self._log.check(group_id)
            if self._closed:
                raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)
            return self._groups.get(group_id)

    @contextmanager
    def locked(
        self, group_id: str, create: bool = False, make: Callable[[str], Group] = ClassicGroup
    ) -> Iterator[Group | None]:
        """The group, alive, under its lock; None if there is none. One left without any content is forgotten.

        Args: ``create``: make one with ``make`` if there is none.
        Raises: KafkaError COORDINATOR_NOT_AVAILABLE once closed; NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS if its
        partition of the offsets topic is not served.
        """
        while True:
            with self._lock:
                self._log.check(group_id)  # under the lock: a partition that is unloaded gets no new groups
                if self._closed:
                    raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)
                group = self._groups.get(group_id)
                if group is None and create:
                    group = self._groups[group_id] = make(group_id)
            if group is None:
                yield None
                return
            with group.lock:
                if group.is_dead:
                    continue  # another thread deleted it before this one had its lock: look again
                try:
                    yield group
                finally:
                    if not group.is_dead and group.is_unused:
                        self.drop(group, Errors.UNKNOWN_MEMBER_ID)
                return

    def replace(self, old: Group, new: Group) -> None:
        """Let another group take a group's place; both have the lock that the caller holds. ``old`` is dead."""
        with self._lock:
            if self._groups.get(old.group_id) is old:
                self._groups[old.group_id] = new

    def drop(self, group: Group, error: Errors) -> None:
        """Forget a group whose lock the caller holds; its delayed requests get ``error``."""
        if not group.is_dead:
            self._dismiss(group, error)
        with self._lock:
            if self._groups.get(group.group_id) is group:
                del self._groups[group.group_id]

    def add(self, groups: Mapping[str, Group]) -> None:
        """Add loaded groups, before their partitions are served."""
        with self._lock:
            self._groups.update(groups)

    def unload(self, is_in_it: Callable[[str], bool], error: Errors) -> int:
        """Forget the groups of a partition that is not served any more; return how many there were.

        Their records stay; delayed requests get ``error``.
        """
        with self._lock:
            groups = [group for group_id, group in self._groups.items() if is_in_it(group_id)]
        for group in groups:
            with group.lock:
                self.drop(group, error)
        return len(groups)

    def close(self, error: Errors) -> None:
        """Serve no group any more; delayed requests get ``error``. Idempotent."""
        with self._lock:
            self._closed = True
            groups = list(self._groups.values())
        for group in groups:
            with group.lock:
                if not group.is_dead:
                    self._dismiss(group, error)
