"""Topics whose logs are created or removed in runs, so that other topics can change in between."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class TopicRuns(ABC, Generic[T]):
    """Changed topics with many partitions: the thread that has changed a topic makes or removes its logs.

    Args: ``lock``: the registry's, released between runs; ``at_once``: number of partitions for which no runs are
    needed. ``T``: the state of a topic between its runs.
    """

    def __init__(self, lock: AbstractContextManager[bool], at_once: int) -> None:
        self._lock = lock
        self._at_once = at_once
        self._expected: set[uuid.UUID] = set()  # changed under the controller's lock, read after it in `begin`
        self._begun: dict[uuid.UUID, T] = {}  # the registry's lock

    def expect(self, count: int, topic_ids: Iterable[uuid.UUID]) -> None:
        """Note topics about to be stored or deleted, if the ``count`` of their partitions exceeds ``at_once``."""
        if count > self._at_once:
            self._expected.update(topic_ids)

    def begin(self, topic_id: uuid.UUID, topic: T) -> bool:
        """Begin the runs of a topic that has been stored or deleted; return False if it needs none. Under the lock."""
        if topic_id not in self._expected:
            return False
        self._begun[topic_id] = topic
        return True

    def end(self, topic_id: uuid.UUID) -> bool:
        """End the runs of a topic; return False if they have not begun. Under the lock."""
        return self._begun.pop(topic_id, None) is not None

    def finish(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Complete the runs of those topics that have begun. The caller must not hold the lock."""
        ids = list(topic_ids)
        self._expected.difference_update(ids)  # they are stored or deleted, or will never be
        while any(topic_id in self._begun for topic_id in ids):
            with self._lock:
                begun = {topic_id: self._begun[topic_id] for topic_id in ids if topic_id in self._begun}
                if begun and self._run(begun):
                    for topic_id in begun:
                        self.end(topic_id)

    @abstractmethod
    def _run(self, begun: Mapping[uuid.UUID, T]) -> bool:
        """Make or remove a run of logs; return whether that was the last one. Under the lock."""
