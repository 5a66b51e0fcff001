"""Sessions of Spark Connect, whose client has no JVM because the server runs Spark."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.reachable import require_reachable
from kbroker.spark.setup.spark_settings import NEEDED, SHIPPED, SHIPPED_PYTHON, TASK_PYTHON, check_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MODULES = ("grpc", "grpc_status", "google.rpc", "zstandard")
_INSTALL = 'pip install "kbroker[spark-connect]"'


def require_connect() -> None:
    """Check that the packages of a client of Spark Connect are installed.

    Raises: PipelineError that names the missing one.
    """
    for module in _MODULES:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # its parent is missing
            found = None
        if found is None:
            raise PipelineError(f"Spark Connect needs the Python module {module}, which is not installed: {_INSTALL}")


def connect_session(url: str, settings: Mapping[str, str], py_env: Path | None = None) -> SparkSession:
    """Return a session of the Spark Connect server at a URL.

    Args: `settings` of the session; the server refuses those that only a server can have. `py_env`: an archive with a
    Python environment that is sent to the server's executors.
    Raises: PipelineError: the packages or the archive are missing, or no server responds.
    """
    require_connect()
    if py_env is not None:
        check_archive(py_env)
        settings = {**settings, TASK_PYTHON: SHIPPED_PYTHON}
    require_reachable(url)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.builder.remote(url).getOrCreate()
        if py_env is not None:
            session.addArtifacts(f"{py_env.absolute()}#{SHIPPED}", archive=True)
        for name, value in {**NEEDED, **settings}.items():
            session.conf.set(name, value)
    except (PySparkException, ValueError) as error:
        raise PipelineError(f"Spark Connect at {url}: {' '.join(str(error).split())[:300]}") from error
    return session
