"""Node of Apache Kafka in KRaft mode on this machine, on its own loopback ports."""

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tests.support import wire
from tests.support.kafka.jars import QUICK_START, VERSION, ClassArchive, classpath, java_command
from tests.support.kafka.tool_server import storage_tool
from tests.support.ports import free_run

HEAP = "512m"
PID_FILE = "pid"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0  # includes the time to write an archive of classes
# One node has the roles for which Kafka expects three, and a group does not wait for further members.
ALONE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
# Runs a command and ends it when standard input ends, so that no JVM outlives the test run, even a killed one. The
# command's process id is written to the file $0.
WATCHED = """
exec 3<&0
"$@" < /dev/null & child=$!
echo $child > "$0"
(cat <&3 > /dev/null; kill $child 2> /dev/null) & watch=$!
wait $child; status=$?
kill $watch 2> /dev/null
exit $status
"""
# The collector options of Kafka's own start script, for measurements.
COLLECTOR = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")


class StartError(Exception):
    """Apache Kafka did not start; the message ends with the end of its log."""


class ApacheKafka:
    """Node in a separate process, started by `with`; its data is deleted at the end.

    The first node that is stopped writes an archive of its classes, with which later nodes start in half the CPU time,
    unless `write_class_archive.py` has written it.

    Args:
        settings: override the settings of a single node; an empty value removes a setting.
        port: of the PLAINTEXT listener; the controller's port is the next. None: a pair that is free now.
        listeners: further listeners, as PROTOCOL://HOST:PORT.
        heap: minimum and maximum heap of the JVM.
        folder: of properties, logs and data; None: a new temporary folder.
        outlives: the node continues after the end of this process, until `stop_detached`.
        cluster_id: None: the node is the only one of a new cluster.
        formatted: further options of the command that formats its storage.
        before: jars at the beginning of the class path.
        compiler: options of the JVM for compiler and collector; COLLECTOR for measurements.
        options: further options of the JVM.
        version: of Apache Kafka.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        listeners: tuple[str, ...] = (),
        heap: str = HEAP,
        folder: Path | None = None,
        outlives: bool = False,
        cluster_id: str | None = None,
        formatted: tuple[str, ...] = (),
        before: str = "",
        compiler: tuple[str, ...] = QUICK_START,
        options: tuple[str, ...] = (),
        version: str = VERSION,
    ) -> None:
        self.settings = dict(settings or {})
        self.port = free_run(2) if port is None else port
        self.folder = Path(tempfile.mkdtemp(prefix="apache-kafka-")) if folder is None else folder
        self._listeners = listeners
        self._heap = heap
        self._outlives = outlives
        self.cluster_id = cluster_id or new_id()
        self._format_options = formatted
        self._before = before
        self._quick = compiler == QUICK_START
        self._archives = self._quick and not before and not outlives
        self._options = (*compiler, *options)
        self._version = version
        self._process: subprocess.Popen[bytes] | None = None

    name = f"Kafka {VERSION}"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return int((self.folder / PID_FILE).read_text())

    @property
    def is_running(self) -> bool:
        """Return whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None and (self.folder / PID_FILE).exists()

    def __enter__(self) -> "ApacheKafka":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def properties(self) -> dict[str, str]:
        """Return the settings of the node, in which those of the caller override the others."""
        controller = self.port + 1
        plain = f"PLAINTEXT://127.0.0.1:{self.port}", f"CONTROLLER://127.0.0.1:{controller}"
        protocols = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
        values = {
            **ALONE,
            "listeners": ",".join((*plain, *self._listeners)),
            "listener.security.protocol.map": ",".join(("CONTROLLER:PLAINTEXT", *(f"{p}:{p}" for p in protocols))),
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.folder / "data"),
            **self.settings,
        }
        return {name: value for name, value in values.items() if value}

    def start(self) -> None:
        """Format the storage unless it is formatted, start the node, and wait until it responds to ApiVersions.

        Raises: Unavailable without Java or Maven; StartError if the process ends or does not respond in time.
        """
        classpath(self._version)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as output:
            written = self._formatted(output)
            archive = self._archive.options(self._new_archive) if self._archives else ()
            options = (f"-Xms{self._heap}", f"-Xmx{self._heap}", *self._options, *archive)
            command = java_command(
                "kafka.Kafka", str(written), options=options, before=self._before, version=self._version
            )
            pid_file = self.folder / PID_FILE
            if not self._outlives:
                pid_file.unlink(missing_ok=True)
                command = ["sh", "-c", WATCHED, str(pid_file), *command]
            stdin = subprocess.DEVNULL if self._outlives else subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=stdin, stdout=output, stderr=output, start_new_session=True)
            if self._outlives:
                pid_file.write_text(str(self._process.pid))
        deadline = time.monotonic() + START_TIMEOUT_S
        while not wire.responses(self.bootstrap, within=5.0):
            if self._process.poll() is not None:
                raise StartError(f"the process ended with {self._process.returncode}: {self.tail()}")
            if time.monotonic() > deadline:
                raise StartError(f"no response within {START_TIMEOUT_S:g} s: {self.tail()}")
            time.sleep(0.1)

    @property
    def _archive(self) -> ClassArchive:
        return ClassArchive.of_node(self._version)

    @property
    def _new_archive(self) -> Path:
        return self.folder / "classes.jsa"

    def _formatted(self, output: IO[bytes]) -> Path:
        """Write the file of properties, format the storage unless it is formatted, and return the file."""
        written = self.folder / "server.properties"
        written.write_text("".join(f"{k}={v}\n" for k, v in self.properties().items()), encoding="utf-8")
        if not (self.folder / "data" / "meta.properties").exists():
            words = ("format", "-t", self.cluster_id, "-c", str(written), *self._format_options)
            done = storage_tool(*words, version=self._version, shared=self._quick, seconds=START_TIMEOUT_S)
            output.write((done.stdout + done.stderr).encode())
            output.flush()
            if done.returncode != 0:
                raise StartError(f"StorageTool ended with {done.returncode}: {self.tail()}")
        return written

    def kill(self) -> None:
        """Kill the process; its data stays for the next `start`."""
        assert self._process is not None
        os.kill(self.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    def log(self) -> str:
        """Return the whole log of the node."""
        return (self.folder / "log").read_text(errors="replace")

    def tail(self) -> str:
        """Return the end of the log."""
        return self.log()[-3000:]

    def stop(self) -> None:
        """End the process and delete the folder."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self) -> None:
        """Stop the process by SIGTERM or the end of its input, else by SIGKILL; its data stays for the next `start`."""
        process = self._process
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            elif process.poll() is None:
                process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
            if self._archives:
                self._archive.keep(self._new_archive)
        self._process = None


def new_id() -> str:
    """Return a new id of a cluster or a folder."""
    return base64.urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def stop_detached(folder: Path) -> bool:
    """Stop the broker that another process started in a folder and delete the folder; return whether the broker ran."""
    try:
        pid = int((folder / PID_FILE).read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        pid, command = 0, b""
    was_there = str(folder / "server.properties").encode() in command.split(b"\0")
    if was_there:  # the process id may belong to another program by now
        deadline = time.monotonic() + STOP_TIMEOUT_S
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(0.1)
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    return was_there
