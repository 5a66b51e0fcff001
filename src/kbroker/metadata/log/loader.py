"""Loading of the image from the metadata log: the latest snapshot, then the records after it.

Source: ``MetadataLoader``.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from kbroker.common.errors import ProtocolError
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.metadata.log.metadata_log import LogFiles, MetadataLog, MetadataLogError
from kbroker.metadata.log.replay import AbortedError, Replay
from kbroker.metadata.records.metadata_record import UnknownRecordError
from kbroker.metadata.records.snapshot_files import read_snapshot
from kbroker.protocol._records import corrupt

#: Errors of unusable content, as distinct from errors while reading.
UNUSABLE = (ProtocolError, UnknownRecordError, MetadataReplayError)


def reason_of(error: Exception) -> str:
    """Return the message of an error, without the code that a client would get."""
    return error.message if isinstance(error, ProtocolError) else str(error)


class LoadedMetadata(Replay):
    """Content of a metadata log.

    Args: ``log``: its files; ``is_salvage``: load a damaged log up to the first damage.
    Raises: MetadataLogError for damage, unless it is a salvage; OSError.
    Attributes:
        image: after the last record.
        error: the first damage of the records, None if there is none.
        bad_snapshots: the damage of each unusable snapshot, by path, the newest first.
    """

    def __init__(self, log: LogFiles | MetadataLog, *, is_salvage: bool = False) -> None:
        super().__init__()
        self.image: MetadataImage = EMPTY_IMAGE
        self.error: Exception | None = None
        self.bad_snapshots: dict[Path, str] = {}
        self._is_salvage = is_salvage
        while True:
            with suppress(AbortedError):
                self._load(log)
                break

    def _load(self, log: LogFiles | MetadataLog) -> None:
        self.begin(EMPTY_IMAGE)
        try:
            for batch in log.first_batches():
                self.replay(batch)
        except UNUSABLE as error:
            self._refused(log, error)  # a salvage continues without the first voters
        offset = epoch = 0
        try:
            offset, epoch = self._load_snapshot(log)
            for batch in log.batches(offset):
                self.replay(batch)
                epoch = batch.leader_epoch
        except UNUSABLE as error:
            self.error = self._refused(log, error)
        self.leave_out()
        try:
            self.image = self.delta.apply(max(offset, log.end_offset) - 1, epoch)  # a damaged log may end below it
        except MetadataReplayError as error:
            self.error = self._refused(log, error)
            self.image = self.delta.image  # the image of the snapshot

    def _load_snapshot(self, log: LogFiles | MetadataLog) -> tuple[int, int]:
        """Load the latest usable snapshot; return its end offset and its epoch, 0 and 0 if there is none.

        Raises: ProtocolError if records below the log's start are missing; UnknownRecordError, except in a salvage.
        """
        offset, epoch = 0, 0
        self.bad_snapshots.clear()
        for snapshot in reversed(log.snapshots()):
            try:
                for batch in read_snapshot(snapshot.path):
                    self.replay(batch)
                offset, epoch = snapshot.end_offset, snapshot.epoch
                self.begin(self.delta.apply(offset - 1, epoch))
                break
            except (OSError, *UNUSABLE) as error:
                if isinstance(error, UnknownRecordError) and not self._is_salvage:
                    raise
                self.bad_snapshots[snapshot.path] = reason_of(error)
                self.begin(EMPTY_IMAGE)
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
