"""Partitions that are added to topics: their logs first, then their metadata, while other topics change."""

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors, KafkaError, OutcomeUnknownError
from kbroker.common.loggers import get_logger
from kbroker.log.unhosted_logs import Logs
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.image import MetadataImage, TopicImage
from kbroker.metadata.new_topics import added_records
from kbroker.metadata.placement import registered_nodes
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.topic_rules import check_more_partitions

logger = get_logger(__name__)

ADDED_AT_ONCE = 16  # partitions: other changes of topics wait meanwhile, about 5 ms on an idle disk, 50 on a busy one

#: Called with a number of partitions about to be created, added or deleted; raises KafkaError to refuse them.
Charge = Callable[[int], None]


def free(mutations: int) -> None:
    """Charge nothing; every mutation is allowed."""


_NO_CONFIGS: Mapping[str, str] = MappingProxyType({})  # shared by all topics without configs


def own_configs(image: MetadataImage, name: str) -> Mapping[str, str]:
    """Return the configs that a topic itself sets."""
    return image.configs.get((ConfigResourceType.TOPIC, name), _NO_CONFIGS)


def storage_error(error: Exception) -> KafkaError:
    """Return the error for the client when a log could not be created; an unexpected error is logged."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, OSError):
        return KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Cannot create the log: {error}")
    logger.error("a log could not be created", exc_info=error)
    return KafkaError(Errors.UNKNOWN_SERVER_ERROR)


class TopicGrowth:
    """Topics that get more partitions, one after the other.

    Args: ``lock``: the registry's; it is released between runs of partitions, so that other topics can change, and
    this one can be deleted. ``failed``: ids of created topics without logs. ``drop_logs`` removes logs.
    Locks: its own, held until a topic has grown, and taken before the registry's.
    """

    def __init__(
        self,
        config: BrokerConfig,
        controller: Controller,
        logs: Logs,
        lock: AbstractContextManager[bool],
        failed: Collection[uuid.UUID],
        drop_logs: Callable[[Mapping[str, Iterable[int]]], None],
    ) -> None:
        self._config = config
        self._controller = controller
        self._logs = logs
        self._lock = lock
        self._failed = failed
        self._drop_logs = drop_logs
        self._one = threading.Lock()
        self._growing: dict[uuid.UUID, range] = {}  # partitions that may have logs and no metadata; registry's lock

    def forget(self, topic_id: uuid.UUID) -> int:
        """Forget the growth of a topic that is being removed; return the end of its partitions, 0 if it does not grow.

        Under the registry's lock.
        """
        return self._growing.pop(topic_id, range(0)).stop

    def add(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None, validate_only: bool, charge: Charge
    ) -> None:
        """Add partitions to a topic, as described at ``TopicRegistry.add_partitions``."""
        if validate_only:
            self._checked(self._controller.image, name, count, assignments)
            return
        with self._one:
            with self._lock:
                topic, added = self._checked(self._controller.image, name, count, assignments)
                charge(len(added))
                self._growing[topic.topic_id] = added
            nodes = registered_nodes(self._controller.image, self._config.node_id)

            def plan(image: MetadataImage) -> list[MetadataRecord]:
                self._check_same(image, topic, added)
                return added_records(topic, added, assignments, nodes, image, self._logs.directory_ids)

            try:  # logs first: no metadata record can remove partitions
                for start in range(added.start, added.stop, ADDED_AT_ONCE):
                    self._create(topic, added, range(start, min(start + ADDED_AT_ONCE, added.stop)))
                with self._lock:
                    self._logs.sync_folders()
                self._controller.change(plan)
            except OutcomeUnknownError:
                raise
            except Exception as error:
                self._drop(topic, added)
                raise storage_error(error) from None
            finally:
                with self._lock:
                    self.forget(topic.topic_id)

    def _checked(
        self, image: MetadataImage, name: str, count: int, assignments: Sequence[Sequence[int]] | None
    ) -> tuple[TopicImage, range]:
        """Return a topic and its new partitions. Raises: KafkaError, if it cannot grow in this way."""
        topic = image.topics.get(name)
        if topic is None or topic.topic_id in self._failed:
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        current, factor = len(topic.partitions), len(topic.partitions[0].replicas)
        nodes = registered_nodes(image, self._config.node_id)
        check_more_partitions(name, current, factor, count, assignments, nodes)
        return topic, range(current, count)

    def _check_same(self, image: MetadataImage, topic: TopicImage, added: range) -> None:
        """Check that the topic was neither deleted nor has grown since. Raises: KafkaError."""
        known = image.topics_by_id.get(topic.topic_id)
        if known is None or known.topic_id in self._failed or len(known.partitions) != added.start:
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)

    def _create(self, topic: TopicImage, added: range, indexes: range) -> None:
        with self._lock:
            image = self._controller.image
            self._check_same(image, topic, added)
            configs = self._config.topic_configs(own_configs(image, topic.name))
            self._logs.create_partitions(topic.name, indexes, topic.topic_id, configs)

    def _drop(self, topic: TopicImage, added: range) -> None:
        """Remove the logs of partitions that the metadata does not have, unless they were removed with the topic."""
        with self._lock:
            if topic.topic_id in self._growing:
                known = self._controller.image.topics_by_id.get(topic.topic_id)
                first = added.start if known is None else max(len(known.partitions), added.start)
                self._drop_logs({topic.name: range(first, added.stop)})
