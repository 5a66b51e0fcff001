"""Sessions of Spark Connect: a client without a JVM, of a server that runs Spark."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.reachable import require_reachable
from kbroker.spark.setup.spark_settings import NEEDED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MODULES = ("grpc", "grpc_status", "google.rpc", "zstandard")
_INSTALL = 'pip install "kbroker[spark-connect]"'


def require_connect() -> None:
    """Check that the packages of a client of Spark Connect are there.

    Raises: PipelineError that names the missing one.
    """
    for module in _MODULES:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # its parent is missing
            found = None
        if found is None:
            raise PipelineError(f"Spark Connect needs the Python module {module}, which is not installed: {_INSTALL}")


def connect_session(url: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of the Spark Connect server at a URL.

    Args: `settings`: of the session; those that only a server can have are refused by it.
    Raises: PipelineError: the packages are missing, or no server answers.
    """
    require_connect()
    require_reachable(url)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.builder.remote(url).getOrCreate()
        for name, value in {**NEEDED, **settings}.items():
            session.conf.set(name, value)
    except (PySparkException, ValueError) as error:
        raise PipelineError(f"Spark Connect at {url}: {' '.join(str(error).split())[:300]}") from error
    return session
