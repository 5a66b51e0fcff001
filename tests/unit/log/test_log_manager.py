"""All partitions of a broker: start, tasks by the clock, and stop."""

import logging
import os
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.topic_names import TopicPartition
from kbroker.log import checkpoints
from kbroker.log import manager as log_manager
from kbroker.log.folder_lock import FolderLockedError
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.log_tasks import LogTasks
from kbroker.log.manager import LogManager, StartCancelled
from tests.support.log_manager import ID, NOW_MS, Brokers, append, batch, create, delete, kill, pass_time


def test_clean_restart(brokers: Brokers, tmp_path: Path) -> None:
    """A restart after a clean shutdown finds all records and checkpoints, and deletes the clean mark."""
    manager, report = brokers.start()
    assert (report.was_clean, report.loaded) == (False, 2)
    append(manager, count=3)
    append(manager, 1)
    manager.close()
    assert manager.partition("orders", 0) is None
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    recovery = checkpoints.offset_checkpoint(tmp_path / "recovery-point-offset-checkpoint")
    assert recovery.read() == {("orders", 0): 3, ("orders", 1): 1}
    watermarks = checkpoints.offset_checkpoint(tmp_path / "replication-offset-checkpoint")
    assert watermarks.read() == {("orders", 0): 3, ("orders", 1): 1}
    assert checkpoints.offset_checkpoint(tmp_path / "log-start-offset-checkpoint").read() == {}
    again, report = brokers.start()
    assert (report.was_clean, report.loaded, report.failures) == (True, 2, {})
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert again.partition("orders", 0).log_end_offset == 3
    assert again.cluster_id == manager.cluster_id


def test_restart_after_a_kill(manager: LogManager, brokers: Brokers, tmp_path: Path) -> None:
    """A restart after a kill finds all records that were written."""
    append(manager, count=3)
    kill(manager)
    again, report = brokers.start()
    assert not report.was_clean
    assert again.partition("orders", 0).log_end_offset == 3
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the names of threads are in /proc")
def test_recovery_threads_have_names(manager: LogManager, brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that takes minutes shows the threads that check records in top, perf and debuggers."""
    kill(manager)
    names: set[str] = set()
    load = LogManager._load

    def noted(one: LogManager, todo: Iterable[tuple[TopicPartition, TopicLogs]]) -> dict[TopicPartition, str]:
        names.add(Path("/proc/thread-self/comm").read_text().strip())
        return load(one, todo)

    monkeypatch.setattr(LogManager, "_load", noted)
    monkeypatch.setattr(log_manager, "LOADS_AT_ONCE", 1)
    brokers.start(settings={"num.recovery.threads.per.data.dir": 2})
    assert names == {"log-recovery"}


def test_a_lost_tail_is_logged(brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A start logs the bytes and offsets that an unclean shutdown has lost."""
    manager, _ = brokers.start()
    for _ in range(3):
        append(manager)
    append(manager, 1)
    manager.tasks.write_high_watermarks()
    kill(manager)
    path = tmp_path / "orders-0" / f"{0:020}.log"
    size = path.stat().st_size // 3
    path.write_bytes(path.read_bytes()[: size + 7])
    _, report = brokers.start()
    cut = (
        f"7 bytes from byte {size} of segment {0:020}.log on were cut, the tail of an unclean stop (the file ended "
        "early); the log ends at offset 1"
    ).replace("the file ended early", "the last batch is cut off")
    lost = (
        "the log ends at offset 1, and its high watermark in the last checkpoint is 3: offsets 1 to 2 are lost, and "
        "may have been acknowledged. A power cut loses unflushed records; after any other stop a segment was removed, "
        "emptied or cut"
    )
    assert report.cut == {("orders", 0): f"{cut}; {lost}"}
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"partition orders-0: {cut}; {lost}"]


def test_partitions_of_one_request_are_synced_once(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sync of the log folder makes all new names durable, another all deletions; no other sync is made."""
    manager, _ = brokers.start(topics=())
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    config = BrokerConfig().topic_configs({})
    made = manager.create_partitions("orders", range(50), ID, config)
    assert synced == []
    manager.sync_folders()
    manager.sync_folders()
    assert synced == [str(tmp_path)]
    assert manager.create_partitions("orders", range(51), ID, config)[:50] == made
    manager.sync_folders()
    assert synced == [str(tmp_path)] * 2
    manager.delete_topics({"orders": range(60)})
    assert synced == [str(tmp_path)] * 3
    assert len(list(tmp_path.glob("*-delete"))) == 51


def test_a_power_loss_may_empty_the_metadata_of_a_new_folder(brokers: Brokers, tmp_path: Path) -> None:
    """The name of the folder is durable, but its topic id may be lost; a start writes the id again."""
    manager, _ = brokers.start()
    append(manager)
    kill(manager)
    for content in (b"", bytes(40)):
        (tmp_path / "orders-0" / "partition.metadata").write_bytes(content)
        manager, report = brokers.start()
        assert (report.failures, manager.partition("orders", 0).log_end_offset) == ({}, 1)
        assert checkpoints.read_partition_metadata(tmp_path / "orders-0") == ID
        kill(manager)


def test_two_kills_in_a_row_do_not_count_as_clean(manager: LogManager, brokers: Brokers) -> None:
    """The clean mark is deleted when it is read, so that a later kill counts as unclean."""
    manager.close()
    killed, report = brokers.start()
    assert report.was_clean
    kill(killed)
    _, report = brokers.start()
    assert not report.was_clean


def test_second_manager_is_refused(manager: LogManager, tmp_path: Path, clock: VirtualClock) -> None:
    """The error has the folder in use, and the first manager is not affected."""
    with pytest.raises(FolderLockedError, match=str(tmp_path)):
        LogManager([tmp_path], clock, BrokerConfig())
    append(manager)


def test_unknown_folders_are_left_and_deleted_ones_removed(brokers: Brokers, tmp_path: Path) -> None:
    """A start keeps unknown folders, and removes folders renamed for deletion."""
    (tmp_path / "mystery-0").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "old-0.0123-delete").mkdir()
    (tmp_path / "old-0.0123-delete" / "x.log").write_text("x")
    _, report = brokers.start()
    assert [p.name for p in report.unknown_folders] == ["mystery-0", "notes"]
    assert [p.name for p in report.removed_folders] == ["old-0.0123-delete"]
    assert (tmp_path / "mystery-0").exists()
    assert not (tmp_path / "old-0.0123-delete").exists()


@pytest.mark.parametrize("state", ["complete", "no id", "no files", "no index"])
def test_a_partition_that_a_kill_left_behind_is_removed(
    manager: LogManager, brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    """A start removes an empty folder of a partition that the metadata does not have."""
    append(manager)
    manager.create_partitions("orders", [2], ID, {})
    kill(manager)
    for file in (tmp_path / "orders-2").iterdir():
        if state == "no files" or (state == "no index" and file.suffix == ".index"):
            file.unlink()
        elif state == "no id" and file.name == "partition.metadata":
            file.write_bytes(b"")
    with caplog.at_level(logging.INFO):
        manager, report = brokers.start()
    assert [path.name for path in report.removed_folders] == ["orders-2"]
    assert report.unknown_folders == []
    assert sorted(path.name for path in tmp_path.glob("*-*/")) == ["orders-0", "orders-1"]
    assert (
        f"{tmp_path / 'orders-2'} removed: topic orders has 2 partition(s), and the folder has no records: adding the "
        "partition was not completed"
    ) in caplog.messages
    assert manager.partition("orders", 0).log_end_offset == 1
    manager.create_partitions("orders", [2], ID, {})
    assert manager.partition("orders", 2).append(batch()).base_offset == 0


def test_a_surplus_partition_with_records_stays_and_is_served_again(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records of partitions that the metadata lacks are kept, and served when the partitions are added again."""
    manager, _ = brokers.start([("orders", 3)])
    append(manager, 2, count=3)
    manager.close()
    manager, report = brokers.start()
    assert [path.name for path in report.unknown_folders] == ["orders-2"]
    assert (
        f"{tmp_path / 'orders-2'} is not served: topic orders has 2 partition(s). The folder has records and is not "
        "touched; add the partitions again to serve it, or move it away"
    ) in caplog.messages
    assert manager.partition("orders", 2) is None
    (log,) = manager.create_partitions("orders", [2], ID, {})
    assert (log.log_end_offset, log.read(0).error) == (3, 0)


def test_a_surplus_folder_that_had_records_stays(manager: LogManager, brokers: Brokers, tmp_path: Path) -> None:
    """A folder from which retention may have deleted all records is kept, so that its offsets are not reused."""
    kill(manager)
    folder = tmp_path / "orders-2"
    for name in (f"{5:020}.log", f"{0:020}.snapshot", "leader-epoch-checkpoint", "of-a-user"):
        folder.mkdir()
        (folder / name).write_bytes(b"")
        manager, report = brokers.start()
        assert [path.name for path in report.unknown_folders] == ["orders-2"]
        kill(manager)
        (folder / name).unlink()
        folder.rmdir()


def test_records_of_a_deleted_topic_are_not_a_new_ones(manager: LogManager, brokers: Brokers, tmp_path: Path) -> None:
    """A new topic does not read the records of a deleted topic whose folder lost its topic id in a power cut."""
    append(manager, count=3)
    kill(manager)
    (tmp_path / "orders-0" / "partition.metadata").write_bytes(b"")
    manager, _ = brokers.start([])
    (log,) = manager.create_partitions("orders", [0], uuid.uuid4(), {})
    assert log.log_end_offset == 0
    (stray,) = tmp_path.glob("orders-0.*-stray")
    assert (stray / f"{0:020}.log").stat().st_size > 0


def test_delete_partition(brokers: Brokers, tmp_path: Path, clock: VirtualClock) -> None:
    """A deleted partition is unavailable at once, and its files are deleted after the delay."""
    manager, _ = brokers.start(file_delete_delay_ms=5000)
    append(manager)
    log = manager.partition("orders", 0)
    delete(manager, "orders", 0)
    assert manager.partition("orders", 0) is None
    assert log.is_closed
    assert log.append(batch()).error == 3
    (renamed,) = tmp_path.glob("orders-0.*-delete")
    assert not (tmp_path / "orders-0").exists()
    pass_time(manager, clock, 4999)
    assert renamed.exists()
    pass_time(manager, clock, 20)
    assert not renamed.exists()


def test_topic_made_again_is_empty(manager: LogManager, tmp_path: Path) -> None:
    """A new topic with the name of a deleted topic begins at offset 0."""
    append(manager)
    delete(manager, "orders", 0)
    config = BrokerConfig().topic_configs({})
    log = create(manager, "orders", 0, uuid.UUID(int=5), config)
    assert log.log_end_offset == 0
    assert create(manager, "orders", 0, uuid.UUID(int=5), config) is log
    assert checkpoints.read_partition_metadata(tmp_path / "orders-0") == uuid.UUID(int=5)


def test_folder_of_another_topic_is_put_aside(brokers: Brokers, tmp_path: Path) -> None:
    """A folder of another topic id is renamed, not served and not deleted."""
    (tmp_path / "orders-0").mkdir()
    checkpoints.write_partition_metadata(tmp_path / "orders-0", uuid.UUID(int=9))
    (tmp_path / "orders-0" / f"{0:020}.log").write_bytes(batch())
    manager, _ = brokers.start()
    assert manager.partition("orders", 0).log_end_offset == 0
    (stray,) = tmp_path.glob("orders-0.*-stray")
    assert (stray / f"{0:020}.log").read_bytes() == batch()


def test_bad_names_are_refused(manager: LogManager) -> None:
    """An invalid topic name or partition is refused before a folder is created."""
    for topic, partition in (("../x", 0), ("a/b", 0), ("", 0), ("x", -1)):
        with pytest.raises(ValueError, match="not a valid partition"):
            create(manager, topic, partition, ID, {})


def test_retention_follows_the_clock(brokers: Brokers, clock: VirtualClock, tmp_path: Path) -> None:
    """Segments older than retention.ms are deleted by the next check, and their files after the delay."""
    manager, _ = brokers.start(retention_ms=3_600_000, segment_ms=1000, file_delete_delay_ms=60_000)
    append(manager)
    append(manager, time=NOW_MS + 60_000)  # starts a second segment
    assert len(manager.partition("orders", 0).segments()) == 2
    pass_time(manager, clock, 30_010)
    assert manager.partition("orders", 0).log_start_offset == 0
    for _ in range(13):
        pass_time(manager, clock, 300_010)
    assert manager.partition("orders", 0).log_start_offset >= 1
    for _ in range(4):
        pass_time(manager, clock, 30_010)
    assert not list((tmp_path / "orders-0").glob("*.deleted"))
    assert not (tmp_path / "orders-0" / f"{0:020}.log").exists()


def test_files_without_a_delay_are_unlinked_once_a_second(
    brokers: Brokers, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task visits every partition, so that it must not run at each tick of the scheduler."""
    runs: list[int] = []
    monkeypatch.setattr(LogTasks, "purge_deleted", lambda self, *folders: runs.append(clock.now_ms()))
    manager, _ = brokers.start(settings={"log.segment.delete.delay.ms": "0"})
    began_ms = clock.now_ms()
    for _ in range(125):
        pass_time(manager, clock, 20)
    assert [at_ms - began_ms for at_ms in runs] == [1000, 2000]


def test_checkpoints_follow_the_clock(brokers: Brokers, clock: VirtualClock, tmp_path: Path) -> None:
    """Recovery points and log starts are written 30 s after the start, and then every minute."""
    manager, _ = brokers.start()
    recovery = checkpoints.offset_checkpoint(tmp_path / "recovery-point-offset-checkpoint")
    append(manager, count=4)
    manager.partition("orders", 0).flush()
    manager.partition("orders", 0).delete_records(2)
    assert recovery.read() == {}
    pass_time(manager, clock, 30_010)
    assert recovery.read() == {("orders", 0): 4, ("orders", 1): 0}
    starts = checkpoints.offset_checkpoint(tmp_path / "log-start-offset-checkpoint")
    assert starts.read() == {("orders", 0): 2}
    kill(manager)
    again, _ = brokers.start()
    assert again.partition("orders", 0).log_start_offset == 2
    assert again.partition("orders", 0).log_end_offset == 4


def stop_with_a_log_start_of_two(brokers: Brokers) -> None:
    manager, _ = brokers.start()
    append(manager, count=4)
    manager.partition("orders", 0).flush()
    manager.partition("orders", 0).delete_records(2)
    manager.close()


def test_a_start_that_was_not_finished_keeps_the_checkpoints(brokers: Brokers, tmp_path: Path) -> None:
    """A start that ends before the partitions are open keeps log starts; one that opened logs is not clean."""
    stop_with_a_log_start_of_two(brokers)
    unstarted = LogManager([tmp_path], brokers.clock, BrokerConfig({}))
    unstarted.close()
    starts = checkpoints.offset_checkpoint(tmp_path / "log-start-offset-checkpoint")
    assert starts.read() == {("orders", 0): 2}

    cancelled = LogManager([tmp_path], brokers.clock, BrokerConfig({}))
    responses = iter([False, True, True])
    cancelled.is_cancelled = lambda: next(responses)
    with pytest.raises(StartCancelled):
        cancelled.start([TopicLogs("orders", ID, 2, cancelled._config.topic_configs({}))], run_threads=False)
    cancelled.close()
    assert starts.read() == {("orders", 0): 2}
    again, report = brokers.start()
    assert not report.was_clean  # the cancelled start opened logs without completing recovery
    assert again.partition("orders", 0).log_start_offset == 2


def test_a_partition_that_cannot_be_opened_keeps_its_log_start(brokers: Brokers, tmp_path: Path) -> None:
    """The checkpoints keep the log start offset of a partition that cannot be opened."""
    stop_with_a_log_start_of_two(brokers)
    metadata = tmp_path / "orders-0" / "partition.metadata"
    sound = metadata.read_bytes()
    metadata.write_bytes(b"damaged")
    broken, report = brokers.start()
    assert list(report.failures) == [("orders", 0)]
    broken.tasks.write_checkpoints()
    broken.close()
    metadata.write_bytes(sound)
    again, _ = brokers.start()
    assert again.partition("orders", 0).log_start_offset == 2


def test_a_folder_forgets_only_what_it_misses_itself(brokers: Brokers, tmp_path: Path) -> None:
    """A folder's checkpoint keeps the offsets of a failed partition only if the partition is in this folder."""
    manager, _ = brokers.start(topics=(("orders", 1),))
    append(manager, count=4)
    log = manager.partition("orders", 0)
    assert log is not None
    log.delete_records(2)
    manager.close()
    other = tmp_path / "other"
    other.mkdir()
    for name in (checkpoints.LOG_START_CHECKPOINT, checkpoints.RECOVERY_POINT_CHECKPOINT):
        (other / name).write_bytes((tmp_path / name).read_bytes())
    (tmp_path / "orders-0" / "partition.metadata").write_bytes(b"damaged")
    config = BrokerConfig({})
    brokers.folders.append(other)
    again = brokers.make(config)
    report = again.start([TopicLogs("orders", ID, 1, config.topic_configs({}))], run_threads=False)
    assert list(report.failures) == [("orders", 0)]
    assert checkpoints.offset_checkpoint(tmp_path / checkpoints.LOG_START_CHECKPOINT).read() == {("orders", 0): 2}
    assert checkpoints.offset_checkpoint(other / checkpoints.LOG_START_CHECKPOINT).read() == {}


def test_an_unused_start_leaves_the_clean_mark(manager: LogManager, brokers: Brokers, tmp_path: Path) -> None:
    """A manager that is closed without a start keeps the clean mark."""
    manager.close()
    LogManager([tmp_path], brokers.clock, BrokerConfig({})).close()
    assert brokers.start()[1].was_clean


def test_flush_by_time(brokers: Brokers, clock: VirtualClock) -> None:
    """Records are flushed within log.flush.interval.ms."""
    manager, _ = brokers.start(settings={"log.flush.interval.ms": 1000})
    append(manager, count=2)
    log = manager.partition("orders", 0)
    assert log.flushed_offset == 0
    for _ in range(3):
        pass_time(manager, clock, 1010)
    assert log.flushed_offset == 2


def test_flush_is_due_after_the_interval_and_not_before(brokers: Brokers, clock: VirtualClock) -> None:
    manager, _ = brokers.start(settings={"log.flush.interval.ms": 1000})
    append(manager, count=2)
    log = manager.partition("orders", 0)
    clock.advance_ms(999)
    manager.tasks.flush_by_time()
    assert log.flushed_offset == 0
    clock.advance_ms(1)
    manager.tasks.flush_by_time()
    assert log.flushed_offset == 2


def test_no_flush_by_time_by_default(manager: LogManager, clock: VirtualClock) -> None:
    append(manager)
    pass_time(manager, clock, 10_000_000)
    assert manager.partition("orders", 0).flushed_offset == 0


def test_flusher_takes_what_somebody_waits_for(brokers: Brokers) -> None:
    """With flush.messages=1 an append returns an offset to wait for, which the flusher reaches."""
    manager, _ = brokers.start(flush_messages=1)
    log = manager.partition("orders", 0)
    for i in range(5):
        assert log.append(batch()).flush_offset == i + 1
    assert log.high_watermark == 0  # unflushed records are not readable
    flusher = manager._dirs[0].flusher
    flusher.start("flusher")
    assert flusher.close()
    assert log.flushed_offset == 5
    assert log.high_watermark == 5
    assert flusher.flushes == 1  # one sync served all appends
    assert log.append(batch()).error == 0
    assert log.flushed_offset == 6  # with a closed flusher the appending thread flushes


def test_producers_expire_by_the_clock(brokers: Brokers, clock: VirtualClock) -> None:
    """An idle producer expires after producer.id.expiration.ms."""
    manager, _ = brokers.start(settings={"producer.id.expiration.ms": 3_600_000})
    append(manager, producer_id=7, producer_epoch=0, base_sequence=0)
    log = manager.partition("orders", 0)
    assert log.producer_count == 1
    for _ in range(8):
        pass_time(manager, clock, 600_010)
    assert log.producer_count == 0


def test_old_time_stamps_keep_their_producer_for_one_check_interval(brokers: Brokers, clock: VirtualClock) -> None:
    """The first check is an interval after the start, so that a batch with old records that is sent again before is a
    duplicate.
    """
    manager, _ = brokers.start()
    day_ago = NOW_MS - 86_400_000
    append(manager, time=day_ago, producer_id=7, producer_epoch=0, base_sequence=0)
    pass_time(manager, clock, 599_000)
    assert append(manager, time=day_ago, producer_id=7, producer_epoch=0, base_sequence=0).is_duplicate
    pass_time(manager, clock, 1010)
    assert manager.partition("orders", 0).producer_count == 0


def test_producers_survive_a_restart(manager: LogManager, brokers: Brokers) -> None:
    """A duplicate is detected after a clean restart and after a kill."""
    append(manager, producer_id=7, producer_epoch=0, base_sequence=0)
    manager.close()
    manager, _ = brokers.start()
    assert append(manager, producer_id=7, producer_epoch=0, base_sequence=0).is_duplicate
    append(manager, producer_id=7, producer_epoch=0, base_sequence=1)
    kill(manager)
    manager, _ = brokers.start()
    assert append(manager, producer_id=7, producer_epoch=0, base_sequence=1).is_duplicate
    assert manager.partition("orders", 0).log_end_offset == 2


def test_in_memory_keeps_nothing(brokers: Brokers, tmp_path: Path, clock: VirtualClock) -> None:
    """An in-memory broker works without a file."""
    manager, report = brokers.start(in_memory=True)
    assert report.loaded == 2
    assert manager.cluster_id
    append(manager, count=2)
    assert manager.partition("orders", 0).log_end_offset == 2
    pass_time(manager, clock, 600_000)
    delete(manager, "orders", 0)
    manager.close()
    assert list(tmp_path.iterdir()) == []


def test_new_configuration_counts_at_once(manager: LogManager) -> None:
    """The next append obeys a changed max.message.bytes."""
    append(manager)
    manager.update_configs({"orders": BrokerConfig().topic_configs({"max.message.bytes": "70"})})
    assert manager.partition("orders", 0).append(batch(value=b"x" * 100)).error == 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_writes_nothing(manager: LogManager, tmp_path: Path) -> None:
    """Closing the manager in a forked child changes no file."""
    append(manager)
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    pid = os.fork()
    if pid == 0:
        try:
            manager.close()
            create(manager, "more", 0, ID, {})
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before
    append(manager)


def test_close_is_idempotent_and_final(manager: LogManager) -> None:
    """A second close does nothing, and a closed manager refuses calls."""
    manager.close()
    manager.close()
    with pytest.raises(RuntimeError, match="closed"):
        create(manager, "more", 0, ID, {})
    with pytest.raises(RuntimeError, match="closed"):
        manager.start([])
