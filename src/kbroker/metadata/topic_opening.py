"""New topics with many partitions: their logs are made in runs, between which other topics change."""

import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.topic_names import INTERNAL_TOPICS
from kbroker.log.unhosted_logs import Logs
from kbroker.metadata.image.image import MetadataImage, TopicImage
from kbroker.metadata.new_topics import PlannedTopic
from kbroker.metadata.topic_growth import ADDED_AT_ONCE, own_configs


class _Opening:
    """A stored topic whose logs are being made. ``logs``: those made so far."""

    __slots__ = ("logs", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.logs: list[Any] = []


class TopicOpening:
    """New topics that are in force once all their logs are made, by the thread that has created them.

    Meanwhile requests do not know them, and nothing waits for them: as in Kafka, the controller knows a topic earlier.
    Coordinators use an internal topic as soon as it is stored: it is not among them.

    Args: ``lock`` of the registry, released between runs of partitions; ``image``: the one that is in force;
    ``failed``: gets the reason for each topic whose logs could not be made. ``serve`` is called with the topics that
    are complete, and the logs of those that did not fail, under the lock.
    """

    def __init__(
        self,
        config: BrokerConfig,
        logs: Logs,
        lock: AbstractContextManager[bool],
        image: Callable[[], MetadataImage],
        failed: MutableMapping[uuid.UUID, Exception],
        serve: Callable[[Collection[TopicImage], Mapping[uuid.UUID, Sequence[Any]]], None],
    ) -> None:
        self._config = config
        self._logs = logs
        self._lock = lock
        self._image = image
        self._failed = failed
        self._serve = serve
        self._expected: set[uuid.UUID] = set()  # changed under the controller's lock, read after it in `begin`
        self._begun: dict[uuid.UUID, _Opening] = {}  # the registry's lock

    @property
    def names(self) -> set[str]:
        """Names of the topics that are being opened. Without the lock, some may have ended meanwhile."""
        return {opening.name for opening in list(self._begun.values())}

    def expect(self, topics: Collection[PlannedTopic]) -> None:
        """Note topics that are about to be stored, unless they are few enough to be opened at once."""
        if sum(len(topic.replicas) for topic in topics) > ADDED_AT_ONCE:
            self._expected.update(topic.topic_id for topic in topics if topic.name not in INTERNAL_TOPICS)

    def begin(self, topic: TopicImage) -> bool:
        """Begin with a topic that is stored now; return False if it is to be opened at once. Under the lock."""
        if topic.topic_id not in self._expected:
            return False
        self._begun[topic.topic_id] = _Opening(topic.name)
        return True

    def end(self, topic_id: uuid.UUID) -> bool:
        """End with a topic; return False if it is not being opened. Under the lock."""
        return self._begun.pop(topic_id, None) is not None

    def finish(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Make the logs of those of the topics that have begun, and serve them. Without the lock."""
        ids = list(topic_ids)
        self._expected.difference_update(ids)  # they are stored, or not at all
        todo = deque(topic_id for topic_id in ids if topic_id in self._begun)
        if not todo:
            return
        try:
            while todo:
                with self._lock:
                    self._make_some(todo)
                    if not todo:
                        self._serve_all(ids)
        finally:
            with self._lock:
                for topic_id in ids:
                    self.end(topic_id)

    def _make_some(self, todo: deque[uuid.UUID]) -> None:
        """Make a run of logs; remove the topics from ``todo`` whose logs are complete, that fail or were deleted."""
        room = ADDED_AT_ONCE
        while todo and room > 0:
            image, opening = self._image(), self._begun.get(todo[0])
            if opening is None or todo[0] in self._failed:
                todo.popleft()
                continue
            topic = image.topics_by_id[todo[0]]
            made = len(opening.logs)
            end = min(made + room, len(topic.partitions))
            self._make(topic, end)
            room -= len(opening.logs) - made
            if len(opening.logs) == len(topic.partitions):
                todo.popleft()

    def _make(self, topic: TopicImage, end: int) -> None:
        """Make the logs of a topic up to a partition, or note the reason for which that failed."""
        opening = self._begun[topic.topic_id]
        indexes = range(len(opening.logs), end)
        try:
            resolved = self._config.topic_configs(own_configs(self._image(), topic.name))
            opening.logs += self._logs.create_partitions(topic.name, indexes, topic.topic_id, resolved)
        except Exception as error:
            self._failed[topic.topic_id] = error

    def _serve_all(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Serve the topics, with the partitions that they have by now."""
        image = self._image()
        topics = [image.topics_by_id[topic_id] for topic_id in topic_ids if topic_id in self._begun]
        for topic in topics:
            is_grown = len(self._begun[topic.topic_id].logs) < len(topic.partitions)
            if is_grown and topic.topic_id not in self._failed:
                self._make(topic, len(topic.partitions))  # the added ones have logs
        opened = {topic_id: opening.logs for topic_id, opening in self._begun.items() if topic_id not in self._failed}
        self._serve(topics, opened)
