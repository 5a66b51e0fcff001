"""Topics that a test creates and changes, as a coordinator of groups reads them."""

from __future__ import annotations

import uuid

from kbroker.coordinator.consumer_group.member import Owned
from kbroker.coordinator.modern_group.topics_image import TopicMetadata, TopicsImage


class FakeImage(TopicsImage):
    """Topics with ids 1, 2, 3 ... in the order of their creation."""

    version = creation_version = 1

    def __init__(self, **counts: int) -> None:
        self.rack = None
        self._known: dict[str, TopicMetadata] = {}
        self._made = 0
        for name, count in counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> None:
        self._made += 1
        self._known[name] = TopicMetadata(name, uuid.UUID(int=self._made), count)
        self.version += 1
        self.creation_version = self.version

    def grow(self, name: str, count: int) -> None:
        self._known[name] = self._known[name]._replace(partition_count=count)
        self.version += 1

    def delete(self, name: str) -> None:
        del self._known[name]
        self.version += 1

    def get(self, name: str) -> TopicMetadata | None:
        return self._known.get(name)

    def get_by_id(self, topic_id: uuid.UUID) -> TopicMetadata | None:
        return next((one for one in self._known.values() if one.topic_id == topic_id), None)

    def names(self) -> list[str]:
        return list(self._known)

    def id(self, name: str) -> uuid.UUID:
        return self._known[name].topic_id

    def by_name(self, owned: Owned | None) -> dict[str, list[int]] | None:
        """Return partitions by topic name, None for None; deleted topics are left out."""
        if owned is None:
            return None
        names = {one.topic_id: one.name for one in self._known.values()}
        return {names[topic_id]: sorted(partitions) for topic_id, partitions in owned.items() if topic_id in names}
