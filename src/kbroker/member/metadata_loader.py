"""Loader of the metadata: the records below the high watermark become an image, and the parts of the broker follow it.

Source: ``MetadataLoader``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from kbroker.common.feature_versions import FIRST_LEVEL, LAST_STABLE_LEVEL, METADATA_VERSION, level_text
from kbroker.common.loggers import get_logger
from kbroker.common.threads import have_ended, new_thread
from kbroker.log.log_dir import LogDir
from kbroker.member.follower_log import FollowerLog
from kbroker.member.remote_metadata import RemoteMetadata
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.log.loader import UNUSABLE, reason_of
from kbroker.metadata.log.metadata_log import SnapshotFile
from kbroker.metadata.log.replay import AbortedError, Replay
from kbroker.metadata.records.batches import MetadataBatch
from kbroker.metadata.records.metadata_record import UnknownRecordError
from kbroker.metadata.records.snapshot_files import read_snapshot

logger = get_logger(__name__)

SHORTAGE_BACKOFF_S = 1.0


class LoaderCounts(NamedTuple):
    """Counts of the loader. ``snapshots``: those loaded; ``errors``: failures, each of which ends the loading."""

    snapshots: int
    errors: int


class MetadataLoader:
    """Loader of a member's metadata.

    While the image is held, the loader continues to read, and the image does not change; `release` puts all changes
    since then in force as one. So parts that are made from an image miss no change before they follow it.

    Args: ``on_fault`` is called once, with the reason, if a record cannot be put in force; the image is then unchanged.
    Threads: its own; methods from any.
    Attributes:
        applied_offset: offset of the last replayed record, -1 before; the image may be behind while it is held.
        applied_time_ms: time of that record, -1 before.
        fault: the reason why the loading ended, "" while it continues.
    """

    def __init__(self, log: FollowerLog, metadata: RemoteMetadata, on_fault: Callable[[str], None]) -> None:
        self._log = log
        self._metadata = metadata
        self._on_fault = on_fault
        self._changed = threading.Condition()
        self._high_watermark = -1
        self._snapshot: SnapshotFile | None = None
        self._loaded: SnapshotFile | None = None  # the last snapshot that has replaced the image
        self._is_held = True
        self._is_closed = False
        self._is_busy = False
        self._snapshots = self._errors = 0
        self._replay = Replay()
        self._next_offset = 0  # of the next record to read
        self._epoch = 0  # of the last record that was read
        self.applied_offset = -1
        self.applied_time_ms = -1
        self.fault = ""
        self._thread = new_thread("kafka-metadata-loader", self._run, "metadata-loader")

    @property
    def counts(self) -> LoaderCounts:
        """Numbers of loaded snapshots and of errors."""
        return LoaderCounts(self._snapshots, self._errors)

    def lag_ms(self, now_ms: int) -> int:
        """Return the milliseconds since the time of the last record that was replayed, 0 before the first."""
        return 0 if self.applied_time_ms < 0 else max(0, now_ms - self.applied_time_ms)

    def start(self) -> None:
        """Load the latest usable snapshot of the log, then start the thread; damaged snapshots are removed.

        A snapshot with an unsupported record sets ``fault`` instead, and no thread starts.

        Raises: OSError for lack of descriptors or memory: the snapshot is not damaged.
        """
        for snapshot in reversed(self._log.snapshots()):
            try:
                image = self._image_of(snapshot)
                self._metadata.reset_image(image)
                self._replay.begin(image)
                break
            except (OSError, *UNUSABLE) as error:
                if isinstance(error, UnknownRecordError):
                    self._fail(error)
                    return
                if isinstance(error, OSError) and not LogDir.ends_with(error):
                    raise
                self._log.remove_snapshot(snapshot, reason_of(error))
                self._replay.begin(EMPTY_IMAGE)
        self._thread.start()

    def advance(self, high_watermark: int) -> None:
        """Read the records below the high watermark."""
        if high_watermark > self._high_watermark:
            with self._changed:
                self._high_watermark = high_watermark
                self._changed.notify_all()

    def load_snapshot(self, snapshot: SnapshotFile) -> None:
        """Replace the image by that of a snapshot; the log continues at the end of the snapshot."""
        with self._changed:
            self._snapshot = snapshot
            self._changed.notify_all()

    def publish(self) -> None:
        """Put the present changes into force; the image is held again after that."""
        self._publish_alone(is_held=True)

    def release(self) -> None:
        """Apply the changes since the hold on this thread, and later ones on the loader's thread."""
        self._publish_alone(is_held=False)

    def _publish_alone(self, *, is_held: bool) -> None:
        with self._changed:
            while self._is_busy:
                self._changed.wait()
            self._is_held = is_held
            self._is_busy = True
        try:
            self._publish()
        finally:
            self._set_idle()

    def close(self, timeout_s: float = 10.0) -> bool:
        """End the thread; return whether it ended in time. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        return have_ended([self._thread], timeout_s)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and (self._is_busy or not self._has_work()):
                    self._changed.wait()
                if self._is_closed:
                    return
                self._is_busy = True
            try:
                if self._try_load() and not self._is_held:
                    self._publish()
            except (OSError, *UNUSABLE) as error:
                if self._snapshot is None:
                    self._fail(error)
                else:  # a newer snapshot has replaced the log meanwhile
                    self._begin_again()
            except Exception as error:
                logger.exception("the metadata cannot be put in force")
                self._fail(error)
            finally:
                self._set_idle()
            if self.fault:
                return

    def _has_work(self) -> bool:
        return self._snapshot is not None or self._high_watermark > self._next_offset

    def _set_idle(self) -> None:
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()

    def _try_load(self) -> bool:
        """Read the records; return false after a shortage of descriptors or memory, which does not end the loading."""
        while True:
            try:
                self._load()
                return True
            except AbortedError:
                self._begin_again()
            except OSError as error:
                if self._snapshot is not None or LogDir.ends_with(error):
                    raise
                offset = self.applied_offset
                logger.warning("the metadata of the cluster is read again after offset %d: %s", offset, error)
                self._begin_again()
                with self._changed:
                    if not self._is_closed:
                        self._changed.wait(SHORTAGE_BACKOFF_S)
                return False

    def _load(self) -> None:
        with self._changed:
            snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None and snapshot.end_offset > self._next_offset:
            self._loaded = snapshot
            self._replay.delta = MetadataDelta.between(self._metadata.image, self._image_of(snapshot))
        for batch in self._log.batches(self._next_offset, self._high_watermark):
            self._replay_batch(batch)
            self._next_offset, self._epoch = batch.last_offset + 1, batch.leader_epoch
            if not self._replay.has_open_transaction:
                self.applied_offset, self.applied_time_ms = batch.last_offset, batch.timestamp_ms

    def _begin_again(self) -> None:
        """Drop the records read since the image."""
        image = self._metadata.image
        self._replay.begin(image)
        self.applied_offset, self._next_offset = image.offset, image.offset + 1
        with self._changed:
            if self._snapshot is None and self._loaded is not None and self._loaded.end_offset > self._next_offset:
                self._snapshot = self._loaded  # the log begins after the records that it replaces

    def _publish(self) -> None:
        """Put the changes in force, unless a transaction is open."""
        is_new = self.applied_offset > self._metadata.image.offset
        if self.fault or self._replay.has_open_transaction or not is_new:
            return
        delta = self._replay.delta
        image = delta.apply(self.applied_offset, self._epoch)
        self._replay.begin(image)
        self._metadata.follow(delta, image)

    # ------------------------------------------------------------ records

    def _replay_batch(self, batch: MetadataBatch) -> None:
        self._replay.replay(batch)
        if batch.control:
            self._metadata.kraft_version = self._replay.kraft_version
            self._log.quorum = self._replay.quorum

    def _image_of(self, snapshot: SnapshotFile) -> MetadataImage:
        """Return the image of a snapshot; reading continues at the end of the snapshot."""
        self._replay.begin(EMPTY_IMAGE)
        for batch in read_snapshot(snapshot.path):
            self._replay_batch(batch)
        image = self._replay.delta.apply(snapshot.end_offset - 1, snapshot.epoch)
        self._snapshots += 1
        self._next_offset, self._epoch = snapshot.end_offset, snapshot.epoch
        self.applied_offset = image.offset
        return image

    def _fail(self, error: Exception) -> None:
        """Stop: the image stays at the last complete change."""
        level = self._metadata.image.level
        supported = f"{level_text(METADATA_VERSION, FIRST_LEVEL)} to {level_text(METADATA_VERSION, LAST_STABLE_LEVEL)}"
        self._errors += 1
        self.fault = (
            f"the metadata of the cluster cannot be followed after offset {self.applied_offset}: {reason_of(error)}"
        )
        if isinstance(error, UnknownRecordError):
            self.fault += (
                f"; {METADATA_VERSION} of the cluster was {level_text(METADATA_VERSION, level)}, this broker supports "
                f"{supported}: use a later broker, or lower the level of the cluster"
            )
        logger.critical("%s", self.fault)
        self._on_fault(self.fault)
