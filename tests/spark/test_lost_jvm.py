"""Command whose JVM has been killed: one sentence, without the traces of py4j and PySpark."""

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext, accumulators

from kbroker.cli.pipeline_session import running
from kbroker.spark.errors import PipelineError
from kbroker.spark.setup import gateway


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process in place of PySpark's JVM."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        yield process
        process.kill()


def failing(error: Exception) -> None:
    """Run a command that fails before it has a session."""
    common: dict[str, Any] = {"verbose": False, "quiet": True}

    def start(common: dict[str, Any]) -> Any:
        raise error

    with running(common, start):
        pass


def test_the_sentence_says_what_became_of_it(jvm: subprocess.Popen[bytes]) -> None:
    jvm.kill()
    with pytest.raises(PipelineError, match=f"JVM has ended by signal {int(signal.SIGKILL)}, as .*--driver-memory"):
        failing(ConnectionRefusedError(111, "Connection refused"))


def test_a_jvm_that_is_about_to_end_is_waited_for(jvm: subprocess.Popen[bytes]) -> None:
    """The JVM's connections are lost shortly before its process ends."""
    assert jvm.stdin is not None
    jvm.stdin.close()
    with pytest.raises(PipelineError, match="JVM has ended with status 1:"):
        failing(ConnectionRefusedError(111, "Connection refused"))


def test_other_failures_stay_what_they_are(jvm: subprocess.Popen[bytes]) -> None:
    """While the JVM runs, a missing file and an error of kbroker are unchanged."""
    for error in (FileNotFoundError("a"), PipelineError("b")):
        with pytest.raises(type(error), match=str(error)):
            failing(error)


def test_no_traces(capfd: pytest.CaptureFixture[str]) -> None:
    """Only the lines of py4j in the root logger are left out."""
    gateway.hide_traces()
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        for path, text in (("py4j/java_gateway.py", "Exception while sending command."), ("mine.py", "mine")):
            root.handle(logging.LogRecord("root", logging.ERROR, path, 1, text, (), None))
    finally:
        root.removeHandler(handler)
    assert said == ["mine"]
    server: Any = accumulators.AccumulatorTCPServer
    server.handle_error(None, None, ("127.0.0.1", 1))
    assert capfd.readouterr().err == ""
