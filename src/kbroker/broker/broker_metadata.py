"""Metadata of a broker over its life: opened, registered, followed by the parts, fenced at a clean stop."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import KafkaError, OutcomeUnknownError
from kbroker.common.listeners import Listener
from kbroker.common.loggers import get_logger
from kbroker.common.units import counted
from kbroker.handlers.api_table import KafkaApis
from kbroker.log.manager import LogManager
from kbroker.metadata.configs.resource_configs import broker_configs
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.delta import image_of
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.log.log_storage import LogStorage
from kbroker.metadata.log.metadata_log import MetadataLog
from kbroker.metadata.log.opening import first_records, open_metadata
from kbroker.metadata.log.snapshots import LOOK_EVERY_MS, Snapshots
from kbroker.metadata.partition_records import partitions_elsewhere
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.registration import fencing_records, registration_records
from kbroker.requests.context import ApiContext, Endpoint

if TYPE_CHECKING:
    from kbroker.log.unhosted_logs import Logs

logger = get_logger(__name__)


class NodeLife(ABC):
    """Metadata of a node from its start to its stop; the methods are in the order in which the broker calls them.

    ``logs``: the logs of the partitions that the node hosts. ``features``: the ranges of levels that the node supports,
    None for those of a controller. The steps that are not abstract have no effect for a node whose controller is in its
    process.
    """

    controller: Controller
    logs: Logs
    features: Mapping[str, tuple[int, int]] | None = None

    @abstractmethod
    def register(self, listeners: Iterable[Listener], advertised: dict[str, Endpoint]) -> None:
        """Store the registration of this node, whose listeners are bound."""

    def connect(self, ctx: ApiContext, apis: KafkaApis, on_versions: Callable[[], object]) -> None:  # noqa: B027
        """Connect request handlers to the active controller. Args: ``on_versions``: called when its versions change."""

    def follow(self) -> None:  # noqa: B027
        """Publish the metadata to the parts from now on."""

    def serve(self) -> None:  # noqa: B027
        """Request to be unfenced: the node serves clients now."""

    def shut_down(self) -> None:  # noqa: B027
        """Move the leaders on this node to other nodes."""

    @abstractmethod
    def fence(self) -> None:
        """End the registration of this node, even if its start failed before it served."""


class BrokerMetadata(NodeLife):
    """The metadata of a broker, and its controller.

    Args: ``logs``, with locked folders; ``on_failure``: called with the reason when the broker must stop.
    Raises: MetadataLogError, UnservableMetadataError, KafkaError, OSError: the metadata cannot be served.
    Threads: one at a time; ``controller`` from any.
    """

    def __init__(
        self, config: BrokerConfig, clock: BaseClock, logs: LogManager, on_failure: Callable[[str], None]
    ) -> None:
        self._config = config
        self.logs = self._logs = logs
        self._log: MetadataLog | None = None
        if config.boolean("kbroker.in.memory"):
            controller = Controller(config.node_id, logs.cluster_id, image=image_of(first_records()))
            logs.leader_epoch_of = lambda topic, index: controller.image.leader_epoch(topic, index)
            self.controller = controller
        else:
            self.controller = self._opened(clock)
        self.controller.on_failure = on_failure
        config.set_dynamic(*broker_configs(self.controller.image, config.node_id))

    def _opened(self, clock: BaseClock) -> Controller:
        config, logs, home = self._config, self._logs, self._logs.metadata_dir
        others = [path for path in map(Path, map(os.path.abspath, config.log_dirs)) if path != home.path]
        storage, image = open_metadata(home.path, others, home.directory_id, config, clock, is_clean=home.was_clean)
        self._log = storage.log
        self._warn_of_unnamed_folders(image)
        controller = Controller(config.node_id, logs.cluster_id, storage, image)
        controller.directory_id = home.directory_id
        logs.leader_epoch_of = lambda topic, index: controller.image.leader_epoch(topic, index)
        self._write_snapshots(controller, storage, clock)
        return controller

    def _warn_of_unnamed_folders(self, image: MetadataImage) -> None:
        """Warn of partitions that begin empty because log.dirs no longer names their folder."""
        if self._logs.offline_dirs:  # partitions without a folder stay offline
            return
        empty = [
            f"{name}-{index}"
            for name, index in partitions_elsewhere(image, self._logs.directory_ids)
            if not any((folder / f"{name}-{index}").exists() for folder in self._config.log_dirs)
        ]
        if empty:
            text = (
                "log.dirs does not name the folder of %s (%s), empty now: stop the broker, and name it if it exists, "
                "or mount its disk"
            )
            logger.warning(text, counted(len(empty), "partition"), empty[0] + ", ..." * (len(empty) > 1))

    def _write_snapshots(self, controller: Controller, storage: LogStorage, clock: BaseClock) -> None:
        snapshots = Snapshots(controller, storage.log, self._config, clock)
        controller.publishers.append(snapshots)
        self._logs.scheduler.schedule("metadata-snapshots", snapshots.look, period_ms=LOOK_EVERY_MS)

    def register(self, listeners: Iterable[Listener], advertised: dict[str, Endpoint]) -> None:
        """Store the registration of this broker, whose listeners are bound."""
        config, controller = self._config, self.controller
        register_node(controller, config, listeners, advertised, self._logs.directory_ids, is_alone=True)
        self._logs.broker_epoch = controller.image.brokers[config.node_id].epoch

    def fence(self) -> None:
        """Store that the broker is fenced, so that a controller of Apache Kafka registers it again at once."""
        fence_node(self.controller, self._config.node_id)

    def close(self) -> None:
        """Close the metadata log. Idempotent."""
        if self._log is not None:
            self._log.close()
            if self._log.is_failed:
                self._logs.withhold_mark(self._logs.metadata_dir)


def register_node(
    controller: Controller,
    config: BrokerConfig,
    listeners: Iterable[Listener],
    advertised: dict[str, Endpoint],
    directory_ids: Sequence[UUID],
    *,
    is_alone: bool,
) -> None:
    """Store the registration of a node. Args: ``is_alone``: it leads every partition from now on."""
    addresses = [one._replace(host=at.host, port=at.port) for one in listeners if (at := advertised[one.name])]
    rack = config.text("broker.rack") or None

    def plan(image: MetadataImage) -> list[MetadataRecord]:
        return registration_records(
            image,
            image.level,
            controller.end_offset,
            config.node_id,
            addresses,
            rack,
            directory_ids,
            is_alone=is_alone,
        )

    controller.change(plan, frees_space=True)


def fence_node(controller: Controller, node_id: int) -> None:
    """Store that a node is fenced; no effect if it already is. A failure is logged."""
    try:
        controller.change(lambda image: fencing_records(image, image.level, node_id), frees_space=True)
    except (KafkaError, OutcomeUnknownError) as error:  # a later controller waits for the end of the session
        logger.warning("the metadata log lacks the stop of node %d: %s", node_id, error)
