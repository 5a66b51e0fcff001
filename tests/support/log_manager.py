"""Restarts of one log manager, and records, for tests of the log manager."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigValue
from kbroker.log.folder_scan import StartReport, TopicLogs
from kbroker.log.manager import LogManager
from kbroker.protocol.records import RecordBatchBuilder
from tests.support.closing import close_at_end

ID = uuid.UUID(int=0xABCDEF)
NOW_MS = 1_700_000_000_000


class Brokers:
    """Factory of log managers for the same folders, as restarts of one broker create them."""

    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        self.folder, self.clock = folder, clock
        self.folders = [folder]
        self.open: list[LogManager] = []

    def start(
        self, topics: Any = (("orders", 2),), in_memory: bool = False, settings: Any = (), **topic: Any
    ) -> tuple[LogManager, StartReport]:
        config = BrokerConfig(dict(settings))
        overrides = {name.replace("_", "."): str(value) for name, value in topic.items()}
        specs = [TopicLogs(name, ID, count, config.topic_configs(overrides)) for name, count in topics]
        manager = self.make(config, in_memory)
        return manager, manager.start(specs, run_threads=False)

    def make(self, config: BrokerConfig | None = None, in_memory: bool = False) -> LogManager:
        """Return a manager that is not started."""
        config = config or BrokerConfig({})
        manager = close_at_end(LogManager([] if in_memory else self.folders, self.clock, config))
        self.open.append(manager)
        return manager


def kill(manager: LogManager) -> None:
    """Close a manager as kill -9 would, without marks and checkpoints; release only locks and descriptors."""
    manager._disarm()
    for scheduler in manager.tasks.schedulers:
        scheduler.close()
    manager.mover.close()
    manager.cleaner.close()
    for log_dir in manager._dirs:
        log_dir.flusher.close()
    for _, hosted in manager._hosted.items():
        hosted.log.close(clean=False)


def batch(count: int = 1, *, time: int = NOW_MS, value: bytes = b"value", **producer: Any) -> bytes:
    builder = RecordBatchBuilder(**producer)
    for _ in range(count):
        builder.append(None, value, time)
    return builder.build()


def append(manager: LogManager, partition: int = 0, **kinds: Any) -> Any:
    log = manager.partition("orders", partition)
    assert log is not None
    result = log.append(batch(**kinds))
    assert result.error == 0
    return result


def create(
    manager: LogManager, topic: str, partition: int, topic_id: uuid.UUID, config: Mapping[str, ConfigValue]
) -> Any:
    """Create one partition durably."""
    (log,) = manager.create_partitions(topic, [partition], topic_id, config)
    manager.sync_folders()
    return log


def delete(manager: LogManager, topic: str, partition: int) -> None:
    manager.delete_topics({topic: [partition]})


def pass_time(manager: LogManager, clock: VirtualClock, ms: int) -> None:
    clock.advance_ms(ms)
    for scheduler in manager.tasks.schedulers:
        scheduler.run_due()
