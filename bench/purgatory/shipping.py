"""Send the study to Spark's executors: its Python modules, and the extension modules compiled on the driver's machine.

Python imports the modules from their archive. Extension modules cannot be loaded from an archive, so Spark unpacks
theirs.

Any local master works. On a cluster each executor needs the driver's versions of kbroker, Python and the platform
(system, processor, C library), because it loads extension modules that the driver compiled.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import kbroker
from bench.purgatory.build import PACKAGE, built
from kbroker.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Shipped(NamedTuple):
    """Archive of the driver. Args: `archive`: name of the file; `made_for`: result of `platform`."""

    archive: str
    made_for: str


def platform() -> str:
    """Return the properties that driver and executor must share to use the same extension modules."""
    return f"kbroker {kbroker.__version__}, {sysconfig.get_config_var('SOABI')}"


def ship(spark: SparkSession) -> Shipped:
    """Send the study to the session's executors, later ones included; a second call sends nothing.

    Returns: argument for `receive` in a task.
    Raises: CannotCompile or RuntimeError if the extension modules do not compile.
    """
    folder = built()
    here = Path(__file__).parent
    modules = _archive(folder.parent, "modules", {f"bench/{here.name}/{path.name}": path for path in here.glob("*.py")})
    compiled = [path for path in (folder / PACKAGE).iterdir() if path.suffix in (".so", ".pyd", ".py")]
    extensions = _archive(folder.parent, "extensions", {f"{PACKAGE}/{path.name}": path for path in compiled})
    context = spark.sparkContext
    if not _is_sent(modules, context.listFiles):
        context.addPyFile(str(modules))
    if not _is_sent(extensions, context.listArchives):
        context.addArchive(str(extensions))
    return Shipped(extensions.name, platform())


def receive(shipped: Shipped) -> None:
    """Make the extension modules importable in an executor's Python process.

    Raises: PipelineError if this process cannot load them.
    """
    if platform() != shipped.made_for:
        raise PipelineError(
            f"the study was compiled for {shipped.made_for}, but this executor has {platform()}: install the driver's "
            "versions of kbroker and Python on every executor"
        )
    from pyspark import SparkFiles

    folder = SparkFiles.get(shipped.archive)
    if folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()


def _archive(folder: Path, what: str, files: dict[str, Path]) -> Path:
    """Zip files under the given names into `folder`, from which Spark serves the archive while the session runs."""
    state = hashlib.sha256()
    for name, path in sorted(files.items()):
        state.update(name.encode() + path.read_bytes())
    target = folder / f"purgatory_study_{what}_{state.hexdigest()[:12]}.zip"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            staged = Path(scratch) / "staged"
            for name, path in files.items():
                (staged / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, staged / name)
            os.replace(shutil.make_archive(str(Path(scratch) / what), "zip", staged), target)
    return target


def _is_sent(archive: Path, addresses: Iterable[str]) -> bool:
    return any(address.rpartition("/")[2] == archive.name for address in addresses)
