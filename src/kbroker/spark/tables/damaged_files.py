"""Files of a table that cannot be read: which one it was, out of what Spark and its Python workers raise."""

from __future__ import annotations

import re

from kbroker.spark.errors import PipelineError

#: Spark's own readers, and ours in `units.read_columns`, name the file; the first match is the one that failed.
_NAMED = (
    re.compile(r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (?P<file>\S+\.parquet)"),
    re.compile(r"Could not read footer for file: \S*?(?P<file>(?:file:|/)\S+\.parquet)"),
    re.compile(r"(?P<file>\S+\.parquet) is not a Parquet file"),
    re.compile(r"DamagedFileError: cannot read (?P<file>.+?\.parquet): "),
)
MISSING, DAMAGED = "it is not there", "it is damaged, or no Parquet file"
WAY_OUT = "restore the file from a copy, or ingest the logs again into a new table"


class DamagedFileError(PipelineError):
    """A file of a table is damaged or missing; the text names it."""

    def __init__(self, file: str, cause: str) -> None:
        super().__init__(f"cannot read {file}: {cause}; {WAY_OUT}")


def damaged_file(error: BaseException) -> DamagedFileError | None:
    """What a failed job has to say about a file that cannot be read; None: that is not why it failed."""
    text = str(error)
    for pattern in _NAMED:
        found = pattern.search(text)
        if found is not None:
            file = re.sub(r"^file:/+", "/", found["file"])
            is_missing = "FILE_NOT_EXIST" in found[0] or "FileNotFoundException" in text or MISSING in text
            return DamagedFileError(file, MISSING if is_missing else DAMAGED)
    return None
