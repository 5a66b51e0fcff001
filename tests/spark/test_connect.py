"""The commands through a Spark Connect server, without a JVM of the client's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.remote import require_connect
from kbroker.spark.setup.session import require_spark
from kbroker.testing.waiting import wait_until
from tests.spark.day import make_day
from tests.spark.standalone import START_S, environment
from tests.support import need

pytestmark = pytest.mark.slow
_LISTENS = re.compile(r"Spark Connect server started at: .*:(\d+)")
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on two cores of this machine."""
    try:
        require_spark()
        require_connect()
    except PipelineError as error:
        need.lack(str(error))
    from pyspark.find_spark_home import _find_spark_home

    folder = tmp_path_factory.mktemp("server")
    settings = (
        "spark.connect.grpc.binding.address=127.0.0.1",
        "spark.connect.grpc.binding.port=0",
        "spark.ui.enabled=false",
    )
    options = [word for setting in settings for word in ("--conf", setting)]
    call = [
        os.path.join(_find_spark_home(), "bin", "spark-submit"),
        "--master",
        "local[2]",
        *options,
        "--class",
        SERVER,
    ]
    given = {**environment(), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(folder)}
    output = folder / "server.log"
    with output.open("wb") as file:
        server = subprocess.Popen(call, env=given, stdout=file, stderr=file, cwd=folder, start_new_session=True)

    def port() -> re.Match[str] | None:
        assert server.poll() is None, output.read_text()
        return _LISTENS.search(output.read_text())

    try:
        wait_until(lambda: port() is not None, START_S)
        found = port()
        assert found is not None
        yield f"sc://127.0.0.1:{found[1]}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the pipeline where there is no Java."""
    call = [sys.executable, "-m", "kbroker.cli", "pipeline", *map(str, words)]
    given = {**environment(), "JAVA_HOME": "/nowhere"}
    return subprocess.run(call, env=given, capture_output=True, text=True, check=False)


def test_ingest_and_usage(url: str, tmp_path: Path) -> None:
    """Rows are ingested once, over two runs, and read; each batch is written by the client's process."""
    lines = list(make_day(300).lines())
    log, table = tmp_path / "requests-1.jsonl", tmp_path / "table"
    log.write_text("\n".join([*lines[:200], "no record"]) + "\n")
    done = command("ingest", table, log, "--remote", url, "--buckets", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["run"]["rows"], found["run"]["rejected"], found["table"]["rows"]) == (200, 1, 200)
    assert "batch 0: 200 rows" in done.stderr
    with log.open("a") as opened:
        opened.write("\n".join(lines[200:]) + "\n")
    done = command("ingest", table, log, "--remote", url, "--quiet", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["run"]["rows"], found["table"]["rows"]) == (100, 300)
    done = command("usage", table, "--remote", url, "--quiet", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)
