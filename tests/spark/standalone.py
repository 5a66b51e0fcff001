"""Standalone cluster of Spark on this machine, whose workers may have another view of the disk than the driver."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kbroker.testing.waiting import wait_until
from tests.spark.class_archive import JVM, LAUNCHER
from tests.support import need

ROOT = Path(__file__).resolve().parents[2]
PYTHON_START = ROOT / "tests" / "spark" / "python_start"
#: Settings without generated code, which costs a fifth of the CPU time of short jobs. Other commands generate code,
#: and so do soaks over Spark Connect.
NO_CODE = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
#: Name of a folder that does not exist, in place of this machine's settings of Spark. An existing folder would be in
#: the class path, and a JVM ignores an archive of classes that was written with another class path.
NO_CONF = "conf"
START_S = 120
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")
_HIDE = 'mount -t tmpfs none "$0" && exec "$@"'


class Standalone:
    """Master and workers of one core; `close` ends them."""

    def __init__(self, folder: Path) -> None:
        need.spark()
        from pyspark.find_spark_home import _find_spark_home

        self._spark_class = os.path.join(_find_spark_home(), "bin", "spark-class")
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        listening = self._start("master", [], "org.apache.spark.deploy.master.Master", "--port", "0")
        self.url = self._said(listening, _MASTER)[1]

    def add_worker(self, hidden: Path | None = None) -> None:
        """Start a worker, which has an empty folder in place of `hidden`."""
        before: list[str] = []
        if hidden is not None:
            if shutil.which("unshare") is None:
                need.lack("needs unshare; on Debian: apt-get install util-linux")
            user = [] if os.geteuid() == 0 else ["--map-root-user"]
            before = ["unshare", "--mount", *user, "sh", "-c", _HIDE, str(hidden)]
            if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
                need.lack("this machine allows no mount namespaces")
        name = f"worker-{len(self.processes)}"
        words = ("-c", "1", "-m", "600m", "-d", str(self._folder / name), self.url)
        output = self._start(name, before, "org.apache.spark.deploy.worker.Worker", *words)
        self._said(output, _REGISTERED)
        self.workers.append(self.processes[-1])

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors, as a power cut does."""
        worker = self.workers.pop(number)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def run(
        self, *words: str | Path, code: str | None = None, python: str | Path = sys.executable
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the pipeline with this cluster as its master, unless the command names another.

        Args: `code`: runs before the command; `python`: the executors' Python.
        """
        call, given = self.call(*words, code=code), {**environment(), "PYSPARK_PYTHON": str(python)}
        return subprocess.run(call, env=given, capture_output=True, text=True, check=False, cwd=ROOT)

    def call(self, *words: str | Path, code: str | None = None) -> list[str]:
        """Return the program and the arguments that `run` uses."""
        python = [sys.executable, "-c", f"{code or ''}\nfrom kbroker.cli import cli\ncli()", "pipeline"]
        return [*python, str(words[0]), *self.options, *map(str, words[1:])]

    @property
    def options(self) -> list[str]:
        """Return the options of a command that has this cluster as its master."""
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(JVM),
            **NO_CODE,
        }
        return ["--master", self.url, *(word for pair in settings.items() for word in ("--conf", "=".join(pair)))]

    def close(self) -> None:
        """End all processes, workers first, since they end their executors."""
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _start(self, name: str, before: Sequence[str], *words: str) -> Path:
        output = self._folder / f"{name}.log"
        given = {
            **environment(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "AWS_EC2_METADATA_DISABLED": "true",  # executors look for credentials nowhere else
            "SPARK_CONF_DIR": str(self._folder / NO_CONF),
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(JVM),
        }
        name, *options = words
        call = [*before, self._spark_class, name, "--host", "127.0.0.1", "--webui-port", "0", *options]
        with output.open("wb") as file:
            process = subprocess.Popen(call, env=given, stdout=file, stderr=file, start_new_session=True)
        self.processes.append(process)
        return output

    def _said(self, output: Path, pattern: re.Pattern[str]) -> re.Match[str]:
        process = self.processes[-1]

        def found() -> re.Match[str] | None:
            assert process.poll() is None, output.read_text()
            return pattern.search(output.read_text())

        wait_until(lambda: found() is not None, START_S)
        said = found()
        assert said is not None
        return said


def environment() -> dict[str, str]:
    """Return the environment of Spark's processes, executors included: this interpreter and these sources."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PYTHON_START), str(ROOT), *sys.path]),
        "SPARK_SUBMIT_OPTS": " ".join(JVM),
        "SPARK_LAUNCHER_OPTS": LAUNCHER,
        "PYSPARK_PYTHON": sys.executable,
    }
