"""New topics with many partitions: their logs are created in runs, so that other topics can change in between."""

import uuid
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kbroker.common.configs.config import BrokerConfig
from kbroker.log.unhosted_logs import Logs
from kbroker.metadata.image.image import MetadataImage, TopicImage
from kbroker.metadata.topic_growth import ADDED_AT_ONCE, own_configs
from kbroker.metadata.topic_runs import TopicRuns


class Opening:
    """A stored topic whose logs are being made. ``logs``: those made so far."""

    __slots__ = ("logs", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.logs: list[Any] = []


class TopicOpening(TopicRuns[Opening]):
    """New topics whose logs the thread that has created them makes; they are in force once all logs are made.

    Until then requests do not find them, and nothing waits for them: in Kafka, too, the controller has a topic before
    the brokers.

    Args: ``lock``: the registry's; ``image`` returns the image in force; ``failed``: gets the error of each topic
    whose logs could not be made. ``serve`` is called, under the lock, with the finished topics, and the logs of those
    that did not fail.
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
        super().__init__(lock, ADDED_AT_ONCE)
        self._config = config
        self._logs = logs
        self._image = image
        self._failed = failed
        self._serve = serve

    @property
    def names(self) -> set[str]:
        """Names of the topics that are being opened. Without the lock, some may have ended meanwhile."""
        return {opening.name for opening in list(self._begun.values())}

    def _run(self, begun: Mapping[uuid.UUID, Opening]) -> bool:
        """Make a run of logs; once all are made, serve the topics that have not failed, and return True."""
        topics = [self._image().topics_by_id[topic_id] for topic_id in begun]
        room = ADDED_AT_ONCE
        for topic in topics:
            room -= self._make(topic, begun[topic.topic_id].logs, room)
        opened = {topic.topic_id: begun[topic.topic_id].logs for topic in topics if topic.topic_id not in self._failed}
        if any(len(opened.get(topic.topic_id, topic.partitions)) < len(topic.partitions) for topic in topics):
            return False
        try:
            self._serve(topics, opened)
        finally:  # a topic that could not be served is no longer being opened either
            for topic in topics:
                self.end(topic.topic_id)
        return True

    def _make(self, topic: TopicImage, logs: list[Any], room: int) -> int:
        """Make the next logs of a topic, or note the reason why that failed; return their number."""
        indexes = range(len(logs), len(topic.partitions))[:room]
        if not indexes or topic.topic_id in self._failed:
            return 0
        try:
            resolved = self._config.topic_configs(own_configs(self._image(), topic.name))
            logs += self._logs.create_partitions(topic.name, indexes, topic.topic_id, resolved)
        except Exception as error:
            self._failed[topic.topic_id] = error
        return len(indexes)
