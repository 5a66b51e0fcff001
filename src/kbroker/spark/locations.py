"""Paths and `file:` URIs of this machine's file systems, and their form for Spark.

All parsing of URIs is here: without it `hdfs://host/table` would be a local folder with the name `hdfs:`, and Spark
would look for the bare path of a local folder in the file system of `fs.defaultFS`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from kbroker.spark.errors import PipelineError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # at least two characters: a single one is a drive of Windows
_LOCAL = "file"


def is_elsewhere(given: str | os.PathLike[str]) -> bool:
    """Return whether a name is the URI of a file system other than those of this machine."""
    found = _SCHEME.match(os.fspath(given))
    return found is not None and found[1].lower() != _LOCAL


def local_path(given: str | os.PathLike[str]) -> Path:
    """Return the folder or file that a user names by a path or a `file:` URI, in which nothing is escaped.

    Args: `given`: may be a `Path` made of a URI, in which two slashes have become one.
    Raises: PipelineError for a URI of another file system or of another machine, and for an empty name, the value of
    an unset variable in a shell: for `Path` it would be the current folder.
    """
    text = os.fspath(given)
    if not text:
        raise PipelineError("the name is empty: expected a path or a URI")
    found = _SCHEME.match(text)
    if found is None:
        return Path(text)
    scheme = found[1].lower()
    rest = text[found.end() - 1 :]
    if scheme != _LOCAL:
        raise PipelineError(f"{text} is in {scheme}, and only a mounted file system is supported here: expected a path")
    if rest.startswith("//") and not rest.startswith("///"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() != "localhost" or not slash:
            raise PipelineError(f"{text} names the machine {host}: expected a path, or file:///PATH")
        return Path("/" + path)
    return Path("/" + rest.lstrip("/"))


def spark_path(path: str | os.PathLike[str]) -> str:
    """Return the URI of a path for Spark, which does not depend on its default file system."""
    return f"{_LOCAL}://{local_path(path).absolute()}"
