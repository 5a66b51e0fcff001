"""Coordinators follow the leaders of their internal topics: partitions are loaded and unloaded as they move.

A partition is unloaded at its former leader before the new one loads it, even if both nodes are in this process, so two
coordinators never serve one key.
Source: ``BrokerMetadataPublisher.updateCoordinator``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.common.late_service import LateService
from kbroker.common.topic_names import INTERNAL_TOPICS
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage, TopicImage

if TYPE_CHECKING:
    from kbroker.coordinator.runtime import CoordinatorRuntime


class Coordinator(Protocol):
    """Coordinator of one internal topic."""

    @property
    def runtime(self) -> CoordinatorRuntime[Any]: ...


class CoordinatorService(Protocol):
    """Service around a coordinator."""

    @property
    def coordinator(self) -> Coordinator: ...


class CoordinatorElections:
    """Publisher of elections to the coordinators of the nodes in this process. Threads: any."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._nodes: dict[int, Mapping[str, LateService[CoordinatorService]]] = {}

    def add(self, node_id: int, services: Mapping[str, LateService[CoordinatorService]]) -> None:
        """Publish elections to the coordinators of a node. Args: ``services``: by internal topic."""
        with self.lock:
            self._nodes[node_id] = services

    def remove(self, node_id: int) -> None:
        """Stop publishing elections to a node. No effect on an unknown node."""
        with self.lock:
            self._nodes.pop(node_id, None)

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether the delta changes partitions of an internal topic."""
        return any(topic.name in INTERNAL_TOPICS for topic in delta.topics.changed.values())

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Unload each partition with a new leader epoch at nodes that do not lead it, then load it at its leader."""
        for topic_id, topic in delta.topics.changed.items():
            before = delta.image.topics_by_id.get(topic_id)
            if topic.name in INTERNAL_TOPICS and before is not None:
                self._follow(topic, before)

    def _follow(self, topic: TopicImage, before: TopicImage) -> None:
        nodes = {node_id: one[topic.name] for node_id, one in self._nodes.items() if topic.name in one}
        for index, (old, new) in enumerate(zip(before.partitions, topic.partitions, strict=False)):
            if old.leader_epoch == new.leader_epoch:
                continue
            for node_id, late in nodes.items():
                if node_id != new.leader and late.started is not None:
                    late.started.coordinator.runtime.unload(index, new.leader_epoch)
            late_leader = nodes.get(new.leader)
            if late_leader is not None:
                runtime = late_leader.get().coordinator.runtime
                if runtime.exists:  # loads all partitions of a topic that it has not served yet
                    runtime.load(index, new.leader_epoch)
