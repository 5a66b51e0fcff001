"""The partition ``__cluster_metadata-0``: records of the cluster's metadata, and snapshots of them.

A change, or several that are made together, is one batch, so that a crash leaves all of its records or none; it is on
disk when `flush` returns.
Source: ``KafkaRaftLog``, ``KafkaRaftClient``, ``SnapshotGenerator``; spec: KIP-595, KIP-630.
"""

import contextlib
import errno
import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import INT32_MAX, INT64_MAX
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC
from kbroker.log import checkpoints, clean_shutdown
from kbroker.log._partition_log import PartitionLog
from kbroker.metadata.log import quorum_state
from kbroker.metadata.log.quorum_state import QuorumState
from kbroker.metadata.log.tail_check import check_tail
from kbroker.metadata.records.batches import MetadataBatch, read_batches
from kbroker.metadata.records.control_records import ControlRecord
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.records.snapshot_files import read_snapshot, snapshot_id, snapshot_name, write_snapshot
from kbroker.protocol._records import corrupt

logger = get_logger(__name__)

FOLDER_NAME = f"{CLUSTER_METADATA_TOPIC}-0"
TOPIC_ID = uuid.UUID(int=1)
RESERVE_NAME = "kbroker-metadata-reserve"
RESERVE_BYTES = 256 * 1024
START_BYTES = 128 * 1024  # part of the reserve that is left for the next start
READ_BYTES = 128 * 1024
MAX_BATCH_BYTES = 8 * 1024 * 1024  # maximum size of a batch: the smallest segment of Apache Kafka has one batch

_SEGMENT = re.compile(r"[0-9]{20}\.log")


class MetadataLogError(RuntimeError):
    """Metadata log that cannot be used; the message names the file, the damage and the remedy."""


class SnapshotFile(NamedTuple):
    """A snapshot: it replaces the records below ``end_offset``."""

    end_offset: int
    epoch: int
    path: Path


class SegmentFile(NamedTuple):
    """A segment of the log."""

    base_offset: int
    path: Path


def recovery_command(*log_dirs: Path) -> str:
    """Return the advice for a metadata log that is lost or damaged. Args: ``log_dirs``: the one with the log first."""
    folders = " ".join(map(str, log_dirs))
    return f"rebuild it with 'kbroker log recover-metadata {folders}', or restore it from a backup"


def snapshots_in(folder: Path) -> list[SnapshotFile]:
    """Return the snapshots of records, the oldest first, without that of the first voters (0-0)."""
    names = os.listdir(folder) if folder.is_dir() else ()
    ids = ((snapshot_id(name), folder / name) for name in names)
    return sorted(SnapshotFile(*found, path) for found, path in ids if found is not None and found != (0, 0))


def segments_in(folder: Path) -> list[SegmentFile]:
    """Return the segments of the log, the oldest first."""
    names = os.listdir(folder) if folder.is_dir() else ()
    return sorted(SegmentFile(int(name[:20]), folder / name) for name in names if _SEGMENT.fullmatch(name))


def check_next(batch: MetadataBatch, offset: int, first_epoch: int, last_epoch: int) -> None:
    """Check the fields of a batch that its checksum does not cover. Raises: ProtocolError."""
    if batch.base_offset != offset:
        raise corrupt(f"expected a batch at offset {offset}, found {batch.base_offset}")
    if not first_epoch <= batch.leader_epoch <= last_epoch:
        raise corrupt(
            f"expected leader epoch {first_epoch} to {last_epoch}, found {batch.leader_epoch}", batch.base_offset
        )


class _Folder:
    """The folder of a metadata log, ``folder`` in ``log_dir``. ``others``: the other log folders of the broker."""

    def __init__(self, log_dir: Path, others: Sequence[Path] = (), folder: Path | None = None) -> None:
        self.log_dir = log_dir
        self.others = others
        self.folder = log_dir / FOLDER_NAME if folder is None else folder

    @property
    def advice(self) -> str:
        """Advice for a damaged metadata log."""
        return recovery_command(self.log_dir, *self.others)

    def snapshots(self) -> list[SnapshotFile]:
        """Return the snapshots of records, the oldest first."""
        return snapshots_in(self.folder)

    def first_batches(self) -> Iterator[MetadataBatch]:
        """Yield the batches of the snapshot with the quorum's first voters, none if it does not exist."""
        path = self.folder / snapshot_name(0, 0)
        return read_snapshot(path) if path.exists() else iter(())

    def _last_epoch(self) -> int:
        """Return the largest epoch that the files name. Raises: MetadataLogError.

        leader-epoch-checkpoint is not synced, so a power cut may leave it empty. The file is then rebuilt
        from the batches; quorum-state, which is synced before the first record of an epoch, has the epoch.
        """
        epochs = [snapshot.epoch for snapshot in self.snapshots()]
        path = self.folder / checkpoints.LEADER_EPOCH_CHECKPOINT
        try:
            epochs += checkpoints.leader_epoch_checkpoint(path).read()
        except checkpoints.CorruptFileError as error:
            logger.warning("%s: ignored, the epochs of the batches replace it", error)
        try:
            state = quorum_state.read_quorum_state(self.folder)
        except checkpoints.CorruptFileError as error:
            raise MetadataLogError(f"{error}; {self.advice}") from None
        epoch = max([0 if state is None else state.leader_epoch, *epochs, 0])
        if epoch >= INT32_MAX:
            raise self._damaged(f"expected leader epochs below {INT32_MAX}, found {epoch}")
        return epoch

    def _check_end(self, end_offset: int) -> None:
        """Check that the log reaches the end of the latest snapshot. Raises: MetadataLogError."""
        newest = max(self.snapshots(), default=None)
        if newest is not None and end_offset < newest.end_offset:
            raise MetadataLogError(
                f"{self.folder} ends at offset {end_offset}, expected {newest.end_offset} or more, the end of "
                f"{newest.path.name}; {self.advice}"
            )

    def _damaged(self, reason: object) -> MetadataLogError:
        return MetadataLogError(f"{self.folder} is damaged: {reason}; {self.advice}")


class LogFiles(_Folder):
    """The files of a metadata log that no broker has open; nothing is changed. See ``MetadataLog``.

    Args: ``folder``: folder of the metadata partition, by default the one in ``log_dir``; ``others``: the other log
    folders of the broker.
    """

    def __init__(self, log_dir: Path, folder: Path | None = None, others: Sequence[Path] = ()) -> None:
        super().__init__(log_dir, others, folder)
        self._segments = segments_in(self.folder)
        self._epoch_limit = INT32_MAX
        self.start_offset = self._segments[0].base_offset if self._segments else 0
        self.end_offset = self.start_offset  # after the batches that were read
        self.torn_bytes = 0  # incomplete batch at the end, which is not read

    @property
    def is_empty(self) -> bool:
        """True if there is neither a record nor a snapshot of records."""
        return not any(segment.path.stat().st_size for segment in self._segments) and not self.snapshots()

    def batches(self, offset: int) -> Iterator[MetadataBatch]:
        """Yield the batches from ``offset`` on, and move ``end_offset`` to the end of the checked ones.

        Raises: ProtocolError at the first damage; OSError.
        """
        epoch, following = 0, self.start_offset
        ends = [*(segment.base_offset for segment in self._segments[1:]), INT64_MAX]
        for segment, end in zip(self._segments, ends, strict=False):
            if end <= offset:
                following = end
                continue
            data = segment.path.read_bytes()
            if end == INT64_MAX:
                data = data[: len(data) - self.torn_bytes]
            for batch in read_batches(data):
                check_next(batch, following, epoch, self._epoch_limit)
                following, epoch = batch.last_offset + 1, batch.leader_epoch
                self.end_offset = following
                if batch.base_offset >= offset:
                    yield batch
        self.end_offset = following


class StartableLog(LogFiles):
    """The files of a metadata log, with the checks of a start.

    Args: ``others``: the other log folders of the broker.
    Raises: MetadataLogError for damage, even while reading; OSError.
    """

    def __init__(self, log_dir: Path, others: Sequence[Path] = ()) -> None:
        super().__init__(log_dir, others=others)
        self._epoch_limit = self._last_epoch()
        if self._segments:
            last, is_clean = self._segments[-1], (log_dir / clean_shutdown.FILE_NAME).exists()
            try:
                kept = check_tail(last.path, last.base_offset, self._epoch_limit, is_clean=is_clean)
            except ProtocolError as error:
                raise self._damaged(error.message) from None
            self.torn_bytes = last.path.stat().st_size - kept

    def batches(self, offset: int) -> Iterator[MetadataBatch]:
        """Yield the batches from ``offset`` on. Raises: ProtocolError, MetadataLogError for damage; OSError."""
        yield from super().batches(offset)
        self._check_end(self.end_offset)


class SnapshotWriter(_Folder, ABC):
    """The part of a metadata log that writes snapshots. Threads: `write_snapshot` by one thread.

    Args: ``log_dir``: the locked folder of the metadata log; ``others``: the other log folders of the broker.
    Attributes:
        new_bytes: size of the batches after the snapshot that was loaded, and of those that were appended since.
        quorum: control records of kraft.version and the voters, which begin every snapshot.
    """

    def __init__(self, log_dir: Path, config: BrokerConfig, clock: BaseClock, others: Sequence[Path] = ()) -> None:
        super().__init__(log_dir, others)
        self.new_bytes = 0
        self.quorum: Sequence[ControlRecord] = ()
        self._clock = clock
        self._retention_bytes = config.integer("metadata.max.retention.bytes")
        self._retention_ms = config.integer("metadata.max.retention.ms")

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Size of the segments."""

    @abstractmethod
    def _remove_below(self, offset: int, now_ms: int) -> None:
        """Remove the segments whose records are all below an offset."""

    def write_snapshot(self, records: Iterable[MetadataRecord], offset: int, epoch: int, timestamp_ms: int) -> None:
        """Write a snapshot of all records up to ``offset``, then remove the files that newer snapshots cover.

        Args: ``records``: the image at ``offset``; ``epoch``: that of the record at ``offset``; ``timestamp_ms``: now.
        Raises: OSError; earlier snapshots are then unchanged.
        """
        path = self.folder / snapshot_name(offset + 1, epoch)
        if not path.exists():
            write_snapshot(
                path, records, timestamp_ms, last_contained_log_timestamp_ms=timestamp_ms, control=self.quorum
            )
        self._remove_covered()

    def _remove_covered(self) -> None:
        """Remove the oldest snapshots beyond the retention size or time, and the segments that the next one covers."""
        snapshots = self.snapshots()
        now_ms = self._clock.wall_ms()
        while len(snapshots) > 1:
            sizes = sum(one.path.stat().st_size for one in snapshots) + self.size_bytes
            age_ms = now_ms - snapshots[1].path.stat().st_mtime * 1000
            is_large = 0 <= self._retention_bytes < sizes
            if not is_large and not 0 <= self._retention_ms < age_ms:
                break
            oldest = snapshots.pop(0)
            self._remove_below(snapshots[0].end_offset, now_ms)
            oldest.path.unlink(missing_ok=True)


class MetadataLog(SnapshotWriter):
    """The metadata log of a node that is the quorum's only voter, opened for a new leader epoch.

    Args: ``log_dir``: the locked folder of the metadata log; ``is_clean``: everything in it was on disk when it was
    closed; ``others``: the other log folders of the broker.
    Raises: MetadataLogError for damage; OSError.
    Threads: `append` and `flush` by one thread at a time, the controller's; `write_snapshot` by another.
    """

    def __init__(
        self, log_dir: Path, config: BrokerConfig, clock: BaseClock, *, is_clean: bool, others: Sequence[Path] = ()
    ) -> None:
        super().__init__(log_dir, config, clock, others)
        self._is_failing = False
        self.folder.mkdir(exist_ok=True)
        self.epoch = self._last_epoch() + 1
        try:
            segments = segments_in(self.folder)
            if segments:
                check_tail(segments[-1].path, segments[-1].base_offset, self.epoch - 1, is_clean=is_clean)
            self._log = PartitionLog(
                self.folder,
                CLUSTER_METADATA_TOPIC,
                0,
                TOPIC_ID,
                {
                    "segment.bytes": config.integer("metadata.log.segment.bytes"),
                    "segment.ms": config.integer("metadata.log.segment.ms"),
                    "max.message.bytes": MAX_BATCH_BYTES,
                    "retention.bytes": -1,
                    "retention.ms": -1,
                    "file.delete.delay.ms": 0,
                },
                clock,
                clean=is_clean,
                leader_epoch=self.epoch,
            )
        except ProtocolError as error:
            raise self._damaged(error.message) from None
        except ValueError as error:
            raise MetadataLogError(f"{self.folder}: {error}") from None
        if self._log.damage is not None:
            damage = self._log.damage
            self._log.close(clean=False)
            raise self._damaged(damage)
        if self._log.cut is not None:
            logger.warning("%s: %s", self.folder, self._log.cut)
        self._check_end(self.end_offset)

    # ------------------------------------------------------------ reading

    @property
    def start_offset(self) -> int:
        """Offset of the first record that is still in the log."""
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        return self._log.log_end_offset

    @property
    def size_bytes(self) -> int:
        """Size of the segments."""
        return self._log.size_bytes

    def _remove_below(self, offset: int, now_ms: int) -> None:
        self._log.delete_records(offset)
        self._log.apply_retention(now_ms)
        self._log.purge_deleted(now_ms)

    def batches(self, offset: int) -> Iterator[MetadataBatch]:
        """Yield the batches of the log from ``offset`` on, and count their bytes as new.

        Raises: ProtocolError for damage; OSError.
        """
        epoch = 0
        while offset < self.end_offset:
            found = self._log.read(offset, READ_BYTES)
            self.new_bytes += len(found.records)
            before = offset
            for batch in read_batches(found.records, allow_truncated=True) if not found.error else ():
                check_next(batch, offset, epoch, self.epoch - 1)
                offset, epoch = batch.last_offset + 1, batch.leader_epoch
                yield batch
            if offset == before:
                raise corrupt(f"the batch at offset {offset} cannot be read: error {found.error}")

    # ------------------------------------------------------------ writing

    def begin_epoch(self, leader_id: int, kraft_version: int) -> None:
        """Write the leader and the epoch to ``quorum-state``, before the first record of the epoch. Raises: OSError."""
        state = QuorumState(leader_id, self.epoch)
        try:
            quorum_state.write_quorum_state(self.folder, state, kraft_version)
        except OSError:  # perhaps the disk is full
            if not self._release(0):
                raise
            quorum_state.write_quorum_state(self.folder, state, kraft_version)

    def append(self, batch: bytes, *, frees_space: bool = False, is_start: bool = False) -> None:
        """Append a batch, which gets the next offsets and the epoch; `flush` makes it durable.

        Earlier batches are flushed first, because a power cut may keep a later write and lose an earlier one. So only
        the last batch can be incomplete, and an incomplete batch before another one is damage.

        Args: ``frees_space``: the change may use the space that is reserved for a full disk; ``is_start``: also the
        space that is reserved for a start.
        Raises: KafkaError KAFKA_STORAGE_ERROR, when nothing was appended; OSError, when that is unknown.
        """
        if not frees_space:
            self._reserve()
        if self._log.flushed_offset < self.end_offset:
            try:
                self.flush()
            except OSError as error:
                raise OSError(error.errno, f"the metadata log cannot be synced: {error.strerror}") from None
        info = self._log.append(batch, is_client=False)
        if info.error and frees_space and self._release(0 if is_start else START_BYTES):
            info = self._log.append(batch, is_client=False)
        if info.error:
            self._remove_rest()
            raise self._refused(info.message)
        self.new_bytes += len(batch)
        if self._is_failing:
            self._is_failing = False
            logger.info("%s can be written again", self.folder)

    def _refused(self, reason: object) -> KafkaError:
        if not self._is_failing:
            self._is_failing = True
            logger.error("%s cannot be written, changes are refused until it can be: %s", self.folder, reason)
        return KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Cannot write the metadata log: {reason}")

    def _remove_rest(self) -> None:
        """Make sure that no part of a refused batch reappears, not even after a power cut. Raises: OSError."""
        segment = self._log.segments()[-1]
        path = self.folder / f"{segment.base_offset:020}.log"
        try:
            with path.open("r+b") as file:
                if os.fstat(file.fileno()).st_size > segment.size_bytes:  # an earlier attempt to cut it off failed
                    file.truncate(segment.size_bytes)
                checkpoints.sync_descriptor(file.fileno())
        except OSError as error:
            if error.errno != errno.EROFS:  # nothing of the batch reaches a disk that has become read-only
                raise

    def flush(self) -> None:
        """Make all appended batches durable. Raises: OSError; it is then unknown which of them are."""
        self._log.flush()

    @property
    def is_failed(self) -> bool:
        """True after a failed sync: some of the appended batches may not be on disk."""
        return self._log.is_failed

    def close(self) -> None:
        """Close the log; the appended batches are on disk, unless a sync failed. Idempotent."""
        if not self._log.is_closed:
            self._log.close(clean=not self.is_failed)

    # ------------------------------------------------------------ space for a full disk

    def _reserve(self) -> None:
        """Reserve space, so that deleting works on a full disk. Raises: KafkaError."""
        path = self.log_dir / RESERVE_NAME
        try:
            if path.exists() and path.stat().st_size >= RESERVE_BYTES:
                return
            checkpoints.write_atomically(path, b"\0" * RESERVE_BYTES)
        except OSError as error:
            raise self._refused(f"no space can be kept for a full disk: {error}") from None

    def _release(self, kept_bytes: int) -> bool:
        """Free the reserved space except ``kept_bytes``; return whether there was more."""
        path = self.log_dir / RESERVE_NAME
        with contextlib.suppress(OSError):
            if path.stat().st_size > kept_bytes:
                os.truncate(path, kept_bytes)
                return True
        return False
