"""Starts Spark's JVM and reads its stderr: it announces itself at every start, and its lines may be unwanted."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kbroker.spark.errors import PipelineError

Listener = Callable[[str], object]
KEPT_LINES = 50
END_SECONDS = 5.0
_ANNOUNCEMENT = "Using incubator modules"  # of Java, once for each JVM


def to_stderr(line: str) -> None:
    """What listens by default: to the process's own stderr, which outlives any file in its place."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def start_jvm(settings: Mapping[str, str], listener: Listener = to_stderr) -> None:
    """Start the JVM that the next session of this process uses; nothing if there is one.

    Args: `listener`: called on a separate thread with each line that the JVM and its Python workers write to stderr.
    Raises: PipelineError with what the JVM said last when it did not start.
    """
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.errors import PySparkRuntimeError

    if SparkContext._gateway is not None:
        return
    launch: Any = java_gateway.launch_gateway
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    reading, writing = os.pipe()
    relay = _Relay(reading, listener)
    try:
        gateway = launch(conf, popen_kwargs={"stderr": writing})
    except PySparkRuntimeError as error:
        os.close(writing)
        relay.join(END_SECONDS)
        memory = settings.get("spark.driver.memory")
        raise PipelineError(
            f"Spark's JVM did not start{relay.last_words()} (is there memory for spark.driver.memory={memory}?)"
        ) from error
    except BaseException:
        os.close(writing)
        raise
    os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


class _Relay(threading.Thread):
    """Reads a pipe to its end, line by line."""

    def __init__(self, descriptor: int, listener: Listener) -> None:
        super().__init__(name="spark-jvm-stderr", daemon=True)
        self._descriptor = descriptor
        self._listener = listener
        self._last: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self.start()

    def run(self) -> None:
        with open(self._descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if _ANNOUNCEMENT not in line:
                    self._last.append(line.rstrip("\n"))
                    self._listener(self._last[-1])

    def last_words(self) -> str:
        """For a sentence: the last line that has something to say."""
        said = [line.strip() for line in self._last if line.strip()]
        return f": {said[-1]}" if said else ""
