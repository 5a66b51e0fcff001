"""Messages about a Spark JVM that does not start."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from kbroker.spark.setup.gateway import start_jvm, why

MEMORY = " (is there memory for spark.driver.memory=1g?)"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], MEMORY),
        (
            [
                "26/01/02 03:04:05 WARN Utils: Your hostname resolves to a loopback address",
                'Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or ...',
                "\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)",
                "\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)",
            ],
            ": SparkException: Master must either be yarn or ...",
        ),
        (
            [
                "Invalid maximum heap size: -Xmx1XB",
                "Error: Could not create the Java Virtual Machine.",
                "Error: A fatal exception has occurred. Program will exit.",
            ],
            ": Invalid maximum heap size: -Xmx1XB" + MEMORY,
        ),
        (
            ["Error occurred during initialization of VM", "Too small maximum heap", ""],
            ": Too small maximum heap" + MEMORY,
        ),
        (["x: y", "\tat a.b(C.scala:1)", "\t... 3 more"], ": x: y" + MEMORY),
    ],
    ids=["nothing", "exception", "no heap", "small heap", "only a trace"],
)
def test_why_a_jvm_did_not_start(lines: list[str], said: str) -> None:
    """The message has the reason without stack frames, and mentions memory only if no other reason is known."""
    assert why(lines, "1g") == said


def test_a_start_that_is_interrupted_leaves_no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted start kills the JVM, whose port file PySpark deletes.

    The JVM has its own process group, so that a signal to the command's group does not end it during a batch.
    """
    java_gateway = pytest.importorskip("pyspark.java_gateway")
    started: list[subprocess.Popen[bytes]] = []
    groups: list[int] = []

    def launch(conf: object, popen_kwargs: dict[str, Any]) -> None:
        started.append(java_gateway.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, **popen_kwargs))
        groups.append(os.getpgid(started[0].pid))
        raise KeyboardInterrupt

    before = java_gateway.Popen
    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    with pytest.raises(KeyboardInterrupt):
        start_jvm({})
    with started[0] as process:
        assert process.wait(10) == -signal.SIGKILL
        assert groups == [process.pid]
    assert java_gateway.Popen is before
