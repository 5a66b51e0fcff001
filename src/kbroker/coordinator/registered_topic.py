"""Internal topic of a coordinator in the broker's topics, created on first use."""

from __future__ import annotations

import os
from typing import Any

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.topics import TopicRegistry


class RegisteredTopic:
    """The ``InternalTopic`` of a coordinator. Threads: any."""

    def __init__(self, topics: TopicRegistry, config: BrokerConfig, name: str) -> None:
        self._topics = topics
        self._log_dirs = config.log_dirs
        self._name = name

    def ensure(self) -> int:
        """Create it if it does not exist; return the number of its partitions. Raises: KafkaError."""
        if not self.partition_count:
            self._topics.auto_create([self._name])
        count = self.partition_count
        if not count:
            raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE, f"{self._name} cannot be created")
        return count

    @property
    def partition_count(self) -> int:
        """Number of its partitions, 0 while it does not exist."""
        view = self._topics.get(self._name)
        return 0 if view is None else len(view.partitions)

    def partition(self, index: int) -> Any:
        """Return the log of one partition, None if it cannot be used."""
        return self._topics.partition(self._name, index)

    def folder(self, index: int) -> str:
        """Return the folder of a partition's files, for messages."""
        paths = [os.path.join(log_dir, f"{self._name}-{index}") for log_dir in self._log_dirs]
        return next(filter(os.path.isdir, paths), paths[0])
