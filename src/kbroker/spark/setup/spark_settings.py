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
TASK_PYTHON = "spark.sql.execution.pyspark.python"  # of tasks alone; what Spark runs on the driver has PYSPARK_PYTHON
ARCHIVES, YARN_ARCHIVES = "spark.archives", "spark.yarn.dist.archives"
DRIVER_MEMORY = "spark.driver.memory"
JAVA_OPTIONS, JARS = "spark.driver.extraJavaOptions", "spark.jars"
SUBMIT = "PYSPARK_SUBMIT_ARGS"
ARCHIVE_KINDS = (".tar.gz", ".tgz", ".zip")
#: The folder of an executor into which its Python is unpacked, and the program there.
SHIPPED = "kbroker_env"
SHIPPED_PYTHON = f"./{SHIPPED}/bin/python"
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


def spark_defaults(file: Path | None = None) -> dict[str, str]:
    """What Spark's `spark-defaults.conf` and the variable PYSPARK_SUBMIT_ARGS say, as spark-submit reads them.

    Args: `file`: one that is read in place of spark-defaults.conf, as `--properties-file` of spark-submit.
    Raises: PipelineError for a file that cannot be read.
    """
    words = shlex.split(os.environ.get(SUBMIT, ""))
    pairs = list(itertools.pairwise(words))
    named = file or next((Path(value) for option, value in pairs if option == "--properties-file"), None)
    found = properties(named) if named is not None else _installed()
    for option, value in pairs:
        if option == "--master":
            found[MASTER] = value
        elif option in ("--conf", "-c") and "=" in value:
            name, _, text = value.partition("=")
            found[name] = text
    return {name: value for name, value in found.items() if name.startswith("spark.")}


def properties(file: Path) -> dict[str, str]:
    """The settings of Spark's in a properties file.

    Raises: PipelineError for a file that cannot be read, or has none.
    """
    try:
        found = parse_properties(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{file} cannot be read: {error}") from None
    ours = {name: value.strip() for name, value in found.items() if name.startswith("spark.")}
    if found and not ours:
        raise PipelineError(f"{file} has no setting of Spark's: expected lines such as `spark.executor.memory 2g`")
    return ours


def _installed() -> dict[str, str]:
    from pyspark.find_spark_home import _find_spark_home

    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    file = Path(folder) / "spark-defaults.conf"
    return properties(file) if file.exists() else {}


def shipped(archive: Path, master: str, known: Mapping[str, str]) -> dict[str, str]:
    """The settings that send a packed Python to executors and let tasks run it. Args: `known`: other settings.

    Raises: PipelineError for an archive that is not there, or of a kind that Spark does not unpack; for a local master.
    """
    check_archive(archive)
    if is_local(master):
        raise PipelineError(f"the executors of {master} run this command's Python: leave --py-env out")
    name = YARN_ARCHIVES if master.startswith("yarn") else ARCHIVES
    archives = ",".join(filter(None, (known.get(name), f"{archive.absolute()}#{SHIPPED}")))
    return {name: archives, TASK_PYTHON: SHIPPED_PYTHON}


def check_archive(archive: Path) -> None:
    """Raises: PipelineError for an archive that is not there, or of a kind that Spark does not unpack."""
    if not archive.is_file():
        raise PipelineError(
            f"there is no archive {archive}: pack one with `venv-pack -o {archive.name}`, or conda-pack"
        )
    if not archive.name.endswith(ARCHIVE_KINDS):
        raise PipelineError(f"Spark unpacks no {archive.name}: expected one of {', '.join(ARCHIVE_KINDS)}")


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
    return {
        "spark.app.name": name,
        **PREFERRED,
        **defaults,
        MASTER: master,
        JAVA_OPTIONS: " ".join(filter(None, (defaults.get(JAVA_OPTIONS), java_options))),
        **({JARS: ",".join(filter(None, (defaults.get(JARS), jars)))} if jars else {}),
        **NEEDED,
        **more,
        **given,
    }
