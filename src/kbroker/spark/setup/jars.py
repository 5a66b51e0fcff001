"""Additional jars of Spark: pinned, checked by SHA-256, fetched by Maven once, then used offline.

Spark's own way (``spark.jars.packages``) queries registries whenever a session starts and reports a failure as a
crashed JVM. A list without transitive dependencies is enough, because PySpark has all others. The token provider is
of version 4.0.0, because not every registry has later ones; the connector uses it for delegation tokens only.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kbroker.spark.errors import COLOURS, PipelineError

COMMAND = "kbroker pipeline jars"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"  # the default of Maven 3.8
FETCH_SECONDS = 600.0
_FOLDER_VARIABLE = "KBROKER_SPARK_JARS"


class Jar(NamedTuple):
    """One artifact by its Maven coordinates, and the SHA-256 of its file."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


CONNECTOR = (
    Jar(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    Jar(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    Jar(
        "org.apache.kafka", "kafka-clients", "3.9.2", "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8"
    ),
    Jar(
        "org.apache.commons",
        "commons-pool2",
        "2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)
DELTA = (
    Jar(
        "io.delta", "delta-spark_4.2_2.13", "4.4.0", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
    ),
    Jar("io.delta", "delta-storage", "4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
)
#: The PySpark version of Delta's jars, which call constructors that differ between versions: with another version,
#: a query waits forever.
DELTA_PYSPARK = "4.2"
#: Settings that belong to Delta's jars; `build_session(delta=True)` sets them.
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "4",  # nearly all of the default 50 tasks would be empty
}


def default_folder() -> Path:
    """Return the folder of the jars: KBROKER_SPARK_JARS, else one in the user's cache folder."""
    named = os.environ.get(_FOLDER_VARIABLE)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "kbroker" / "spark-jars"


def connector_jars(folder: Path | None = None) -> list[Path]:
    """Return the files of Spark's Kafka connector.

    Args: `folder` of the jars, by default `default_folder()`.
    Raises: PipelineError if one is missing or is another file.
    """
    return _present("the Kafka connector of Spark", COMMAND, CONNECTOR, folder)


def delta_jars(folder: Path | None = None) -> list[Path]:
    """Return the files of Delta Lake; arguments and errors as of `connector_jars`, and an error for another PySpark."""
    found = importlib.metadata.version("pyspark")
    if not found.startswith(f"{DELTA_PYSPARK}."):
        raise PipelineError(
            f"the jars of Delta Lake {DELTA[0].version} need PySpark {DELTA_PYSPARK}, and {found} is installed: "
            f'pip install "pyspark=={DELTA_PYSPARK}.*"'
        )
    return _present("Delta Lake", f"{COMMAND} --delta", DELTA, folder)


def fetch_jars(wanted: Sequence[Jar], folder: Path | None = None) -> list[Path]:
    """Return the files of `wanted`, after Maven has fetched those that are missing.

    A file is moved to its place only after its SHA-256 has been checked.
    Raises: PipelineError: no Maven, no reachable registry, or a file that is not the pinned one; OSError.
    """
    place = folder or default_folder()
    missing = [jar for jar in wanted if not _is_right(place / jar.file_name, jar)]
    if missing:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=place) as scratch:
            fetched = _run_maven(missing, Path(scratch))
            for jar in missing:
                _check(fetched / jar.file_name, jar, "the registry gave another file than the pinned one")
                os.replace(fetched / jar.file_name, place / jar.file_name)
    return [place / jar.file_name for jar in wanted]


def _present(what: str, command: str, wanted: Sequence[Jar], folder: Path | None) -> list[Path]:
    place = folder or default_folder()
    into = f" --into {folder}" if folder else ""
    for jar in wanted:
        if not (place / jar.file_name).is_file():
            raise PipelineError(f"{what} is missing ({jar.file_name} is not in {place}): run `{command}{into}`")
        _check(place / jar.file_name, jar, f"it is damaged or another file: run `{command}{into}` to fetch it again")
    return [place / jar.file_name for jar in wanted]


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _is_right(file: Path, jar: Jar) -> bool:
    return file.is_file() and _sha256(file) == jar.sha256


def _check(file: Path, jar: Jar, otherwise: str) -> None:
    found = _sha256(file)
    if found != jar.sha256:
        raise PipelineError(f"{file.name} has SHA-256 {found}, not {jar.sha256}; {otherwise}")


def _pom(wanted: Sequence[Jar]) -> str:
    """Return a project that depends on the jars without their dependencies."""
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "\n".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version>{alone}</dependency>"
        for jar in wanted
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>kbroker</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><packaging>pom</packaging>\n<dependencies>\n{dependencies}\n</dependencies></project>\n"
    )


def _run_maven(wanted: Sequence[Jar], scratch: Path) -> Path:
    """Fetch jars into a folder below `scratch`, and return the folder. Raises: PipelineError."""
    maven = shutil.which("mvn")
    if maven is None:
        raise PipelineError(
            "fetching jars needs Maven, and there is no mvn on the PATH: install it (on Debian: apt-get install maven)"
        )
    (scratch / "pom.xml").write_text(_pom(wanted), encoding="utf-8")
    output = scratch / "jars"
    command = [maven, "-B", "-q", "-f", str(scratch / "pom.xml"), PLUGIN, f"-DoutputDirectory={output}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PipelineError(f"Maven did not end within {FETCH_SECONDS:g} s; is a registry within reach?") from error
    if done.returncode != 0:
        raise PipelineError(_reason(COLOURS.sub("", done.stdout + done.stderr)))
    for jar in wanted:
        if not (output / jar.file_name).is_file():
            raise PipelineError(f"Maven ended without an error, but fetched no {jar.file_name}")
    return output


def _reason(said: str) -> str:
    """Return one sentence for the output of a failed Maven."""
    absent = re.search(r"Could not find artifact (\S+)", said)
    unreachable = re.search(r"Could not transfer \w+ (\S+) from/to \S+ \((\S+)\): (?:.*: )?(.*?)(?: ->|$)", said, re.M)
    if "in offline mode" in said:
        return "the jars are not in Maven's own store, and Maven is offline"
    if unreachable:
        what, where, why = unreachable.groups()
        return f"Maven cannot fetch {what} from {where}: {why}"
    if absent:
        return f"Maven's registry has no {absent.group(1)}"
    lines = [line for line in said.splitlines() if line.strip()]
    return "Maven failed: " + lines[0].removeprefix("[ERROR] ") if lines else "Maven failed without a message"
