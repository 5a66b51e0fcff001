"""Logs of a member, which opens none: all partitions are offline here, and folders of the data stay as they are.

Thus the clean-shutdown marks of the folders stay true while the broker runs, and a kill is not an unclean stop.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from kbroker.common.configs.config_def import ConfigValue
from kbroker.common.errors import Errors, KafkaError
from kbroker.log._partition import check_config
from kbroker.log.deletion_note import DeletionNotes
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.log_dirs import LogDirView
from kbroker.log.log_tasks import LogTasks
from kbroker.log.manager import LogManager

#: The reason why a partition with a replica on this node is offline.
NOT_HOSTED = "this broker does not host replicas yet; another broker has to lead the partition"


class UnhostedLogs:
    """Logs of a topic registry whose node hosts no partition. Args: ``manager`` of the locked log folders."""

    hosts = False

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        #: Without folders: the controllers delete topics.
        self.deletions = DeletionNotes((), lambda *_: None)

    def start(self, topics: Iterable[TopicLogs]) -> None:
        """Open no log; start the scheduler."""
        self._manager.scheduler.start()

    @property
    def directory_ids(self) -> list[uuid.UUID]:
        """Return none: no folder gets a replica."""
        return []

    def partition(self, topic: str, partition: int) -> None:
        """Return None: no log is open."""

    def create_partitions(
        self,
        topic: str,
        partitions: Iterable[int],
        topic_id: uuid.UUID,
        config: Mapping[str, ConfigValue],
        *,
        is_known: bool = False,
    ) -> list[None]:
        """Return None for each partition."""
        return [None for _ in partitions]

    def delete_topics(
        self, topics: Mapping[str, Iterable[int]], topic_ids: Iterable[uuid.UUID], is_last: bool = True
    ) -> None:
        """Do nothing: existing folders stay as they are."""

    def sync_folders(self) -> None:
        """Do nothing: there are no new folders."""

    check_config = staticmethod(check_config)

    def directory_of(self, topic: str, partition: int) -> uuid.UUID | None:
        """Return None: no log is open."""
        return None

    @property
    def tasks(self) -> LogTasks:
        """Tasks of the log manager, which has no partition."""
        return self._manager.tasks

    def describe_dirs(self) -> list[LogDirView]:
        """Describe the log folders, without replicas."""
        return self._manager.describe_dirs()

    def move_partition(self, topic: str, partition: int, path: str) -> None:
        """Refuse to move a replica. Raises: KafkaError."""
        raise KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Partition {topic}-{partition} is offline: {NOT_HOSTED}")

    def update_configs(self, configs: Mapping[str, Mapping[str, ConfigValue]]) -> None:
        """Do nothing: no log is open."""


#: The logs of a topic registry.
Logs = LogManager | UnhostedLogs
