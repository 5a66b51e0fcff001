"""Failed log directories of a member: a report to the controller, or a failure of the broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log.log_dir import LogDir
from kbroker.member.directory_watch import DirectoryWatch
from tests.unit.member.test_lifecycle import Life


@pytest.fixture
def log_dirs(tmp_path: Path) -> Iterator[list[LogDir]]:
    found = [LogDir(tmp_path / name, "c", 9) for name in ("a", "b", "c")]
    yield found
    for log_dir in found:
        log_dir.close(clean=False)


def test_failed_directories(log_dirs: list[LogDir], tmp_path: Path) -> None:
    life = Life()
    life.run()
    failures: list[str] = []
    watch = DirectoryWatch(log_dirs, log_dirs[0], life.cycle, failures.append)
    watch.look()
    life.tasks.run_due()
    assert not life.channel.sent
    (tmp_path / "b").rename(tmp_path / "gone")
    watch.look()
    watch.look()
    life.tasks.run_due()
    assert life.request()[1]["OfflineLogDirs"] == [log_dirs[1].directory_id]
    assert log_dirs[1].failure.startswith("reading it: ")
    assert not failures
    (tmp_path / "a").rename(tmp_path / "metadata-gone")
    watch.look()
    (reason,) = failures
    assert reason.startswith("the folder of the metadata log has failed: ")
