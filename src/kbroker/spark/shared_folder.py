"""Check by tasks that Spark's executors share the folders and files of the driver.

Executors on other machines would write to a folder of the same name on their own disks, which Spark takes for a
success: a table would stay empty while the offsets of the stream advance.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kbroker._core.clock import SystemClock
from kbroker.spark.errors import PipelineError
from kbroker.spark.failures import with_workers
from kbroker.spark.session_kind import parallelism, runs_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES_AND_LOGS = "tables and logs"
SETTLE_SECONDS = 5.0  # maximum delay until a network file system shows a new file
_STEP_SECONDS = 0.1
MAX_FILES = 16  # maximum number of compared files
BEGINNING_BYTES = 4096
#: The number of compared bytes of a file, and their hash.
Beginning = tuple[int, str]
_SCHEMA = "task int, host string, missing string"


def require_shared(
    spark: SparkSession,
    folder: Path | None,
    files: Sequence[str | os.PathLike[str]] = (),
    *,
    what: str = TABLES_AND_LOGS,
) -> None:
    """Check by tasks that executors find a new file in `folder`, can write there, and have the same `files`.

    Without a folder only `files` are compared. The function does nothing if all processes run here. Executors that
    start later are not checked.

    Args: `what`: the subject of the message: the data that must be shared.
    Raises: PipelineError that names the machine and the missing folder or file; OSError.
    """
    if not runs_elsewhere(spark):
        return
    known = {str(file): _beginning(file, BEGINNING_BYTES) for file in files[:MAX_FILES]}
    if folder is None:
        if known:
            _ask(spark, None, known, what)
        return
    probe = folder / f"_probe-{uuid.uuid4().hex}"
    probe.mkdir(parents=True)
    try:
        (probe / "driver").write_bytes(b"")
        awaited = _ask(spark, str(probe), known, what)
        if not settles(lambda: all((probe / task).exists() for task in awaited)):
            host = next(host for task, host in awaited.items() if not (probe / task).exists())
            raise PipelineError(not_shared(host, str(folder), what))
    finally:
        for file in probe.glob("*"):
            with contextlib.suppress(OSError):
                file.unlink()
        with contextlib.suppress(OSError):
            probe.rmdir()


def _ask(spark: SparkSession, probe: str | None, known: Mapping[str, Beginning], what: str) -> dict[str, str]:
    """Run the tasks; return their hosts by number. Raises: PipelineError if one of them lacks something."""
    tasks = 2 * parallelism(spark)
    look = partial(_look, probe, known)
    found = with_workers(lambda: spark.range(0, tasks, numPartitions=tasks).mapInArrow(look, _SCHEMA).collect())
    for row in found:
        if row["missing"]:
            raise PipelineError(not_shared(row["host"], row["missing"], what))
    return {str(row["task"]): row["host"] for row in found}


def not_shared(host: str, place: str, what: str) -> str:
    """Return the sentence for a folder or file that differs between an executor and the driver."""
    return (
        f"an executor of Spark on {host} has another {place} than this machine: {what} must be in a folder "
        "that all executors and this machine share, in HDFS or in an object store, or run with --master 'local[*]'"
    )


def _look(
    probe: str | None, known: Mapping[str, Beginning], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield, in a task, its number, this host, and the driver's folder or file that is missing here, or null."""
    host = socket.gethostname()
    for batch in batches:
        tasks: list[Any] = batch.column(0).to_pylist()
        missing = _missing(probe, known, tasks)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(tasks, pa.int32()),
                pa.array([host] * len(tasks), pa.string()),
                pa.array([missing] * len(tasks), pa.string()),
            ],
            ["task", "host", "missing"],
        )


def _missing(probe: str | None, known: Mapping[str, Beginning], tasks: Sequence[int]) -> str | None:
    return (_no_folder(probe, tasks) if probe is not None else None) or next(
        (name for name, beginning in known.items() if not _begins(name, beginning)), None
    )


def _no_folder(probe: str, tasks: Sequence[int]) -> str | None:
    folder = os.path.dirname(probe)
    if not settles(lambda: os.path.exists(os.path.join(probe, "driver"))):
        return folder
    try:
        for task in tasks:
            with open(os.path.join(probe, str(task)), "xb"):
                pass
    except FileExistsError:
        pass  # an earlier attempt at this task
    except OSError as error:
        return f"{folder} ({error.strerror})"
    return None


def _begins(file: str, beginning: Beginning) -> bool:
    """Return whether a file exists and has this beginning; it may have grown since."""
    try:
        return _beginning(file, beginning[0]) == beginning
    except OSError:
        return False


def _beginning(file: str | os.PathLike[str], size_bytes: int) -> Beginning:
    with open(file, "rb") as opened:
        content = opened.read(size_bytes)
    return len(content), hashlib.blake2b(content, digest_size=12).hexdigest()


def settles(is_there: Callable[[], bool]) -> bool:
    """Return whether a condition holds now, or within SETTLE_SECONDS."""
    clock = SystemClock()
    until_ms = clock.now_ms() + SETTLE_SECONDS * 1000
    while not is_there():
        if clock.now_ms() > until_ms:
            return False
        time.sleep(_STEP_SECONDS)
    return True
