"""Log of failures of the native handlers: one line a minute per kind, with the count and the last partition."""

import errno
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.log import checkpoints
from kbroker.log._partition_log import PartitionLog
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.manager import LogManager
from tests.support.errors import raising
from tests.support.log_files import batch
from tests.support.log_manager import pass_time

ID = uuid.UUID(int=0xABCDEF)


@pytest.fixture
def manager(tmp_path: Path, clock: VirtualClock) -> Iterator[LogManager]:
    config = BrokerConfig({})
    manager = LogManager([tmp_path], clock, config)
    manager.start([TopicLogs("orders", ID, 2, config.topic_configs({"flush.messages": "1"}))], run_threads=False)
    yield manager
    manager.close()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


def refused(log: PartitionLog, times: int = 1) -> None:
    for _ in range(times):
        assert log.append(batch(b"x")).error == 56


def test_appends_on_a_full_disk_are_logged_once_a_minute(
    manager: LogManager, clock: VirtualClock, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The folder stays online, and one line a minute has the number of failures and the reason."""
    log = manager.partition("orders", 1)
    log._inject_fault(write_errno=errno.ENOSPC)
    refused(log, 3)  # type: ignore[arg-type]
    assert errors(caplog) == []
    pass_time(manager, clock, 1000)
    assert errors(caplog) == [f"{tmp_path}: 3 appends failed, the last of partition orders-1: No space left on device"]
    for _ in range(30):
        refused(log)  # type: ignore[arg-type]
        pass_time(manager, clock, 1000)
    assert len(errors(caplog)) == 1
    pass_time(manager, clock, 30_000)
    pass_time(manager, clock, 30_000)
    assert errors(caplog)[1:] == [
        f"{tmp_path}: 30 appends failed, the last of partition orders-1: No space left on device"
    ]
    assert manager.offline_dirs == {}
    assert manager.tasks.failed_io.totals == {"append": 33, "read": 0, "sync": 0}
    log._inject_fault()
    assert log.append(batch(b"x")).error == 0


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_the_first_append_to_a_broken_disk_takes_the_folder_offline(
    manager: LogManager, clock: VirtualClock, caplog: pytest.LogCaptureFixture, tmp_path: Path, number: int
) -> None:
    """The first append to a read-only file system takes the folder offline."""
    log = manager.partition("orders", 0)
    log._inject_fault(write_errno=number)
    refused(log)  # type: ignore[arg-type]
    pass_time(manager, clock, 1000)
    assert list(manager.offline_dirs) == [tmp_path]
    assert "an append to orders-0" in manager.offline_dirs[tmp_path]
    refused(manager.partition("orders", 1))  # type: ignore[arg-type]
    pass_time(manager, clock, 60_000)
    assert errors(caplog)[-1].startswith(f"{tmp_path}: 1 append failed, the last of partition orders-1: the folder is")


def test_a_limit_of_one_file_leaves_the_others(manager: LogManager, clock: VirtualClock, tmp_path: Path) -> None:
    """A file size limit affects one partition and keeps the folder online."""
    log = manager.partition("orders", 0)
    log._inject_fault(write_errno=errno.EFBIG)
    refused(log)  # type: ignore[arg-type]
    pass_time(manager, clock, 1000)
    assert manager.offline_dirs == {}
    assert manager.partition("orders", 1).append(batch(b"x")).error == 0


def test_a_failed_sync_on_the_flusher_is_logged(
    manager: LogManager, clock: VirtualClock, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A failed sync of the flusher takes the folder offline and is logged."""
    log = manager.partition("orders", 0)
    log._inject_fault(sync_errno=errno.EIO)
    assert log.append(batch(b"x")).error == 0
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()
    pass_time(manager, clock, 1000)
    assert "a sync of orders-0: [Errno 5] Input/output error" in manager.offline_dirs[tmp_path]
    assert any("is offline: a sync of orders-0" in line for line in errors(caplog))


def test_reads_of_what_is_no_batch_are_logged(
    manager: LogManager, clock: VirtualClock, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Fetches of an overwritten segment get KAFKA_STORAGE_ERROR, and one line is logged."""
    log = manager.partition("orders", 0)
    assert log.append(batch(b"x")).error == 0
    log.flush()
    with (tmp_path / "orders-0" / f"{0:020}.log").open("r+b") as file:
        file.write(bytes(61))
    assert log.read(0).error == 56
    pass_time(manager, clock, 1000)
    assert errors(caplog) == [
        f"{tmp_path}: 1 read failed, the last of partition orders-0: expected a record batch, found damage: "
        "run kbroker log verify"
    ]


def test_look_ups_of_times_that_fail_are_logged_together(
    manager: LogManager, clock: VirtualClock, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Clients repeat them several times a second; one line a minute has their number."""
    log = manager.partition("orders", 0)
    assert log.append(batch(b"x")).error == 0
    with (tmp_path / "orders-0" / f"{0:020}.log").open("r+b") as file:
        file.write(bytes(61))
    for _ in range(3):
        with pytest.raises(OSError, match="log read"):
            log.offset_for_timestamp(0)
    pass_time(manager, clock, 1000)
    assert errors(caplog) == [
        f"{tmp_path}: 3 reads failed, the last of partition orders-0: expected a record batch, found damage: "
        "run kbroker log verify"
    ]


def test_checkpoints_on_a_full_disk_are_logged_once_a_minute(
    manager: LogManager,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A failure repeated every five seconds is logged once a minute with its count."""
    monkeypatch.setattr(checkpoints, "write_atomically", raising(OSError(errno.ENOSPC, "No space left on device")))
    for _ in range(120):
        pass_time(manager, clock, 5000)
    lines = errors(caplog)
    marks = [line for line in lines if "writing high watermarks" in line]
    assert 9 <= len(marks) <= 10
    assert (
        marks[0] == f"{tmp_path}: writing high watermarks failed, the disk is full: [Errno 28] No space left on device"
    )
    assert marks[2] == f"{marks[0]} (12 times since the last such line)"
    for other in ("recovery points", "log starts"):
        assert 9 <= len([line for line in lines if f"writing {other}" in line]) <= 10


def test_what_fails_on_every_partition_is_one_line(
    manager: LogManager,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A failure of a thousand partitions is logged as two lines."""
    key = ("orders", 0)
    hosted = manager._hosted[key]
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    for number in range(1000):
        manager._hosted.guarded(hosted, "flush", ("orders", number), full)
    pass_time(manager, clock, 60_000)
    assert errors(caplog) == [
        f"{tmp_path}: flush of orders-0 failed, the disk is full: [Errno 28] No space left on device",
        f"{tmp_path}: flush of orders-999 failed, the disk is full: [Errno 28] No space left on device "
        "(999 times since the last such line)",
    ]
