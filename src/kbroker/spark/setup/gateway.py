"""Start Spark's JVM and relay its stderr without the banner of each start."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbroker.spark.errors import PipelineError

Listener = Callable[[str], object]
KEPT_LINES = 50
END_SECONDS = 5.0
_ANNOUNCEMENT = "Using incubator modules"  # printed by Java at each start
_FRAMES = ("at ", "... ")  # lines of a trace: a frame, the number of omitted frames
#: Last lines of a JVM that could not start; the reason is above them.
_ENDS = ("Error: Could not create the Java Virtual Machine.", "Error: A fatal exception has occurred.")
_UNCAUGHT = re.compile(r'Exception in thread "[^"]*" (?:[\w$]+\.)*')


def to_stderr(line: str) -> None:
    """Write a line to descriptor 2, which outlives any replacement of `sys.stderr`. The default listener."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def start_jvm(settings: Mapping[str, str], listener: Listener = to_stderr) -> None:
    """Start the JVM that the next session of this process uses, unless one is running.

    Args: `listener`: called on a separate thread with each line that the JVM and its Python workers write to stderr.
    Raises: PipelineError with the last message of the JVM if it did not start.
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
    started: list[subprocess.Popen[bytes]] = []

    def popen(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        # A signal to the whole process group, as `timeout` and supervisors send it, must reach the command alone, which
        # ends Spark after the current batch. When the command ends, the JVM's stdin closes, and the JVM ends with it.
        started.append(subprocess.Popen(*args, **{**kwargs, "start_new_session": True}))
        return started[-1]

    module: Any = java_gateway
    before, module.Popen = module.Popen, popen
    try:
        # A JVM that cannot start prints the reason on stdout, which is for the result of a command.
        streams = {"stderr": writing} if listener is to_stderr else {"stderr": writing, "stdout": writing}
        gateway = launch(conf, popen_kwargs=streams)
    except PySparkRuntimeError as error:
        os.close(writing)
        relay.join(END_SECONDS)
        raise PipelineError(
            f"Spark's JVM did not start{why(relay.lines(), settings.get('spark.driver.memory'))}"
        ) from error
    except BaseException:
        os.close(writing)
        for process in started:
            process.kill()  # after Ctrl-C it would continue to run, since the file for its port is deleted
        raise
    finally:
        module.Popen = before
    os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


def hide_traces() -> None:
    """Suppress the traces that py4j and PySpark print to stderr when the JVM ends or on Ctrl-C.

    `lost_jvm` reports the end of the JVM in one sentence.
    """
    logging.getLogger().addFilter(_is_not_of_py4j)
    try:
        from pyspark import accumulators
    except ImportError:  # PySpark is missing, which is reported later, or is only a client of Spark Connect
        return
    servers: list[Any] = [accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer]
    for server in servers:
        server.handle_error = _no_trace


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return whether a record is none of the failures that py4j logs with the root logger."""
    return record.name != "root" or record.module != "java_gateway"


def _no_trace(server: object, request: object, client: object) -> None:
    """Replace `handle_error`, which prints a trace to stderr."""


def lost_jvm(error: BaseException) -> str | None:
    """Return the sentence for a JVM that has ended on its own; None if it still runs or there is no JVM.

    Args: `error`: the caller's exception; after a lost connection, wait up to END_SECONDS for the JVM to end.
    """
    context: Any = sys.modules.get("pyspark.core.context")  # not loaded if PySpark is missing
    process = getattr(context.SparkContext._gateway, "proc", None) if context is not None else None
    if process is None:
        return None
    if isinstance(error, ConnectionError | EOFError) or type(error).__name__ == "Py4JNetworkError":
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    status = process.poll()
    if status is None:
        return None
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    more = ", as the system does to a process when it lacks memory" if status == -signal.SIGKILL else ""
    return f"Spark's JVM has ended {how}{more}: run the command again, with more --driver-memory if it lacked memory"


class _Relay(threading.Thread):
    """A thread that passes each line of a pipe to the listener, and keeps the last KEPT_LINES."""

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

    def lines(self) -> list[str]:
        """Return the last lines read."""
        return list(self._last)


def why(lines: Sequence[str], memory: str | None) -> str:
    """Return the end of a sentence about a JVM that did not start.

    Args: `lines`: its output; `memory`: its setting.
    Returns: the exception that ended it, else its last meaningful line with a hint about memory.
    """
    said = [line.strip() for line in lines]
    for line in said:
        if _UNCAUGHT.match(line):
            return f": {_UNCAUGHT.sub('', line, count=1)}"
    said = [line for line in said if line and not line.startswith((*_FRAMES, *_ENDS))]
    return f"{f': {said[-1]}' if said else ''} (is there memory for spark.driver.memory={memory}?)"
