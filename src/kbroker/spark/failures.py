"""Reduce the failure of a Spark job to one sentence, without the traces of Java and Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.spark.errors import NEEDS_CREDENTIALS, NO_CREDENTIALS, NO_WORKER, PipelineError, reason_of_delta

T = TypeVar("T")

_OURS = re.compile(r"^\s*kbroker\.[\w.]+(?:Error|Exception): (.+)$", re.MULTILINE)
#: Exceptions of Python except py4j's own, which only report that Java raised one: Java's message states the reason.
#: The causes of an error of delta-rs follow it, each on a line with an arrow.
_PYTHON = re.compile(
    r"^\s*(?!py4j\.protocol\.)((?:\w+\.)*\w+(?:Error|Exception): .+(?:\n\s*(?:\x1b\[\d+m)?\u21b3.+)*)$", re.MULTILINE
)
_CAUSED = re.compile(r"^Caused by: (?:[\w$]+\.)+[\w$]+: (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^: (?:[\w$]+\.)+([\w$]+(?:: .+)?)$", re.MULTILINE)
_AFTER_CALL = re.compile(r"^An error occurred while calling [^\n]*\n: (.+?)(?=\n\s*at |\Z)", re.DOTALL | re.MULTILINE)
_STREAM = re.compile(r"terminated with exception: (.*?)(?= SQLSTATE|\n=== Streaming|\Z)", re.DOTALL)
_NO_WORKER = re.compile(rf"{NO_WORKER}|Timed out while waiting for the Python worker to connect back")
TRIES = 3  # attempts at a job for which no Python worker starts; each fails after ten seconds
_CONCURRENT = "[CONCURRENT_STREAM_LOG_UPDATE]"
#: Spark's own readers name the file; the first match is the one that failed.
_UNREADABLE_BY_SPARK = (
    re.compile(r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (?P<file>\S+\.parquet)"),
    re.compile(r"Could not read footer for file: \S*?(?P<file>(?:file:|/)\S+\.parquet)"),
    re.compile(r"(?P<file>\S+\.parquet) is not a Parquet file"),
)
#: The error of `file_reader` in the trace of a Python worker.
_UNREADABLE = re.compile(r"UnreadableFileError: cannot read (?P<file>.+?\.parquet): (?P<cause>[^\n]+)")

MISSING, DAMAGED = "it is missing", "it is damaged, or no Parquet file"
STORE_FAILED, AGAIN = "its store failed: ", "; run this again when the store responds"
RESTORE = "restore the file from a copy, or ingest the logs again into a new table"
#: Remedies where the machines of a cluster lack the Python that is needed.
NEEDS_PYTHON = (
    'install "kbroker[spark]" there, send one with --py-env ARCHIVE, or name another Python of theirs with --conf '
    "spark.pyspark.python=PATH"
)
#: Requirements that Spark or the machines of a cluster do not meet, by the messages of Spark or Python.
_LACKING = (
    (NO_CREDENTIALS, f"Spark's executors have no credentials for the object store ({{cause}}): {NEEDS_CREDENTIALS}"),
    (
        re.compile(r"No FileSystem for scheme \"(\w+)\"|Class org\.apache\.hadoop\.fs\.(s3a)\.S3AFileSystem not found"),
        "Spark has no Hadoop client for this store, which --checkpoint names: give Spark its jars (for S3 "
        "org.apache.hadoop:hadoop-aws), or name a folder or one in HDFS",
    ),
    (
        re.compile(r"(?:NoClassDefFound|ClassNotFound)\w+: ((?:org/apache/hadoop|software[./]amazon)[\w./$]+)"),
        "Spark's JVM has no class {0}: a jar of Hadoop's client of this store, or one that it needs, is missing from "
        "spark.jars (spark.jars.packages finds those that are needed)",
    ),
    (
        re.compile(r"No module named '(kbroker|pyarrow|pandas|pyspark)[\w.]*'"),
        f"the Python of Spark's executors has no {{0}}: {NEEDS_PYTHON}",
    ),
    (re.compile(r'Cannot run program "([^"]+)"'), f"Spark's executors have no program {{0}}: {NEEDS_PYTHON}"),
    (
        re.compile(r"(pyspark\.daemon)'s (?:stdout|standard output)"),
        f"the Python of Spark's executors does not start: {NEEDS_PYTHON}",
    ),
    (
        _NO_WORKER,
        "a Python worker of Spark did not start within the ten seconds that Spark waits: its machine is too busy; run "
        "the command again",
    ),
    (
        re.compile(r"\[PYTHON_VERSION_MISMATCH\]\D*(\d+\.\d+)\D+(\d+\.\d+)"),
        f"Spark's executors run Python {{0}} and this command {{1}}: {NEEDS_PYTHON}",
    ),
)


def with_workers(job: Callable[[], T]) -> T:
    """Run a Spark job; run it again if no Python worker started in time, because no work was done by then.

    Raises: the job's exceptions; the one about Python workers only after TRIES attempts.
    """
    for left in reversed(range(TRIES)):
        try:
            return job()
        except Exception as error:
            if not left or not is_of_spark(error) or _NO_WORKER.search("\n".join(_said(error))) is None:
                raise
    raise AssertionError("TRIES is positive")


def sentence(error: BaseException) -> str:
    """Return one sentence for an exception of PySpark or py4j."""
    said = _said(error)
    text = "\n".join(said)
    return lacking(text) or cause(text if _OURS.search(text) else said[-1])


def lacking(text: str) -> str | None:
    """Return a sentence on something that Spark or a machine lacks, or None if a job failed for another reason."""
    for pattern, known in _LACKING:
        found = pattern.search(text)
        if found is not None:
            return known.format(*found.groups(), cause=cause(text))
    return None


def _said(error: BaseException) -> list[str]:
    """Return the message of an exception and those of its causes in Java."""
    said = [str(error)]
    origin: Any = error
    while (origin := getattr(origin, "_cause", None)) is not None:  # PySpark keeps the exceptions of Java there
        said.append(str(origin))
    return said


def cause(text: str) -> str:
    """Return why a query ended: the last message of kbroker in its traces, else of Python or Java, else its first."""
    if _CONCURRENT in text:
        return "another process runs a stream with this checkpoint: give each checkpoint one process"
    stated = _STREAM.search(text)
    inner = stated[1] if stated else text
    for pattern in (_OURS, _PYTHON, _CAUSED, _JAVA):
        found = pattern.findall(inner)
        if found:
            return reason_of_delta(found[-1])
    of_java = _AFTER_CALL.search(inner)  # an exception without a package, such as Hadoop's of a command that failed
    if of_java is not None:
        return reason_of_delta(" ".join(of_java[1].split()))
    lines = inner.strip().splitlines()
    return reason_of_delta(lines[0]) if lines else "no reason was given"


def is_of_spark(error: BaseException) -> bool:
    """Return whether PySpark or its bridge to Java raised an exception."""
    return type(error).__module__.startswith(("py4j.", "pyspark.", "grpc."))


class UnreadableFileError(PipelineError):
    """File of a table that cannot be read. Args: ``cause``: why, and what to do, in one line."""

    def __init__(self, file: str, cause: str) -> None:
        super().__init__(f"cannot read {file}: {cause}")


def unreadable_file(error: BaseException) -> UnreadableFileError | None:
    """Return the message about an unreadable file that made a job fail, None for another cause."""
    text = str(error)
    found = _UNREADABLE.search(text)
    if found is not None:
        reason = found["cause"].rstrip()
        if NO_CREDENTIALS.search(reason) is not None:
            reason = lacking(reason.removeprefix(STORE_FAILED).removesuffix(AGAIN)) or reason
        return UnreadableFileError(found["file"], reason)
    for pattern in _UNREADABLE_BY_SPARK:
        found = pattern.search(text)
        if found is not None:
            file = re.sub(r"^file:/+", "/", found["file"])
            is_missing = "FILE_NOT_EXIST" in found[0] or "FileNotFoundException" in text
            return UnreadableFileError(file, f"{MISSING if is_missing else DAMAGED}; {RESTORE}")
    return None
