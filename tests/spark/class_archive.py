"""Archive of the classes that Spark loads, with which a JVM starts in half the time; the tests start some sixty JVMs.

    python -m tests.spark.class_archive FILE

Without the file, or with a file of another Java or Spark, a JVM loads its classes one by one, and so it does with a
file that was written in another folder: the name contains a hash of the folder's name.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.spark.day import make_day

_ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = _ROOT / "build" / f"spark-classes-{hashlib.sha256(os.fsencode(_ROOT)).hexdigest()[:8]}.jsa"
# Fewer optimizations and threads: tests run short programs.
_SHORT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
JVM = (*_SHORT, f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable") if ARCHIVE.exists() else _SHORT

# A JVM writes the archive when it exits, after the end of the command.
_PROGRAM = """
from kbroker.cli import cli
from pyspark import SparkContext

try:
    cli()
finally:
    jvm = SparkContext._gateway.proc
    jvm.stdin.close()
    jvm.wait()
"""


def write(archive: Path) -> None:
    """Run a job and keep the classes that it loaded."""
    kept = archive.with_suffix(".part")
    options = (*_SHORT, f"-XX:ArchiveClassesAtExit={kept}", "-Xlog:disable")
    given = {**os.environ, "SPARK_SUBMIT_OPTS": " ".join(options), "PYSPARK_PYTHON": sys.executable}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "requests-1.jsonl")
        log.write_text("\n".join(make_day(50).lines()) + "\n")
        words = ["pipeline", "ingest", str(Path(folder, "table")), str(log), "--buckets", "2", "--master", "local[2]"]
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *words], env=given, capture_output=True, text=True, check=False
        )
    if not kept.exists():
        sys.exit(f"Java left no archive of classes: {done.stderr[-500:]}")
    kept.replace(archive)


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
