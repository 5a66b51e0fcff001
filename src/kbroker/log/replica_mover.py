"""Moves of partitions between log folders (AlterReplicaLogDirs): copy, catch up, replace.

The copy is a folder ``topic-partition.<uuid>-future`` in the target log folder. It gets the bytes of the segments while
the partition is in use. Appends wait only for the last few bytes: the copy takes the partition's name, the log
continues in it, and the former folder is removed. A note in the new folder (``kbroker-moved-from``) names the log
folder that it replaces, so that a start after a crash in between finds which of two folders is out of date; it also
names log folders of earlier moves that have gone offline with a former folder. An earlier crash leaves an incomplete
copy, and the start begins the move again.

Threads: every method from any thread; the copying runs on one thread, step by step, each move in turn.
Source: ``ReplicaAlterLogDirsThread``, ``LogManager.replaceCurrentWithFutureLog``.
"""

from __future__ import annotations

import math
import struct
import threading
import uuid
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TopicPartition
from kbroker.log import checkpoints
from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction._cleaner import ByteThrottle
from kbroker.log.compaction.log_cleaner import LogCleaner
from kbroker.log.hosted_logs import FutureReplica, PartitionEntry, PartitionRegistry
from kbroker.log.log_dir import LogDir, future_folder_name, make_folder, remove_folder
from kbroker.log.log_tasks import LogTasks
from kbroker.log.log_types import SegmentFacts
from kbroker.log.scheduler import Scheduler

logger = get_logger(__name__)

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
CHUNK_BYTES = 1 << 20
STEP_BYTES = 16 << 20  # copied for one move before the next one continues
TAIL_BYTES = 1 << 20  # limit of the bytes that are copied while appends wait
CLEANER_RETRY_MS = 100
INDEX_ENTRY = struct.Struct(">ii")
#: Files of a sealed segment that need no sync: a start rebuilds them where they do not match.
REBUILT = (".index", ".timeindex", ".snapshot")


class SourceError(OSError):
    """A failure to read the partition's own folder."""


class ReplicaMover:
    """Mover of partitions between log folders.

    Args:
        hosted: the partitions.
        log_dirs: the log folders.
        cleaner: leaves a partition alone while it is moved.
        tasks: write the checkpoints of both folders, and remove the former one.
        clock, config: of the broker.
    """

    def __init__(
        self,
        hosted: PartitionRegistry,
        log_dirs: Sequence[LogDir],
        cleaner: LogCleaner,
        tasks: LogTasks,
        clock: BaseClock,
        config: BrokerConfig,
    ) -> None:
        self._hosted = hosted
        self._dirs = log_dirs
        self._cleaner = cleaner
        self._tasks = tasks
        self._config = config
        self._throttle = ByteThrottle(clock)
        self._is_started = self._is_closed = False
        self._close_lock = threading.Lock()  # no step is scheduled after the close
        #: Called with each partition that has been moved, without a lock.
        self.on_moved: Callable[[TopicPartition], object] = lambda key: None
        self.scheduler = Scheduler(clock, "log-mover")
        self.reconfigure()

    def start(self) -> None:
        """Allow moves on a thread, which is created with the first move."""
        self._is_started = True
        if self.scheduler.task_names:
            self.scheduler.start()

    def close(self) -> None:
        """Wait for the step in progress, without its throttle; the next start begins unfinished moves again."""
        with self._close_lock:
            self._is_closed = True
        self._throttle.set_rate(0)
        self.scheduler.close()

    def reconfigure(self) -> None:
        """Apply the configured rate."""
        rate = self._config.value(RATE)
        self._throttle.set_rate(max(1.0, float(rate)) if isinstance(rate, int) else math.inf)

    def move(self, key: TopicPartition, hosted: PartitionEntry, log_dir: LogDir) -> None:
        """Begin to move a partition. Another move of it ends, even if the partition is already in ``log_dir``."""
        with hosted.lock:
            if self._hosted.find(key) is not hosted:
                return  # deleted meanwhile
            if hosted.future is not None and hosted.future.log_dir is log_dir:
                return
            self._hosted.set_future(hosted, None)
            if hosted.log_dir is log_dir:
                return
            future = FutureReplica(log_dir, log_dir.path / future_folder_name(*key))
            self._hosted.set_future(hosted, future)
        logger.info("moving %s-%d to %s", *key, log_dir.path)
        self._again(key, future)
        if self._is_started:
            self.scheduler.start()

    def _again(self, key: TopicPartition, future: FutureReplica, delay_ms: int = 0) -> None:
        with self._close_lock:
            if not self._is_closed:
                self.scheduler.schedule(f"move {key[0]}-{key[1]}", lambda: self._step(key, future), delay_ms=delay_ms)

    # -- one step ----------------------------------------------------------------------------------------------------

    def _step(self, key: TopicPartition, future: FutureReplica) -> None:
        if self._is_closed:
            return  # the next start begins again
        hosted = self._hosted.find(key)
        if hosted is None or hosted.future is not future:
            self._end(key, future)
            return
        source = hosted.log_dir
        assert source is not None
        try:
            for log_dir in (source, future.log_dir):
                if log_dir.is_offline:
                    raise SourceError(f"log folder {log_dir.path} is offline: {log_dir.failure}")
            if not future.is_begun:
                if not self._cleaner.hold(key):
                    self._again(key, future, CLEANER_RETRY_MS)
                    return
                future.is_begun = True
                self._begin(key, hosted, source, future)
            if self._copy(hosted.log, future, STEP_BYTES) > TAIL_BYTES:
                self._again(key, future)
                return
            self._replace(key, hosted, source, future)
        except SourceError as e:
            self._abandon(key, hosted, future, str(e))
        except OSError as e:
            self._hosted.note_failure(future.log_dir, f"moving {key[0]}-{key[1]}", e)
            self._abandon(key, hosted, future, str(e))
        except ValueError as e:  # the log is closed, deleted or failed
            self._abandon(key, hosted, future, str(e))
        except Exception as e:  # no memory, or a defect: the partition can be moved later
            logger.exception("cannot move %s-%d", *key)
            self._abandon(key, hosted, future, repr(e))

    def _begin(self, key: TopicPartition, hosted: PartitionEntry, source: LogDir, future: FutureReplica) -> None:
        folder = source.partition_path(*key)
        try:
            future.formers = self._settle_formers(key, hosted, folder)
            topic_id = checkpoints.read_partition_metadata(folder)
        except OSError as e:
            raise SourceError(str(e)) from e
        if future.log_dir.holds(key):  # a folder of another topic: former folders are removed by now
            future.log_dir.rename_stray(*key)
        make_folder(future.folder)
        if topic_id is not None:
            checkpoints.write_partition_metadata(future.folder, topic_id, is_synced=True)

    def _settle_formers(self, key: TopicPartition, hosted: PartitionEntry, folder: Path) -> list[uuid.UUID]:
        """Remove the remains of earlier moves, durably: with two notes a start could not find the later folder.

        Returns: the ids of the log folders that cannot be examined, which the note still names. Raises: OSError.
        """
        formers = checkpoints.read_moved_from(folder)
        online = {log_dir.directory_id: log_dir for log_dir in self._dirs if not log_dir.is_offline}
        left = [one for one in formers if one not in online]
        for log_dir in (online[one] for one in formers if one in online):
            former = log_dir.partition_path(*key)
            own = (uuid.UUID(bytes=hosted.log.topic_id), None)  # None: a power cut lost the id
            if former.exists() and checkpoints.read_partition_metadata(former) in own:
                self._put_aside(key, hosted, log_dir)
        _note_formers(folder, left)
        if not left:
            checkpoints.sync_folder(folder)
        return left

    def _end(self, key: TopicPartition, future: FutureReplica) -> None:
        remove_folder(future.folder)
        if future.is_begun:
            self._cleaner.release(key)

    def _abandon(self, key: TopicPartition, hosted: PartitionEntry, future: FutureReplica, reason: str) -> None:
        with hosted.lock:
            is_wanted = hosted.future is future  # not if the partition was deleted, or is moved elsewhere
            if is_wanted:
                self._hosted.set_future(hosted, None)
        if is_wanted:
            path = future.log_dir.path
            logger.error("moving %s-%d to %s failed, and the partition stays in its folder: %s", *key, path, reason)
        self._end(key, future)

    # -- copy --------------------------------------------------------------------------------------------------------

    def _copy(self, log: PartitionLog, future: FutureReplica, budget: int) -> int:
        """Copy up to ``budget`` bytes that the copy lacks. Returns: the bytes that it still lacks.

        Raises: SourceError; OSError, when the copy cannot be written.
        """
        segments = log.segments()
        end = log.log_end_offset  # read first: all records below it are within the sizes
        folder = Path(log.directory or "")
        missing = sum(s.size_bytes - future.copied.get(s.base_offset, 0) for s in segments)
        for number, segment in enumerate(segments):
            is_active = number == len(segments) - 1
            if segment.base_offset in future.sealed:
                continue
            try:
                done = self._copy_segment(folder, future, segment, budget, is_active)
            except FileNotFoundError as e:
                if any(s.base_offset == segment.base_offset for s in log.segments()):
                    raise SourceError(str(e)) from e
                continue  # retention removed it meanwhile
            budget -= done
            missing -= done
            if budget <= 0:
                future.end_offset = _offset_at(folder, segment, future.copied[segment.base_offset])
                return missing
            if not is_active:
                for suffix in REBUILT:
                    _copy_file(folder, future.folder, f"{segment.base_offset:020}{suffix}")
                _copy_file(folder, future.folder, f"{segment.base_offset:020}.txnindex", is_synced=True)
                future.sealed.add(segment.base_offset)
        future.end_offset = end
        return missing

    def _copy_segment(
        self, folder: Path, future: FutureReplica, segment: SegmentFacts, budget: int, is_active: bool
    ) -> int:
        """Copy bytes of a segment's file; the copy is synced once it is complete. Returns: their number."""
        name = f"{segment.base_offset:020}.log"
        at = start = future.copied.setdefault(segment.base_offset, 0)
        end = min(segment.size_bytes, start + budget)
        if is_active and at == end > 0:
            return 0
        copy = str(future.folder / name)
        with _open(str(folder / name)) as source, FileIO(copy, "r+" if start else "w") as target:
            while at < end:
                size = min(CHUNK_BYTES, end - at)
                self._throttle.take(size)
                _write(target, _read(source, size, at), at)
                at += size
                future.copied[segment.base_offset] = at
            if at == segment.size_bytes:
                checkpoints.sync_descriptor(target.fileno())
        return at - start

    # -- replace -----------------------------------------------------------------------------------------------------

    def _replace(self, key: TopicPartition, hosted: PartitionEntry, source: LogDir, future: FutureReplica) -> None:
        """Replace the folder by the copy, which lacks at most the latest records.

        No effect if the partition was deleted, or the move has ended. Raises: SourceError, OSError, ValueError.
        """
        target = future.log_dir
        checkpoints.write_moved_from(future.folder, [source.directory_id, *future.formers])
        self._tasks.write_recovery_points(source, target)
        if key in self._tasks.write_log_starts(source, target):
            raise SourceError("the log start offsets could not be written")
        self._cleaner.write_offsets([key])
        with hosted.lock:
            if self._hosted.find(key) is not hosted or hosted.future is not future:
                self._end(key, future)
                return
            hosted.log.move_to(
                str(target.partition_path(*key)),
                lambda: self._complete(hosted.log, future),
                lambda: target.promote(future.folder, *key),
                lambda: _take_back(future, key),
            )
            self._hosted.set_folder(hosted, source, target)
            logger.info("moved %s-%d from %s to %s", *key, source.path, target.path)
            self._cleaner.release(key)
            self._remove_former(key, hosted, source, future.formers)
            self._hosted.set_future(hosted, None)
        self.on_moved(key)

    def _complete(self, log: PartitionLog, future: FutureReplica) -> None:
        """Copy the rest, while appends wait."""
        folder = Path(log.directory or "")
        self._throttle.set_rate(0)
        try:
            self._copy(log, future, 1 << 62)
        finally:
            self.reconfigure()
        *_, active = log.segments()
        name = f"{active.base_offset:020}"
        _copy_file(folder, future.folder, f"{name}.index", active.offset_entries * 8)
        _copy_file(folder, future.folder, f"{name}.timeindex", active.time_entries * 12)
        _copy_file(folder, future.folder, f"{name}.txnindex", is_synced=True)
        _copy_file(folder, future.folder, checkpoints.LEADER_EPOCH_CHECKPOINT)
        for path in folder.glob("*.snapshot"):
            if not (future.folder / path.name).exists():
                _copy_file(folder, future.folder, path.name)
        for base in future.copied.keys() - {segment.base_offset for segment in log.segments()}:
            for suffix in (".log", *REBUILT, ".txnindex"):
                (future.folder / f"{base:020}{suffix}").unlink(missing_ok=True)
        checkpoints.sync_folder(future.folder)

    def _remove_former(
        self, key: TopicPartition, hosted: PartitionEntry, source: LogDir, formers: Sequence[uuid.UUID]
    ) -> None:
        """Remove the folder that was replaced. If that fails, the next move or the next start does it."""
        try:
            self._put_aside(key, hosted, source)
        except OSError as e:
            self._hosted.note_failure(source, f"removing the former folder of {key[0]}-{key[1]}", e)
            return
        try:
            _note_formers(Path(hosted.log.directory or ""), formers)
        except OSError as e:
            logger.warning("the note of the former folder of %s-%d stays: %s", *key, e)

    def _put_aside(self, key: TopicPartition, hosted: PartitionEntry, log_dir: LogDir) -> None:
        """Remove a former folder of a partition; its name is free, durably, when this returns. Raises: OSError."""
        renamed = log_dir.rename_for_delete(*key)
        self._tasks.remove_later(log_dir, renamed, hosted.delete_delay_ms)
        log_dir.sync()


def _note_formers(folder: Path, formers: Sequence[uuid.UUID]) -> None:
    """Replace the note of a partition's former folders; without any it is removed. Raises: OSError."""
    if formers:
        checkpoints.write_moved_from(folder, formers)
    else:
        (folder / checkpoints.MOVED_FROM).unlink(missing_ok=True)


def _take_back(future: FutureReplica, key: TopicPartition) -> None:
    """Rename a copy that got the partition's name and cannot be used, durably. Raises: OSError.

    Otherwise the next start would take the copy for the later folder, and remove the folder in use.
    """
    if not future.folder.exists():
        future.log_dir.rename_for_delete(*key)
        future.log_dir.sync()


def _copy_file(source: Path, target: Path, name: str, max_bytes: int = -1, *, is_synced: bool = False) -> None:
    """Copy a small file, if it exists. Raises: SourceError, OSError."""
    try:
        data = (source / name).read_bytes()
    except FileNotFoundError:
        return
    except OSError as e:
        raise SourceError(str(e)) from e
    with open(target / name, "wb") as file:
        file.write(data if max_bytes < 0 else data[:max_bytes])
        if is_synced:
            file.flush()
            checkpoints.sync_descriptor(file.fileno())


def _open(path: str) -> FileIO:
    """Open a segment's file. Raises: FileNotFoundError, if it was removed; SourceError."""
    try:
        return FileIO(path)
    except FileNotFoundError:
        raise
    except OSError as e:
        raise SourceError(str(e)) from e


def _read(file: FileIO, size_bytes: int, position: int) -> bytes:
    try:
        file.seek(position)
        data = file.read(size_bytes)
    except OSError as e:
        raise SourceError(str(e)) from e
    if len(data) != size_bytes:
        raise SourceError(f"{file.name!r} ends before byte {position + size_bytes}")
    return data


def _write(file: FileIO, data: bytes, position: int) -> None:
    file.seek(position)
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _offset_at(folder: Path, segment: SegmentFacts, position: int) -> int:
    """Return the last offset that the index has before a position, else the base offset: an estimate for a lag."""
    low, high, found = 0, segment.offset_entries, 0
    try:
        with open(folder / f"{segment.base_offset:020}.index", "rb", 0) as file:
            while low < high:
                middle = (low + high) // 2
                file.seek(middle * INDEX_ENTRY.size)
                offset, at = INDEX_ENTRY.unpack(file.read(INDEX_ENTRY.size))
                if at < position:
                    low, found = middle + 1, offset
                else:
                    high = middle
    except (OSError, struct.error):  # removed meanwhile
        return segment.base_offset
    return segment.base_offset + found
