"""Copies of the metadata to another disk, by `kbroker storage separate`."""

import errno
import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from kbroker.metadata.log import separation


def test_another_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file that cannot be written, and the source is as it was."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "records").write_bytes(b"records")

    def is_elsewhere(path: Path, to: Path) -> NoReturn:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path), None, str(to))

    def is_full(path: Path, to: Path) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path), None, str(to))

    monkeypatch.setattr(Path, "rename", is_elsewhere)
    monkeypatch.setattr(shutil, "copy2", is_full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        separation._move(source, target)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(target / "records"))
    assert raised.value.filename2 is None
    assert (source / "records").read_bytes() == b"records"
