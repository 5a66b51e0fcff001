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
from kbroker.metadata.records.metadata_record import MetadataRecord, UnknownRecordError

logger = get_logger(__name__)

BEGIN, END, ABORT = "BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"


class LoadedMetadata:
    """Content of a metadata log.

    ``kraft_version`` and ``voters``: of the quorum, as the last control records have them, None without any;
    ``has_open_transaction``: the log ends within a transaction of records, which counts for nothing.
    """

    def __init__(self, log: MetadataLog) -> None:
        self.kraft_version = 0
        self.voters: Voters | None = None
        self.image: MetadataImage = EMPTY_IMAGE
        self._delta = MetadataDelta(EMPTY_IMAGE)
        self._transaction: list[MetadataRecord] | None = None
        try:
            self._replay(log.first_batches())
            self._load(log)
        except (ProtocolError, UnknownRecordError, MetadataReplayError) as error:
            raise MetadataLogError(f"{log.folder}: {error}; {recovery_command(log.log_dir)}") from None

    @property
    def has_open_transaction(self) -> bool:
        """Whether the log ends within a transaction of records."""
        return self._transaction is not None

    def _load(self, log: MetadataLog) -> None:
        offset, epoch = 0, 0
        for snapshot in reversed(log.snapshots()):
            try:
                self._replay(log.snapshot_batches(snapshot))
                offset, epoch = snapshot.end_offset, snapshot.epoch
                break
            except (OSError, ProtocolError) as error:
                logger.error("%s cannot be used, an older one is loaded: %s", snapshot.path, error)
                self._delta = MetadataDelta(EMPTY_IMAGE)
        if offset < log.start_offset:
            raise MetadataLogError(
                f"{log.folder} begins at offset {log.start_offset}, and no snapshot covers the records below it; "
                f"{recovery_command(log.log_dir)}"
            )
        for batch in log.batches(offset):
            self._replay([batch])
            epoch = batch.leader_epoch
        self.image = self._delta.apply(log.end_offset - 1, epoch)

    def _replay(self, batches: Iterable[MetadataBatch]) -> None:
        for batch in batches:
            for control in batch.control:
                if isinstance(control, KRaftVersion):
                    self.kraft_version = control.level
                elif isinstance(control, Voters):
                    self.voters = control
            for record in batch.records:
                self._replay_record(record)

    def _replay_record(self, record: MetadataRecord) -> None:
        name = record.name
        if name == BEGIN:
            self._transaction = []
        elif name == ABORT:
            self._transaction = None
        elif name == END:
            for one in self._transaction or ():
                self._delta.replay(one)
            self._transaction = None
        elif self._transaction is not None:
            self._transaction.append(record)
        else:
            self._delta.replay(record)
