"""Mark of a clean shutdown: read once, durably deleted, and ignored if damaged."""

import os
from pathlib import Path

import pytest

from kbroker.log import clean_shutdown


def test_clean_shutdown_mark_counts_once(tmp_path: Path) -> None:
    """The mark is deleted when it is read, so that a second read finds none."""
    assert not clean_shutdown.take_mark(tmp_path)
    clean_shutdown.write_mark(tmp_path, 12)
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version": 0, "brokerEpoch": 12}'
    assert clean_shutdown.take_mark(tmp_path)
    assert os.listdir(tmp_path) == []
    assert not clean_shutdown.take_mark(tmp_path)


def test_removal_of_the_clean_shutdown_mark_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is synced after the deletion, so that a power cut does not restore the mark."""
    clean_shutdown.write_mark(tmp_path)
    synced: list[list[str]] = []
    monkeypatch.setattr(clean_shutdown, "sync_folder", lambda folder: synced.append(os.listdir(folder)))
    assert clean_shutdown.take_mark(tmp_path)
    assert synced == [[]]


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"version": 1}', b"\xff"])
def test_damaged_clean_shutdown_mark_counts_as_unclean(tmp_path: Path, damaged: bytes) -> None:
    """A damaged mark counts as an unclean shutdown and is deleted."""
    (tmp_path / clean_shutdown.FILE_NAME).write_bytes(damaged)
    assert not clean_shutdown.take_mark(tmp_path)
    assert os.listdir(tmp_path) == []
