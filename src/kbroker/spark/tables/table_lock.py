"""One writer per table: a lock on a file, held by Spark's JVM.

The JVM holds it and not Python, because the JVM outlives a killed driver by seconds and may still be writing: the lock
ends with the last process that could. Over Spark Connect this process takes each batch itself and holds the lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.spark.session_kind import is_connect
from kbroker.spark.tables.manifest import LOCK, TableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_MS = 8_000  # a killed driver's JVM ends after some three seconds
_STEP_S = 0.2


@contextmanager
def lock_table(
    spark: SparkSession, path: Path, *, wait_ms: int = WAIT_MS, sleep: Callable[[float], object] | None = None
) -> Iterator[None]:
    """Hold the lock of the table at `path`, which need not exist yet.

    Args: `wait_ms`: how long to wait for another writer to end; `sleep`: waits for seconds (default: Python's).
    Raises: TableError when another writer holds it, with what that has left about itself.
    """
    import time

    wait = sleep or time.sleep
    path.mkdir(parents=True, exist_ok=True)
    file = path / LOCK
    for _ in range(int(wait_ms / 1000 / _STEP_S) + 1):
        channel = _try_lock(spark, file)
        if channel is not None:
            break
        wait(_STEP_S)
    else:
        raise TableError(f"{path} is being written by {_owner(file)}; a table has one writer at a time")
    try:
        (path / f"{LOCK}.owner").write_text(f"process {os.getpid()} on {os.uname().nodename}\n", encoding="utf-8")
        yield
    finally:
        channel.close()  # and with it the lock


def _try_lock(spark: SparkSession, file: Path) -> Any:
    """The locked channel, or None when someone else has it: another process, or another query of this JVM."""
    if is_connect(spark):
        return _try_lock_here(file)
    from py4j.protocol import Py4JJavaError

    jvm = spark._jvm
    assert jvm is not None
    file.touch()
    stream = jvm.java.io.RandomAccessFile(str(file), "rw")
    channel = stream.getChannel()
    try:
        if channel.tryLock() is not None:
            return channel
    except Py4JJavaError as error:
        if "OverlappingFileLockException" not in str(error.java_exception):
            raise
    channel.close()
    return None


def _try_lock_here(file: Path) -> Any:
    import fcntl

    opened = file.open("a")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # also between two jobs of this process
        fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # what a JVM asks for
    except OSError:
        opened.close()
        return None
    return opened


def _owner(file: Path) -> str:
    try:
        return file.with_name(f"{LOCK}.owner").read_text(encoding="utf-8").strip()
    except OSError:
        return "another process"
