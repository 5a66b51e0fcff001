"""Folders at a start: their file names, their owner, and prefetching into the page cache."""

import uuid
from pathlib import Path

import pytest

from kbroker.common.configs.config import BrokerConfig
from kbroker.log.checkpoints import write_partition_metadata
from kbroker.log.log_dir import belongs_to
from kbroker.log.segment._segment_recovery import prefetch_folders, tidy_folder

ID = uuid.UUID(int=7)


@pytest.mark.parametrize("count", [1, 3000], ids=["names in one call", "more names than its buffer holds"])
def test_all_segments_of_a_folder_are_found(tmp_path: Path, count: int) -> None:
    for base in range(count):
        (tmp_path / f"{base:020d}.log").touch()
    (tmp_path / "00000000000000000007.index").touch()
    (tmp_path / "00000000000000000009.log.deleted").touch()
    bases, snapshots, has_epochs = tidy_folder(str(tmp_path))
    assert (bases, snapshots, has_epochs) == (list(range(count)), [], False)
    assert not (tmp_path / "00000000000000000009.log.deleted").exists()
    assert (tmp_path / "00000000000000000007.index").exists() == (count > 7)


def test_snapshots_and_epochs_are_found(tmp_path: Path) -> None:
    for name in ("00000000000000000000.log", "00000000000000000005.snapshot", "leader-epoch-checkpoint"):
        (tmp_path / name).touch()
    assert tidy_folder(str(tmp_path)) == ([0], [5], True)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tidy_folder(str(tmp_path / "missing"))


def test_owner_of_a_folder(tmp_path: Path) -> None:
    assert not belongs_to(tmp_path, ID)
    write_partition_metadata(tmp_path, ID)
    assert belongs_to(tmp_path, ID)
    assert not belongs_to(tmp_path, uuid.UUID(int=8))
    with (tmp_path / "partition.metadata").open("ab") as file:
        file.write(b"\n")  # Kafka ends the file with a line feed
    assert belongs_to(str(tmp_path), ID)


def test_prefetching_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "00000000000000000000.log").write_bytes(b"records")
    prefetch_folders([])
    prefetch_folders([str(tmp_path / "t-0"), str(tmp_path / "missing-0")])
    assert [path.read_bytes() for path in (tmp_path / "t-0").iterdir()] == [b"records"]


def test_topics_share_the_defaults_of_the_broker_until_these_change() -> None:
    config = BrokerConfig()
    before = config.topic_configs({})
    assert config.topic_configs({}) is before
    config.set_dynamic({"log.retention.ms": "7000"}, {})
    assert config.topic_configs({})["retention.ms"] == 7000
    assert config.topic_configs({"retention.ms": "9"})["retention.ms"] == 9
    config.set_dynamic({}, {})
    assert dict(config.topic_configs({})) == dict(before)
