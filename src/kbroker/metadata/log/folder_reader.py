"""Reading of the metadata in a log folder, without a change to any file and without a broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kbroker.common.errors import ProtocolError
from kbroker.log.tools.verify import Finding, verify
from kbroker.metadata.feature_versions import METADATA_VERSIONS
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, METADATA_VERSION, MetadataImage
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.metadata.log.formatter import METADATA_LOG_FOLDER
from kbroker.metadata.records.batches import MetadataBatch, read_batches
from kbroker.metadata.records.control_records import KRaftVersion, Voter, Voters
from kbroker.metadata.records.metadata_record import EARLIEST_LEVEL, LATEST_LEVEL, MetadataRecord, UnknownRecordError
from kbroker.metadata.records.snapshot_files import (
    BOOTSTRAP_CHECKPOINT,
    SnapshotId,
    read_snapshot,
    snapshot_id,
    snapshot_name,
)

_SEGMENT = re.compile(r"([0-9]{20})\.log")
_BEGIN, _END, _ABORT = "BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"


class UnreadableMetadataError(Exception):
    """The metadata cannot be read; the message names the fault and a remedy."""


def damaged(fault: str) -> UnreadableMetadataError:
    """Return the error for lost or damaged metadata."""
    return UnreadableMetadataError(f"{fault}; restore it from a backup, or run kbroker log recover-metadata")


class FolderMetadata(NamedTuple):
    """Metadata of a log folder.

    Attributes:
        image: after the last record; that of the first records, if no broker has started on the folder yet.
        kraft_version: level of the quorum's feature.
        voters: of the quorum, empty if the metadata log does not contain them.
        damaged_snapshots: newer snapshots than the one that was read, with their faults.
        torn_bytes: of the incomplete batch at the end of the log, which the next start cuts off.
    """

    image: MetadataImage
    kraft_version: int
    voters: tuple[Voter, ...]
    damaged_snapshots: tuple[str, ...]
    torn_bytes: int


def read_metadata(log_dir: Path) -> FolderMetadata | None:
    """Read the metadata of a log folder; None if it has none.

    Raises: UnreadableMetadataError: damage, or records that this version does not support. OSError.
    """
    folder = log_dir / METADATA_LOG_FOLDER
    if not folder.is_dir() and not (log_dir / BOOTSTRAP_CHECKPOINT).exists():
        return None
    return _Reader(log_dir, folder).read()


class _Reader:
    """Replay of snapshot and log into an image."""

    def __init__(self, log_dir: Path, folder: Path) -> None:
        self._log_dir = log_dir
        self._folder = folder
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        self._segments = [int(match[1]) for match in map(_SEGMENT.fullmatch, names) if match]
        self._snapshots = [found for found in map(snapshot_id, names) if found is not None and found != (0, 0)]
        self._delta = MetadataDelta(EMPTY_IMAGE)
        self._kraft_version = 0
        self._voters: tuple[Voter, ...] = ()
        self._transaction: list[MetadataRecord] | None = None  # records of the open one, which count at its end
        self._torn_bytes = 0

    def read(self) -> FolderMetadata:
        first = self._folder / snapshot_name(0, 0)
        if first.exists():
            self._replay_all(read_snapshot(first))
        start, faults = self._read_snapshot()
        offset, epoch = self._read_segments(start)
        bootstrap = self._log_dir / BOOTSTRAP_CHECKPOINT
        if offset == 0 and bootstrap.exists():
            self._replay_all(read_snapshot(bootstrap))
        image = self._delta.apply(offset - 1, epoch)
        return FolderMetadata(image, self._kraft_version, self._voters, tuple(faults), self._torn_bytes)

    def _read_snapshot(self) -> tuple[SnapshotId, list[str]]:
        """Replay the newest snapshot without damage; return it, and the faults of newer ones."""
        faults = []
        for found in reversed(self._snapshots):
            try:
                batches = list(read_snapshot(self._folder / snapshot_name(*found)))
            except ProtocolError as error:
                faults.append(error.message)
                continue
            except UnknownRecordError as error:
                raise UnreadableMetadataError(str(error)) from None
            self._replay_all(iter(batches))
            return found, faults
        return SnapshotId(0, 0), faults

    def _read_segments(self, start: SnapshotId) -> tuple[int, int]:
        """Replay the batches from the end of the snapshot on; return the end offset of the log and its last epoch."""
        offset, epoch = start
        if self._segments and self._segments[0] > offset:
            raise damaged(
                f"{self._folder} begins at offset {self._segments[0]}, and no intact snapshot has the records before it"
            )
        torn = self._torn_tail()
        for base in self._segments:
            path = self._folder / f"{base:020d}.log"
            data = path.read_bytes()
            if torn is not None and torn.path == path:
                data, self._torn_bytes = data[: torn.position], torn.size_bytes
            for batch in self._checked(path, read_batches(data)):
                if batch.base_offset >= start.end_offset:
                    self._replay(batch)
                    offset, epoch = batch.last_offset + 1, batch.leader_epoch
        return offset, epoch

    def _torn_tail(self) -> Finding | None:
        """Return the incomplete end of the log. Raises: UnreadableMetadataError for damage before it."""
        findings = verify(self._folder) if self._segments else []
        torn = None
        for found in findings:
            if found.is_torn_tail:
                torn = found
            elif found.path.suffix == ".log":  # the start rebuilds the other files
                raise damaged(f"{found.path} at byte {found.position}: {found.problem}")
        return torn

    def _replay_all(self, batches: Iterator[MetadataBatch]) -> None:
        for batch in self._checked(None, batches):
            self._replay(batch)

    @staticmethod
    def _checked(path: Path | None, batches: Iterator[MetadataBatch]) -> Iterator[MetadataBatch]:
        try:
            yield from batches
        except ProtocolError as error:
            raise damaged(error.message if path is None else f"{path}: {error.message}") from None
        except UnknownRecordError as error:
            raise UnreadableMetadataError(str(error) if path is None else f"{path}: {error}") from None

    def _replay(self, batch: MetadataBatch) -> None:
        for control in batch.control:
            if isinstance(control, KRaftVersion):
                self._kraft_version = control.level
            elif isinstance(control, Voters):
                self._voters = control.voters
        for record in batch.records:
            if record.name == _BEGIN:
                self._transaction = []
            elif record.name == _ABORT:
                self._transaction = None
            elif record.name == _END:
                records, self._transaction = self._transaction or [], None
                self._apply(records)
            elif self._transaction is not None:
                self._transaction.append(record)
            else:
                self._apply([record])

    def _apply(self, records: list[MetadataRecord]) -> None:
        for record in records:
            if record.name == "FeatureLevelRecord" and record.body["Name"] == METADATA_VERSION:
                _check_level(record.body["FeatureLevel"])
            try:
                self._delta.replay(record)
            except MetadataReplayError as error:
                raise damaged(f"{self._folder}: {error}") from None


def _check_level(level: int) -> None:
    """Check that the records of a level are known. Raises: UnreadableMetadataError."""
    if not EARLIEST_LEVEL <= level <= LATEST_LEVEL:
        names = [
            f"{one} ({METADATA_VERSIONS[one]})" if one in METADATA_VERSIONS else one for one in (level, LATEST_LEVEL)
        ]
        raise UnreadableMetadataError(
            f"{METADATA_VERSION} is {names[0]}, and this version of kbroker reads at most {names[1]}"
        )
