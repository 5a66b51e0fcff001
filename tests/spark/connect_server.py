"""Spark Connect server on two cores of this machine."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.remote import require_connect
from kbroker.testing.waiting import wait_until
from tests.spark.standalone import NO_CODE, NO_CONF, START_S, environment
from tests.support import need

_LISTENS = re.compile(r"Spark Connect server started at: .*:(\d+)")
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(folder: Path, python: Path | None = None, *, compiled: bool = False) -> Iterator[str]:
    """Run a server and yield its URL.

    Args:
        python: the server's Python, by default this one.
        compiled: whether the server generates code for queries, as Spark does by default.
    """
    need.spark()
    try:
        require_connect()
    except PipelineError as error:
        need.lack(str(error))
    from pyspark.find_spark_home import _find_spark_home

    settings = [
        "spark.connect.grpc.binding.address=127.0.0.1",
        "spark.connect.grpc.binding.port=0",
        "spark.ui.enabled=false",
        *("=".join(pair) for pair in ({} if compiled else NO_CODE).items()),
    ]
    options = [word for setting in settings for word in ("--conf", setting)]
    call = [
        os.path.join(_find_spark_home(), "bin", "spark-submit"),
        "--master",
        "local[2]",
        *options,
        "--class",
        SERVER,
    ]
    given = {**environment(), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(folder / NO_CONF)}
    if python is not None:
        given["PYSPARK_PYTHON"] = str(python)
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
