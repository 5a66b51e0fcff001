"""Reading of the metadata in a log folder as the next start would find it, without changing any file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kbroker.common.feature_versions import METADATA_VERSION
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.log.loader import LoadedMetadata
from kbroker.metadata.log.log_storage import bootstrap_records, first_image
from kbroker.metadata.log.metadata_log import FOLDER_NAME, StartableLog
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT


class FolderMetadata(NamedTuple):
    """Metadata of a log folder.

    Attributes:
        log_dir: the log folder.
        image: after the last record; that of the first records, if no broker has started on the folder yet.
        loaded: content of the log.
        torn_bytes: size of the incomplete batch at the end of the log, which the next start cuts off.
    """

    log_dir: Path
    image: MetadataImage
    loaded: LoadedMetadata
    torn_bytes: int


def read_metadata(log_dir: Path, others: Sequence[Path] = ()) -> FolderMetadata | None:
    """Read the metadata of a log folder; None if it has none.

    Args: ``others``: the other log folders of the broker.
    Raises: MetadataLogError, for damage or for records that this version does not support; OSError.
    """
    has_first = (log_dir / BOOTSTRAP_CHECKPOINT).exists()
    if not has_first and not (log_dir / FOLDER_NAME).is_dir():
        return None
    files = StartableLog(log_dir, others)
    loaded = LoadedMetadata(files)
    image = loaded.image
    if has_first and METADATA_VERSION not in image.features:
        image = first_image(log_dir, bootstrap_records(log_dir, others), image, others)
    return FolderMetadata(log_dir, image, loaded, files.torn_bytes)
