"""Controllers for tests: in memory, or with a metadata log in a folder."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TypeVar

from kbroker._core.clock import BaseClock, VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.metadata.controller import Controller, MemoryStorage, Publisher
from kbroker.metadata.log.log_storage import LogStorage
from kbroker.metadata.log.opening import first_records, image_of, open_metadata

P = TypeVar("P", bound=Publisher)

DIRECTORY_ID = uuid.UUID(int=77)


def memory_controller(node_id: int = 1) -> Controller:
    """Return the controller of a new cluster that keeps nothing on disk."""
    return Controller(node_id, "cluster", MemoryStorage(), image_of(first_records()))


class LoggedController(Controller):
    """The controller of the metadata log in a folder, which is created if absent. ``log``: that log."""

    def __init__(
        self, folder: Path, node_id: int = 1, clock: BaseClock | None = None, *, is_clean: bool = True
    ) -> None:
        config = BrokerConfig({"node.id": node_id})
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


def following(controller: Controller, part: P) -> P:
    """Return the part, which is published every change from now on."""
    controller.publishers.append(part)
    return part
