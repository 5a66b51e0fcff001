"""The topics for groups of the newer protocols: ids, partitions, and a hash that changes with them.

Source: ``CoordinatorMetadataImage``, ``Utils.computeTopicHash``, ``Utils.computeGroupHash``, ``TopicIds``; KIP-1101.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from kbroker._core.clock import BaseClock
from kbroker.coordinator.modern_group.xxh3 import xxh3_64
from kbroker.metadata.topics import TopicRegistry, TopicView

HASH_FORMAT = 0
MOST_HASHES, MOST_SETS = 10_000, 16  # limits of the cached hashes, of topics and of sets of topics


class TopicMetadata(NamedTuple):
    """A topic."""

    name: str
    topic_id: UUID
    partition_count: int


class TopicsImage:
    """The topics of the broker, all on its rack. Versions begin with the time of the start. Threads: any."""

    def __init__(self, topics: TopicRegistry, clock: BaseClock, rack: str | None) -> None:
        self._topics = topics
        self._first_version = clock.epoch_ms()
        self.rack = rack

    @property
    def version(self) -> int:
        """Version that rises with every change of the topics, across restarts too."""
        return self._first_version + self._topics.version

    @property
    def creation_version(self) -> int:
        """Version of the latest creation of a topic."""
        return self._first_version + self._topics.creation_version

    def get(self, name: str) -> TopicMetadata | None:
        """Return the topic with this name, or None."""
        return _metadata(self._topics.get(name))

    def get_by_id(self, topic_id: UUID) -> TopicMetadata | None:
        """Return the topic with this id, or None."""
        return _metadata(self._topics.get_by_id(topic_id))

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""
        return [view.name for view in self._topics.all()]


def _metadata(view: TopicView | None) -> TopicMetadata | None:
    return None if view is None else TopicMetadata(view.name, view.topic_id, len(view.partitions))


class TopicHashes:
    """Cache of the hashes of topics. Threads: any; a hash may be computed twice."""

    def __init__(self, image: TopicsImage) -> None:
        self._image = image
        self._known: dict[str, tuple[TopicMetadata, int]] = {}
        self._groups: tuple[int, dict[frozenset[str], int]] = -1, {}  # hashes of sets of topics, at one version

    def group_hash(self, names: Iterable[str]) -> int:
        """Return the hash of those topics that exist, a signed int of 64 bits; 0 if none of them exists."""
        version = self._image.version  # read before the topics: the hash is at least as recent
        if self._groups[0] != version:
            self._groups = version, {}
        known, wanted = self._groups[1], frozenset(names)
        value = known.get(wanted)
        if value is None:
            if len(known) >= MOST_SETS:
                known.clear()
            value = known[wanted] = self._computed(wanted)
        return value

    def forget(self) -> None:
        """Read the topics of each set again, even if the image reports no change."""
        self._groups = -1, {}

    def _computed(self, names: frozenset[str]) -> int:
        hashes = [self._topic_hash(topic) for name in sorted(names) if (topic := self._image.get(name)) is not None]
        return _signed(xxh3_64(b"".join(struct.pack("<Q", one) for one in hashes))) if hashes else 0

    def _topic_hash(self, topic: TopicMetadata) -> int:
        known = self._known.get(topic.name)
        if known is not None and known[0] == topic:
            return known[1]
        if len(self._known) >= MOST_HASHES:
            self._known = {}
        value = xxh3_64(_hashed_bytes(topic, self._image.rack))
        self._known[topic.name] = topic, value
        return value


def _hashed_bytes(topic: TopicMetadata, rack: str | None) -> bytes:
    """Return the bytes of a topic to hash. A string is its UTF-16 units, followed by their number."""
    high, low = topic.topic_id.int >> 64, topic.topic_id.int & 0xFFFFFFFFFFFFFFFF
    racks = b""
    if rack is not None:
        racks = struct.pack("<i", len(rack.encode("utf-16-le")) // 2) + _text(rack)
    parts = [struct.pack("<bQQ", HASH_FORMAT, high, low), _text(topic.name), struct.pack("<i", topic.partition_count)]
    parts += [struct.pack("<i", index) + racks for index in range(topic.partition_count)]
    return b"".join(parts)


def _text(text: str) -> bytes:
    units = text.encode("utf-16-le", "surrogatepass")
    return units + struct.pack("<i", len(units) // 2)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
