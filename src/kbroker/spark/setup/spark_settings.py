"""The settings of a new session: those of the user, those that jobs need, and defaults for one machine."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from kbroker.common.configs.config import parse_properties
from kbroker.spark.errors import PipelineError

MASTER, REMOTE = "spark.master", "spark.remote"
ALL_CORES = "local[*]"
#: Masters of Spark, and URLs, which belong to cluster managers that are loaded as a service. Source: SparkMasterRegex.
_MASTERS = re.compile(
    r"local(\[(0*[1-9]\d*|\*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|[a-z][a-z0-9+.-]*://.+"
)
PYTHON = "spark.pyspark.python"
TASK_PYTHON = "spark.sql.execution.pyspark.python"  # the Python of tasks only; on the driver, Spark runs PYSPARK_PYTHON
ARCHIVES, YARN_ARCHIVES = "spark.archives", "spark.yarn.dist.archives"
DRIVER_MEMORY = "spark.driver.memory"
JAVA_OPTIONS, JARS = "spark.driver.extraJavaOptions", "spark.jars"
SUBMIT = "PYSPARK_SUBMIT_ARGS"
ARCHIVE_KINDS = (".tar.gz", ".tgz", ".zip")
#: The folder of an executor into which its Python is unpacked, and the interpreter in it.
SHIPPED = "kbroker_env"
SHIPPED_PYTHON = f"./{SHIPPED}/bin/python"
NEEDED = {"spark.sql.session.timeZone": "UTC"}
PREFERRED = {
    DRIVER_MEMORY: "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.pollingDelay": "100ms",  # with 10 ms an idle stream sends 219 requests per second
}


def is_local(master: str) -> bool:
    """Return whether the executors of a master run on this machine: `local`, `local[N]`, `local-cluster[...]`."""
    return master.startswith("local")


def require_master(master: str) -> None:
    """Check the form of a master: Spark would refuse a wrong one only once it has started, 15 s later.

    Raises: PipelineError with the forms that Spark accepts.
    """
    if _MASTERS.fullmatch(master) is None:
        forms = "local, local[4], local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
        raise PipelineError(f"expected a Spark master such as {forms}, got {master!r}")


def spark_defaults(file: Path | None = None) -> dict[str, str]:
    """Return the settings of `spark-defaults.conf` and the variable PYSPARK_SUBMIT_ARGS, as spark-submit reads them.

    Args: `file`: replaces spark-defaults.conf, as `--properties-file` of spark-submit.
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
    """Return the settings of Spark in a properties file.

    Raises: PipelineError for a file that cannot be read, or has no setting of Spark.
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
    """Return the settings that send a packed Python to executors for their tasks. Args: `known`: other settings.

    Raises: PipelineError for an archive that does not exist or that Spark does not unpack; for a local master.
    """
    check_archive(archive)
    if is_local(master):
        raise PipelineError(f"the executors of {master} run this command's Python: leave --py-env out")
    name = YARN_ARCHIVES if master.startswith("yarn") else ARCHIVES
    archives = ",".join(filter(None, (known.get(name), f"{archive.absolute()}#{SHIPPED}")))
    return {name: archives, TASK_PYTHON: SHIPPED_PYTHON}


def check_archive(archive: Path) -> None:
    """Check an archive. Raises: PipelineError if it does not exist, or Spark cannot unpack it."""
    if not archive.is_file():
        raise PipelineError(
            f"there is no archive {archive}: pack one with `venv-pack -o {archive.name}`, or conda-pack"
        )
    if not archive.name.endswith(ARCHIVE_KINDS):
        raise PipelineError(f"Spark unpacks no {archive.name}: expected one of {', '.join(ARCHIVE_KINDS)}")
    if not _begins_as_archive(archive):
        raise PipelineError(f"{archive} is not an archive of the kind that its name states, or is incomplete")


def _begins_as_archive(archive: Path) -> bool:
    """Return whether the first entry of an archive, or the list of a ZIP file, can be read."""
    if archive.suffix == ".zip":
        return zipfile.is_zipfile(archive)
    try:
        with tarfile.open(archive, "r:gz") as opened:
            return opened.next() is not None
    except (tarfile.TarError, OSError, EOFError, zlib.error):
        return False


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
    """Return all settings of a new session; `given` override all others.

    Args: `defaults` of this installation of Spark, which override PREFERRED but not NEEDED; `java_options`, `jars`:
    added to those of the defaults; `more`: further settings that jobs need.
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
