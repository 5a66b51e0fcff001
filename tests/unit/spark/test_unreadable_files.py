"""Error of a failed job about an unreadable file: one sentence with the file's name."""

import pytest

from kbroker.spark.failures import AGAIN, DAMAGED, MISSING, RESTORE, STORE_FAILED, UnreadableFileError, unreadable_file

FILE = "/data/t/date=2026-01-02/hour=00/bucket=00/batch-00000000-g0.parquet"

# Messages of Spark 4.2 and its Python worker, shortened.
READER = (
    "An error occurred while calling o426.collectToPython.\n: org.apache.spark.SparkException: Job aborted\n"
    "Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
    f"file://{FILE}. SQLSTATE: KD001\nCaused by: java.lang.RuntimeException: file:{FILE} is not a Parquet file."
)
MISSING_FILE = (
    "org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file "
    f"file://{FILE}. File does not exist. It is possible the underlying files have been updated."
)
RAISED = UnreadableFileError(FILE, f"{DAMAGED} (x); {RESTORE}")
WORKER = (
    "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
    f"kbroker.spark.failures.UnreadableFileError: {RAISED}"
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [(READER, DAMAGED), (MISSING_FILE, MISSING), (WORKER, f"{DAMAGED} (x)")],
    ids=["reader", "gone", "worker"],
)
def test_the_file_is_named(text: str, cause: str) -> None:
    """The file is named whether Spark's reader in the JVM or Arrow in a Python worker reads it."""
    assert str(unreadable_file(RuntimeError(text))) == f"cannot read {FILE}: {cause}; {RESTORE}"


def test_credentials_that_executors_lack_are_named() -> None:
    """The advice is to set credentials, not to wait for the store."""
    reason = "Operation not supported: an error occurred while loading credentials: no providers"
    raised = UnreadableFileError(FILE, f"{STORE_FAILED}{reason}{AGAIN}")
    said = str(unreadable_file(RuntimeError(f"kbroker.spark.failures.UnreadableFileError: {raised}")))
    expected = f"cannot read {FILE}: Spark's executors have no credentials for the object store ({reason}): set AWS_"
    assert said.startswith(expected)
    assert AGAIN not in said


def test_other_failures_are_not_explained_away() -> None:
    """An exception without an unreadable file keeps its traceback."""
    assert unreadable_file(RuntimeError(f"java.lang.OutOfMemoryError while writing {FILE}")) is None
