"""Checkpoints of a deleted partition do not apply to a new partition of its name, after a kill at any moment."""

import errno
import uuid
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.log import checkpoints
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.manager import LogManager
from tests.support.errors import raising
from tests.support.log_manager import Brokers, append, create, delete, kill, pass_time

KEY = ("orders", 0)
NEXT_ID = uuid.UUID(int=5)
CONFIG = BrokerConfig().topic_configs({})


@pytest.fixture
def manager(brokers: Brokers, clock: VirtualClock) -> LogManager:
    """Return the manager of a log of nine deleted records, whose offsets are in the checkpoints."""
    manager, _ = brokers.start(topics=(("orders", 1),))
    append(manager, count=9)
    log = manager.partition(*KEY)
    assert log is not None
    log.flush()
    log.delete_records(9)
    pass_time(manager, clock, 60_010)
    assert offsets(brokers.folder) == [9, 9]
    return manager


def offsets(folder: Path) -> list[int | None]:
    """Return the partition's recovery point and log start offset in the checkpoints."""
    names = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint")
    return [checkpoints.offset_checkpoint(folder / name).read().get(KEY) for name in names]


def start_after_kill(brokers: Brokers, *topics: TopicLogs) -> LogManager:
    kill(brokers.open[-1])
    manager = brokers.make()
    manager.start(topics, run_threads=False)
    return manager


def check_made_again(brokers: Brokers) -> None:
    """Assert that a record of the new topic survives a kill and is not counted as flushed."""
    manager = brokers.open[-1]
    create(manager, *KEY, NEXT_ID, CONFIG)
    append(manager)
    log = start_after_kill(brokers, TopicLogs("orders", NEXT_ID, 1, CONFIG)).partition(*KEY)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset, log.damage) == (0, 1, 0, None)


def test_kill_after_the_topic_was_made_again(brokers: Brokers, manager: LogManager) -> None:
    delete(manager, *KEY)
    assert offsets(brokers.folder) == [None, None]
    check_made_again(brokers)


def test_a_topic_that_was_made_again_while_the_broker_was_down(brokers: Brokers, manager: LogManager) -> None:
    """The new topic's log begins at offset 0, nothing is reported as lost, and its records survive a kill."""
    cleaned = checkpoints.offset_checkpoint(brokers.folder / checkpoints.CLEANER_OFFSET_CHECKPOINT)
    cleaned.write({KEY: 7})
    started = start_after_kill(brokers, TopicLogs("orders", NEXT_ID, 1, CONFIG))
    log = started.partition(*KEY)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset, started.lost_offsets) == (0, 0, 0)
    assert (offsets(brokers.folder), cleaned.read()) == ([None, None], {})
    check_made_again(brokers)


def test_kill_in_the_middle_of_a_deletion(brokers: Brokers, manager: LogManager) -> None:
    """A start after a rename for deletion removes the partition's checkpoint entries."""
    cleaned = checkpoints.offset_checkpoint(brokers.folder / checkpoints.CLEANER_OFFSET_CHECKPOINT)
    cleaned.write({KEY: 7})
    before = offsets(brokers.folder)
    (brokers.folder / "orders-0").rename(brokers.folder / f"orders-0.{uuid.uuid4().hex}-delete")
    start_after_kill(brokers)
    assert (before, offsets(brokers.folder)) == ([9, 9], [None, None])
    assert cleaned.read() == {}
    check_made_again(brokers)


def test_disk_that_is_full_while_a_topic_is_deleted(
    brokers: Brokers, manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion succeeds, and the creation of a new topic of the same name removes the old offsets."""
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.CheckpointFile, "write", raising(OSError(errno.ENOSPC, "full")))
        delete(manager, *KEY)
    assert offsets(brokers.folder) == [9, 9]
    check_made_again(brokers)


def test_deletion_of_what_no_checkpoint_names_writes_none(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion of a topic that no checkpoint contains writes no checkpoint."""
    manager, _ = brokers.start(topics=(("orders", 1),))
    monkeypatch.setattr(checkpoints.CheckpointFile, "write", raising(AssertionError("a checkpoint was written")))
    before = [path.stat().st_mtime_ns for path in brokers.folder.glob("*checkpoint")]
    append(manager)
    delete(manager, *KEY)
    assert [path.stat().st_mtime_ns for path in brokers.folder.glob("*checkpoint")] == before
