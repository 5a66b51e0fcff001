"""Kafka's command line tools in one JVM for each process of the tests: a JVM's start takes longer than most tools."""

import atexit
import shutil
import struct
import subprocess
import threading
from pathlib import Path
from typing import IO

from tests.support.kafka.jars import SHORT_LIVED, VERSION, compiled, java_command

SOURCE = Path(__file__).parents[1] / "java" / "ToolServer.java"
OPTIONS = (*SHORT_LIVED, "--add-opens=java.base/java.lang=ALL-UNNAMED")  # for the hooks that a tool adds

_lock = threading.Lock()
_running: list[subprocess.Popen[bytes]] = []


def run_tool(main: str, *arguments: object, stdin: str = "", seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the main method of a class, as `java CLASS ARGUMENT...` does; return its output and exit status.

    Safe in several threads; one tool runs at a time. Requires Java, javac and Maven. Raises: Unavailable;
    subprocess.TimeoutExpired.
    """
    words = [main, *map(str, arguments)]
    with _lock:
        if not _running:
            command = java_command(SOURCE.stem, options=OPTIONS, classes=compiled(SOURCE))
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            _running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing))
        jvm = _running[0]
        assert jvm.stdin is not None
        assert jvm.stdout is not None
        limit = threading.Timer(seconds, jvm.kill)
        limit.start()
        try:
            for text in (str(len(words)), *words, stdin):
                data = text.encode()
                jvm.stdin.write(struct.pack(">i", len(data)) + data)
            jvm.stdin.flush()
            status, output, errors = (_item(jvm.stdout) for _ in range(3))
        except (OSError, EOFError):
            _close()
            raise subprocess.TimeoutExpired(words, seconds) from None
        finally:
            limit.cancel()
    return subprocess.CompletedProcess(words, int(status), output, errors)


def storage_tool(
    *words: str, version: str = VERSION, shared: bool = True, seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run kafka-storage of a version; raise the errors of `run_tool`.

    Args:
        shared: the JVM of the other tools may run the tool if the version is the same and javac is installed.
    """
    main = "kafka.tools.StorageTool"
    if shared and version == VERSION and shutil.which("javac") is not None:
        return run_tool(main, *words, seconds=seconds)
    command = java_command(main, *words, version=version)
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def _item(stream: IO[bytes]) -> str:
    head = stream.read(4)
    size = struct.unpack(">i", head)[0] if len(head) == 4 else 0
    data = stream.read(size)
    if len(head) < 4 or len(data) < size:
        raise EOFError
    return data.decode(errors="replace")


def _close() -> None:
    for jvm in _running:
        jvm.kill()
        jvm.communicate()
    _running.clear()


atexit.register(_close)
