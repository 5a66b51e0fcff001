"""`kbroker log verify` beside a broker that appends to the folder and removes segments from it."""

import uuid
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.manager import LogManager
from kbroker.log.tools import verify
from kbroker.protocol.records import RecordBatchBuilder

NOW_MS = 1_700_000_000_000


def started(folder: Path) -> LogManager:
    """Return a running manager of a partition whose indexes have an entry for each batch but the first."""
    config = BrokerConfig({})
    manager = LogManager([folder], VirtualClock(NOW_MS), config)
    topic_config = config.topic_configs({"segment.ms": "1000", "index.interval.bytes": "0"})
    manager.start([TopicLogs("orders", uuid.UUID(int=7), 1, topic_config)], run_threads=False)
    return manager


def append(manager: LogManager, time_ms: int) -> None:
    builder = RecordBatchBuilder()
    builder.append(None, b"value", time_ms)
    assert manager.partition("orders", 0).append(builder.build()).error == 0


def test_an_append_during_the_check_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Index entries added after the segment has been read are not checked against the batches that were read."""
    manager = started(tmp_path)
    for i in range(3):
        append(manager, NOW_MS + i)
    read = verify._verify_segment

    def read_and_append(path: Path, limit: int) -> tuple[list[verify.Finding], int]:
        result = read(path, limit)
        append(manager, NOW_MS + 10)
        append(manager, NOW_MS + 20)
        return result

    monkeypatch.setattr(verify, "_verify_segment", read_and_append)
    assert verify.verify(tmp_path / "orders-0") == []
    assert manager.partition("orders", 0).log_end_offset == 5
    manager.close()


@pytest.mark.parametrize("lasting", [False, True])
def test_a_segment_that_is_removed_during_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    """The partition is checked again; a file that is missing each time ends the check with an error."""
    manager = started(tmp_path)
    for i in range(3):
        append(manager, NOW_MS + i * 60_000)
    manager.close()
    first, *others = sorted((tmp_path / "orders-0").glob("*.log"))
    assert len(others) == 2
    read, checks = verify._verify_segment, []

    def remove_and_read(path: Path, limit: int) -> tuple[list[verify.Finding], int]:
        checks.append(path.name)
        if lasting:
            raise FileNotFoundError(path)
        if path == first:
            path.unlink()
        return read(path, limit)

    monkeypatch.setattr(verify, "_verify_segment", remove_and_read)
    if lasting:
        with pytest.raises(FileNotFoundError):
            verify.verify(tmp_path)
        assert len(checks) == 10
    else:
        assert verify.verify(tmp_path / "orders-0") == []
        assert checks == [first.name, *(path.name for path in others)]
