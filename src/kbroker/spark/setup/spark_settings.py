"""With which of Spark's settings a session starts: the user's own, what the jobs need, and what suits one machine."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from kbroker.common.configs.config import parse_properties
from kbroker.spark.errors import PipelineError

MASTER, REMOTE = "spark.master", "spark.remote"
ALL_CORES = "local[*]"
PYTHON = "spark.pyspark.python"
DRIVER_MEMORY = "spark.driver.memory"
JAVA_OPTIONS, JARS = "spark.driver.extraJavaOptions", "spark.jars"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
NEEDED = {"spark.sql.session.timeZone": "UTC"}
PREFERRED = {
    DRIVER_MEMORY: "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.pollingDelay": "100ms",  # of 10 ms an idle stream asks the broker 219 times a second
}


def is_local(master: str) -> bool:
    """Whether a master's executors run on this machine: `local`, `local[N]`, `local-cluster[...]`."""
    return master.startswith("local")


def spark_defaults() -> dict[str, str]:
    """What Spark's `spark-defaults.conf` and the variable PYSPARK_SUBMIT_ARGS say, as spark-submit reads them.

    Raises: PipelineError for a file that cannot be read.
    """
    from pyspark.find_spark_home import _find_spark_home

    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    file = Path(folder) / "spark-defaults.conf"
    found: dict[str, str] = {}
    try:
        found = parse_properties(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise PipelineError(f"{file} cannot be read: {error}") from None
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for option, value in itertools.pairwise(words):
        if option == "--master":
            found[MASTER] = value
        elif option in ("--conf", "-c") and "=" in value:
            name, _, text = value.partition("=")
            found[name] = text
    return {name: value for name, value in found.items() if name.startswith("spark.")}


def chosen_settings(
    given: Mapping[str, str],
    defaults: Mapping[str, str],
    *,
    name: str,
    master: str,
    java_options: str,
    jars: str,
    more: Mapping[str, str],
) -> dict[str, str]:
    """All settings of a new session, `given` above the others.

    Args: `defaults`: of this installation of Spark, above what we prefer, below what jobs need; `java_options`, `jars`:
    added to those of the defaults; `more`: what jobs need beside NEEDED.
    """
    preferred = {"spark.app.name": name, MASTER: master, **PREFERRED}
    if is_local(master):
        preferred[SHUFFLE_PARTITIONS] = str(max(2, os.cpu_count() or 1))  # Spark's 200 are tasks of nothing here
    return {
        **preferred,
        **defaults,
        MASTER: master,
        JAVA_OPTIONS: " ".join(filter(None, (defaults.get(JAVA_OPTIONS), java_options))),
        **({JARS: ",".join(filter(None, (defaults.get(JARS), jars)))} if jars else {}),
        **NEEDED,
        **more,
        **given,
    }
