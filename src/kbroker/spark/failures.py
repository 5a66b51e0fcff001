"""What a failed job of Spark has to say, in one sentence: Java's and Python's traces are for those who ask for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.spark.errors import NO_WORKER

T = TypeVar("T")

MAX_CHARACTERS = 500
_OURS = re.compile(r"^\s*kbroker\.[\w.]+(?:Error|Exception): (.+)$", re.MULTILINE)
#: Not the one by which Python says that Java raised something: Java's own message says what.
_PYTHON = re.compile(r"^\s*(?!py4j\.protocol\.)((?:\w+\.)*\w+(?:Error|Exception): .+)$", re.MULTILINE)
_CAUSED = re.compile(r"^Caused by: (?:[\w$]+\.)+[\w$]+: (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^: (?:[\w$]+\.)+([\w$]+(?:: .+)?)$", re.MULTILINE)
_STREAM = re.compile(r"terminated with exception: (.*?)(?= SQLSTATE|\n=== Streaming|\Z)", re.DOTALL)
_NO_WORKER = re.compile(rf"{NO_WORKER}|Timed out while waiting for the Python worker to connect back")
TRIES = 3  # of a job for which Spark had no Python worker, each after ten seconds
_CONCURRENT = "[CONCURRENT_STREAM_LOG_UPDATE]"
#: What to do where a cluster's machines have not the Python that is needed.
NEEDS_PYTHON = (
    'install "kbroker[spark]" there, send one with --py-env ARCHIVE, or name another Python of theirs with --conf '
    "spark.pyspark.python=PATH"
)
#: What Spark or the machines of a cluster lack, by what Spark or Python say of it.
_LACKING = (
    (
        re.compile(r"No FileSystem for scheme \"(\w+)\"|Class org\.apache\.hadoop\.fs\.(s3a)\.S3AFileSystem not found"),
        "Spark has no client of Hadoop's for this store, in which --checkpoint lies: give Spark its jars (for S3 "
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
    (
        re.compile(r'Cannot run program "([^"]+)"'),
        f"Spark's executors have no program {{0}}: {NEEDS_PYTHON}",
    ),
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
    """What a job of Spark returns, begun again where a Python worker has not started in time: nothing was done by then.

    Raises: what the job raises, this too after TRIES.
    """
    for left in reversed(range(TRIES)):
        try:
            return job()
        except Exception as error:
            if not left or not is_of_spark(error) or _NO_WORKER.search("\n".join(_said(error))) is None:
                raise
    raise AssertionError("TRIES is positive")


def sentence(error: BaseException) -> str:
    """One sentence for an exception of PySpark or py4j."""
    said = _said(error)
    text = "\n".join(said)
    for pattern, known in _LACKING:
        found = pattern.search(text)
        if found is not None:
            return known.format(*found.groups())
    return cause(text if _OURS.search(text) else said[-1])


def _said(error: BaseException) -> list[str]:
    """What an exception says, and those that Java raised before it."""
    said = [str(error)]
    origin: Any = error
    while (origin := getattr(origin, "_cause", None)) is not None:  # as PySpark keeps what Java raised
        said.append(str(origin))
    return said


def cause(text: str) -> str:
    """Why a query ended: the last message of our own in its traces, else of Python, of Java, else its first line."""
    if _CONCURRENT in text:
        return "another process runs a stream with this checkpoint: give each checkpoint one process"
    stated = _STREAM.search(text)
    inner = stated[1] if stated else text
    for pattern in (_OURS, _PYTHON, _CAUSED, _JAVA):
        found = pattern.findall(inner)
        if found:
            return _short(found[-1])
    lines = inner.strip().splitlines()
    return _short(lines[0]) if lines else "no reason was given"


def _short(text: str) -> str:
    return " ".join(text.split())[:MAX_CHARACTERS]


def is_of_spark(error: BaseException) -> bool:
    """Whether PySpark or its bridge to Java raised it."""
    return type(error).__module__.startswith(("py4j.", "pyspark.", "grpc."))
