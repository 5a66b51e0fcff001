"""The metadata log of a node that follows the quorum: the leader's batches, truncated where the leader's log differs.

Everything in it can be fetched again, so damage does not stop the node: the log is kept up to the first batch that is
not sound, and the rest is fetched.
Source: ``KafkaRaftLog``, ``UnifiedLog.appendAsFollower``, ``LeaderEpochFileCache``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import INT64_MAX
from kbroker.common.errors import ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.log import checkpoints
from kbroker.log.checkpoints import CorruptFileError
from kbroker.metadata.log import quorum_state
from kbroker.metadata.log.metadata_log import MAX_BATCH_BYTES, TOPIC_ID, SnapshotFile, SnapshotWriter, segments_in
from kbroker.metadata.log.quorum_state import QuorumState
from kbroker.metadata.records.batches import MetadataBatch, metadata_batch
from kbroker.metadata.records.metadata_record import UnknownRecordError
from kbroker.metadata.records.snapshot_files import PARTIAL_SUFFIX, read_snapshot, snapshot_name
from kbroker.protocol._records import corrupt
from kbroker.protocol.records import RecordBatch, iter_batches

logger = get_logger(__name__)

READ_BYTES = 1024 * 1024
INDEX_BYTES = 64 * 1024
PROGRESS_BYTES = 64 * 1024 * 1024  # fetched bytes of a snapshot between two log lines
NO_EPOCH = 0  # last epoch of an empty log, as Kafka's lastFetchedEpoch


class _Segment:
    """A file of batches. Threads: one at a time."""

    __slots__ = ("_index", "base_offset", "end_offset", "path", "size_bytes")

    def __init__(self, base_offset: int, path: Path) -> None:
        self.base_offset = self.end_offset = base_offset
        self.path = path
        self.size_bytes = 0
        self._index: list[tuple[int, int]] = []  # offset and position of some batches

    def add(self, batch: RecordBatch) -> None:
        """Add a batch that was written at the end of the file."""
        if not self._index or self.size_bytes - self._index[-1][1] >= INDEX_BYTES:
            self._index.append((batch.base_offset, self.size_bytes))
        self.end_offset = batch.last_offset + 1
        self.size_bytes += batch.size_bytes

    def cut(self, end_offset: int, position: int) -> None:
        """Note that the file ends at a position."""
        self.end_offset, self.size_bytes = end_offset, position
        self._index = [one for one in self._index if one[1] < position]

    def position_before(self, offset: int) -> int:
        """Return the position of the last indexed batch at or below an offset, 0 if there is none."""
        at = bisect_right(self._index, (offset, INT64_MAX)) - 1
        return self._index[at][1] if at >= 0 else 0

    def batches(self, offset: int) -> Iterator[RecordBatch]:
        """Yield the batches, beginning with one at or below an offset. Raises: ProtocolError, OSError."""
        return _batches(self.path, self.position_before(offset), self.size_bytes)

    def remove(self) -> None:
        """Delete the file, and the indexes that Apache Kafka makes of it."""
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)


class FollowerLog(SnapshotWriter):
    """The metadata log of a follower.

    Args: ``log_dir``: the locked folder of the metadata log.
    Raises: OSError. Damaged batches and snapshots are removed.
    Threads: one reads and appends, another writes snapshots. Lock: its own, not held during a sync.
    """

    def __init__(self, log_dir: Path, config: BrokerConfig, clock: BaseClock) -> None:
        super().__init__(log_dir, config, clock)
        self._segment_bytes = config.integer("metadata.log.segment.bytes")
        self._lock = threading.Lock()  # held while the segments are replaced
        self._descriptor = -1  # of the last segment's file, -1 until it is opened
        self._segments: tuple[_Segment, ...] = ()  # immutable: other threads read the ends of the log
        self._epochs: dict[int, int] = {}  # offset of the first batch of each leader epoch
        self._epoch_file = checkpoints.leader_epoch_checkpoint(self.folder / checkpoints.LEADER_EPOCH_CHECKPOINT)
        if not self.folder.is_dir():
            self.folder.mkdir()
            checkpoints.sync_folder(log_dir)
        if not self._has_topic_id():
            checkpoints.write_partition_metadata(self.folder, TOPIC_ID, is_synced=True)
        for path in self.folder.glob(f"*{PARTIAL_SUFFIX}"):
            path.unlink()
        self._open()

    # ------------------------------------------------------------ opening

    def _has_topic_id(self) -> bool:
        """Return whether the file with the topic id is sound; each metadata log has the same id."""
        try:
            return checkpoints.read_partition_metadata(self.folder) is not None
        except CorruptFileError as error:
            logger.warning("%s; it is written again", error)
            return False

    def _open(self) -> None:
        """Read all batches; cut the log at the first one that is not sound."""
        before: _Segment | None = None
        for base_offset, path in segments_in(self.folder):
            segment = _Segment(base_offset, path)
            if before is not None and before.end_offset != base_offset:
                logger.warning("%s: expected a segment at offset %d; it is fetched again", path, before.end_offset)
                segment.remove()
                continue
            is_sound = self._scan(segment)
            self._segments += (segment,)
            before = segment
            if not is_sound:  # the segments after it no longer begin at its end
                with path.open("r+b") as file:
                    file.truncate(segment.size_bytes)
        newest = max(self.snapshots(), default=None)
        if newest is not None and newest.end_offset > self.end_offset:
            self.restart_at(newest)  # after a crash between the snapshot and the removal of the log
        elif self._lacks_snapshot():
            logger.warning(
                "%s: no snapshot of the records below %d; it is fetched again", self.folder, self.start_offset
            )
            self._restart(0)
        elif not self._segments:
            self._restart(0)
        else:
            self._write_epochs()
            self._opened()

    def _lacks_snapshot(self) -> bool:
        """Return whether no snapshot has the records before the first one in the log."""
        return self.start_offset > max((one.end_offset for one in self.snapshots()), default=0)

    def _scan(self, segment: _Segment) -> bool:
        """Set the end of a segment; return false if something that is not a sound batch follows."""
        last = max(self._epochs, default=0)
        try:
            for batch in _batches(segment.path, 0, segment.path.stat().st_size):
                is_sound = batch.is_crc_valid and batch.magic == 2  # the CRC does not cover the magic
                if batch.base_offset != segment.end_offset or not is_sound or batch.leader_epoch < last:
                    logger.warning(
                        "%s: expected a sound batch of offset %d at byte %d; what follows is fetched again",
                        segment.path, segment.end_offset, segment.size_bytes,
                    )  # fmt: skip
                    return False
                last = batch.leader_epoch
                self._epochs.setdefault(last, batch.base_offset)
                segment.add(batch)
        except ProtocolError as error:
            logger.warning("%s: %s; what follows is fetched again", segment.path, error.message)
            return False
        return True

    def remove_snapshot(self, snapshot: SnapshotFile, damage: str) -> None:
        """Remove a damaged snapshot; a log that begins above the remaining snapshots is fetched again."""
        logger.warning("%s cannot be used, and is removed: %s", snapshot.path, damage)
        snapshot.path.unlink()
        if self._lacks_snapshot():
            self._restart(0)

    # ------------------------------------------------------------ reading

    @property
    def start_offset(self) -> int:
        """Offset of the first record that is still in the log."""
        segments = self._segments  # read once: a restart of the log may replace them meanwhile
        return segments[0].base_offset if segments else 0

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        segments = self._segments
        return segments[-1].end_offset if segments else 0

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last record, or of the snapshot before the first one."""
        last = max(self._epochs, default=None)  # read once: a restart of the log may empty the epochs meanwhile
        if last is not None:
            return last
        newest = max(self.snapshots(), default=None)
        return NO_EPOCH if newest is None else newest.epoch

    @property
    def size_bytes(self) -> int:
        """Size of the segments."""
        return sum(segment.size_bytes for segment in self._segments)

    def _remove_below(self, offset: int, now_ms: int) -> None:
        with self._lock:
            while len(self._segments) > 1 and self._segments[0].end_offset <= offset:
                removed, *kept = self._segments
                self._segments = tuple(kept)
                removed.remove()

    def batches(self, offset: int, end_offset: int) -> Iterator[MetadataBatch]:
        """Yield the batches from ``offset`` on that end at or below ``end_offset``.

        Raises: ProtocolError, UnknownRecordError, OSError.
        """
        for segment in self._segments:
            if segment.end_offset <= offset or max(segment.base_offset, offset) >= end_offset:
                continue
            for batch in segment.batches(offset):
                if batch.base_offset >= offset:
                    yield metadata_batch(batch)
                if batch.last_offset + 1 >= end_offset:  # later batches may be truncated meanwhile
                    return

    # ------------------------------------------------------------ writing

    def append(self, records: bytes | memoryview, epoch: int) -> int:
        """Append the sound batches of a Fetch response; return the number of appended records.

        Nothing is synced, because a leader does not count observers.
        Args: ``epoch``: the current one, above which no batch is valid. Raises: ProtocolError: the first batch is not
        sound, nothing is appended; OSError: nothing is appended, or only the epochs or the next segment are missing.
        """
        segment = self._segments[-1]
        end_offset, size_bytes, last = segment.end_offset, 0, self.last_epoch
        sound: list[RecordBatch] = []
        damage = "records without a whole batch"
        try:
            for batch in iter_batches(records, allow_truncated=True):
                follows = batch.base_offset == end_offset and last <= batch.leader_epoch <= epoch
                if not follows or not batch.is_crc_valid or batch.size_bytes > MAX_BATCH_BYTES:
                    damage = (
                        f"a batch of offset {batch.base_offset} and epoch {batch.leader_epoch} that does not follow "
                        f"offset {end_offset} and epoch {last}, is larger than {MAX_BATCH_BYTES} bytes, or is damaged"
                    )
                    break
                sound.append(batch)
                end_offset, last = batch.last_offset + 1, batch.leader_epoch
                size_bytes += batch.size_bytes
        except ProtocolError as error:
            damage = f"a damaged batch: {error.message}"
        if not sound:  # a damaged batch after sound ones is fetched again, and is then the first
            raise corrupt(f"expected sound records from offset {end_offset} on, found {damage}")
        self._write(segment, bytes(records[:size_bytes]))
        count, epochs = end_offset - segment.end_offset, len(self._epochs)
        for batch in sound:
            segment.add(batch)
            self._epochs.setdefault(batch.leader_epoch, batch.base_offset)
        self.new_bytes += size_bytes
        if len(self._epochs) > epochs:
            self._write_epochs()
        if segment.size_bytes >= self._segment_bytes:
            self.flush()
            self._add_segment(end_offset)
        return count

    def _write(self, segment: _Segment, data: bytes) -> None:
        left, position, descriptor = memoryview(data), segment.size_bytes, self._opened()
        try:
            while left:  # after a short write the next one raises the error, such as ENOSPC
                written = os.pwrite(descriptor, left, position)
                left, position = left[written:], position + written
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, segment.size_bytes)
            raise

    def end_of_common(self, epoch: int, end_offset: int) -> int:
        """Return the end of the records that the leader has, too.

        Args: ``epoch``: the leader's largest epoch that is at most this log's last one; ``end_offset``: its end there.
        """
        ends = [self.end_offset, *(start for later, start in self._epochs.items() if later > epoch)]
        if epoch in self._epochs:
            ends.append(end_offset)
        return max(min(ends), self.start_offset)

    def truncate(self, offset: int) -> None:
        """Cut off the batches that do not end at or below an offset. Raises: OSError."""
        self._close_file()
        while len(self._segments) > 1 and self._segments[-1].base_offset >= offset:
            with self._lock:
                *kept, removed = self._segments
                self._segments = tuple(kept)
                removed.remove()
        segment = self._segments[-1]
        position = segment.position_before(offset)
        for batch in segment.batches(offset):
            if batch.last_offset >= offset:
                segment.cut(batch.base_offset, position)
                break
            position += batch.size_bytes
        os.ftruncate(self._opened(), segment.size_bytes)
        self._epochs = {epoch: start for epoch, start in self._epochs.items() if start < segment.end_offset}
        self._write_epochs()

    def restart_at(self, snapshot: SnapshotFile) -> None:
        """Remove all batches and older snapshots: the log begins at the end of the snapshot."""
        self._restart(snapshot.end_offset)
        for one in self.snapshots():
            if one.end_offset < snapshot.end_offset:
                one.path.unlink(missing_ok=True)

    def _restart(self, offset: int) -> None:
        """Remove all batches: the log begins at an offset."""
        self._close_file()
        with self._lock:
            for segment in self._segments:
                segment.remove()
            self._segments = ()
        self._epochs.clear()
        self._add_segment(offset)
        self._write_epochs()

    def _add_segment(self, offset: int) -> None:
        """Continue in a new segment."""
        path = self.folder / f"{offset:020}.log"
        path.touch()
        checkpoints.sync_folder(self.folder)
        self._close_file()
        with self._lock:
            self._segments += (_Segment(offset, path),)

    def _opened(self) -> int:
        """Return the descriptor of the last segment, after opening it if necessary. Raises: OSError."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._segments[-1].path, os.O_WRONLY | os.O_CLOEXEC)
        return self._descriptor

    def _close_file(self) -> None:
        """Close the last segment before another becomes the last: its descriptor must not stay open if a step fails."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def flush(self) -> None:
        """Make the last segment durable. Raises: OSError."""
        checkpoints.sync_descriptor(self._opened())

    def close(self) -> None:
        """Close the log; its content is on disk, unless the sync failed. Idempotent."""
        if self._descriptor >= 0:
            try:
                checkpoints.sync_descriptor(self._descriptor)
            except OSError as error:  # the next start checks it, and fetches damaged parts again
                logger.warning("%s cannot be synced: %s", self.folder, error)
            self._close_file()

    # ------------------------------------------------------------ epochs

    def _write_epochs(self) -> None:
        self._epoch_file.write(self._epochs)

    def read_quorum_state(self) -> QuorumState:
        """Return the leader and epoch written last; without a sound file, no leader and the last epoch of the log."""
        try:
            found = quorum_state.read_quorum_state(self.folder)
        except CorruptFileError as error:
            logger.warning("%s: ignored, the controllers have the epoch", error)
            found = None
        return QuorumState(-1, max(self.last_epoch, 0)) if found is None else found

    def write_quorum_state(self, state: QuorumState, kraft_version: int) -> None:
        """Write the leader and the epoch durably, before this node acts in the epoch. Raises: OSError."""
        quorum_state.write_quorum_state(self.folder, state, kraft_version)

    # ------------------------------------------------------------ snapshots

    def find_snapshot(self, end_offset: int, epoch: int) -> SnapshotFile | None:
        """Return the snapshot of this id, None if it does not exist."""
        path = self.folder / snapshot_name(end_offset, epoch)
        return SnapshotFile(end_offset, epoch, path) if path.exists() else None

    def begin_snapshot(self, end_offset: int, epoch: int) -> SnapshotDownload:
        """Begin the download of a snapshot from the leader, and return it. Raises: OSError."""
        return SnapshotDownload(SnapshotFile(end_offset, epoch, self.folder / snapshot_name(end_offset, epoch)))


def _batches(path: Path, position: int, end: int) -> Iterator[RecordBatch]:
    """Yield the batches of a file between two positions, read piece by piece. Raises: ProtocolError, OSError."""
    most_bytes = READ_BYTES
    with path.open("rb") as file:
        while position < end:
            begin, size_bytes = position, min(most_bytes, end - position)
            data = os.pread(file.fileno(), size_bytes, position)
            for batch in iter_batches(data, allow_truncated=size_bytes < end - position):
                position += batch.size_bytes
                yield batch
            if position == begin and not data:
                raise corrupt(f"expected a batch at byte {position}, found the end of the file")
            if position == begin:  # the batch is larger than the piece
                if most_bytes >= MAX_BATCH_BYTES:
                    raise corrupt(f"expected a batch of up to {MAX_BATCH_BYTES} bytes at byte {position}, found more")
                most_bytes *= 2


class SnapshotDownload:
    """A snapshot of the leader that is being fetched, into a file with another suffix. Threads: one at a time."""

    def __init__(self, target: SnapshotFile) -> None:
        self.target = target
        self.size_bytes = 0
        self._total_bytes = -1  # as in the response with the first part, -1 before
        self._partial = target.path.with_name(target.path.name + PARTIAL_SUFFIX)
        self._file = self._partial.open("wb")

    def append(self, data: bytes | memoryview, total_bytes: int) -> bool:
        """Append the next bytes; return whether the snapshot has all of its ``total_bytes``.

        Raises: OSError, such as ENOSPC for more bytes than are free. ProtocolError: the parts contradict each other.
        """
        if self._total_bytes < 0:
            self._reserve(total_bytes)
            self._total_bytes = total_bytes
        begin, self.size_bytes = self.size_bytes, self.size_bytes + len(data)
        if total_bytes != self._total_bytes or self.size_bytes > total_bytes or not (data or begin == total_bytes):
            raise corrupt(
                f"expected a part of the {self._total_bytes} bytes of a snapshot from byte {begin} on, found "
                f"{len(data)} bytes of {total_bytes}"
            )
        self._file.write(data)
        if begin // PROGRESS_BYTES != self.size_bytes // PROGRESS_BYTES:
            logger.info("fetched %d of %d bytes of the snapshot", self.size_bytes, total_bytes)
        return self.size_bytes == total_bytes

    def _reserve(self, size_bytes: int) -> None:
        """Refuse a snapshot that is larger than the disk's free space. Raises: OSError."""
        disk = os.fstatvfs(self._file.fileno())
        free_bytes = disk.f_bavail * disk.f_frsize
        if size_bytes > free_bytes:
            reason = f"{os.strerror(errno.ENOSPC)}: a snapshot of {size_bytes} bytes, {free_bytes} bytes are free"
            raise OSError(errno.ENOSPC, reason, str(self._partial))

    def finish(self) -> SnapshotFile:
        """Make the file durable under its name, and return it. Raises: OSError. ProtocolError: it is damaged."""
        self._file.flush()
        with contextlib.suppress(UnknownRecordError):  # the loader reports it with the remedy
            for _ in read_snapshot(self._partial):
                pass
        checkpoints.sync_descriptor(self._file.fileno())
        self._file.close()
        self._partial.replace(self.target.path)
        checkpoints.sync_folder(self.target.path.parent)
        return self.target

    def abandon(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):  # a full disk: the buffered bytes are no longer needed
            self._file.close()
        self._partial.unlink(missing_ok=True)
