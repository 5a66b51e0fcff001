"""A start reports offsets that the high watermark checkpoint has and the log lacks."""

import errno
import shutil
import uuid
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.log import checkpoints
from kbroker.log.folder_scan import StartReport, TopicLogs
from kbroker.log.manager import LogManager
from tests.support.errors import raising
from tests.support.log_manager import NOW_MS, Brokers, append, create, delete, kill, pass_time

KEY = ("orders", 0)
CONFIG = BrokerConfig().topic_configs({})
CHECKPOINTED_MS = 5_010


def known(folder: Path) -> int | None:
    return checkpoints.offset_checkpoint(folder / checkpoints.HIGH_WATERMARK_CHECKPOINT).read().get(KEY)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]


@pytest.fixture
def manager(brokers: Brokers, clock: VirtualClock) -> LogManager:
    """Return the manager of a partition with two segments of three records; its high watermark is in the checkpoint."""
    manager, _ = brokers.start(topics=(("orders", 1),), segment_ms=1000)
    append(manager, count=3)
    append(manager, count=3, time=NOW_MS + 60_000)
    pass_time(manager, clock, CHECKPOINTED_MS)
    assert known(brokers.folder) == 6
    return manager


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "orders-0").glob("*.log"))


def empty_last(folder: Path) -> None:
    segments(folder)[-1].write_bytes(b"")


def remove_last(folder: Path) -> None:
    segments(folder)[-1].unlink()


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder / "orders-0")


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize(("damage", "end"), [(empty_last, 3), (remove_last, 3), (remove_folder, 0)])
def test_what_is_missing_at_the_end_is_reported(
    brokers: Brokers, manager: LogManager, caplog: pytest.LogCaptureFixture, is_clean: bool, damage: object, end: int
) -> None:
    """One line has the partition, both offsets and the possible causes, and the offsets are counted."""
    manager.close() if is_clean else kill(manager)
    damage(brokers.folder)  # type: ignore[operator]
    again, report = brokers.start(topics=(("orders", 1),))
    (line,) = warnings(caplog)
    assert line.startswith(
        f"partition orders-0: the log ends at offset {end}, and its high watermark in the last checkpoint is 6: "
        f"offsets {end} to 5 are lost"
    )
    assert "power cut" in line
    assert (report.lost_offsets, again.lost_offsets) == (6 - end, 6 - end)
    assert append(again).base_offset == end


def test_a_kill_alone_loses_nothing(
    brokers: Brokers, clock: VirtualClock, manager: LogManager, caplog: pytest.LogCaptureFixture
) -> None:
    """Records after the checkpoint are found, and deleted records are not reported as lost."""
    append(manager, count=4)
    log = manager.partition(*KEY)
    assert log is not None
    log.delete_records(8)
    kill(manager)
    again, report = brokers.start(topics=(("orders", 1),))
    assert (report.lost_offsets, warnings(caplog)) == (0, [])
    assert append(again).base_offset == 10
    pass_time(again, clock, CHECKPOINTED_MS)
    assert known(brokers.folder) == 11


def test_an_end_at_the_checkpoint_is_no_loss(
    brokers: Brokers, manager: LogManager, caplog: pytest.LogCaptureFixture
) -> None:
    kill(manager)
    _, report = brokers.start(topics=(("orders", 1),))
    assert (report.lost_offsets, report.cut, warnings(caplog)) == (0, {}, [])


def test_a_damaged_segment_is_not_a_lost_one(
    brokers: Brokers, manager: LogManager, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage is reported without lost offsets, because its bytes may be restored."""
    log = manager.partition(*KEY)
    assert log is not None
    log.flush()
    manager.tasks.write_checkpoints()
    kill(manager)
    last = segments(brokers.folder)[-1]
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    _, report = brokers.start(topics=(("orders", 1),))
    assert list(report.damaged) == [KEY]
    assert "offsets from 3 on are refused" in report.damaged[KEY]
    assert (report.lost_offsets, report.cut, warnings(caplog)) == (0, {}, [])


def test_a_loss_is_reported_until_the_next_checkpoint(
    brokers: Brokers, clock: VirtualClock, manager: LogManager
) -> None:
    """The next checkpoint has the shorter log's end, so that a later start reports no loss."""
    kill(manager)
    empty_last(brokers.folder)
    again, report = brokers.start(topics=(("orders", 1),))
    pass_time(again, clock, CHECKPOINTED_MS)
    kill(again)
    _, later = brokers.start(topics=(("orders", 1),))
    assert (report.lost_offsets, later.lost_offsets) == (3, 0)


def restart(brokers: Brokers, topic_id: uuid.UUID) -> StartReport:
    kill(brokers.open[-1])
    manager = brokers.make()
    return manager.start([TopicLogs("orders", topic_id, 1, CONFIG)], run_threads=False)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_topic_made_again_has_lost_nothing(brokers: Brokers, manager: LogManager, is_restarted: bool) -> None:
    """The checkpoint entry of a deleted topic does not apply to a new topic of its name."""
    if is_restarted:
        kill(manager)
        manager, _ = brokers.start(topics=(("orders", 1),))
    delete(manager, *KEY)
    fresh = uuid.UUID(int=5)
    create(manager, *KEY, fresh, CONFIG)
    append(manager)
    report = restart(brokers, fresh)
    assert (report.lost_offsets, report.cut) == (0, {})


def test_a_topic_that_is_new_costs_no_write(brokers: Brokers, manager: LogManager) -> None:
    """A new topic that the checkpoint does not contain causes no write."""
    path = brokers.folder / checkpoints.HIGH_WATERMARK_CHECKPOINT
    before = path.stat().st_mtime_ns
    create(manager, "payments", 0, uuid.UUID(int=6), CONFIG)
    assert path.stat().st_mtime_ns == before


def test_a_topic_made_again_costs_one_write(
    brokers: Brokers, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One write removes all partitions of the deleted topic, and keeps those of other topics."""
    manager, _ = brokers.start(topics=(("orders", 5), ("payments", 1)))
    for partition in range(5):
        append(manager, partition)
    pass_time(manager, clock, CHECKPOINTED_MS)
    for partition in range(5):
        delete(manager, "orders", partition)
    writes = []
    (log_dir,) = manager._dirs
    original = log_dir.high_watermarks.write

    def write(offsets: dict[tuple[str, int], int]) -> None:
        writes.append(offsets)
        original(offsets)

    monkeypatch.setattr(log_dir.high_watermarks, "write", write)
    for partition in range(5):
        create(manager, "orders", partition, uuid.UUID(int=5), CONFIG)
    assert len(writes) == 1
    left = checkpoints.offset_checkpoint(brokers.folder / checkpoints.HIGH_WATERMARK_CHECKPOINT).read()
    assert left == {("payments", 0): 0}


def test_a_full_disk_does_not_stop_a_topic_from_being_made(
    brokers: Brokers, manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is created with a stale entry, which may cause a false report at the next start."""
    delete(manager, *KEY)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.CheckpointFile, "write", raising(OSError(errno.ENOSPC, "full")))
        create(manager, *KEY, uuid.UUID(int=5), CONFIG)
    assert append(manager).base_offset == 0


def test_a_partition_that_could_not_be_opened_keeps_its_entry(
    brokers: Brokers, clock: VirtualClock, manager: LogManager
) -> None:
    """The checkpoint keeps the entry of a failed partition, so that the start that opens it detects a loss."""
    kill(manager)
    path = brokers.folder / "orders-0" / checkpoints.PARTITION_METADATA
    kept = path.read_bytes()
    path.write_bytes(b"rubbish")
    offline, report = brokers.start(topics=(("orders", 1),))
    assert list(report.failures) == [KEY]
    pass_time(offline, clock, CHECKPOINTED_MS)
    assert known(brokers.folder) == 6
    kill(offline)
    path.write_bytes(kept)
    empty_last(brokers.folder)
    _, report = brokers.start(topics=(("orders", 1),))
    assert report.lost_offsets == 3
