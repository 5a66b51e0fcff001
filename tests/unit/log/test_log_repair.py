"""Partitions repaired by `kbroker log verify --repair` accept appends and serve all whole batches."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.log import checkpoints
from kbroker.log.folder_scan import StartReport, TopicLogs
from kbroker.log.manager import LogManager
from kbroker.log.tools.verify import verify
from kbroker.protocol.records import RecordBatchBuilder
from tests.support.log_manager import kill

NOW_MS = 1_700_000_000_000


def start(folder: Path) -> tuple[LogManager, StartReport]:
    config = BrokerConfig({})
    manager = LogManager([folder], VirtualClock(NOW_MS), config)
    topics = [TopicLogs("orders", uuid.UUID(int=7), 1, config.topic_configs({"segment.ms": "1000"}))]
    return manager, manager.start(topics, run_threads=False)


def append(manager: LogManager, time_ms: int) -> tuple[int, int]:
    builder = RecordBatchBuilder()
    builder.append(None, b"value", time_ms)
    result = manager.partition("orders", 0).append(builder.build())
    return result.error, result.base_offset


def flip(segment: Path, position: int) -> None:
    data = bytearray(segment.read_bytes())
    data[position] ^= 0x10
    segment.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda segment: flip(segment, -1), "offsets 3 to 3 are missing"),
        (lambda segment: flip(segment, 70), "offsets 2 to 3 are missing"),
        (lambda segment: os.truncate(segment, 30), "offsets 2 to 3 are missing"),
    ],
    ids=["last batch", "first batch and what follows", "torn"],
)
def test_a_repaired_partition_takes_appends(tmp_path: Path, damage: Callable[[Path], None], problem: str) -> None:
    """A partition with damage in the middle one of three segments is repaired, read and appended to."""
    manager, _ = start(tmp_path)
    for i in range(6):
        assert append(manager, NOW_MS + i // 2 * 60_000) == (0, i)
    kill(manager)
    segments = sorted((tmp_path / "orders-0").glob("*.log"))
    assert [int(s.stem) for s in segments] == [0, 2, 4]
    if problem.startswith("offsets 2 to 3") and segments[1].stat().st_size:
        size = segments[1].stat().st_size // 2
        flip(segments[1], size + 40)  # the second batch too, in addition to the damage
    damage(segments[1])

    manager, report = start(tmp_path)
    assert report.damaged
    assert append(manager, NOW_MS)[0] == 56
    kill(manager)
    found = verify(tmp_path, repair=True)
    assert (problem, "an empty batch fills the gap") in [(f.problem, f.repair) for f in found]
    assert all(f.repair for f in found)
    assert verify(tmp_path) == []

    manager, report = start(tmp_path)
    assert not report.damaged
    assert append(manager, NOW_MS + 180_000) == (0, 6)
    for offset in (0, 1, 4, 5, 6):
        assert manager.partition("orders", 0).read(offset).error == 0
    manager.close()


def test_a_gap_is_found_without_other_damage(tmp_path: Path) -> None:
    """A missing segment is reported with its offsets, and nothing is changed without --repair."""
    manager, _ = start(tmp_path)
    for i in range(3):
        append(manager, NOW_MS + i * 60_000)
    manager.close()
    (tmp_path / "orders-0" / f"{1:020}.log").unlink()
    for _ in range(2):
        (found,) = verify(tmp_path)
        assert (found.problem, found.offset, found.repair) == ("offsets 1 to 1 are missing", 1, "")


@pytest.mark.parametrize("lost", [checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.HIGH_WATERMARK_CHECKPOINT])
def test_a_partition_without_segments(tmp_path: Path, lost: str) -> None:
    """Missing segments are reported if one of the checkpoints shows that there were records."""
    manager, _ = start(tmp_path)
    for path in (tmp_path / "orders-0").glob("*.log"):
        path.unlink()
    assert verify(tmp_path) == []  # of a new partition
    manager.close()
    manager, _ = start(tmp_path)
    for i in range(3):
        append(manager, NOW_MS + i * 60_000)
    manager.close()
    for path in (tmp_path / "orders-0").glob("*.log"):
        path.unlink()
    (tmp_path / lost).unlink()
    for repair in (False, True):
        (found,) = verify(tmp_path, repair=repair)
        assert (found.path, found.repair) == (tmp_path / "orders-0", "")
        assert found.problem.startswith("expected segments with the records before offset 3, found none; restore them")


def test_cut_bytes_are_on_disk_before_the_segment_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after a repair does not take the only copy of the damaged bytes."""
    manager, _ = start(tmp_path)
    for _ in range(2):
        append(manager, NOW_MS)
    kill(manager)
    (segment,) = (tmp_path / "orders-0").glob("*.log")
    flip(segment, 70)
    synced: list[tuple[int, bool]] = []
    sync = checkpoints.sync_descriptor

    def noted(fd: int) -> None:
        copies = [path.stat().st_ino for path in segment.parent.glob("*.damaged")]
        synced.append((os.fstat(fd).st_size, os.fstat(fd).st_ino in copies))
        sync(fd)

    monkeypatch.setattr(checkpoints, "sync_descriptor", noted)
    size_bytes = segment.stat().st_size // 2
    verify(tmp_path, repair=True)
    assert synced[:2] == [(size_bytes, True), (size_bytes, False)]


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("position", [-1, 70], ids=["last batch", "whole segment"])
def test_offsets_after_the_last_batch_are_not_used_again(tmp_path: Path, position: int, is_compacted: bool) -> None:
    """A consumer that has read the damaged records of the last segment must not take later ones for them."""
    manager, _ = start(tmp_path)
    for i in range(4):
        append(manager, NOW_MS + i // 2 * 60_000)
    if is_compacted:
        manager.cleaner._note(("orders", 0), 0)
    manager.close()
    segments = sorted((tmp_path / "orders-0").glob("*.log"))
    assert [int(one.stem) for one in segments] == [0, 2]
    flip(segments[1], position)
    if position >= 0:
        flip(segments[1], -1)
    first = 3 if position < 0 else 2
    found = verify(tmp_path, repair=True)
    assert (f"offsets {first} to 3 are missing", "an empty batch fills the gap") in [
        (f.problem, f.repair) for f in found
    ]
    assert verify(tmp_path) == []
    manager, report = start(tmp_path)
    assert (report.damaged, report.lost_offsets) == ({}, 0)
    assert append(manager, NOW_MS + 60_000) == (0, 4)
    assert manager.partition("orders", 0).read(4).error == 0
    manager.close()


def test_a_gap_between_batches_of_a_compacted_partition_is_no_fault(tmp_path: Path) -> None:
    manager, _ = start(tmp_path)
    for i in range(3):
        append(manager, NOW_MS + i * 60_000)
    manager.cleaner._note(("orders", 0), 0)
    manager.close()
    (tmp_path / "orders-0" / f"{1:020}.log").unlink()
    assert verify(tmp_path) == verify(tmp_path, repair=True) == []


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_damaged_base_offset_is_cut(tmp_path: Path, is_compacted: bool) -> None:
    """No checksum covers it: a batch whose offset cannot be in its segment is damage, and its offset is filled."""
    manager, _ = start(tmp_path)
    for _ in range(3):
        append(manager, NOW_MS)
    if is_compacted:
        manager.cleaner._note(("orders", 0), 0)
    manager.close()
    (segment,) = (tmp_path / "orders-0").glob("*.log")
    flip(segment, segment.stat().st_size // 3 * 2)
    cut, filled = verify(tmp_path, repair=True)
    assert cut.problem == f"offsets {(1 << 60) + 2} to {(1 << 60) + 2} are not in 2 to 2147483647"
    assert (filled.problem, filled.repair) == ("offsets 2 to 2 are missing", "an empty batch fills the gap")
    assert verify(tmp_path) == []
    manager, report = start(tmp_path)
    assert report.damaged == {}
    assert append(manager, NOW_MS) == (0, 3)
    manager.close()
