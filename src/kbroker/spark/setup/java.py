"""Check that Spark will find a suitable Java, before Spark starts it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from kbroker.spark.errors import PipelineError

OLDEST_JAVA = 17
ANSWER_SECONDS = 60.0
_INSTALL = f"install Java {OLDEST_JAVA} or later (on Debian: apt-get install openjdk-17-jre-headless)"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java() -> Path:
    """Return the java that Spark will start: the one below JAVA_HOME if that is set, else the first on the PATH.

    Raises: PipelineError if there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise PipelineError(
                f"JAVA_HOME is {home}, which has no bin/java: {_INSTALL}, or correct or unset JAVA_HOME"
            )
        return java
    found = shutil.which("java")
    if found is None:
        raise PipelineError(f"Spark needs Java, and there is none on the PATH: {_INSTALL}")
    return Path(found)


def java_version(java: Path) -> int:
    """Return the major version of a java: 8, 11, 17, ...

    Raises: PipelineError if the program does not run or prints no version.
    """
    try:
        done = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineError(f"{java} does not run ({error}): {_INSTALL}") from error
    said = done.stderr + done.stdout
    found = _VERSION.search(said)
    if done.returncode != 0 or found is None:
        first = next(iter(said.splitlines()), f"exit status {done.returncode}")
        raise PipelineError(f"{java} does not print its version ({first}): {_INSTALL}")
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major  # 1.8 is Java 8


def require_java() -> Path:
    """Return the java that Spark will start, if it is new enough.

    Raises: PipelineError that names the found version and the one to install.
    """
    java = find_java()
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise PipelineError(f"{java} is Java {version}, too old for Spark: {_INSTALL}, and let JAVA_HOME name it")
    return java
