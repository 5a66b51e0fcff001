"""Libraries in C that replace system calls of a process (LD_PRELOAD)."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import need


def preloaded(source: Path, place: Path) -> Path:
    """Return the library of ``source``, compiled into ``place`` at first use; skip where that is not possible."""
    if sys.platform != "linux":
        pytest.skip("replaces system calls of Linux")
    need.program("cc")
    library = place / source.with_suffix(".so").name
    if not library.exists():
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return library
