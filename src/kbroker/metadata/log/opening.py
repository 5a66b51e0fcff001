"""Opening of a broker's metadata at its start: from the metadata log, or new."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_quorum import VOTERS, voter_listener
from kbroker.common.feature_versions import KRAFT_VERSION, SERVED_LEVELS
from kbroker.common.units import counted
from kbroker.log.checkpoints import sync_folder
from kbroker.log.log_dir import partition_folders
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.log.formatter import feature_records, make_voter, write_bootstrap, write_voters
from kbroker.metadata.log.former_file import refusal
from kbroker.metadata.log.log_storage import (
    LogStorage,
    activation_records,
    bootstrap_records,
    is_known_cluster,
    open_storage,
)
from kbroker.metadata.log.metadata_log import FOLDER_NAME, LogFiles, MetadataLog, MetadataLogError, recovery_command
from kbroker.metadata.records.control_records import Voter
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT


def first_records() -> list[MetadataRecord]:
    """Return the records of a new cluster: those of its features, and those that the first start adds."""
    return [*feature_records(SERVED_LEVELS), *activation_records()]


def write_first(folder: Path, voter: Voter | None, records: Iterable[MetadataRecord], now_ms: int) -> None:
    """Durably write the first files of a new quorum's metadata log. Raises: OSError.

    The first start of kbroker or Apache Kafka appends the records to the log.

    Args: ``voter``: None if the configs have the voters (controller.quorum.voters), which means kraft.version 0, as in
    Kafka.
    """
    (folder / FOLDER_NAME).mkdir(exist_ok=True)
    if voter is not None:
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
    """Open the metadata of a log folder for this broker; if there is none, begin a new cluster.

    Args: ``folder``: the locked one of the metadata log; ``others``: the other log folders; ``directory_id``: its id;
    ``is_clean``: everything in it was on disk when it was closed.
    Raises: MetadataLogError, if it is damaged, another node's, or missing although there are partitions; OSError.
    """
    folders = [folder, *others]

    def write(records: Iterable[MetadataRecord]) -> None:
        is_static = bool(config.words(VOTERS))
        voter = None if is_static else make_voter(config.node_id, directory_id, voter_listener(config))
        write_first(folder, voter, records, clock.wall_ms())

    if (former := refusal(folders)) is not None:
        raise MetadataLogError(former)
    if LogFiles(folder).is_empty:
        if (other := folder_with_log(others)) is not None:
            raise MetadataLogError(
                f"{folder} has no metadata log, but {other} has it: set metadata.log.dir={other}, or name that folder "
                "first in log.dirs"
            )
        if not has_recovered_records(folder, others):
            _check_no_partitions(folders)
        if not (folder / BOOTSTRAP_CHECKPOINT).exists():
            write(feature_records(SERVED_LEVELS))
    log = MetadataLog(folder, config, clock, is_clean=is_clean, others=others)
    try:
        return open_storage(log, clock, config.node_id, directory_id)
    except BaseException:
        log.close()
        raise


def folder_with_log(log_dirs: Iterable[Path]) -> Path | None:
    """Return the first of the log folders that has a metadata log with content, sound or not; else None."""
    return next((one for one in log_dirs if not LogFiles(one).is_empty), None)


def has_recovered_records(folder: Path, others: Sequence[Path]) -> bool:
    """Return whether the first records of an empty log are those of ``log recover-metadata``. Raises: MetadataLogError.

    Without the folder of the log, a log with content may be lost; recovery makes the folder, if only for the voters.
    """
    has_both = (folder / BOOTSTRAP_CHECKPOINT).exists() and (folder / FOLDER_NAME).exists()
    return has_both and is_known_cluster(bootstrap_records(folder, others))


def _check_no_partitions(folders: Sequence[Path]) -> None:
    """Check that no log folder has partitions. Raises: MetadataLogError.

    A new cluster would show no topics, and then refuse to create those whose folders exist.
    """
    for folder in folders:
        found = [path for path in partition_folders(folder) if path.name != FOLDER_NAME]
        if not found:
            continue
        more = ", ..." if len(found) > 1 else ""
        raise MetadataLogError(
            f"{folders[0] / FOLDER_NAME} is missing, but {folder} has {counted(len(found), 'partition folder')} "
            f"({found[0].name}{more}); {recovery_command(*folders)}"
        )
