"""Controllers for tests: in memory with failures on demand, or with a metadata log in a folder."""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kbroker._core.clock import BaseClock, VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.controller import Controller, MemoryStorage, Publisher
from kbroker.metadata.image.delta import image_of
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.log.log_storage import LogStorage
from kbroker.metadata.log.opening import first_records, open_metadata
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record

P = TypeVar("P", bound=Publisher)

DIRECTORY_ID = uuid.UUID(int=77)


class FailingStorage(MemoryStorage):
    """Storage in memory that counts calls and fails on demand.

    Attributes:
        appended: the records of each change; ``flushes``: number of syncs.
        is_full: each append is refused with KAFKA_STORAGE_ERROR.
        is_broken: each sync fails.
    """

    def __init__(self, end_offset: int = 0) -> None:
        super().__init__(end_offset)
        self.appended: list[list[MetadataRecord]] = []
        self.flushes = 0
        self.is_full = self.is_broken = False

    def append(self, records: Sequence[MetadataRecord], level: int, *, frees_space: bool) -> None:
        if self.is_full:
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR, "the disk is full")
        super().append(records, level, frees_space=frees_space)
        self.appended.append(list(records))

    def flush(self) -> None:
        self.flushes += 1
        if self.is_broken:
            raise OSError(5, "Input/output error")


class MemoryController(Controller):
    """Controller of a new cluster that stores nothing on disk."""

    def __init__(self, node_id: int = 1) -> None:
        image = image_of(first_records())
        self.storage = FailingStorage(image.offset + 1)
        super().__init__(node_id, "cluster", self.storage, image)


class LoggedController(Controller):
    """Controller of the metadata log in a folder, which is created if absent. ``log``: the metadata log."""

    def __init__(
        self,
        folder: Path,
        node_id: int = 1,
        clock: BaseClock | None = None,
        *,
        is_clean: bool = True,
        config: BrokerConfig | None = None,
    ) -> None:
        config = BrokerConfig({"node.id": node_id}) if config is None else config
        clock = VirtualClock() if clock is None else clock
        storage, image = open_metadata(folder, [], DIRECTORY_ID, config, clock, is_clean=is_clean)
        super().__init__(node_id, "cluster", storage, image)
        self.storage: LogStorage = storage
        self.log = storage.log
        self.flush()

    def flush(self) -> None:
        self.storage.flush()

    def close(self) -> None:
        self.log.close()


class StoredTopic(NamedTuple):
    """Topic in the image."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]


def start_metadata(
    folder: Path, *others: Path, directory_id: uuid.UUID = DIRECTORY_ID, config: BrokerConfig | None = None,
    is_clean: bool = False,
) -> MetadataImage:  # fmt: skip
    """Open the metadata as a start of node 1 does, close the log, and return the image."""
    config = config or BrokerConfig({"node.id": 1})
    storage, image = open_metadata(folder, others, directory_id, config, VirtualClock(), is_clean=is_clean)
    storage.flush()
    storage.log.close()
    return image


def stored_topics(controller: Controller) -> list[StoredTopic]:
    """Return the topics in the image, oldest first."""
    configs = controller.image.configs
    return [
        StoredTopic(one.name, one.topic_id, len(one.partitions), configs.get((ConfigResourceType.TOPIC, one.name), {}))
        for one in controller.image.topics.values()
    ]


def store_configs(controller: Controller, kind: int, name: str, configs: Mapping[str, str | None]) -> None:
    """Store configs of a resource without validation; None deletes a config."""
    change(
        controller,
        *(
            metadata_record("ConfigRecord", {"ResourceType": kind, "ResourceName": name, "Name": key, "Value": value})
            for key, value in configs.items()
        ),
    )


def group_config(group: object, value: str | None = "45000") -> MetadataRecord:
    """Return the record that sets a config of a group, or removes it if the value is None."""
    body = {"ResourceName": str(group), "Name": "consumer.session.timeout.ms", "Value": value}
    return metadata_record("ConfigRecord", {"ResourceType": int(ConfigResourceType.GROUP), **body})


def groups(controller: Controller) -> list[str]:
    """Return the names of the groups with configs."""
    return sorted(name for kind, name in controller.image.configs if kind == ConfigResourceType.GROUP)


def content(image: MetadataImage) -> MetadataImage:
    """Return the image with offset and epoch 0."""
    return image._replace(offset=0, epoch=0)


def change(controller: Controller, *records: MetadataRecord) -> None:
    """Store these records as one change."""
    controller.change(lambda image: records)


class _SignallingQueue(deque[Any]):
    """Queue whose semaphore ``appended`` counts the appended items."""

    def __init__(self) -> None:
        super().__init__()
        self.appended = threading.Semaphore(0)

    def append(self, item: object) -> None:
        super().append(item)
        self.appended.release()


def together(controller: Controller, *calls: Callable[[], object]) -> list[object]:
    """Make calls that change metadata such that their changes wait together, in order; return the results or errors."""
    results: list[object] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:
            results[index] = error

    controller._waiting = queue = _SignallingQueue()
    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    with controller._lock:
        for thread in threads:
            thread.start()
            assert queue.appended.acquire(timeout=30), "the call changes no metadata"
    for thread in threads:
        thread.join()
    return results


def following(controller: Controller, part: P) -> P:
    """Return the publisher, which receives every change from now on."""
    controller.publishers.append(part)
    return part


def check_same_change(publisher: Any, change: Callable[[], object]) -> None:
    """Make the same change twice at once; check that each call waits for the publisher, and only one stores records."""
    lock, calls = publisher.lock, threading.Semaphore(0)

    class CountedLock:
        def __enter__(self) -> None:
            calls.release()
            lock.__enter__()

        def __exit__(self, *error: object) -> None:
            lock.__exit__(*error)

    publisher.lock = CountedLock()
    threads = [threading.Thread(target=change) for _ in range(2)]
    with lock:
        for thread in threads:
            thread.start()
            assert calls.acquire(timeout=30), "the call did not wait until the change is in force"
    for thread in threads:
        thread.join()
    publisher.lock = lock
