"""Separate disk in a file, and its content after a power cut: a copy of the file, mounted."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import need

MIB = 1 << 20
MAKE = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f"), "btrfs": ("mkfs.btrfs", "-q", "-f")}
SMALLEST_MIB = {"ext4": 48, "xfs": 320, "btrfs": 128}


class Disk:
    """Separate mounted file system.

    Args: ``place``: existing folder for the disk; ``kind``: kind of file system.
    """

    def __init__(self, place: Path, kind: str = "ext4") -> None:
        if not sys.platform.startswith("linux") or os.geteuid() != 0:
            pytest.skip("needs root on Linux to mount a separate disk")
        need.program("mount", "umount", MAKE[kind][0])
        self._place = place
        self._image = place / "disk.img"
        self._cuts = 0
        with self._image.open("wb") as file:
            file.truncate(SMALLEST_MIB[kind] * MIB)
        subprocess.run([*MAKE[kind], self._image], check=True, capture_output=True, timeout=60)
        self.folder = place / "disk"
        self.folder.mkdir()
        made = mount(self._image, self.folder)
        if made:
            pytest.skip(f"needs to mount a file as a disk: {made}")

    def cut(self) -> Path:
        """Return an image of the content of the disk at this moment, as after a power cut. The disk stays in use."""
        self._cuts += 1
        image = self._place / f"cut-{self._cuts}.img"
        subprocess.run(["cp", "--sparse=always", self._image, image], check=True, timeout=60)
        return image

    def remount(self) -> None:
        """Unmount and mount the disk, as after a repair: a disk that has become read-only can be written again."""
        self.close()
        failure = mount(self._image, self.folder)
        assert not failure, f"the disk cannot be mounted again: {failure}"

    def close(self) -> None:
        """Unmount the disk (idempotent), before images are mounted: two disks with one id confuse some systems."""
        if os.path.ismount(self.folder):
            subprocess.run(["umount", self.folder], check=True, timeout=60)


@contextlib.contextmanager
def mounted(image: Path) -> Iterator[Path]:
    """Mount an image as a disk; delete the image afterwards."""
    folder = image.with_suffix("")
    folder.mkdir()
    failure = mount(image, folder)
    assert not failure, f"the image after the cut cannot be mounted: {failure}"
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True, timeout=60)
        image.unlink()
        shutil.rmtree(folder)


def mount(image: Path, folder: Path) -> str:
    """Mount a file as a disk; return the reason for a failure, or ""."""
    command: list[str | Path] = ["mount", "-o", "loop", image, folder]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return "" if made.returncode == 0 else made.stderr.strip() or "mount failed"
