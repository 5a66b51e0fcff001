"""Write the archive of the classes that Spark loads.

    python -m tests.spark.write_class_archive FILE

Java keeps the classes, and the code of lambdas, that a program has used. This program therefore runs the
commands of the pipeline, with and without compiled queries.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from kbroker.spark.tables.table_place import TablePlace
from tests.spark.class_archive import SHORT
from tests.spark.day import make_day
from tests.spark.matrix import DISK, HERE, Cell
from tests.spark.standalone import NO_CODE, ROOT, environment

COMPILED = ("ingest", "usage of logs")
INTERPRETED = ("usage", "usage of logs", "throttles", "watch", "replay", "report")
# A JVM writes the archive when it exits, after the end of the commands.
_PROGRAM = """
import json
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession
from tests.spark import many_commands

compiled, interpreted, settings = json.load(sys.stdin)
try:
    found = many_commands.run(compiled)
    for name, value in settings.items():
        SparkSession.getActiveSession().conf.set(name, value)
    found += many_commands.run(interpreted)
    many_commands.end()
finally:
    jvm = SparkContext._gateway.proc
    jvm.stdin.close()
    jvm.wait()
sys.exit("".join(one["err"] for one in found if one["status"]) or None)
"""


def write(archive: Path) -> None:
    """Run the commands and keep the classes that they loaded; exit with a message if Java leaves no archive."""
    kept = archive.with_suffix(".part")
    options = (*SHORT, f"-XX:ArchiveClassesAtExit={kept}", "-Xlog:disable")
    given = {**environment(), "SPARK_SUBMIT_OPTS": " ".join(options)}
    with tempfile.TemporaryDirectory() as folder:
        lines = list(make_day(200).lines())
        base = TablePlace.of(Path(folder, "base"))
        cell = Cell(HERE, DISK, base, Path(folder, "driver"), ["--master", "local[2]"], "", "", len(lines))
        cell.prepare(lines)
        words = cell.words()
        commands = [[words[name] for name in names] for names in (COMPILED, INTERPRETED)]
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=json.dumps([*commands, NO_CODE]),
            env=given,
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
    if done.returncode or not kept.exists():
        sys.exit(f"Java left no archive of classes: {done.stderr[-500:]}")
    kept.replace(archive)


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
