"""Pythons for Spark's executors: one without packages, and one that is sent to the executors."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

BASE = Path(sys.executable).resolve()


def other_pythons() -> list[Path]:
    """Return the other versions of Python on this machine that this Spark supports."""
    versions = [number for number in (10, 11, 12, 13) if number != sys.version_info[1]]
    named = [Path(found) for number in versions if (found := shutil.which(f"python3.{number}"))]
    beside = [found for number in versions for found in sorted(BASE.parents[2].glob(f"3.{number}.*/bin/python3"))]
    return [
        found
        for found in [*named, *beside]
        if subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
    ]


def python_without(folder: Path, base: Path = BASE) -> Path:
    """Create a Python that has only the packages of Spark."""
    path = os.pathsep.join(map(str, Path(_find_spark_home(), "python", "lib").glob("*.zip")))
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{base}" "$@"\n')
    program.chmod(0o755)
    return program


def packed(folder: Path) -> Path:
    """Return an archive in the form of venv-pack: a packed folder with bin/python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder / "env")
    bin_folder = folder / "env" / "bin"
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    (packages / "here.pth").write_text("\n".join(filter(None, sys.path)) + "\n")
    (bin_folder / "python").rename(bin_folder / "real")
    libraries = os.pathsep.join(map(str, Path(_find_spark_home(), "python", "lib").glob("*.zip")))
    # the path of these tests' workers is left out
    (bin_folder / "python").write_text(f'#!/bin/sh\nPYTHONPATH="{libraries}" exec "$(dirname "$0")/real" "$@"\n')
    (bin_folder / "python").chmod(0o755)
    archive = folder / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / "env", ".")
    return archive
