"""Archive of the classes that Spark loads, with which a JVM starts in half the time; the tests start some sixty JVMs.

`write_class_archive.py` writes it. Without the file, or with a file of another Java or Spark, a JVM loads its classes
one by one. It also does so with a file that was written in another folder, because the name contains a hash of the
folder's name.
"""

import hashlib
import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = _ROOT / "build" / f"spark-classes-{hashlib.sha256(os.fsencode(_ROOT)).hexdigest()[:8]}.jsa"
#: Fewer optimizations and threads: tests run short programs. A JVM without the second compiler has 48 MB for compiled
#: code; the session of the tests needs more, and methods were dropped and compiled again.
SHORT = (
    *("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", "-XX:+UseSerialGC"),
    "-Djdk.lang.Process.launchMechanism=VFORK",  # Hadoop calls chmod and readlink: one program each, not two
)
#: Spark's script starts a JVM that prints the command of the JVM.
LAUNCHER = " ".join(SHORT[:3])
JVM = (*SHORT, f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable") if ARCHIVE.exists() else SHORT
