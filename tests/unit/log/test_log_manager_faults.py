"""All partitions of a broker: failed disks, damaged segments and partitions that cannot be opened."""

import errno
from pathlib import Path

import pytest

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import KafkaError
from kbroker.log import checkpoints
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.manager import LogManager
from tests.support.errors import raising
from tests.support.log_manager import ID, NOW_MS, Brokers, append, batch, create, kill, pass_time


def test_io_error_takes_the_folder_offline_and_reads_go_on(brokers: Brokers, tmp_path: Path) -> None:
    """After a failed sync the folder's appends get KAFKA_STORAGE_ERROR, reads succeed, and no clean mark is written."""
    manager, _ = brokers.start(settings={"log.flush.interval.ms": 10_000})
    append(manager)
    append(manager, 1)
    manager.partition("orders", 0)._inject_fault(sync_errno=errno.EIO)
    manager._hosted["orders", 0].flushed_ms = -(10**9)
    manager.tasks.flush_by_time()
    assert list(manager.offline_dirs) == [tmp_path]
    for partition in (0, 1):
        log = manager.partition("orders", partition)
        assert log.append(batch()).error == 56
        assert log.read(0).error == 0
        assert log.read(0).records
    with pytest.raises(KafkaError, match="no log folder is online"):
        create(manager, "more", 0, ID, {})
    manager.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_full_disk_is_survived_without_a_restart(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Failed checkpoints are logged and retried, and the folder stays online."""
    append(manager)
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_atomically", full)
        patch.setattr(checkpoints, "write_partition_metadata", full)
        manager.tasks.write_checkpoints()
        with pytest.raises(KafkaError, match="No space left"):
            create(manager, "more", 0, ID, {})
    assert manager.offline_dirs == {}
    manager.partition("orders", 0)._inject_fault(write_errno=errno.ENOSPC)
    assert manager.partition("orders", 0).append(batch()).error == 56
    assert manager.partition("orders", 0).read(0).error == 0
    manager.partition("orders", 0)._inject_fault()
    append(manager)
    create(manager, "more", 0, ID, {})
    manager.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("has_flusher", [False, True])
def test_folder_of_a_log_that_was_not_flushed_is_not_clean(
    manager: LogManager, tmp_path: Path, caplog: pytest.LogCaptureFixture, has_flusher: bool
) -> None:
    """A failed flush at the stop is logged, and prevents the clean mark, so that the next start checks the log."""
    append(manager)
    if has_flusher:
        manager._dirs[0].flusher.start("flusher")
    manager.partition("orders", 0)._inject_fault(sync_errno=errno.ENOSPC)
    manager.close()
    assert manager.offline_dirs == {}
    assert "No space left on device" in caplog.text
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / checkpoints.RECOVERY_POINT_CHECKPOINT).exists()


def two_segments(brokers: Brokers, count: int = 1, *, is_clean: bool = False) -> Path:
    """Stop a broker with two segments in orders-0, and return the file of the first, which has `count` records."""
    manager, _ = brokers.start(segment_ms=1000)
    append(manager, count=count)
    append(manager, time=NOW_MS + 60_000)
    manager.close() if is_clean else kill(manager)
    return brokers.folder / "orders-0" / f"{0:020}.log"


def test_recovery_point_does_not_pass_damage(brokers: Brokers, tmp_path: Path) -> None:
    """The recovery point stays below damage; otherwise a later start would serve damaged records."""
    path = two_segments(brokers)
    path.write_bytes(b"\0" * path.stat().st_size)
    manager, report = brokers.start()
    manager.partition("orders", 0).flush()
    assert list(report.damaged) == [("orders", 0)]
    manager.tasks.write_checkpoints()
    points = checkpoints.offset_checkpoint(tmp_path / checkpoints.RECOVERY_POINT_CHECKPOINT).read()
    assert points["orders", 0] == manager.partition("orders", 0).damage_offset == 0


def test_damage_is_reported_and_never_vouched_for(brokers: Brokers, tmp_path: Path) -> None:
    """Damage of a sealed segment is reported by every start, and prevents the clean mark."""
    path = two_segments(brokers)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        manager, report = brokers.start()
        assert list(report.damaged) == [("orders", 0)]
        assert manager.partition("orders", 0).append(batch()).error == 56
        assert manager.partition("orders", 1).append(batch()).error == 0
        manager.close()
        assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_damage_is_logged_with_the_way_out(brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The line has file, byte, offset and repair command; refused appends and reads are logged too."""
    path = two_segments(brokers)
    path.write_bytes(b"\0" * path.stat().st_size)
    manager, _ = brokers.start()
    (line,) = [r.getMessage() for r in caplog.records if "damaged" in r.getMessage()]
    assert line == (
        f"partition orders-0 is damaged and takes no appends: segment {path.name}: a batch is shorter than its header "
        "at byte 0; offsets from 0 on are refused; stop the broker and run: kbroker log verify --repair "
        f"{tmp_path}"
    )
    assert manager.partition("orders", 0).append(batch()).error == 56
    assert manager.partition("orders", 0).read(0).error == 56
    pass_time(manager, brokers.clock, 1000)
    logged = [r.getMessage() for r in caplog.records if "failed" in r.getMessage()]
    assert [f"1 {kind} failed" in line for kind, line in zip(("append", "read"), logged, strict=True)] == [True, True]
    assert all("kbroker log verify --repair" in line for line in logged)


@pytest.mark.parametrize("is_clean", [False, True])
def test_rubbish_behind_a_sealed_segment_is_passed_over(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_clean: bool
) -> None:
    """All records are served if the next segment begins at the end of the sound part; the skipped bytes are logged."""
    path = two_segments(brokers, 2, is_clean=is_clean)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(100))
    for expected in (3, 4):
        manager, report = brokers.start()
        assert report.damaged == {}
        assert report.cut["orders", 0] == (
            f"100 bytes from byte {size} of segment {path.name} on are skipped (a batch is shorter than its header)"
            "; no record is missing, the next segment begins at offset 2"
        )
        assert any("no record is missing" in r.getMessage() for r in caplog.records)
        log = manager.partition("orders", 0)
        assert [log.read(offset).error for offset in range(expected + 1)] == [0] * (expected + 1)
        assert append(manager).base_offset == expected
        manager.close()
        assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_unreadable_partition_is_offline_and_others_serve(brokers: Brokers, tmp_path: Path) -> None:
    """The broker starts without a partition whose folder is damaged, and reports the partition."""
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "partition.metadata").write_text("nonsense")
    manager, report = brokers.start()
    assert list(report.failures) == [("orders", 0)]
    assert "partition.metadata" in report.failures["orders", 0]
    assert manager.partition("orders", 0) is None
    append(manager, 1)


def test_a_partition_that_cannot_be_opened_leaves_no_folder(brokers: Brokers, tmp_path: Path) -> None:
    """A new partition that cannot be opened leaves no folder; an existing partition keeps its data."""
    manager, _ = brokers.start()
    append(manager, 0)
    refused = {**BrokerConfig().topic_configs({}), "segment.ms": 0}
    with pytest.raises(ValueError, match=r"segment\.ms"):
        manager.check_config(refused)
    with pytest.raises(ValueError, match=r"segment\.ms"):
        create(manager, "new", 0, ID, refused)
    assert not (tmp_path / "new-0").exists()
    manager.close()
    again = brokers.make()
    report = again.start([TopicLogs("orders", ID, 2, refused)], run_threads=False)
    assert list(report.failures) == [("orders", 0), ("orders", 1)]
    (log,) = again.create_partitions("orders", [0], ID, BrokerConfig().topic_configs({}))
    assert log.log_end_offset == 1
