"""Replay of the batches of a metadata log: their records change an image, control records describe the quorum.

Source: ``MetadataBatchLoader``, ``KRaftControlRecordStateMachine``.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.records.batches import MetadataBatch
from kbroker.metadata.records.control_records import ControlRecord, KRaftVersion, LeaderChange, Voters
from kbroker.metadata.records.metadata_record import ABORT, BEGIN, END

NO_TRANSACTION = -1


class AbortedError(Exception):
    """Abort of a transaction whose records were already replayed."""


class Replay:
    """Changes of an image by batches, one after the other.

    The records of a transaction are replayed as they come, since keeping them until its end would take a multiple of
    the memory of the image. After an aborted transaction, which is rare, the caller begins again without its records.

    Attributes:
        delta: the changes so far.
        kraft_version, voters: of the quorum, as the last control records have them, None before the first.
        leader_voters: node ids of the voters that elected the last leader; with kraft.version 0 they are all.
    """

    def __init__(self) -> None:
        self.kraft_version = 0
        self.voters: Voters | None = None
        self.leader_voters: tuple[int, ...] = ()
        self._aborted: set[int] = set()  # offsets of the first records of aborted transactions
        self.begin(EMPTY_IMAGE)

    def begin(self, image: MetadataImage) -> None:
        """Drop the changes so far, and continue after the last record of an image."""
        self.delta = MetadataDelta(image)
        self._transaction = NO_TRANSACTION  # offset of the first record of the open transaction

    @property
    def has_open_transaction(self) -> bool:
        """True if the last batch ends within a transaction of records."""
        return self._transaction != NO_TRANSACTION

    @property
    def quorum(self) -> Sequence[ControlRecord]:
        """Control records of kraft.version and the voters, none if the configs have the voters."""
        return () if self.voters is None else (KRaftVersion(self.kraft_version), self.voters)

    def replay(self, batch: MetadataBatch) -> None:
        """Replay the next batch. Raises: MetadataReplayError; AbortedError."""
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
                self.leave_out()
                self._transaction = NO_TRANSACTION
            elif self._transaction not in self._aborted:
                self.delta.replay(record)

    def leave_out(self) -> None:
        """Leave out the open transaction, if there is one. Raises: AbortedError if its records were replayed."""
        if self.has_open_transaction and self._transaction not in self._aborted:
            self._aborted.add(self._transaction)
            raise AbortedError
