"""Opening of all log folders of a broker: those of the partitions, and that of the metadata log."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TopicPartition
from kbroker.log import checkpoints
from kbroker.log.checkpoints import MetaPropertiesMismatch
from kbroker.log.log_dir import LogDir, LogDirError

logger = get_logger(__name__)


IN_MEMORY = "memory"  # path of the log folder when logs are kept in memory


class Replica(NamedTuple):
    """A replica in a log folder. ``offset_lag``: the number of offsets that a future replica lacks, else 0."""

    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDirView(NamedTuple):
    """A log folder. ``failure``: the reason why it is offline, "" if it is online."""

    path: str
    failure: str
    replicas: dict[TopicPartition, list[Replica]]


class LogDirs(NamedTuple):
    """The log folders of a broker.

    ``usable``: in the order of log.dirs; ``unusable``: the others, with the reason; ``metadata``: the folder of the
    metadata log, which need not be among them.
    """

    usable: list[LogDir]
    unusable: dict[Path, str]
    metadata: LogDir

    @property
    def all(self) -> list[LogDir]:
        """The usable folders, and that of the metadata log."""
        return self.usable if self.metadata in self.usable else [*self.usable, self.metadata]

    @property
    def previous_broker_epoch(self) -> int:
        """Broker epoch of the last stop, if it was clean in all folders, at the same epoch; else -1."""
        epochs = {log_dir.marked_epoch if log_dir.was_clean else -1 for log_dir in self.usable}
        return epochs.pop() if len(epochs) == 1 else -1

    def mark_untouched(self, broker_epoch: int) -> None:
        """Write the clean-shutdown marks again, for a broker that opens no log: a kill then leaves its folders clean.

        Args: ``broker_epoch``: -1: each mark keeps its epoch.
        """
        for log_dir in self.usable:
            if log_dir.is_still_clean:
                log_dir.mark_clean(broker_epoch)


def open_log_dirs(paths: Sequence[str | Path], metadata_path: str | Path, node_id: int, clock: BaseClock) -> LogDirs:
    """Lock and open log folders; that of the metadata log and at least one of ``paths`` must be usable.

    Outside ``paths`` the folder of the metadata log counts as not cleanly closed: Apache Kafka neither writes
    nor removes a mark there.
    Raises: LogDirError; FolderLockedError; MetaPropertiesMismatch; CorruptFileError.
    """
    absolute = [Path(os.path.abspath(path)) for path in paths]
    by_real_path = {os.path.realpath(path): path for path in absolute}
    if len(by_real_path) < len(absolute):
        raise LogDirError(f"Duplicate log directory found: {', '.join(map(str, absolute))}")
    metadata = by_real_path.get(os.path.realpath(metadata_path), Path(os.path.abspath(metadata_path)))
    every = [metadata, *(path for path in absolute if path != metadata)]
    cluster_id = None
    opened: dict[Path, LogDir] = {}
    unusable: dict[Path, str] = {}
    try:
        for path in every:
            try:
                known = cluster_id if len(every) == 1 else cluster_id or _cluster_of(every)
                log_dir = LogDir(path, known, node_id, clock)
            except LogDirError as e:
                if path == metadata or len(unusable) == len(absolute) - 1:
                    raise
                unusable[path] = str(e)
                logger.critical("log folder %s is offline: %s", path, e)
                continue
            cluster_id = log_dir.owner.cluster_id
            _check_id(log_dir, opened.values())
            opened[path] = log_dir
    except BaseException:
        for log_dir in opened.values():
            log_dir.close(clean=log_dir.was_clean and log_dir.path in absolute)
        raise
    if metadata not in absolute:
        opened[metadata].was_clean = False
    return LogDirs([opened[path] for path in absolute if path in opened], unusable, opened[metadata])


def _check_id(log_dir: LogDir, others: Iterable[LogDir]) -> None:
    """Check that no other folder has the id of ``log_dir``. Raises: MetaPropertiesMismatch; closes ``log_dir``."""
    for other in others:
        if other.directory_id == log_dir.directory_id:
            log_dir.close(clean=log_dir.was_clean)
            raise MetaPropertiesMismatch(
                f"Duplicate directory ID {checkpoints.uuid_to_text(log_dir.directory_id)} found. It was the ID of "
                f"{other.path}, but also of {log_dir.path}"
            )


def _cluster_of(paths: Sequence[Path]) -> str | None:
    """Return the cluster id of the first folder that has one, which a replaced disk gets; None if all are new."""
    for path in paths:
        try:
            owner = checkpoints.read_meta_properties(path)
        except OSError:
            continue
        if owner is not None:
            return owner.cluster_id
    return None
