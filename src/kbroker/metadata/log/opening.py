"""Opening of a broker's metadata at its start: as the metadata log has it, or new."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_quorum import VOTERS, voter_listener
from kbroker.log.checkpoints import sync_folder
from kbroker.log.log_dir import partition_folders
from kbroker.metadata.feature_versions import KRAFT_VERSION
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.log.formatter import SERVED_LEVELS, feature_records, make_voter, write_bootstrap, write_voters
from kbroker.metadata.log.log_storage import LogStorage, activation_records, open_storage
from kbroker.metadata.log.metadata_log import FOLDER_NAME, MetadataLog, MetadataLogError, recovery_command
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT


def first_records() -> list[MetadataRecord]:
    """Return the records of a new cluster: those of its features, and those that the first start adds."""
    return [*feature_records(SERVED_LEVELS), *activation_records()]


def image_of(records: Iterable[MetadataRecord]) -> MetadataImage:
    """Return the image of a cluster with these records only."""
    delta = MetadataDelta(EMPTY_IMAGE)
    count = 0
    for record in records:
        delta.replay(record)
        count += 1
    return delta.apply(count - 1, 1)


def write_first(
    folder: Path, config: BrokerConfig, directory_id: uuid.UUID, records: Iterable[MetadataRecord], now_ms: int
) -> None:
    """Write the files with which the metadata log of a new quorum of this node begins. Raises: OSError.

    The first start appends the records to the log, a start of Apache Kafka as well. With controller.quorum.voters the
    quorum has kraft.version 0, as in Kafka.
    """
    if not config.words(VOTERS):
        voter = make_voter(config.node_id, directory_id, voter_listener(config))
        write_voters(folder, [voter], SERVED_LEVELS[KRAFT_VERSION], now_ms)
        sync_folder(folder)
    write_bootstrap(folder, records, now_ms)


def open_metadata(
    folder: Path,
    others: Sequence[Path],
    directory_id: uuid.UUID,
    config: BrokerConfig,
    clock: BaseClock,
    *,
    is_clean: bool,
) -> tuple[LogStorage, MetadataImage]:
    """Open the metadata of a log folder for this broker; without any, begin a new cluster.

    Args: ``folder``: of the metadata log, locked; ``others``: the other log folders; ``directory_id`` of the folder;
    ``is_clean``: everything in it was on disk when it was closed.
    Raises: MetadataLogError, if it is damaged, another node's, or missing although there are partitions; OSError.
    """
    if not (folder / BOOTSTRAP_CHECKPOINT).exists() and not (folder / FOLDER_NAME).exists():
        _check_no_partitions([folder, *others])
        write_first(folder, config, directory_id, feature_records(SERVED_LEVELS), clock.wall_ms())
    log = MetadataLog(folder, config, clock, is_clean=is_clean)
    try:
        return open_storage(log, clock, config.node_id, directory_id)
    except BaseException:
        log.close()
        raise


def _check_no_partitions(folders: Sequence[Path]) -> None:
    """Check that no log folder has partitions. Raises: MetadataLogError.

    A new cluster would show no topics, and then refuse to create those whose folders exist.
    """
    for folder in folders:
        found = partition_folders(folder)
        if found:
            raise MetadataLogError(
                f"{folders[0] / FOLDER_NAME} is missing, but {found[0]} exists; {recovery_command(folders[0])}"
            )
