"""Loading of the image from the metadata log: the latest snapshot, then the records after it.

Source: ``MetadataLoader``, ``MetadataBatchLoader``, ``KRaftControlRecordStateMachine``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kbroker.common.errors import ProtocolError
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.metadata.log.metadata_log import LogFiles, MetadataLog, MetadataLogError
from kbroker.metadata.records.batches import MetadataBatch
from kbroker.metadata.records.control_records import KRaftVersion, LeaderChange, Voters
from kbroker.metadata.records.metadata_record import UnknownRecordError
from kbroker.metadata.records.snapshot_files import read_snapshot
from kbroker.protocol._records import corrupt

#: Errors of content that cannot be used, as distinct from those of reading it.
UNUSABLE = (ProtocolError, UnknownRecordError, MetadataReplayError)
BEGIN, END, ABORT = "BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"
NO_TRANSACTION = -1


def reason_of(error: Exception) -> str:
    """Return the message of an error, without the code that a client would get."""
    return error.message if isinstance(error, ProtocolError) else str(error)


class _AbortedError(Exception):
    """Abort of a transaction whose records were already applied to the image."""


class LoadedMetadata:
    """Content of a metadata log.

    Args: ``log``: its files; ``is_salvage``: to load the part of a damaged one before the first damage.
    Raises: MetadataLogError for damage, unless it is a salvage; OSError.
    Attributes:
        kraft_version, voters: of the quorum, as the last control records have them, None without any.
        leader_voters: node ids of the voters that elected the last leader; with kraft.version 0 they are all.
        error: the first damage of the records, None without any.
        bad_snapshots: damage of each snapshot for which an older one is used, by path; the newest first.

    The records of a transaction are replayed as they come, since keeping them until its end would take a multiple of
    the memory of the image. After the rare one that is aborted, everything is loaded anew without it.
    """

    def __init__(self, log: LogFiles | MetadataLog, *, is_salvage: bool = False) -> None:
        self.kraft_version = 0
        self.voters: Voters | None = None
        self.leader_voters: tuple[int, ...] = ()
        self.image: MetadataImage = EMPTY_IMAGE
        self.error: Exception | None = None
        self.bad_snapshots: dict[Path, str] = {}
        self._is_salvage = is_salvage
        self._aborted: set[int] = set()  # offsets of the first records of aborted transactions
        while True:
            try:
                self._load(log)
                break
            except _AbortedError:
                self._aborted.add(self._transaction)

    @property
    def has_open_transaction(self) -> bool:
        """True if the log ends within a transaction of records."""
        return self._transaction != NO_TRANSACTION

    def _load(self, log: LogFiles | MetadataLog) -> None:
        self._begin()
        try:
            self._replay(log.first_batches())
        except UNUSABLE as error:
            self._refused(log, error)  # a salvage continues without the first voters
        epoch = 0
        try:
            offset, epoch = self._load_snapshot(log)
            for batch in log.batches(offset):
                self._replay([batch])
                epoch = batch.leader_epoch
        except UNUSABLE as error:
            self.error = self._refused(log, error)
        if self.has_open_transaction and self._transaction not in self._aborted:
            raise _AbortedError
        self.image = self._delta.apply(log.end_offset - 1, epoch)

    def _load_snapshot(self, log: LogFiles | MetadataLog) -> tuple[int, int]:
        """Load the latest usable snapshot; return its end offset and its epoch, 0 and 0 without any."""
        offset, epoch = 0, 0
        self.bad_snapshots.clear()
        for snapshot in reversed(log.snapshots()):
            try:
                self._replay(read_snapshot(snapshot.path))
                offset, epoch = snapshot.end_offset, snapshot.epoch
                break
            except (OSError, *UNUSABLE) as error:
                if isinstance(error, UnknownRecordError) and not self._is_salvage:
                    raise
                self.bad_snapshots[snapshot.path] = reason_of(error)
                self._begin()
        if offset < log.start_offset:
            reason = "".join(f": {damage}" for damage in [*self.bad_snapshots.values()][:1])
            raise corrupt(f"it begins at offset {log.start_offset}, without a snapshot of the records below{reason}")
        return offset, epoch

    def _refused(self, log: LogFiles | MetadataLog, error: Exception) -> Exception:
        if self._is_salvage:
            return error
        if isinstance(error, UnknownRecordError):
            raise MetadataLogError(f"{log.folder}: {error}") from None
        raise MetadataLogError(f"{log.folder} is damaged: {reason_of(error)}; {log.advice}") from None

    def _begin(self) -> None:
        self._delta = MetadataDelta(EMPTY_IMAGE)
        self._transaction = NO_TRANSACTION  # offset of the first record of the open transaction

    def _replay(self, batches: Iterable[MetadataBatch]) -> None:
        for batch in batches:
            for control in batch.control:
                if isinstance(control, KRaftVersion):
                    self.kraft_version = control.level
                elif isinstance(control, Voters):
                    self.voters = control
                elif isinstance(control, LeaderChange):
                    self.leader_voters = control.voters
            for offset, record in enumerate(batch.records, batch.base_offset):
                if record.name == BEGIN:
                    self._transaction = offset
                elif record.name == END:
                    self._transaction = NO_TRANSACTION
                elif record.name == ABORT:
                    if self.has_open_transaction and self._transaction not in self._aborted:
                        raise _AbortedError
                    self._transaction = NO_TRANSACTION
                elif self._transaction not in self._aborted:
                    self._delta.replay(record)
