"""Snapshots of the metadata: when they are written, what a start reads from them, and their retention."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.security import scram
from kbroker.metadata.image.record_forms import credential_body
from kbroker.metadata.log.metadata_log import FOLDER_NAME, LogFiles, snapshots_in
from kbroker.metadata.log.snapshots import Snapshots
from kbroker.metadata.records.control_records import KRaftVersion, SnapshotHeader, Voters
from kbroker.metadata.records.metadata_record import metadata_record
from kbroker.metadata.records.snapshot_files import read_snapshot
from tests.support.metadata import DIRECTORY_ID, LoggedController, change, content, group_config

HOUR_MS = 3_600_000


class Rig:
    """Controller with its snapshots."""

    def __init__(self, folder: Path, clock: VirtualClock | None = None, **configs: object) -> None:
        self.folder = folder / FOLDER_NAME
        self.clock = clock or VirtualClock()
        self.config = BrokerConfig({"node.id": 1, **{key.replace("__", "."): one for key, one in configs.items()}})
        self.controller = LoggedController(folder, clock=self.clock, config=self.config)
        self.snapshots = Snapshots(self.controller, self.controller.log, self.config, self.clock)
        self.controller.publishers.append(self.snapshots)

    @property
    def ends(self) -> list[int]:
        return [one.end_offset for one in snapshots_in(self.folder)]

    def fill(self, count: int, start: int = 0) -> None:
        for number in range(start, start + count):
            change(self.controller, group_config(number))


@pytest.fixture
def rig(tmp_path: Path) -> Callable[..., Rig]:
    return lambda **configs: Rig(tmp_path, **configs)


def test_by_bytes(rig: Callable[..., Rig]) -> None:
    """A snapshot is written after enough bytes of records since the last one, counted across a restart."""
    one = rig(metadata__log__max__record__bytes__between__snapshots=5000)
    one.fill(10)
    one.snapshots.look()
    assert one.ends == []
    one.fill(40, 10)
    one.snapshots.look()
    assert one.ends == [one.controller.end_offset]
    one.snapshots.look()
    one.fill(20, 50)
    one.snapshots.look()
    assert len(one.ends) == 1
    one.controller.close()
    one = rig(metadata__log__max__record__bytes__between__snapshots=5000, clock=one.clock)
    one.fill(30, 70)
    one.snapshots.look()
    assert one.ends[1:] == [one.controller.end_offset]
    one.controller.close()


def test_by_time(rig: Callable[..., Rig]) -> None:
    """A snapshot is written an interval after the first change that no snapshot contains."""
    one = rig(metadata__log__max__snapshot__interval__ms=HOUR_MS)
    one.fill(1)
    one.clock.advance_ms(HOUR_MS - 1)
    one.snapshots.look()
    assert one.ends == []
    one.clock.advance_ms(1)
    one.snapshots.look()
    first = one.controller.end_offset
    assert one.ends == [first]
    one.clock.advance_ms(3 * HOUR_MS)
    one.snapshots.look()
    assert one.ends == [first], "a snapshot without a change"
    one.fill(1, 1)
    one.snapshots.look()
    assert one.ends == [first], "a snapshot before the interval has passed"
    one.clock.advance_ms(HOUR_MS // 2)
    one.fill(1, 2)
    one.clock.advance_ms(HOUR_MS // 2)
    one.snapshots.look()
    assert one.ends == [first, one.controller.end_offset]
    one.controller.close()


def test_never_by_time(rig: Callable[..., Rig]) -> None:
    """An interval of 0 disables snapshots by time, as in Kafka."""
    one = rig(metadata__log__max__snapshot__interval__ms=0)
    one.fill(1)
    one.clock.advance_ms(1000 * HOUR_MS)
    one.snapshots.look()
    assert one.ends == []
    one.controller.close()


def test_a_start_from_a_snapshot_is_like_one_from_the_log(rig: Callable[..., Rig], tmp_path: Path) -> None:
    """The snapshot and the records after it restore the image, even if the log below the snapshot is damaged."""
    one = rig(metadata__log__max__record__bytes__between__snapshots=100)
    one.fill(30)
    change(one.controller, group_config(3, None))
    one.snapshots.look()
    one.fill(2, 30)
    before = one.controller.image
    one.controller.close()
    again = LoggedController(tmp_path, clock=one.clock)
    assert content(again.image) == content(before)
    again.close()
    (snapshot,) = snapshots_in(one.folder)
    data = bytearray((one.folder / f"{0:020}.log").read_bytes())
    data[100] ^= 1  # in the first batches, which the snapshot contains
    (one.folder / f"{0:020}.log").write_bytes(data)
    again = LoggedController(tmp_path, clock=one.clock)
    assert content(again.image) == content(before)
    assert again.kraft_version == 1
    again.close()
    assert snapshot.path.exists()


def test_a_snapshot_has_the_quorum(rig: Callable[..., Rig]) -> None:
    """A snapshot has kraft.version and the voters, which Apache Kafka reads from the newest snapshot only."""
    one = rig(metadata__log__max__record__bytes__between__snapshots=100)
    one.fill(3)
    one.snapshots.look()
    (snapshot,) = snapshots_in(one.folder)
    header, version, voters = next(read_snapshot(snapshot.path)).control
    assert header == SnapshotHeader(one.clock.wall_ms())
    assert version == KRaftVersion(1)
    assert isinstance(voters, Voters)
    assert [(voter.id, voter.directory_id) for voter in voters.voters] == [(1, DIRECTORY_ID)]
    assert snapshot.epoch == one.controller.epoch
    one.controller.close()


def test_a_failure_is_logged_and_tried_again(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed snapshot leaves no file."""
    one = rig(metadata__log__max__record__bytes__between__snapshots=100)
    one.fill(3)
    open_ = Path.open

    def fails(path: Path, *args: object, **kwargs: object) -> object:
        if path.name.endswith(".checkpoint.part"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_(path, *args, **kwargs)  # type: ignore[call-overload]

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(Path, "open", fails)
        one.snapshots.look()
    assert "cannot write a snapshot of the metadata at offset" in caplog.text
    assert one.ends == []
    one.snapshots.look()
    assert one.ends == [one.controller.end_offset]
    one.controller.close()


SMALL = {
    "metadata__log__max__record__bytes__between__snapshots": 1000,
    "metadata__log__segment__bytes": 8 * 1024 * 1024,
}


def test_retention_by_size_removes_what_newer_snapshots_contain(rig: Callable[..., Rig], tmp_path: Path) -> None:
    """Old snapshots and segments are deleted; the newest snapshot and the records after it restore the image."""
    one = rig(
        **SMALL,
        metadata__log__segment__ms=100,
        metadata__max__retention__bytes=20_000,
        metadata__log__max__snapshot__interval__ms=0,
    )
    for number in range(12):
        one.fill(30, 30 * number)
        one.clock.advance_ms(200)  # so that the next record begins a segment
        one.snapshots.look()
    before = one.controller.image
    assert len(before.configs) == 361
    assert 1 <= len(one.ends) < 12
    assert one.ends[-1] == one.controller.end_offset
    assert one.controller.log.start_offset > 0
    segments = sorted(path.name for path in one.folder.glob("*.log*"))
    assert len(segments) < 4
    assert not [name for name in segments if name.endswith(".deleted")]
    sizes = sum(path.stat().st_size for path in one.folder.iterdir() if path.suffix in (".log", ".checkpoint"))
    assert sizes < 40_000
    one.controller.close()
    assert LogFiles(tmp_path).start_offset > 0
    again = LoggedController(tmp_path, clock=one.clock)
    assert content(again.image) == content(before)
    again.close()


def test_retention_by_time_removes_old_snapshots(rig: Callable[..., Rig]) -> None:
    """A snapshot is deleted when the next one is older than the limit; the newest one is kept at any age."""
    one = rig(**SMALL, metadata__max__retention__bytes=-1, metadata__max__retention__ms=HOUR_MS)
    for number in range(3):
        one.fill(30, 30 * number)
        one.snapshots.look()
        for snapshot in snapshots_in(one.folder):
            age_ms = HOUR_MS // 2 * (number + 1 - one.ends.index(snapshot.end_offset))
            time_s = (one.clock.wall_ms() - age_ms) / 1000
            os.utime(snapshot.path, (time_s, time_s))
    first, second, third = one.ends
    one.clock.advance_ms(HOUR_MS)
    one.fill(30, 90)
    one.snapshots.look()
    assert first not in one.ends
    assert one.ends[-1] == one.controller.end_offset
    assert third in one.ends
    assert second < third
    one.controller.close()


def test_an_image_that_its_level_cannot_represent(rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture) -> None:
    """The reason is logged once, and snapshots resume when metadata.version is high enough."""
    one = rig(metadata__log__max__record__bytes__between__snapshots=100)
    credential = scram.Credential.from_salted_password(scram.SCRAM_SHA_256, b"x" * 32, b"salt", 4096)
    change(one.controller, metadata_record("FeatureLevelRecord", {"Name": "metadata.version", "FeatureLevel": 10}))
    change(
        one.controller,
        metadata_record("UserScramCredentialRecord", credential_body("alice", "SCRAM-SHA-256", credential)),
    )
    for number in range(3):
        one.fill(5, 5 * number)
        one.snapshots.look()
    assert one.ends == []
    (error,) = (record.message for record in caplog.records if record.levelno == logging.ERROR)
    assert error.startswith("no snapshot of the metadata can be written: metadata.version 10 cannot represent SCRAM")
    change(one.controller, metadata_record("FeatureLevelRecord", {"Name": "metadata.version", "FeatureLevel": 30}))
    one.snapshots.look()
    assert one.ends == [one.controller.end_offset]
    one.controller.close()
