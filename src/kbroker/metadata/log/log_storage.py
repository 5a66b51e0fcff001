"""Opening of the metadata log of a broker that is alone in its quorum, and storage of the controller's changes.

A new folder has its first records in ``bootstrap.checkpoint``; the first start appends them to the log.
Source: ``KafkaRaftClient.onBecomeLeader``, ``ActivationRecordsGenerator``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import KafkaError
from kbroker.common.feature_versions import METADATA_VERSION, TRANSACTIONS_LEVEL
from kbroker.common.loggers import get_logger
from kbroker.metadata.configs.resource_configs import config_records
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.metadata.log.loader import UNUSABLE, LoadedMetadata, reason_of
from kbroker.metadata.log.metadata_log import MetadataLog, MetadataLogError, recovery_command
from kbroker.metadata.log.servable import check_quorum, check_servable
from kbroker.metadata.records.batches import BATCH_RECORDS, build_control, build_records
from kbroker.metadata.records.control_records import ControlRecord, LeaderChange
from kbroker.metadata.records.metadata_record import ABORT, BEGIN, END, MetadataRecord, metadata_record
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT, read_snapshot

logger = get_logger(__name__)


class LogStorage:
    """Storage of changes in the metadata log. Threads: one at a time, the controller's."""

    def __init__(self, log: MetadataLog, clock: BaseClock, kraft_version: int) -> None:
        self.log = log
        self.kraft_version = kraft_version
        self._clock = clock

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        return self.log.end_offset

    @property
    def epoch(self) -> int:
        """Leader epoch of the records."""
        return self.log.epoch

    def append(
        self,
        records: Sequence[MetadataRecord],
        level: int,
        *,
        frees_space: bool = False,
        transaction: str | None = None,
    ) -> None:
        """Append the records of a change, all or none, at a level of metadata.version.

        Args: ``transaction``: name of a transaction around the records; None: only several batches have one.
        Raises: KafkaError KAFKA_STORAGE_ERROR; OSError, when it is unknown how many records are in the log.
        """
        now_ms = self._clock.wall_ms()
        for number, part in enumerate(_parts(records, level, transaction)):
            try:
                self.log.append(build_records(part, 0, self.log.epoch, now_ms), frees_space=frees_space)
            except OSError:  # the content of the disk is unknown: the broker stops, and its next start aborts the rest
                raise
            except BaseException:
                if number > 0:
                    self.abort("its other records cannot be written", now_ms)
                raise

    def abort(self, reason: str, now_ms: int) -> None:
        """Abort the open transaction; none of its records counts. Raises: OSError."""
        records = [metadata_record(ABORT, {"Reason": reason})]
        try:
            self.log.append(build_records(records, 0, self.log.epoch, now_ms), frees_space=True)
        except KafkaError as error:
            raise OSError(f"{self.log.folder}: cannot abort a change of which a part is written: {error}") from None

    def append_control(self, records: Sequence[ControlRecord]) -> None:
        """Append a batch of control records. Raises: KafkaError KAFKA_STORAGE_ERROR."""
        batch = build_control(records, 0, self.log.epoch, self._clock.wall_ms())
        self.log.append(batch, frees_space=True, is_start=True)

    def flush(self) -> None:
        """Make all appended records durable. Raises: OSError."""
        self.log.flush()


def _parts(records: Sequence[MetadataRecord], level: int, transaction: str | None) -> list[Sequence[MetadataRecord]]:
    """Return the records of each batch of a change."""
    if level < TRANSACTIONS_LEVEL or (transaction is None and len(records) <= BATCH_RECORDS):
        return [records]
    whole = [metadata_record(BEGIN, {"Name": transaction}), *records, metadata_record(END, {})]
    return [whole[at : at + BATCH_RECORDS] for at in range(0, len(whole), BATCH_RECORDS)]


def open_storage(
    log: MetadataLog, clock: BaseClock, node_id: int, directory_id: uuid.UUID
) -> tuple[LogStorage, MetadataImage]:
    """Load the image, then begin the log's new epoch with this node as leader.

    Raises: MetadataLogError for damage, or a quorum with other voters; UnservableMetadataError, before anything is
    written; KafkaError; OSError.
    """
    loaded = LoadedMetadata(log)
    for path, damage in loaded.bad_snapshots.items():
        logger.error("%s cannot be used, an older one is loaded: %s", path, damage)
    check_quorum(log.log_dir, loaded, node_id, directory_id)
    image, first = loaded.image, list[MetadataRecord]()
    if METADATA_VERSION not in image.features:
        first = bootstrap_records(log.log_dir, log.others)
        if not is_known_cluster(first):
            first += activation_records()
        image = first_image(log.log_dir, first, image, log.others)
    check_servable(image, node_id)
    storage = LogStorage(log, clock, loaded.kraft_version)
    log.begin_epoch(node_id, loaded.kraft_version)
    control: list[ControlRecord] = [LeaderChange(node_id, (node_id,), (node_id,))]
    log.quorum = loaded.quorum
    if loaded.image.offset < 0:
        control += log.quorum
    storage.append_control(control)
    if loaded.has_open_transaction:
        storage.abort("the log ends within it", clock.wall_ms())
    if first:
        storage.append(first, image.features[METADATA_VERSION], transaction="Bootstrap records")
        image = image._replace(offset=storage.end_offset - 1, epoch=storage.epoch)
    return storage, image


def activation_records() -> list[MetadataRecord]:
    """Return the records that the first start adds, as Kafka does: min.insync.replicas for all brokers."""
    return config_records(ConfigResourceType.BROKER, "", {}, {"min.insync.replicas": "1"})


def bootstrap_records(log_dir: Path, others: Sequence[Path] = ()) -> list[MetadataRecord]:
    """Return the first records of the metadata log, which its first start appends.

    Args: ``others``: the other log folders of the broker. Raises: MetadataLogError.
    """
    try:
        return [record for batch in read_snapshot(log_dir / BOOTSTRAP_CHECKPOINT) for record in batch.records]
    except (OSError, *UNUSABLE) as error:
        raise _unusable(log_dir, others, error) from None


def is_known_cluster(records: Iterable[MetadataRecord]) -> bool:
    """Return whether the first records are those of an existing cluster, which has producer ids."""
    return any(record.name == "ProducerIdsRecord" for record in records)


def first_image(
    log_dir: Path,
    records: Iterable[MetadataRecord],
    before: MetadataImage = EMPTY_IMAGE,
    others: Sequence[Path] = (),
) -> MetadataImage:
    """Return the image after the first records of the metadata log.

    Args: ``others``: the other log folders of the broker. Raises: MetadataLogError.
    """
    delta = MetadataDelta(before)
    try:
        for record in records:
            delta.replay(record)
        image = delta.apply(before.offset, before.epoch)
        if METADATA_VERSION not in image.features:
            raise MetadataReplayError(f"it has no level of {METADATA_VERSION}")
    except UNUSABLE as error:
        raise _unusable(log_dir, others, error) from None
    return image


def _unusable(log_dir: Path, others: Sequence[Path], error: Exception) -> MetadataLogError:
    path = log_dir / BOOTSTRAP_CHECKPOINT
    reason = reason_of(error).removeprefix(f"{path}: ")
    return MetadataLogError(f"{path} cannot be used: {reason}; {recovery_command(log_dir, *others)}")
