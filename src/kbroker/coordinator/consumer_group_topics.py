"""The topics of the broker as its consumer groups see them."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from kbroker._core.clock import BaseClock
from kbroker.coordinator.consumer_group.topics_image import TopicMetadata
from kbroker.metadata.topics import TopicRegistry, TopicView


class ConsumerGroupTopics:
    """A ``TopicsImage``. Versions continue those of an earlier run: they begin with the time. Threads: any."""

    def __init__(self, topics: TopicRegistry, clock: BaseClock, rack: str | None) -> None:
        self._topics = topics
        self._first_version = clock.epoch_ms()
        self.rack = rack

    @property
    def version(self) -> int:
        """Rises with every change of the topics."""
        return self._first_version + self._topics.version

    @property
    def creation_version(self) -> int:
        """The version with the latest topic in it."""
        return self._first_version + self._topics.creation_version

    def get(self, name: str) -> TopicMetadata | None:
        """The topic of a name."""
        return _metadata(self._topics.get(name))

    def get_by_id(self, topic_id: UUID) -> TopicMetadata | None:
        """The topic of an id."""
        return _metadata(self._topics.get_by_id(topic_id))

    def names(self) -> Iterable[str]:
        """The names of all topics."""
        return [view.name for view in self._topics.all()]


def _metadata(view: TopicView | None) -> TopicMetadata | None:
    return None if view is None else TopicMetadata(view.name, view.topic_id, len(view.partitions))
