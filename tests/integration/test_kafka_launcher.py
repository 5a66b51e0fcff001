"""Launcher of Apache Kafka for tests: its JVM ends with the test program, and a failed start has a reason."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import need, wire
from tests.support.broker import wait_for
from tests.support.kafka import ApacheKafka, StartError, Unavailable, jars

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
STARTS_AND_WAITS = """
import sys
from tests.support.kafka import ApacheKafka
with ApacheKafka() as kafka:
    print(kafka.pid, kafka.folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def programs() -> None:
    need.program("java", "mvn")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_life() -> None:
    """The broker serves; afterwards its process has ended and its folder is deleted."""
    with ApacheKafka({"num.partitions": "3"}) as kafka:
        pid, folder = kafka.pid, kafka.folder
        assert wire.responses(kafka.bootstrap)
        assert is_running(pid)
        assert "num.partitions=3" in (folder / "server.properties").read_text()
    assert not is_running(pid)
    assert not folder.exists()


def test_killed_program_leaves_no_jvm() -> None:
    """A SIGKILL of the test program ends the JVM too."""
    command = [sys.executable, "-c", STARTS_AND_WAITS]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pid, folder = program.stdout.readline().split()
        assert is_running(int(pid))
        os.kill(program.pid, signal.SIGKILL)
    wait_for("the end of the JVM", lambda: not is_running(int(pid)))
    for path in sorted(Path(folder).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    Path(folder).rmdir()


def test_broker_that_does_not_start_says_why() -> None:
    """The error of a failed start contains the end of the broker's log, and the folder is deleted."""
    kafka = ApacheKafka({"log.dirs": "/proc/nowhere"})
    with pytest.raises(StartError, match="/proc/nowhere"), kafka:
        pass
    assert not kafka.folder.exists()


def test_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(Unavailable, match=r"^needs java; on Debian: apt-get install openjdk-17-jre-headless$"):
        jars.program("java")
