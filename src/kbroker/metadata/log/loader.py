"""Loading of the image from the metadata log: the latest snapshot, then the records after it.

Source: ``MetadataLoader``, ``MetadataBatchLoader``, ``KRaftControlRecordStateMachine``.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.errors import ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.metadata.log.metadata_log import MetadataLog, MetadataLogError, recovery_command
from kbroker.metadata.records.batches import MetadataBatch
from kbroker.metadata.records.control_records import KRaftVersion, Voters
from kbroker.metadata.records.metadata_record import UnknownRecordError

logger = get_logger(__name__)

BEGIN, END, ABORT = "BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"
NO_TRANSACTION = -1


class _AbortedError(Exception):
    """A transaction whose records were replayed does not count."""


class LoadedMetadata:
    """Content of a metadata log.

    ``kraft_version`` and ``voters``: of the quorum, as the last control records have them, None without any;
    ``has_open_transaction``: the log ends within a transaction of records, which counts for nothing.

    The records of a transaction are replayed as they come, since keeping them until its end would take a multiple of
    the memory of the image. After the rare one that is aborted, everything is loaded anew without it.
    """

    def __init__(self, log: MetadataLog) -> None:
        self.kraft_version = 0
        self.voters: Voters | None = None
        self.image: MetadataImage = EMPTY_IMAGE
        self._aborted: set[int] = set()  # offsets of the first records of aborted transactions
        try:
            while True:
                try:
                    self._load(log)
                    break
                except _AbortedError:
                    self._aborted.add(self._transaction)
        except (ProtocolError, UnknownRecordError, MetadataReplayError) as error:
            raise MetadataLogError(f"{log.folder}: {error}; {recovery_command(log.log_dir)}") from None

    @property
    def has_open_transaction(self) -> bool:
        """Whether the log ends within a transaction of records."""
        return self._transaction != NO_TRANSACTION

    def _load(self, log: MetadataLog) -> None:
        self._begin()
        self._replay(log.first_batches())
        offset, epoch = 0, 0
        for snapshot in reversed(log.snapshots()):
            try:
                self._replay(log.snapshot_batches(snapshot))
                offset, epoch = snapshot.end_offset, snapshot.epoch
                break
            except (OSError, ProtocolError) as error:
                logger.error("%s cannot be used, an older one is loaded: %s", snapshot.path, error)
                self._begin()
        if offset < log.start_offset:
            raise MetadataLogError(
                f"{log.folder} begins at offset {log.start_offset}, and no snapshot covers the records below it; "
                f"{recovery_command(log.log_dir)}"
            )
        for batch in log.batches(offset):
            self._replay([batch])
            epoch = batch.leader_epoch
        if self.has_open_transaction and self._transaction not in self._aborted:
            raise _AbortedError
        self.image = self._delta.apply(log.end_offset - 1, epoch)

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
