"""Deleted topics with many partitions: their logs are removed in runs, so that other topics can change in between."""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager

from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record
from kbroker.metadata.topic_runs import TopicRuns

REMOVED_AT_ONCE = 128  # partitions: other changes of topics wait meanwhile, about 15 ms


class Removal:
    """A topic that is out of service. ``rest``: partitions that may have logs."""

    __slots__ = ("name", "rest")

    def __init__(self, name: str, rest: range) -> None:
        self.name = name
        self.rest = rest


class TopicRemoval(TopicRuns[Removal]):
    """Deleted topics whose logs the thread that has deleted them removes.

    Args: ``lock``: the registry's. ``drop_logs``, called under the lock, removes partitions by topic name; in the last
    run, the third argument is True, the second has the ids of the topics, and all removals are durable afterwards.
    """

    def __init__(
        self,
        lock: AbstractContextManager[bool],
        drop_logs: Callable[[Mapping[str, Iterable[int]], Iterable[uuid.UUID], bool], None],
    ) -> None:
        super().__init__(lock, REMOVED_AT_ONCE)
        self._drop_logs = drop_logs

    def complete(self, names: Collection[str]) -> None:
        """Remove the remains of topics with these names, which are about to be used again. Under the lock."""
        found = {topic_id: one for topic_id, one in self._begun.items() if one.name in names}
        if found:
            self._drop_logs({one.name: one.rest for one in found.values()}, found, True)
            for topic_id in found:
                self.end(topic_id)

    def _run(self, begun: Mapping[uuid.UUID, Removal]) -> bool:
        room, runs = REMOVED_AT_ONCE, {}
        for one in begun.values():
            if room > 0 and one.rest:
                runs[one.name], one.rest = one.rest[:room], one.rest[room:]
                room -= len(runs[one.name])
        is_last = not any(one.rest for one in begun.values())
        self._drop_logs(runs, begun if is_last else (), is_last)
        return is_last


def removal_record(topic_id: uuid.UUID) -> MetadataRecord:
    """Return the record that deletes a topic."""
    return metadata_record("RemoveTopicRecord", {"TopicId": topic_id})
