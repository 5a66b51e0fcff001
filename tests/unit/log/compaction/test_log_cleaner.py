"""Log cleaner: choice of partitions, times of rounds, and their ends, on a virtual clock."""

import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.topic_names import TopicPartition
from kbroker.log import checkpoints
from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction.log_cleaner import CompactionConfig, Dirt, measure
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.manager import LogManager
from tests.support.compaction import keyed, marker, records
from tests.support.errors import raising
from tests.support.limits import no_mappings
from tests.support.log_files import NOW_MS, open_log

TOPIC_ID = uuid.UUID(int=7)
COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "t-0", config=COMPACT)


def fill(log: PartitionLog, *stamps: int) -> None:
    """Append one record per segment, one segment per timestamp."""
    for stamp in stamps:
        assert log.append(keyed((b"a", b"x"), time_ms=stamp)).error == 0
        log.roll()


def test_settings() -> None:
    """Topic configs have Kafka's names; a policy without compaction has no compaction config."""
    assert CompactionConfig.of({"cleanup.policy": ("delete",)}) is None
    assert CompactionConfig.of({"cleanup.policy": "delete"}) is None
    assert CompactionConfig.of({}) is None
    assert CompactionConfig.of({"cleanup.policy": ("compact", "delete")}) == CompactionConfig()
    given: dict[str, Any] = {
        "cleanup.policy": ("compact",),
        "min.cleanable.dirty.ratio": 0.1,
        "min.compaction.lag.ms": 2,
        "max.compaction.lag.ms": 3,
        "delete.retention.ms": 4,
    }
    assert CompactionConfig.of(given) == CompactionConfig(0.1, 2, 3, 4)


def test_ratio_must_be_above_the_least() -> None:
    """A partition at exactly min.cleanable.dirty.ratio is not due; one byte more makes it due."""
    config = CompactionConfig()
    assert not Dirt(0, 1, 100, 100, False).is_due(config)
    assert Dirt(0, 1, 100, 101, False).is_due(config)
    assert Dirt(0, 1, 100, 1, True).is_due(config)
    assert not Dirt(0, 1, 100, 0, True).is_due(config)
    assert Dirt(0, 0, 0, 0, False).ratio == 0.0
    assert not Dirt(0, 0, 0, 0, False).is_due(CompactionConfig(0.0))


def test_what_is_measured(log: PartitionLog) -> None:
    """Clean bytes are below the last round's end, and cleanable bytes from there to the active segment."""
    fill(log, *[NOW_MS] * 4)
    log.append(keyed((b"a", b"x")))
    one = log.segments()[0].size_bytes
    assert measure(log, CompactionConfig(), None, NOW_MS) == Dirt(0, 4, 0, 4 * one, False)
    assert measure(log, CompactionConfig(), 3, NOW_MS) == Dirt(3, 4, 3 * one, one, False)
    assert measure(log, CompactionConfig(), 4, NOW_MS) == Dirt(4, 4, 4 * one, 0, False)
    assert measure(log, CompactionConfig(), 6, NOW_MS).first_dirty == 0  # beyond the end
    log.delete_records(2)
    assert measure(log, CompactionConfig(), 1, NOW_MS).first_dirty == 2  # below the log start offset


def test_open_transactions_bound_the_round(log: PartitionLog) -> None:
    """The segment of the last stable offset and later ones are not cleaned."""
    fill(log, NOW_MS)
    log.append(keyed((b"b", b"x")))
    options = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    log.append(keyed((b"a", b"x"), **options), is_client=False)
    log.roll()
    fill(log, NOW_MS)
    assert log.last_stable_offset == 2
    assert measure(log, CompactionConfig(), None, NOW_MS).first_uncleanable == 1
    log.append(marker(5, commit=True), is_client=False)
    assert measure(log, CompactionConfig(), None, NOW_MS).first_uncleanable == 4


def test_least_lag(log: PartitionLog) -> None:
    """Segments with a record younger than min.compaction.lag.ms, and all later ones, are not cleaned."""
    fill(log, NOW_MS - 1000, NOW_MS - 999, NOW_MS - 2000)
    config = CompactionConfig(min_compaction_lag_ms=1000)
    assert measure(log, config, None, NOW_MS).first_uncleanable == 1
    assert measure(log, config, None, NOW_MS + 1).first_uncleanable == 3


def test_longest_lag(log: PartitionLog) -> None:
    """A dirty segment whose first batch is older than max.compaction.lag.ms is due with any ratio."""
    fill(log, NOW_MS - 5000, NOW_MS - 1000)
    config = CompactionConfig(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    assert measure(log, config, 1, NOW_MS).is_overdue is False
    assert measure(log, config, 1, NOW_MS + 1).is_due(config)
    assert measure(log, config, 0, NOW_MS).is_overdue
    assert not measure(log, config, 2, NOW_MS + 1).is_due(config)


def test_longest_lag_rolls(tmp_path: Path) -> None:
    """A compacted topic rolls after the smaller of segment.ms and max.compaction.lag.ms, by record timestamps."""
    log = open_log(tmp_path / "t-0", config={**COMPACT, "segment.ms": "5000", "max.compaction.lag.ms": "1000"})
    for stamp in (0, 1000, 1001):
        log.append(keyed((b"a", b"x"), time_ms=NOW_MS + stamp))
    assert [s.base_offset for s in log.segments()] == [0, 2]


# -- the manager's cleaner ---------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, folder: Path | None, **topics: dict[str, str]) -> None:
        self.folder, self.topics = folder, topics
        self.clock = VirtualClock(NOW_MS)
        self.config = BrokerConfig()
        self.start()

    def start(self) -> None:
        folders = [] if self.folder is None else [self.folder]
        self.manager = LogManager(folders, self.clock, self.config)
        wanted = [TopicLogs(name, TOPIC_ID, 1, self.config.topic_configs(set_)) for name, set_ in self.topics.items()]
        self.report = self.manager.start(wanted, run_threads=False)

    def log(self, name: str) -> PartitionLog:
        found = self.manager.partition(name, 0)
        assert found is not None
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, few=COMPACT, many=COMPACT, plain={}, both={"cleanup.policy": "compact,delete"})
    yield made
    made.manager.close()


def test_dirtiest_first_and_checkpoint(bench: Bench, tmp_path: Path) -> None:
    """The highest ratio is cleaned first, and a restart continues from the offsets of the cleaner's checkpoint."""
    fill(bench.log("few"), *[NOW_MS] * 4)
    assert bench.manager.cleaner.run_once() == [("few", 0)]
    fill(bench.log("few"), *[NOW_MS] * 3)
    fill(bench.log("many"), *[NOW_MS] * 2)
    fill(bench.log("plain"), *[NOW_MS] * 5)
    assert bench.manager.cleaner.run_once() == [("many", 0), ("few", 0)]
    assert bench.manager.cleaner.run_once() == []
    path = tmp_path / checkpoints.CLEANER_OFFSET_CHECKPOINT
    assert checkpoints.offset_checkpoint(path).read() == {("few", 0): 7, ("many", 0): 2}
    assert len(records(bench.log("plain"))) == 5
    bench.manager.close()
    bench.start()
    assert bench.manager.cleaner.cleaned_offset(("few", 0)) == 7
    assert bench.manager.cleaner.run_once() == []


def test_an_end_outside_the_log_is_replaced(bench: Bench, tmp_path: Path) -> None:
    """The end of a round that is beyond the log, which lost its tail, does not hide the records appended later."""
    path = tmp_path / checkpoints.CLEANER_OFFSET_CHECKPOINT
    bench.manager.close()
    checkpoints.offset_checkpoint(path).write({("few", 0): 3, ("many", 0): 0})
    bench.start()
    bench.log("few").append(keyed((b"a", b"x")))
    bench.log("many").append(keyed((b"a", b"x")))
    bench.log("many").delete_records(1)
    assert bench.manager.cleaner.run_once() == []
    assert checkpoints.offset_checkpoint(path).read() == {("few", 0): 0, ("many", 0): 1}
    fill(bench.log("few"), *[NOW_MS] * 4)
    assert bench.manager.cleaner.run_once() == [("few", 0)]
    assert [row[0] for row in records(bench.log("few"))] == [4]


def test_deleted_topic_is_forgotten(bench: Bench, tmp_path: Path) -> None:
    """The checkpoint entry of a deleted topic is removed, so that a new topic of the same name is dirty."""
    fill(bench.log("few"), NOW_MS, NOW_MS)
    bench.manager.cleaner.run_once()
    bench.manager.delete_topics({"few": [0]})
    assert checkpoints.offset_checkpoint(tmp_path / checkpoints.CLEANER_OFFSET_CHECKPOINT).read() == {}


def test_partitions_of_a_deleted_topic_are_forgotten_together(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is written once, not once for each partition."""
    cleaner = bench.manager.cleaner
    for index in range(3):
        cleaner._note(("few", index), 0)
    written: list[object] = []
    monkeypatch.setattr(cleaner, "write_offsets", lambda: written.append(cleaner.cleaned_offsets()))
    bench.manager.delete_topics({"few": range(3)})
    assert written == [{}]


def test_both_policies(bench: Bench) -> None:
    """With policy compact,delete the cleaner applies retention too."""
    fill(bench.log("both"), NOW_MS, NOW_MS)
    bench.manager.cleaner.run_once()
    assert [row[0] for row in records(bench.log("both"))] == [1]
    bench.clock.advance_ms(8 * 86_400_000)
    bench.manager.cleaner.run_once()
    assert records(bench.log("both")) == []
    assert bench.log("both").log_start_offset == 2


def test_compact_alone_keeps_old_records(bench: Bench) -> None:
    """With policy compact, age and size delete no record, and a higher log start offset does."""
    fill(bench.log("few"), NOW_MS)
    bench.log("few").append(keyed((b"b", b"x")))
    bench.log("few").roll()
    bench.clock.advance_ms(900 * 86_400_000)
    bench.manager.cleaner.run_once()
    assert [row[0] for row in records(bench.log("few"))] == [0, 1]


def test_policy_changed_back_to_delete(bench: Bench, tmp_path: Path) -> None:
    """Gaps of compaction are not damage after a change to policy delete, nor at the next start."""
    for i in range(6):
        bench.log("few").append(keyed((b"%d" % (i % 2), b"x")))
        bench.log("few").append(keyed((b"k%d" % i, b"x")))
    bench.log("few").roll()
    bench.manager.cleaner.run_once()
    kept = records(bench.log("few"))
    assert len(kept) == 8
    bench.topics["few"] = {}
    bench.manager.update_configs({"few": bench.config.topic_configs({})})
    assert bench.manager.cleaner.run_once() == []
    bench.manager._unsound.update(bench.manager._dirs)  # simulates an unclean shutdown, after which everything is read
    bench.manager.close()
    bench.start()
    assert not bench.report.was_clean
    assert bench.report.damaged == {}
    assert records(bench.log("few")) == kept


@pytest.mark.parametrize("damage", [None, b"", b"0\n1\nfew 0"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_policy_changed_and_the_checkpoint_lost(
    bench: Bench, tmp_path: Path, damage: bytes | None, is_clean: bool
) -> None:
    """Without the cleaner's checkpoint, a start serves all compacted batches, whose gaps are not damage."""
    log = bench.log("few")
    for value in (b"1", b"2"):
        for key in (b"a", b"b", b"c"):
            log.append(keyed((key, value)))
            if key == b"a":
                log.append(keyed((b"only " + value, value)))
        log.roll()
    assert bench.manager.cleaner.run_once() == [("few", 0)]
    kept = records(log)
    assert [row[0] for row in kept] == [1, 4, 5, 6, 7]
    bench.topics["few"] = {}
    if not is_clean:
        bench.manager._unsound.update(bench.manager._dirs)
    bench.manager.close()
    path = tmp_path / checkpoints.CLEANER_OFFSET_CHECKPOINT
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    bench.start()
    assert bench.report.damaged == {}
    assert records(bench.log("few")) == kept
    assert bench.log("few").append(keyed((b"d", b"x"))).base_offset == 8


def test_no_compaction_without_its_note(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition is not cleaned until the checkpoint can be written, here after the disk was full."""
    fill(bench.log("few"), *[NOW_MS] * 4)
    with monkeypatch.context() as patch:
        full = raising(OSError(errno.ENOSPC, "No space left on device"))
        patch.setattr(bench.manager._dirs[0].cleaner_offsets, "write", full)
        assert bench.manager.cleaner.run_once() == []
        assert bench.manager.cleaner.run_once() == []
    assert len(records(bench.log("few"))) == 4
    assert bench.manager.offline_dirs == {}
    assert bench.manager.cleaner.run_once() == [("few", 0)]
    assert len(records(bench.log("few"))) == 1


def test_checkpoint_is_written_again_at_close(bench: Bench, tmp_path: Path) -> None:
    fill(bench.log("few"), *[NOW_MS] * 4)
    bench.manager.cleaner.run_once()
    path = tmp_path / checkpoints.CLEANER_OFFSET_CHECKPOINT
    path.unlink()
    bench.manager.close()
    assert checkpoints.offset_checkpoint(path).read() == {("few", 0): 4}


def test_no_mapping_is_temporary(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """An index that cannot be mapped (ENOMEM) ends the round without a disk failure, and the next round continues."""
    bench.manager.update_configs({"few": bench.config.topic_configs({**COMPACT, "index.interval.bytes": "0"})})
    log = bench.log("few")
    for _ in range(2):
        for key in (b"a", b"b", b"c"):
            log.append(keyed((key, b"x")))
    log.roll()
    assert bench.manager.cleaner.run_once() == [("few", 0)]  # the new segment's indexes are not mapped yet
    for key in (b"a", b"b", b"c", b"a", b"b", b"c"):
        log.append(keyed((key, b"y")))
    log.roll()
    with no_mappings():
        assert bench.manager.cleaner.run_once() == []
    assert "Cannot allocate memory" in caplog.text
    assert bench.manager.offline_dirs == {}
    assert log.append(keyed((b"a", b"z"))).error == 0
    assert bench.manager.cleaner.run_once() == [("few", 0)]
    assert [row[2] for row in records(log)] == [b"y", b"y", b"y", b"z"]


def test_damaged_log_is_left_alone(bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unreadable partition is not cleaned again, and other partitions are cleaned."""
    fill(bench.log("few"), NOW_MS, NOW_MS, NOW_MS)
    fill(bench.log("many"), NOW_MS, NOW_MS)
    path = tmp_path / "few-0" / f"{1:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    bench.manager.cleaner.run_once()
    bench.manager.cleaner.run_once()
    (left_alone,) = (line for line in caplog.messages if "not compacted any more" in line)
    assert "few-0" in left_alone
    assert len(records(bench.log("many"))) == 1


def test_threads_follow_the_clock(tmp_path: Path) -> None:
    """The cleaner's thread checks at once, and then every log.cleaner.backoff.ms."""
    import threading

    bench = Bench(tmp_path, t=COMPACT)
    looked = threading.Semaphore(0)
    original = bench.manager.cleaner._partitions
    bench.manager.cleaner._partitions = lambda: (looked.release(), original())[1]  # type: ignore[func-returns-value]
    try:
        fill(bench.log("t"), NOW_MS, NOW_MS)
        bench.manager.cleaner.start()
        for _ in range(3):  # one choice, another without a partition, and retention
            assert looked.acquire(timeout=20)
        assert len(records(bench.log("t"))) == 1
        for _ in range(100):  # the thread may not have set its timer yet
            bench.clock.advance_ms(15_000)
            if looked.acquire(timeout=0.2):
                break
        else:
            pytest.fail("the cleaner did not look again")
    finally:
        bench.manager.close()


def test_cleaner_off(tmp_path: Path) -> None:
    """With log.cleaner.enable=false no thread is created."""
    config = BrokerConfig({"log.cleaner.enable": "false"})
    manager = LogManager([tmp_path], VirtualClock(NOW_MS), config)
    assert manager.cleaner._schedulers == []
    manager.close()


def test_in_memory() -> None:
    """An in-memory broker compacts too."""
    bench = Bench(None, t=COMPACT)
    fill(bench.log("t"), NOW_MS, NOW_MS, NOW_MS)
    assert bench.manager.cleaner.run_once() == [("t", 0)]
    assert [row[0] for row in records(bench.log("t"))] == [2]
    bench.manager.close()


# -- failures ----------------------------------------------------------------------------------------------------------


class Failing:
    """A log one of whose methods fails."""

    def __init__(self, log: PartitionLog, name: str, error: Exception) -> None:
        self._log, self._name, self._error = log, name, error

    def __getattr__(self, name: str) -> Any:
        if name != self._name:
            return getattr(self._log, name)
        return raising(self._error)


def let_fail(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    """Make a method of the partition few-0 fail in the cleaner."""
    original = bench.manager.cleaner._partitions
    monkeypatch.setattr(
        bench.manager.cleaner,
        "_partitions",
        lambda: [
            row._replace(log=cast("PartitionLog", Failing(row.log, name, error))) if row.key[0] == "few" else row
            for row in original()
        ],
    )


@pytest.mark.parametrize(("method", "work"), [("segments", "compaction"), ("apply_retention", "retention")])
def test_a_failure_of_one_partition(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    method: str,
    work: str,
) -> None:
    """Other partitions are cleaned; the failure is logged, except for retention of a partition deleted meanwhile."""
    caplog.set_level("INFO")
    errors = [OSError(errno.ENOSPC, "full"), ValueError("the log is closed")]
    for error in errors if work == "retention" else errors[:1]:
        fill(bench.log("many"), *[NOW_MS] * 4)
        with monkeypatch.context() as patch:
            let_fail(bench, patch, method, error)
            assert bench.manager.cleaner.run_once() == [("many", 0)]
    lines = [line for line in caplog.messages if "few-0" in line]
    assert lines == [f"{tmp_path}: {work} of few-0 failed, the disk is full: [Errno 28] full"]
    assert bench.manager.offline_dirs == {}


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_partition_deleted_before_its_round(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, is_noted: bool
) -> None:
    """The round ends, the cleaner continues with the others, and the deleted partition has no checkpoint entry."""
    caplog.set_level("INFO")
    fill(bench.log("few"), *[NOW_MS] * 4)
    fill(bench.log("many"), *[NOW_MS] * 2)
    note = bench.manager.cleaner._note_first

    def note_late(key: TopicPartition, offset: int) -> bool:
        noted = is_noted and note(key, offset)
        if key == ("few", 0):
            bench.manager.delete_topics({"few": [0]})
        return noted or note(key, offset)

    monkeypatch.setattr(bench.manager.cleaner, "_note_first", note_late)
    assert bench.manager.cleaner.run_once() == []
    assert bench.manager.cleaner.run_once() == [("many", 0)]
    assert [line for line in caplog.messages if "few-0" in line] == []
    path = tmp_path / checkpoints.CLEANER_OFFSET_CHECKPOINT
    assert checkpoints.offset_checkpoint(path).read() == {("many", 0): 2}
    assert bench.manager.offline_dirs == {}


def test_age_of_records_without_time(log: PartitionLog, tmp_path: Path) -> None:
    """Without a timestamp the modification time of the file counts; for a removed file it is the current time."""
    config = CompactionConfig(min_compaction_lag_ms=60_000)
    fill(log, -1, -1)
    files = [tmp_path / "t-0" / f"{base:020d}.log" for base in (0, 1)]
    for file, age_s in zip(files, (61, 59), strict=True):
        stamp = NOW_MS // 1000 - age_s
        os.utime(file, (stamp, stamp))
    assert measure(log, config, None, NOW_MS).first_uncleanable == 1
    files[0].unlink()
    assert measure(log, config, None, NOW_MS).first_uncleanable == 0


def test_after_close_nothing_starts(bench: Bench) -> None:
    """A change of the configuration after close creates no thread, and a second close does nothing."""
    cleaner = bench.manager.cleaner
    cleaner.close()
    schedulers = cleaner._schedulers
    cleaner.reconfigure()
    cleaner.close()
    assert cleaner._schedulers is schedulers
    assert all(scheduler.is_idle for scheduler in schedulers)
