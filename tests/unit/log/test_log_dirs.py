"""Several log folders: placement, failed folders, owners, and moves of partitions."""

import errno
import os
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, KafkaError
from kbroker.log import checkpoints, clean_shutdown, replica_mover
from kbroker.log.folder_lock import FolderLockedError
from kbroker.log.log_dir import LogDir, LogDirError
from kbroker.log.log_dirs import Replica
from kbroker.log.manager import LogManager
from kbroker.log.replica_mover import ReplicaMover
from tests.support.compaction import keyed
from tests.support.errors import error_of, raising
from tests.support.log_manager import ID, NOW_MS, Brokers, append, batch, create, delete, kill, pass_time
from tests.support.log_moves import KEY, filled, finish, home, homes, values


def test_a_new_partition_is_in_the_folder_with_the_fewest(brokers: Brokers, folders: list[Path]) -> None:
    """Partitions are placed by count; deletions and moves change the counts."""
    manager, _ = brokers.start((("orders", 6),))
    assert homes(folders) == {"a": 3, "b": 3}
    manager.delete_topics(
        {"orders": [partition for partition in range(6) if home(manager, ("orders", partition)) == "b"]}
    )
    config = BrokerConfig().topic_configs({})
    for partition in range(2):
        create(manager, "more", partition, uuid.UUID(int=5), config)
        assert home(manager, ("more", partition)) == "b"
    manager.move_partition("more", 0, str(folders[0]))
    finish(manager)
    assert homes(folders) == {"a": 4, "b": 1}


def test_each_folder_has_its_own_files(brokers: Brokers, folders: list[Path], clock: VirtualClock) -> None:
    """Owner, lock, checkpoints and clean mark are per folder, and are read by a restart."""
    manager, report = brokers.start()
    append(manager, 0, count=3)
    append(manager, 1, count=2)
    assert manager.cluster_id is not None
    with pytest.raises(FolderLockedError, match="in use by this process"):
        LogManager([folders[1]], clock, BrokerConfig())
    manager.close()
    owners = [checkpoints.read_meta_properties(folder) for folder in folders]
    assert {(one.cluster_id, one.node_id) for one in owners if one is not None} == {(manager.cluster_id, 1)}
    assert len({one.directory_id for one in owners if one is not None}) == 2
    found = [checkpoints.offset_checkpoint(one / checkpoints.RECOVERY_POINT_CHECKPOINT).read() for one in folders]
    assert found == [{("orders", 0): 3}, {("orders", 1): 2}]
    _, report = brokers.start()
    assert (report.was_clean, report.failures) == (True, {})


def test_folders_of_other_owners_are_refused(brokers: Brokers, folders: list[Path], clock: VirtualClock) -> None:
    """A folder of another cluster, node or directory ends the start with Kafka's message."""
    manager, _ = brokers.start()
    manager.close()
    path = folders[1] / "meta.properties"
    first, second = (checkpoints.read_meta_properties(folder) for folder in folders)
    assert first is not None
    assert second is not None
    node = (
        f"Stored node id 7 doesn't match previous node id 1 in {path}. If you moved your data, make sure your "
        "configured node id matches. If you intend to create a new node, you should remove all data in your data "
        "directories."
    )
    copied = checkpoints.uuid_to_text(first.directory_id or ID)
    for wrong, text in (
        (
            second._replace(cluster_id="other"),
            f"Invalid cluster.id in: {path}. Expected {first.cluster_id}, but read other",
        ),
        (second._replace(node_id=7), node),
        (
            second._replace(directory_id=first.directory_id),
            f"Duplicate directory ID {copied} found. It was the ID of {folders[0]}, but also of {folders[1]}",
        ),
    ):
        checkpoints.write_meta_properties(folders[1], wrong)
        with pytest.raises(checkpoints.MetaPropertiesMismatch) as refused:
            LogManager(folders, clock, BrokerConfig())
        assert str(refused.value) == text
    checkpoints.write_meta_properties(folders[1], second)
    with pytest.raises(LogDirError, match="Duplicate log directory found"):
        LogManager([folders[0], folders[0]], clock, BrokerConfig())
    _, report = brokers.start()
    assert report.was_clean  # a refused start opened no log


def test_the_folder_of_the_metadata_log(tmp_path: Path, clock: VirtualClock) -> None:
    """The folder must be usable, may be outside log.dirs and may be a link; another folder may be offline."""
    first, second, outside = tmp_path / "first", tmp_path / "second", tmp_path / "outside"
    first.touch()
    (tmp_path / "link").symlink_to(second)
    with pytest.raises(LogDirError, match="expected a folder"):
        LogManager([first, second], clock, BrokerConfig())
    for metadata in (second, tmp_path / "link", outside):
        manager = LogManager([first, second], clock, BrokerConfig({"metadata.log.dir": str(metadata)}))
        assert manager.metadata_dir.path == (outside if metadata == outside else second)
        assert [*manager.offline_dirs] == [first]
        with pytest.raises(FolderLockedError):
            LogManager([manager.metadata_dir.path], clock, BrokerConfig())
        manager.close()
    with pytest.raises(LogDirError, match="expected a folder"):
        LogManager([first], clock, BrokerConfig({"metadata.log.dir": str(outside)}))
    owners = [checkpoints.read_meta_properties(folder) for folder in (second, outside)]
    assert len({owner.cluster_id for owner in owners if owner is not None}) == 1
    assert len({owner.directory_id for owner in owners if owner is not None}) == 2


def test_a_folder_outside_counts_as_not_closed_in_order(tmp_path: Path, clock: VirtualClock) -> None:
    """A clean mark in the folder is ignored, because Apache Kafka neither writes nor removes a mark there."""
    data, outside = tmp_path / "data", tmp_path / "outside"
    config = BrokerConfig({"metadata.log.dir": str(outside)})
    for _ in range(2):
        manager = LogManager([data], clock, config)
        assert not manager.metadata_dir.was_clean
        manager.start([], run_threads=False)
        manager.close()
        assert clean_shutdown.FILE_NAME in os.listdir(data)
        assert clean_shutdown.FILE_NAME not in os.listdir(outside)
        clean_shutdown.write_mark(outside, 7)


def test_an_empty_disk_joins_the_cluster_of_the_others(brokers: Brokers, folders: list[Path]) -> None:
    """An empty folder, the first one too, gets the cluster id of the other folders."""
    manager, _ = brokers.start(topics=())
    manager.close()
    os.remove(folders[0] / "meta.properties")
    again, _ = brokers.start(topics=())
    assert again.cluster_id == manager.cluster_id


def test_a_folder_that_fails_takes_only_its_partitions_offline(brokers: Brokers, folders: list[Path]) -> None:
    """Appends to the other folder succeed, new partitions are placed there, and only the failed folder has no mark."""
    manager, _ = brokers.start((("orders", 4),), settings={"log.flush.interval.ms": 10_000})
    lost = [partition for partition in range(4) if home(manager, ("orders", partition)) == "a"]
    log = manager.partition("orders", lost[0])
    append(manager, lost[0])
    log._inject_fault(sync_errno=errno.EIO)
    manager._hosted["orders", lost[0]].flushed_ms = -(10**9)
    manager.tasks.flush_by_time()
    assert list(manager.offline_dirs) == [folders[0]]
    for partition in range(4):
        assert manager.partition("orders", partition).append(batch()).error == (56 if partition in lost else 0)
    assert [(view.path, bool(view.failure)) for view in manager.describe_dirs()] == [
        (str(folders[0]), True),
        (str(folders[1]), False),
    ]
    create(manager, "more", 0, uuid.UUID(int=5), BrokerConfig().topic_configs({}))
    assert home(manager, ("more", 0)) == "b"
    assert refusal(manager, folders[0], 1 - lost[0]) == (
        Errors.KAFKA_STORAGE_ERROR,
        f"Log directory {folders[0]} is offline",
    )
    assert refusal(manager, folders[1], lost[0])[0] is Errors.KAFKA_STORAGE_ERROR
    manager.close()
    assert [(folder / ".kafka_cleanshutdown").exists() for folder in folders] == [False, True]


def refusal(manager: LogManager, folder: Path, partition: int = 0) -> tuple[Errors, str]:
    with pytest.raises(KafkaError) as refused:
        manager.move_partition("orders", partition, str(folder))
    return refused.value.error, refused.value.message


def test_a_start_without_one_folder(brokers: Brokers, folders: list[Path], tmp_path: Path) -> None:
    """Partitions of a missing folder are offline and not recreated; with the folder back they have their records."""
    manager, _ = brokers.start((("orders", 2),))
    append(manager, 0)
    append(manager, 1)
    gone = folders[1]
    (away,) = (partition for partition in range(2) if home(manager, ("orders", partition)) == "b")
    manager.close()
    gone.rename(tmp_path / "kept")
    gone.write_text("not a folder")
    manager, report = brokers.start((("orders", 2),))
    sentence = f"Can't create log for orders-{away} because log directories {gone} are offline"
    assert report.failures == {("orders", away): f"KAFKA_STORAGE_ERROR: {sentence}"}
    assert list(manager.offline_dirs) == [gone]
    with pytest.raises(KafkaError, match="Can't create log"):
        create(manager, "orders", away, ID, BrokerConfig().topic_configs({}))
    append(manager, 1 - away)
    create(manager, "more", 0, uuid.UUID(int=5), BrokerConfig().topic_configs({}))
    manager.close()
    gone.unlink()
    (tmp_path / "kept").rename(gone)
    manager, report = brokers.start((("orders", 2),))
    assert (report.was_clean, report.failures) == (True, {})
    assert manager.partition("orders", away).log_end_offset == 1


def test_the_first_folder_must_be_usable(brokers: Brokers, folders: list[Path]) -> None:
    """The first folder has the metadata log; a refused start releases the locks."""
    folders[0].write_text("not a folder")
    with pytest.raises(LogDirError, match="expected a folder"):
        brokers.start()
    folders[0].unlink()
    brokers.start()


def test_a_partition_in_two_folders_is_refused(brokers: Brokers, folders: list[Path]) -> None:
    """A start fails, because only the note of a move would identify the current folder."""
    manager, _ = brokers.start()
    manager.close()
    (there,) = (folder for folder in folders if not (folder / "orders-0").exists())
    (there / "orders-0").mkdir()
    checkpoints.write_partition_metadata(there / "orders-0", ID)
    with pytest.raises(LogDirError, match="Duplicate log directories for orders-0 are found in both"):
        brokers.start()


# -- moves -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_partition_is_moved(brokers: Brokers, folders: list[Path], is_clean: bool) -> None:
    """Records, log start offset, epochs, producers and checkpoints are moved, and the old folder is renamed."""
    manager = filled(brokers)
    log = manager.partition(*KEY)
    log.delete_records(2)
    before = values(manager)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert home(manager) == "b"
    assert log.directory == str(folders[1] / "orders-0")
    assert values(manager) == before
    duplicate = log.append(batch(time=NOW_MS + 120_000, producer_id=7, producer_epoch=0, base_sequence=1))
    assert (duplicate.error, duplicate.is_duplicate, duplicate.base_offset) == (0, True, 10)
    append(manager, time=NOW_MS + 500_000)
    assert len(log.segments()) == 4
    before = values(manager)
    assert [entry.name for entry in folders[0].glob("orders*") if not entry.name.endswith("-delete")] == []
    assert not (folders[1] / "orders-0" / checkpoints.MOVED_FROM).exists()
    if is_clean:
        manager.close()
    else:
        kill(manager)
    manager, report = brokers.start((("orders", 1),), segment_ms=1000)
    assert (report.was_clean, report.failures, report.damaged, report.cut) == (is_clean, {}, {}, {})
    assert home(manager) == "b"
    assert values(manager) == before
    assert manager.partition(*KEY).log_start_offset == 2
    assert manager.partition(*KEY).leader_epochs() == [(0, 0)]


def test_the_former_folder_is_removed_later(brokers: Brokers, folders: list[Path], clock: VirtualClock) -> None:
    """The old folder is deleted after file.delete.delay.ms."""
    manager = filled(brokers)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    (former,) = folders[0].glob("*-delete")
    pass_time(manager, clock, 60_100)
    assert not former.exists()


def test_appends_go_on_while_a_partition_is_moved(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records appended between two steps, and during the last step, are in the new folder."""
    monkeypatch.setattr("kbroker.log.replica_mover.STEP_BYTES", 200)
    monkeypatch.setattr("kbroker.log.replica_mover.TAIL_BYTES", 0)
    manager = filled(brokers)
    write = checkpoints.write_moved_from

    def write_late(folder: Path, sources: Iterable[uuid.UUID]) -> None:
        write(folder, sources)
        append(manager, time=NOW_MS + 900_000)

    monkeypatch.setattr(checkpoints, "write_moved_from", write_late)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    assert home(manager) == "b"
    assert manager.partition(*KEY).log_end_offset == 13
    before = values(manager)
    kill(manager)
    manager, _ = brokers.start((("orders", 1),), segment_ms=1000)
    assert values(manager) == before


def test_an_append_between_the_move_and_the_new_flusher(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append for which the former folder's flusher was called is flushed by the new folder's flusher."""
    manager = filled(brokers, flush_messages=1)
    set_folder = manager._hosted.set_folder

    def append_before(*args: Any) -> None:
        append(manager)
        set_folder(*args)

    monkeypatch.setattr(manager._hosted, "set_folder", append_before)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    log = manager.partition(*KEY)
    assert log is not None
    assert log.flushed_offset == log.log_end_offset - 1
    for log_dir, flushes in zip(manager._dirs, (0, 1), strict=True):
        log_dir.flusher.start("flusher")
        assert log_dir.flusher.close()
        assert log_dir.flusher.flushes == flushes
    assert log.flushed_offset == log.log_end_offset


def test_a_move_is_described_and_can_be_taken_back(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is described as a future replica with its lag; a move to the current folder deletes the copy."""
    monkeypatch.setattr("kbroker.log.replica_mover.STEP_BYTES", 300)
    monkeypatch.setattr("kbroker.log.replica_mover.TAIL_BYTES", 0)
    manager = filled(brokers)
    monkeypatch.setattr(manager.mover, "_again", lambda key, future, delay_ms=0: None)
    manager.move_partition(*KEY, str(folders[1]))
    future = manager._hosted[KEY].future
    assert future is not None
    assert re.fullmatch(r"orders-0\.[0-9a-f]{32}-future", future.folder.name)
    size = manager.partition(*KEY).size_bytes
    views = manager.describe_dirs()
    assert [view.replicas for view in views] == [{KEY: [Replica(size, 0, False)]}, {KEY: [Replica(0, 12, True)]}]
    manager.mover._step(KEY, future)
    (replica,) = manager.describe_dirs()[1].replicas[KEY]
    assert 0 < replica.size_bytes < size
    assert 0 < replica.offset_lag <= 12
    manager.move_partition(*KEY, str(folders[0]))
    assert manager.describe_dirs()[1].replicas == {}
    manager.mover._step(KEY, future)
    assert not future.folder.exists()
    assert manager.cleaner.hold(KEY)
    assert home(manager) == "a"


def test_a_moved_partition_is_described_once(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its former folder is removed, which takes as long as the disk, the partition is in its new folder only."""
    manager = filled(brokers)
    seen = []
    put_aside = manager.mover._put_aside

    def describe_first(*args: Any) -> None:
        seen.append([view.replicas for view in manager.describe_dirs()])
        put_aside(*args)

    monkeypatch.setattr(manager.mover, "_put_aside", describe_first)
    manager.move_partition(*KEY, str(folders[1]))
    finish(manager)
    size = manager.partition(*KEY).size_bytes
    assert seen == [[{}, {KEY: [Replica(size, 0, False)]}]]


def test_refusals(brokers: Brokers, folders: list[Path], tmp_path: Path) -> None:
    """Refusals have Kafka's errors and messages."""
    manager, _ = brokers.start()
    assert refusal(manager, tmp_path / "c") == (
        Errors.LOG_DIR_NOT_FOUND,
        f"Log dir {tmp_path / 'c'} is not found in the config.",
    )
    assert refusal(manager, folders[1], 9)[0] is Errors.UNKNOWN_TOPIC_OR_PARTITION
    for name in ("t" * 220, "\udcff" * 220):  # the second name is not UTF-8
        with pytest.raises(KafkaError) as refused:
            manager.move_partition(name, 0, str(folders[0]))
        assert (refused.value.error, refused.value.message) == (
            Errors.INVALID_TOPIC_EXCEPTION,
            "The topic name is too long.",
        )
    assert error_of(manager.move_partition, "\udcff", 0, str(folders[0])) is Errors.UNKNOWN_TOPIC_OR_PARTITION


class Crash(BaseException):
    """Simulated end of the process."""


CRASH_AT = {
    "copy": (ReplicaMover, "_copy_segment"),
    "note": (checkpoints, "write_moved_from"),
    "checkpoints": (ReplicaMover, "_complete"),
    "promotion": (LogDir, "promote"),
    "removal": (LogDir, "rename_for_delete"),
}


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("where", CRASH_AT)
def test_a_crash_in_a_move(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch, where: str, is_before: bool
) -> None:
    """The next start completes the move without a loss."""
    manager = filled(brokers)
    manager.partition(*KEY).delete_records(2)
    manager.tasks.write_log_starts()
    before = values(manager)
    owner, name = CRASH_AT[where]
    real = getattr(owner, name)

    def crash(*args: Any, **options: Any) -> None:
        if not is_before:
            real(*args, **options)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crash)
        patch.setattr(replica_mover, "_take_back", lambda future, key: None)  # a process that has ended does nothing
        manager.move_partition(*KEY, str(folders[1]))
        with pytest.raises(Crash):
            finish(manager)
    kill(manager)
    manager, report = brokers.start((("orders", 1),), segment_ms=1000)
    assert (report.failures, report.damaged, report.cut) == ({}, {}, {})
    assert values(manager) == before
    assert manager.partition(*KEY).log_start_offset == 2
    finish(manager)
    assert home(manager) == "b"
    assert values(manager) == before
    append(manager, time=NOW_MS + 900_000)
    left = [
        entry.name for folder in folders for entry in folder.iterdir() if entry.is_dir() and "delete" not in entry.name
    ]
    assert left == ["orders-0"]
    assert not (folders[1] / "orders-0" / checkpoints.MOVED_FROM).exists()


@pytest.mark.parametrize("failing", ["write", "adopt", "promote"])
def test_a_target_that_fails(
    brokers: Brokers, folders: list[Path], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The partition stays online in its folder; the target is offline, unless its disk is full."""
    manager = filled(brokers)
    before = values(manager)
    fail = raising(OSError(errno.ENOSPC if failing == "write" else errno.EIO, "failed"))

    def corrupt(self: LogDir, future: Path, topic: str, partition: int) -> None:
        (future / f"{3:020}.log").write_bytes(b"")
        promote(self, future, topic, partition)

    promote = LogDir.promote
    with monkeypatch.context() as patch:
        if failing == "write":
            patch.setattr("kbroker.log.replica_mover._write", fail)
        else:
            patch.setattr(LogDir, "promote", corrupt if failing == "adopt" else fail)
        manager.move_partition(*KEY, str(folders[1]))
        finish(manager)
    assert home(manager) == "a"
    assert values(manager) == before
    append(manager, time=NOW_MS + 900_000)
    assert (folders[1] in manager.offline_dirs) == (failing != "write")
    assert not list(folders[1].glob("orders-0"))
    before = values(manager)
    kill(manager)
    manager, _ = brokers.start((("orders", 1),), segment_ms=1000)
    assert home(manager) == "a"
    assert values(manager) == before


def test_a_topic_deleted_while_it_is_moved(brokers: Brokers, folders: list[Path]) -> None:
    """The deletion of the topic deletes the copy."""
    manager = filled(brokers)
    manager.move_partition(*KEY, str(folders[1]))
    delete(manager, *KEY)
    finish(manager)
    assert not list(folders[1].glob("orders*"))


def test_a_compacted_partition_is_moved(brokers: Brokers, folders: list[Path], clock: VirtualClock) -> None:
    """The move waits for the cleaner, and the cleaner offset is moved with the partition."""
    topic: dict[str, Any] = {"segment_ms": 1000, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01}
    manager, _ = brokers.start((("orders", 1),), **topic)
    for number in range(3):
        records = keyed((b"k", b"v"), (b"k", b"w"), time_ms=NOW_MS + 60_000 * number)
        assert manager.partition(*KEY).append(records).error == 0
    assert manager.cleaner.run_once() == [KEY]
    cleaned = manager.cleaner.cleaned_offset(KEY)
    before = values(manager)
    assert manager.cleaner.hold(KEY)
    manager.move_partition(*KEY, str(folders[1]))
    manager.mover.scheduler.run_due()
    assert home(manager) == "a"
    manager.cleaner.release(KEY)
    clock.advance_ms(100)
    manager.mover.scheduler.run_due()
    assert home(manager) == "b"
    assert values(manager) == before
    offsets = checkpoints.offset_checkpoint(folders[1] / checkpoints.CLEANER_OFFSET_CHECKPOINT)
    assert offsets.read() == {KEY: cleaned}
    kill(manager)
    manager, report = brokers.start((("orders", 1),), **topic)
    assert (manager.cleaner.cleaned_offset(KEY), report.damaged) == (cleaned, {})
    assert manager.partition(*KEY).append(keyed((b"k", b"x"), time_ms=NOW_MS + 900_000)).error == 0
    assert manager.cleaner.run_once() == [KEY]
