"""Place of ``kbroker-metadata.db``, the file of earlier versions; ``metadata_file`` reads it and imports SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FILE_NAME = "kbroker-metadata.db"


def metadata_file(folders: Sequence[Path]) -> Path | None:
    """Return the file in these log folders, None without any. It was in the first one of log.dirs."""
    return next((path for path in (folder / FILE_NAME for folder in folders) if path.exists()), None)
