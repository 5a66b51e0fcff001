"""Changes to the topics of an image. Source: ``TopicsDelta``, ``TopicDelta``, ``ReplicationControlManager``."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kbroker.metadata.image.image import TopicImage
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.metadata.image.partition_registration import PartitionRegistration
from kbroker.protocol.codec import Body

_CLEARED_ELR: Body = {"EligibleLeaderReplicas": [], "LastKnownElr": []}


class _TopicDelta:
    """Changed partitions of a topic; ``before``: the topic before the changes, without partitions if it is new."""

    __slots__ = ("before", "changes")

    def __init__(self, before: TopicImage) -> None:
        self.before = before
        self.changes: dict[int, PartitionRegistration] = {}

    def apply(self) -> TopicImage:
        before = self.before
        partitions = list(before.partitions)
        for partition in sorted(self.changes):
            if partition < len(partitions):
                partitions[partition] = self.changes[partition]
            elif partition == len(partitions):
                partitions.append(self.changes[partition])
            else:
                raise MetadataReplayError(
                    f"topic {before.name}: expected partition {len(partitions)} before partition {partition}, found no "
                    f"PartitionRecord of it"
                )
        return TopicImage(before.name, before.topic_id, tuple(partitions))


class TopicsDelta:
    """Changes to the topics. A topic that is created and deleted again leaves no trace.

    Attributes:
        deleted: deleted topics as they were before, by id. A new topic may have the name of one of them.
        created: new topics by id, set by ``apply``.
        changed: existing topics with changed or added partitions, after the changes, by id, set by ``apply``.
    """

    def __init__(self, topics: Mapping[str, TopicImage], topics_by_id: Mapping[UUID, TopicImage]) -> None:
        self._topics = topics
        self._by_id = topics_by_id
        self._deltas: dict[UUID, _TopicDelta] = {}
        self._created: dict[str, UUID] = {}
        self.deleted: dict[UUID, TopicImage] = {}
        self.created: dict[UUID, TopicImage] = {}
        self.changed: dict[UUID, TopicImage] = {}

    def change_to(self, after: Mapping[UUID, TopicImage]) -> None:
        """Add the changes that lead to these topics, to a delta without changes."""
        self.deleted = {topic_id: topic for topic_id, topic in self._by_id.items() if topic_id not in after}
        for topic_id, topic in after.items():
            before = self._by_id.get(topic_id)
            if before is None:
                before = TopicImage(topic.name, topic_id, ())
                self._created[topic.name] = topic_id
            elif before == topic:
                continue
            delta = self._deltas[topic_id] = _TopicDelta(before)
            known = len(before.partitions)
            delta.changes = {
                index: partition
                for index, partition in enumerate(topic.partitions)
                if index >= known or before.partitions[index] != partition
            }

    def create(self, body: Body) -> None:
        """Replay a TopicRecord. Raises: MetadataReplayError for a name or an id of another topic."""
        name, topic_id = body["Name"], body["TopicId"]
        taken = self._id_of(name)
        if taken is not None:
            raise MetadataReplayError(f"TopicRecord: expected a new name, found {name}, the name of topic id {taken}")
        if topic_id in self._deltas or (topic_id in self._by_id and topic_id not in self.deleted):
            raise MetadataReplayError(
                f"TopicRecord of {name}: expected a new topic id, found {topic_id} of another topic"
            )
        self._deltas[topic_id] = _TopicDelta(TopicImage(name, topic_id, ()))
        self._created[name] = topic_id

    def set_partition(self, body: Body) -> None:
        """Replay a PartitionRecord. Raises: MetadataReplayError for an unknown topic, or an invalid partition."""
        delta = self._delta(body["TopicId"], "PartitionRecord")
        partition = body["PartitionId"]
        if partition < 0:
            raise MetadataReplayError(
                f"PartitionRecord of {delta.before.name}: expected partition 0 or above, found {partition}"
            )
        delta.changes[partition] = PartitionRegistration.from_record(body)

    def change_partition(self, body: Body) -> None:
        """Replay a PartitionChangeRecord. Raises: MetadataReplayError for an unknown topic or partition."""
        delta = self._delta(body["TopicId"], "PartitionChangeRecord")
        partition = body["PartitionId"]
        before = delta.changes.get(partition)
        if before is None:
            known = delta.before.partitions
            if not 0 <= partition < len(known):
                raise MetadataReplayError(
                    f"PartitionChangeRecord of {delta.before.name}: found partition {partition}, which no earlier "
                    f"PartitionRecord creates"
                )
            before = known[partition]
        delta.changes[partition] = before.merge(body)

    def remove(self, body: Body) -> str:
        """Replay a RemoveTopicRecord; return the topic's name. Raises: MetadataReplayError for an unknown topic."""
        topic_id = body["TopicId"]
        name = self._delta(topic_id, "RemoveTopicRecord").before.name
        del self._deltas[topic_id]
        if self._created.get(name) == topic_id:
            del self._created[name]
        if topic_id in self._by_id:
            self.deleted[topic_id] = self._by_id[topic_id]
        return name

    def clear_elr(self, body: Body) -> None:
        """Replay a ClearElrRecord, of all topics if it names none. Raises: MetadataReplayError for an unknown topic."""
        name = body["TopicName"]
        if not name:
            for topic_id in [*(one for one in self._by_id if one not in self.deleted), *self._created.values()]:
                self._clear_elr(topic_id)
            return
        named = self._id_of(name)
        if named is None:
            raise MetadataReplayError(f"ClearElrRecord: expected an existing topic, found {name}")
        self._clear_elr(named)

    def _clear_elr(self, topic_id: UUID) -> None:
        delta = self._deltas.get(topic_id)
        partitions = dict(enumerate(self._by_id[topic_id].partitions if delta is None else delta.before.partitions))
        partitions.update(delta.changes if delta is not None else {})
        for partition, registration in partitions.items():
            if registration.elr or registration.last_known_elr:
                self._delta(topic_id, "ClearElrRecord").changes[partition] = registration.merge(_CLEARED_ELR)

    def _id_of(self, name: str) -> UUID | None:
        if name in self._created:
            return self._created[name]
        topic = self._topics.get(name)
        return None if topic is None or topic.topic_id in self.deleted else topic.topic_id

    def _delta(self, topic_id: UUID, record: str) -> _TopicDelta:
        delta = self._deltas.get(topic_id)
        if delta is None:
            topic = self._by_id.get(topic_id)
            if topic is None or topic_id in self.deleted:
                raise MetadataReplayError(f"{record}: expected the id of an existing topic, found {topic_id}")
            delta = self._deltas[topic_id] = _TopicDelta(topic)
        return delta

    def apply(self) -> tuple[Mapping[str, TopicImage], Mapping[UUID, TopicImage]]:
        """Return the topics after the changes by name and by id, the unchanged mappings if there are no changes.

        Set ``created`` and ``changed``.

        Raises: MetadataReplayError for a topic that lacks a partition below its highest one.
        """
        if not self._deltas and not self.deleted:
            return self._topics, self._by_id
        topics, by_id = dict(self._topics), dict(self._by_id)
        for topic_id, topic in self.deleted.items():
            del by_id[topic_id]
            del topics[topic.name]
        self.created, self.changed = {}, {}
        for topic_id, delta in self._deltas.items():
            topic = by_id[topic_id] = topics[delta.before.name] = delta.apply()
            (self.created if self._created.get(topic.name) == topic_id else self.changed)[topic_id] = topic
        return topics, by_id
