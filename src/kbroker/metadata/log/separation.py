"""Separation of a node that was its own controller: its metadata goes to new controllers, its folders to a broker.

The controllers append the records of ``bootstrap.checkpoint`` to their empty log. The registration of the broker is one
of them, so the broker counts as a known one that returns, and leads its partitions at once.
"""

from __future__ import annotations

import errno
import json
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

from kbroker.common.errors import UserError
from kbroker.common.feature_versions import CORDONED_LEVEL, METADATA_VERSION, level_text
from kbroker.log.checkpoints import MetaProperties, read_text, sync_descriptor, sync_folder, write_meta_properties
from kbroker.log.clean_shutdown import FILE_NAME
from kbroker.log.log_dir import DELETE_SUFFIX, make_folder, remove_folder
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.log.folder_check import LogFolders, read_folders
from kbroker.metadata.log.formatter import write_bootstrap, write_voters
from kbroker.metadata.log.metadata_log import FOLDER_NAME
from kbroker.metadata.records.control_records import Voter
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT

KRAFT_LEVEL = 1  # kraft.version of a quorum whose voters are in its log
_CONTROLLER_RECORD = "RegisterControllerRecord"


class SeparationError(UserError, RuntimeError):
    """Folders that cannot be separated; the message has the reason and the remedy."""


def separate(folders: Sequence[Path], voters: Sequence[Voter], output: Path, now_ms: int) -> list[Path]:
    """Write the folders of the controllers, then move the metadata out of the folders of the broker.

    Args: ``folders``: all log folders of the node, locked; ``output``: a new or empty folder, which gets a folder for
    each controller, and one with the metadata that the broker had.
    Returns: the folders of the controllers, in the order of the voters.
    Raises: SeparationError, before any change; UnwritableMetadataError; OSError.
    """
    found = read_folders(folders)
    image = _checked(found, voters, output)
    owner = next(iter(found.owners.values()))
    # without the registration of this node as a controller
    records = [record for record in records_of(image, image.level) if record.name != _CONTROLLER_RECORD]
    made = []
    for voter in voters:
        folder = output / f"controller-{voter.id}"
        make_folder(folder)
        write_bootstrap(folder, records, now_ms)
        write_voters(folder, voters, KRAFT_LEVEL, now_ms)
        write_meta_properties(folder, MetaProperties(owner.cluster_id, voter.id, voter.directory_id), now_ms)
        made.append(folder)
    before = output / f"broker-{owner.node_id}"
    make_folder(before)
    assert found.metadata is not None
    _move(found.metadata.log_dir / FOLDER_NAME, before / FOLDER_NAME)
    for number, folder in enumerate(folders):
        first = folder / BOOTSTRAP_CHECKPOINT
        if first.exists():
            _move(first, before / (BOOTSTRAP_CHECKPOINT if not number else f"{number}-{BOOTSTRAP_CHECKPOINT}"))
    return made


def _move(source: Path, target: Path) -> None:
    """Move a file or a folder of files; it is durable in its new place before it leaves the old. Raises: OSError."""
    try:
        source.rename(target)  # atomic
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target)
        aside = source.with_name(f"{source.name}.{uuid.uuid4().hex}{DELETE_SUFFIX}")
        source.rename(aside)
        sync_folder(source.parent)
        if aside.is_dir():
            remove_folder(aside)
        else:
            aside.unlink()
    sync_folder(target.parent)
    sync_folder(source.parent)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder of files to another disk, durably. Raises: OSError, which names the file of the copy."""
    if not source.is_dir():
        _copy_file(source, target)
    else:
        target.mkdir()
        for path in source.iterdir():
            _copy_file(path, target / path.name)
        sync_folder(target)
    sync_folder(target.parent)


def _copy_file(source: Path, target: Path) -> None:
    try:
        shutil.copy2(source, target)
        with target.open("rb") as file:
            sync_descriptor(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None


def _checked(found: LogFolders, voters: Sequence[Voter], output: Path) -> MetadataImage:
    """Return the image of the node, if it can be separated. Raises: SeparationError."""
    names = ", ".join(map(str, found.folders))
    if found.fault:
        raise SeparationError(found.fault)
    if found.metadata is None or not found.owners:
        raise SeparationError(
            f"{names}: expected the folders of a broker that was its own controller, found no metadata"
        )
    if found.missing:
        raise SeparationError(f"{names}: expected all folders of log.dirs, found none with {found.missing[0]}")
    if output.exists() and any(output.iterdir()):
        raise SeparationError(f"{output}: expected a new or an empty folder; name another one, or move it away")
    node_id, image = found.node_id, found.metadata.image
    if node_id in [voter.id for voter in voters]:
        raise SeparationError(f"node id {node_id} is that of the broker: give the controllers other ids")
    if image.level < CORDONED_LEVEL:
        level, needed = (level_text(METADATA_VERSION, one) for one in (image.level, CORDONED_LEVEL))
        raise SeparationError(
            f"{names}: expected metadata.version {needed} or later, found {level}; start kbroker, and run "
            "kafka-features.sh upgrade --release-version 4.3"
        )
    registration = image.brokers.get(node_id)
    for folder in found.folders:
        epoch = _epoch_of_mark(folder)
        if registration is None or epoch != registration.epoch or not registration.is_fenced:
            raise SeparationError(f"{folder}: expected the mark of a clean stop; start kbroker, and stop it")
    return image


def _epoch_of_mark(folder: Path) -> int | None:
    """Return the broker's epoch at its clean stop, None without a mark."""
    text = read_text(folder / FILE_NAME)
    if text is None:
        return None
    try:
        epoch = json.loads(text)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return None
    return epoch if isinstance(epoch, int) else None
