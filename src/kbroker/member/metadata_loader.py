"""Loader of the metadata: the records below the high watermark become an image, and the parts of the broker follow it.

Source: ``MetadataLoader``, ``MetadataBatchLoader``.
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
from kbroker.metadata.log.loader import ABORT, BEGIN, END, UNUSABLE, reason_of
from kbroker.metadata.log.metadata_log import SnapshotFile
from kbroker.metadata.records.batches import MetadataBatch
from kbroker.metadata.records.control_records import KRaftVersion, Voters
from kbroker.metadata.records.metadata_record import UnknownRecordError
from kbroker.metadata.records.snapshot_files import read_snapshot

logger = get_logger(__name__)

NO_TRANSACTION = -1
SHORTAGE_BACKOFF_S = 1.0


class LoaderCounts(NamedTuple):
    """Counts of the loader. ``snapshots``: those loaded; ``errors``: failures, each of which ends the loading."""

    snapshots: int
    errors: int


class MetadataLoader:
    """Loader of a member's metadata.

    While it is held, the loader reads on, but the image stays as it is; `release` puts all changes since in force as
    one. So parts that are made from an image miss nothing before they follow it.

    Args: ``on_fault`` is called once, with the reason, when a record cannot be put in force; the image stays then.
    Threads: its own; methods from any.
    Attributes:
        applied_offset: that of the last record that was replayed, -1 before; the image may be behind while it is held.
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
        self._loaded: SnapshotFile | None = None  # the last one that has replaced the image's records
        self._is_held = True
        self._is_closed = False
        self._is_busy = False
        self._snapshots = self._errors = 0
        self._kraft = KRaftVersion(0)
        self._voters: Voters | None = None
        self._next_offset = 0  # of the next record to read
        self._epoch = 0  # of the last record that was read
        self._transaction = NO_TRANSACTION  # offset of the first record of the open transaction
        self._delta = MetadataDelta(EMPTY_IMAGE)
        self.applied_offset = -1
        self.applied_time_ms = -1
        self.fault = ""
        self._thread = new_thread("kafka-metadata-loader", self._run, "metadata-loader")

    @property
    def counts(self) -> LoaderCounts:
        """Numbers of loaded snapshots and of errors."""
        return LoaderCounts(self._snapshots, self._errors)

    @property
    def kraft_version(self) -> int:
        """Level of kraft.version in the records."""
        return self._kraft.level

    def lag_ms(self, now_ms: int) -> int:
        """Return the milliseconds since the time of the last record that was replayed, 0 before the first."""
        return 0 if self.applied_time_ms < 0 else max(0, now_ms - self.applied_time_ms)

    def start(self) -> None:
        """Load the latest usable snapshot of the log, then start the thread."""
        for snapshot in reversed(self._log.snapshots()):
            try:
                self._metadata.reset_image(self._image_of(snapshot))
                self._delta = MetadataDelta(self._metadata.image)
                break
            except (OSError, *UNUSABLE) as error:
                if isinstance(error, UnknownRecordError):
                    self._fail(error)
                    return
                self._log.remove_snapshot(snapshot, reason_of(error))
        self._thread.start()

    def advance(self, high_watermark: int) -> None:
        """Read the records below the high watermark."""
        if high_watermark > self._high_watermark:
            with self._changed:
                self._high_watermark = high_watermark
                self._changed.notify_all()

    def load_snapshot(self, snapshot: SnapshotFile) -> None:
        """Replace the image by that of a snapshot, from whose end the log continues."""
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
                if self._snapshot is None:  # otherwise a newer snapshot has replaced the log meanwhile
                    self._fail(error)
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
        """Read the records; return false after a shortage of descriptors or memory, which ends no loading."""
        try:
            self._load()
            return True
        except OSError as error:
            if self._snapshot is not None or LogDir.ends_with(error):
                raise
            self._begin_again(error)
            return False

    def _load(self) -> None:
        with self._changed:
            snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None and snapshot.end_offset > self._next_offset:
            self._loaded = snapshot
            self._delta = MetadataDelta.between(self._metadata.image, self._image_of(snapshot))
        for batch in self._log.batches(self._next_offset, self._high_watermark):
            self._replay(batch)
            self._next_offset, self._epoch = batch.last_offset + 1, batch.leader_epoch
            if self._transaction == NO_TRANSACTION:
                self.applied_offset, self.applied_time_ms = batch.last_offset, batch.timestamp_ms

    def _begin_again(self, error: OSError) -> None:
        """Forget what was read since the image, and wait before it is read again."""
        logger.warning("the metadata of the cluster is read again after offset %d: %s", self.applied_offset, error)
        image = self._metadata.image
        self._delta, self._transaction = MetadataDelta(image), NO_TRANSACTION
        self.applied_offset, self._next_offset = image.offset, image.offset + 1
        with self._changed:
            if self._snapshot is None and self._loaded is not None and self._loaded.end_offset > self._next_offset:
                self._snapshot = self._loaded  # the log begins behind the records that it replaces
            if not self._is_closed:
                self._changed.wait(SHORTAGE_BACKOFF_S)

    def _publish(self) -> None:
        """Put the changes in force, unless a transaction is open."""
        if self.fault or self._transaction != NO_TRANSACTION or self.applied_offset <= self._metadata.image.offset:
            return
        delta = self._delta
        image = delta.apply(self.applied_offset, self._epoch)
        self._delta = MetadataDelta(image)
        self._metadata.follow(delta, image)

    # ------------------------------------------------------------ records

    def _replay(self, batch: MetadataBatch) -> None:
        self._note_control(batch)
        for offset, record in enumerate(batch.records, batch.base_offset):
            if record.name == BEGIN:
                self._transaction = offset
            elif record.name == ABORT:
                self._transaction = NO_TRANSACTION
            elif record.name == END:
                self._replay_transaction(offset)
            elif self._transaction == NO_TRANSACTION:
                self._delta.replay(record)

    def _replay_transaction(self, end: int) -> None:
        """Replay the records of a transaction that ends, which are read again instead of kept."""
        begin, self._transaction = self._transaction, NO_TRANSACTION
        if begin == NO_TRANSACTION:
            return
        first = self._log.base_offset_of(begin)
        for batch in self._log.batches(first, self._high_watermark):
            for offset, record in enumerate(batch.records, batch.base_offset):
                if begin < offset < end:
                    self._delta.replay(record)
            if batch.last_offset >= end:
                break

    def _note_control(self, batch: MetadataBatch) -> None:
        for control in batch.control:
            if isinstance(control, KRaftVersion):
                self._kraft = control
            elif isinstance(control, Voters):
                self._voters = control
            else:
                continue
            self._metadata.note_kraft_version(self._kraft.level)
            self._log.quorum = (self._kraft,) if self._voters is None else (self._kraft, self._voters)

    def _image_of(self, snapshot: SnapshotFile) -> MetadataImage:
        """Return the image of a snapshot, from whose end the reading continues."""
        delta = MetadataDelta(EMPTY_IMAGE)
        for batch in read_snapshot(snapshot.path):
            self._note_control(batch)
            for record in batch.records:
                delta.replay(record)
        self._snapshots += 1
        self._transaction = NO_TRANSACTION
        self._next_offset, self._epoch = snapshot.end_offset, snapshot.epoch
        self.applied_offset = snapshot.end_offset - 1
        return delta.apply(self.applied_offset, snapshot.epoch)

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
