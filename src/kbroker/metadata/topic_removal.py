"""Deleted topics with many partitions: their logs are removed in runs, between which other topics change."""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager

from kbroker.metadata.image.image import TopicImage

REMOVED_AT_ONCE = 128  # partitions: other changes of topics wait meanwhile, about 15 ms


class _Removal:
    """A topic that is out of service. ``rest``: partitions that may have logs."""

    __slots__ = ("name", "rest")

    def __init__(self, name: str, end: int) -> None:
        self.name = name
        self.rest = range(end)

    def take(self, count: int) -> range:
        """Take the next partitions, at most so many."""
        run, self.rest = self.rest[:count], self.rest[count:]
        return run


class TopicRemoval:
    """Topics whose logs the thread that has deleted them removes.

    Args: ``lock`` of the registry, released between runs of partitions. ``drop_logs`` removes logs by topic, of the
    deleted topics with these ids; if it is the last run, the removals so far are then durable. Called under the lock.
    """

    def __init__(
        self,
        lock: AbstractContextManager[bool],
        drop_logs: Callable[[Mapping[str, Iterable[int]], Iterable[uuid.UUID], bool], None],
    ) -> None:
        self._lock = lock
        self._drop_logs = drop_logs
        self._expected: set[uuid.UUID] = set()  # changed under the controller's lock, read after it in `begin`
        self._begun: dict[uuid.UUID, _Removal] = {}  # the registry's lock

    def expect(self, topics: Collection[TopicImage]) -> None:
        """Note topics that are about to be deleted, unless they are few enough to be removed at once."""
        if sum(len(topic.partitions) for topic in topics) > REMOVED_AT_ONCE:
            self._expected.update(topic.topic_id for topic in topics)

    def begin(self, topic_id: uuid.UUID, name: str, end: int) -> bool:
        """Begin with a topic that has been deleted; return False if its logs are to be removed at once. Under the lock.

        Args: ``end`` of its partitions.
        """
        if topic_id not in self._expected:
            return False
        self._begun[topic_id] = _Removal(name, end)
        return True

    def complete(self, names: Collection[str]) -> None:
        """Remove what is left of topics with these names, which are about to be used again. Under the lock."""
        found = {topic_id: one for topic_id, one in self._begun.items() if one.name in names}
        if found:
            self._drop_logs({one.name: one.rest for one in found.values()}, found, True)
            for topic_id in found:
                del self._begun[topic_id]

    def finish(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Remove the logs of those of the topics that have begun. Without the lock."""
        ids = list(topic_ids)
        self._expected.difference_update(ids)  # they are deleted, or not at all
        while any(topic_id in self._begun for topic_id in ids):
            with self._lock:
                begun = {topic_id: self._begun[topic_id] for topic_id in ids if topic_id in self._begun}
                room, runs = REMOVED_AT_ONCE, {}
                for one in begun.values():
                    if room > 0 and one.rest:
                        runs[one.name] = one.take(room)
                        room -= len(runs[one.name])
                is_last = not any(one.rest for one in begun.values())
                if is_last:
                    for topic_id in begun:
                        del self._begun[topic_id]
                if begun:
                    self._drop_logs(runs, begun if is_last else (), is_last)
