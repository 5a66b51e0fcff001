"""Libraries in C that replace system calls of a process (LD_PRELOAD)."""

import hashlib
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support import need

BUILD = Path(__file__).resolve().parents[2] / "build" / "preloaded"


def preloaded(source: Path) -> Path:
    """Return the library of ``source``, compiled at first use; skip the test where that is not possible."""
    if sys.platform != "linux":
        pytest.skip("replaces system calls of Linux")
    need.program("cc")
    library = BUILD / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    if not library.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{uuid.uuid4().hex}")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", part, source, "-ldl"], check=True)
        part.replace(library)  # atomic, as another worker may compile it at the same time
    return library
