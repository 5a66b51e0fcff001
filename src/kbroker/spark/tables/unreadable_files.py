"""Files of a table that cannot be read: which one it was and why, out of what Spark and its Python workers raise."""

from __future__ import annotations

import re

from kbroker.spark.errors import PipelineError

#: Spark's own readers name the file; the first match is the one that failed.
_NAMED = (
    re.compile(r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (?P<file>\S+\.parquet)"),
    re.compile(r"Could not read footer for file: \S*?(?P<file>(?:file:|/)\S+\.parquet)"),
    re.compile(r"(?P<file>\S+\.parquet) is not a Parquet file"),
)
#: What `file_reader` has raised, in the trace of a Python worker.
_OURS = re.compile(r"UnreadableFileError: cannot read (?P<file>.+?\.parquet): (?P<cause>[^\n]+)")

MISSING, DAMAGED = "it is not there", "it is damaged, or no Parquet file"
RESTORE = "restore the file from a copy, or ingest the logs again into a new table"


class UnreadableFileError(PipelineError):
    """A file of a table cannot be read. Args: ``cause``: why, and what to do, in one line."""

    def __init__(self, file: str, cause: str) -> None:
        super().__init__(f"cannot read {file}: {cause}")


def unreadable_file(error: BaseException) -> UnreadableFileError | None:
    """Return the message about an unreadable file that made a job fail, None for another cause."""
    text = str(error)
    found = _OURS.search(text)
    if found is not None:
        return UnreadableFileError(found["file"], found["cause"].rstrip())
    for pattern in _NAMED:
        found = pattern.search(text)
        if found is not None:
            file = re.sub(r"^file:/+", "/", found["file"])
            is_missing = "FILE_NOT_EXIST" in found[0] or "FileNotFoundException" in text
            return UnreadableFileError(file, f"{MISSING if is_missing else DAMAGED}; {RESTORE}")
    return None
