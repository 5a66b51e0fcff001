"""Refusal of ``kbroker-metadata.db``, the metadata file of development versions before the metadata log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FILE_NAME = "kbroker-metadata.db"
LAST_READER = "6dcc33a7"  # the last commit that takes the file over


def refusal(folders: Sequence[Path]) -> str | None:
    """Return the error if one of the folders contains the file, else None."""
    for path in (folder / FILE_NAME for folder in folders):
        if path.exists():
            return (
                f"{path} has the metadata of a development version before the metadata log, and is not read any more: "
                f"start commit {LAST_READER} of kbroker on the folder once, which takes the file over; move it away if "
                "the metadata log was in use since"
            )
    return None
