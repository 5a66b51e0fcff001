"""Small separate file system, and a file that fills a file system."""

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import need


@contextmanager
def mounted(place: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a tmpfs of some MiB at a new folder within the block."""
    need.root("to mount a small tmpfs")
    need.program("mount", "umount")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        need.lack(f"needs to mount a small tmpfs: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(folder: Path) -> Path:
    """Fill a file system to the last byte with a file; return the file."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return filler
