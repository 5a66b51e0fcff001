"""Follower of the image: the changes that concern this broker's registration and its replicas.

Source: ``BrokerRegistrationTracker``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from kbroker.common.feature_versions import CORDONED_LEVEL, DIRECTORIES_LEVEL, METADATA_VERSION, level_text
from kbroker.common.loggers import get_logger
from kbroker.common.units import counted
from kbroker.log.unhosted_logs import NOT_HOSTED
from kbroker.member.lifecycle import BrokerLifecycle
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage, TopicImage

logger = get_logger(__name__)


class RegistrationTracker:
    """Publisher that follows this broker's registration, and the partitions with a replica on it.

    Args: ``may_serve`` returns whether the broker is ready for clients. Threads: `publish` under ``lock``.
    """

    def __init__(self, node_id: int, lifecycle: BrokerLifecycle, may_serve: Callable[[], bool]) -> None:
        self._node_id = node_id
        self._lifecycle = lifecycle
        self._may_serve = may_serve
        self.lock = threading.Lock()

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether the delta changes brokers, features or topics."""
        return bool(delta.changed_features or delta.changes_brokers or delta.topics.created or delta.topics.changed)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Register again if the registration lacks directories; serve when they can be cordoned; warn of replicas."""
        registration = image.brokers.get(self._node_id)
        if (
            registration is not None
            and registration.epoch == self._lifecycle.broker_epoch
            and not registration.directories
            and image.level >= DIRECTORIES_LEVEL
        ):
            logger.info("registering again: the registration of this broker lacks its log directories")
            self._lifecycle.register_again()
        if METADATA_VERSION in delta.changed_features and can_cordon(image) and self._may_serve():
            self._lifecycle.set_ready_to_unfence()
        self.warn_of_replicas([*delta.topics.created.values(), *delta.topics.changed.values()], delta.image)

    def warn_of_replicas(self, topics: Iterable[TopicImage], before: MetadataImage) -> None:
        """Log the partitions of these topics that have gained a replica here."""
        names = []
        for topic in topics:
            known = before.topics_by_id.get(topic.topic_id)
            for index, partition in enumerate(topic.partitions):
                if self._node_id not in partition.replicas:
                    continue
                if (
                    known is None
                    or index >= len(known.partitions)
                    or (self._node_id not in known.partitions[index].replicas)
                ):
                    names.append(f"{topic.name}-{index}")
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            logger.warning(
                "%s with a replica on this broker: %s%s; offline here: %s",
                counted(len(names), "partition"), names[0], more, NOT_HOSTED,
            )  # fmt: skip


def can_cordon(image: MetadataImage) -> bool:
    """Return whether the controllers keep replicas off cordoned directories."""
    return image.level >= CORDONED_LEVEL


def warn_of_fence(image: MetadataImage) -> None:
    """Log that this broker stays fenced."""
    logger.warning(
        "%s of the cluster is %s: below %s directories cannot be cordoned, so this broker stays fenced, and no replica "
        "is placed on it; it serves the clients that connect to it",
        METADATA_VERSION, level_text(METADATA_VERSION, image.level), level_text(METADATA_VERSION, CORDONED_LEVEL),
    )  # fmt: skip
