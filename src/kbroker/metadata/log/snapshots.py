"""Snapshots of the image, written when the metadata log has grown or after some time. Source: ``SnapshotGenerator``."""

from __future__ import annotations

import threading

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.loggers import get_logger
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.image_errors import UnwritableMetadataError
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.log.metadata_log import SnapshotWriter

logger = get_logger(__name__)

LOOK_EVERY_MS = 10_000


class Snapshots:
    """Snapshots of a broker's metadata.

    Threads: `publish` under ``lock``; `look` on the scheduler thread, without a lock: it reads images only.
    """

    def __init__(self, controller: Controller, log: SnapshotWriter, config: BrokerConfig, clock: BaseClock) -> None:
        self._controller = controller
        self._log = log
        self.lock = threading.Lock()
        self._clock = clock
        self._most_bytes = config.integer("metadata.log.max.record.bytes.between.snapshots")
        self._interval_ms = config.integer("metadata.log.max.snapshot.interval.ms")
        newest = max(log.snapshots(), default=None)
        self._end_offset = 0 if newest is None else newest.end_offset  # of the latest snapshot
        self._covered_bytes = 0  # the part of the log's new bytes that the latest snapshot contains
        self._changed_ms = clock.now_ms()  # time of the first change after it
        self._unwritable = ""  # the logged reason why the level cannot represent the image

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return true: each change is part of the next snapshot."""
        return True

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Note the time of the first change after a snapshot."""
        if delta.image.offset < self._end_offset:
            self._changed_ms = self._clock.now_ms()

    def look(self) -> None:
        """Write a snapshot if one is due; a failure is logged, and the next call tries again."""
        image = self._controller.image
        if image.offset < self._end_offset or not self._is_due():
            return
        covered_bytes = self._log.new_bytes
        try:
            records = records_of(image, image.level)
            self._log.write_snapshot(records, image.offset, image.epoch, self._clock.wall_ms())
        except OSError as error:
            logger.error("cannot write a snapshot of the metadata at offset %d: %s", image.offset, error)
            return
        except UnwritableMetadataError as error:  # persists until the metadata changes: logged once
            if str(error) != self._unwritable:
                self._unwritable = str(error)
                logger.error("no snapshot of the metadata can be written: %s", error)
            return
        self._unwritable = ""
        self._end_offset, self._covered_bytes = image.offset + 1, covered_bytes
        logger.info("wrote a snapshot of the metadata at offset %d", image.offset)

    def _is_due(self) -> bool:
        if self._log.new_bytes - self._covered_bytes >= self._most_bytes:
            return True
        return 0 < self._interval_ms <= self._clock.now_ms() - self._changed_ms
