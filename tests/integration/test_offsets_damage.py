"""Damage to ``__consumer_offsets`` on disk: what a start makes of a broken index, segment or tail."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.log.verify import verify
from kbroker.server.broker import Broker

GROUPS = 200
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": 1,
    "num.io.threads": 1,
    "num.network.threads": 1,
}


@contextmanager
def serving(folder: Path, **settings: object) -> Iterator[Broker]:
    own = {name.replace("__", "."): value for name, value in settings.items()}
    with Broker({**SETTINGS, "log.dirs": str(folder), **own}) as broker:
        yield broker


def commit(groups: GroupCoordinator, number: int, offset: int, note: str = "") -> None:
    groups.commit(f"g{number}", "", None, -1, {("t", 0): CommittedOffset(offset, -1, note, 5)})


def committed(groups: GroupCoordinator) -> dict[int, int]:
    found = {number: groups.committed(f"g{number}").get(("t", 0)) for number in range(GROUPS)}
    return {number: one.offset for number, one in found.items() if one is not None}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped broker's folder: 200 groups with offset 1 in a sealed segment, 100 of them with 2 in the active one."""
    folder = tmp_path_factory.mktemp("offsets") / "data"
    with serving(folder) as broker:
        groups = broker.context.groups
        groups.prepare()
        for number in range(GROUPS):
            commit(groups, number, 1)
        broker.context.topics.partition("__consumer_offsets", 0).roll()
        for number in range(0, GROUPS, 2):
            commit(groups, number, 2)
    return folder


EXPECTED = {number: 1 if number % 2 else 2 for number in range(GROUPS)}


@pytest.fixture
def folder(origin: Path, tmp_path: Path) -> Path:
    shutil.copytree(origin, tmp_path / "data")
    return tmp_path / "data"


def segment(folder: Path, base: int, suffix: str = ".log") -> Path:
    return folder / "__consumer_offsets-0" / f"{base:020d}{suffix}"


def flip(path: Path, offset: int) -> None:
    """Change one byte in the middle of the batch with this offset (each of ours holds one record)."""
    data, at = bytearray(path.read_bytes()), 0
    while int.from_bytes(data[at : at + 8], "big") != offset:
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
    data[at + 75] ^= 0x40
    path.write_bytes(data)


def kill_mark(folder: Path, is_clean: bool) -> None:
    """Make it look as after kill -9."""
    if not is_clean:
        (folder / ".kafka_cleanshutdown").unlink()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("content", [None, b"", b"garbage!", b"\xff" * 240])
def test_a_broken_index_costs_nothing(folder: Path, suffix: str, content: bytes | None, is_clean: bool) -> None:
    """An index that is gone, short or nonsense is made again: every offset is there, and commits go on."""
    assert segment(folder, 0, ".index").stat().st_size > 0
    for base in (0, GROUPS):
        path = segment(folder, base, suffix)
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)
    kill_mark(folder, is_clean)
    with serving(folder) as broker:
        groups = broker.context.groups
        assert committed(groups) == EXPECTED
        commit(groups, 7, 3)
    with serving(folder) as broker:
        assert committed(broker.context.groups) == {**EXPECTED, 7: 3}


@pytest.mark.parametrize("garbage", [b"\0" * 300, b"\xff" * 300, bytes(range(256))])
def test_garbage_behind_the_last_commit_is_cut(folder: Path, garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """After a kill the tail that is no batch is cut, which is told; every offset is there, and commits go on."""
    path = segment(folder, GROUPS)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + garbage)
    kill_mark(folder, False)
    with serving(folder) as broker:
        assert committed(broker.context.groups) == EXPECTED
        assert path.stat().st_size == size
        commit(broker.context.groups, 7, 3)
    told = f"partition __consumer_offsets-0: {len(garbage)} bytes from byte {size} of segment {GROUPS:020} on were cut"
    assert any(record.getMessage().startswith(told.replace(" on were", ".log on were")) for record in caplog.records)
    with serving(folder) as broker:
        assert committed(broker.context.groups) == {**EXPECTED, 7: 3}


def test_a_batch_that_rots_is_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bits that change after an orderly stop cost one offset: it is told, all others are loaded, and commits go on."""
    flip(segment(folder, 0), 51)
    with serving(folder) as broker:
        groups = broker.context.groups
        assert committed(groups) == {number: offset for number, offset in EXPECTED.items() if number != 51}
        assert "__consumer_offsets-0: the batch at offset 51 is damaged" in caplog.text
        commit(groups, 51, 9)
    with serving(folder) as broker:
        assert committed(broker.context.groups) == {**EXPECTED, 51: 9}


def test_a_damaged_segment_is_fenced_until_it_is_repaired(folder: Path) -> None:
    """Damage found after a kill is never cut: what lies before it is loaded, commits are refused (16), topics served;
    after ``log verify --repair`` one offset is lost and commits go on.
    """
    flip(segment(folder, 0), 51)
    kill_mark(folder, False)
    (folder / "recovery-point-offset-checkpoint").unlink()  # only what lies above it is read
    with serving(folder) as broker:
        groups = broker.context.groups
        assert committed(groups) == dict.fromkeys(range(51), 1)
        with pytest.raises(KafkaError) as refused:
            commit(groups, 7, 3)
        assert refused.value.error is Errors.NOT_COORDINATOR
        assert committed(groups)[7] == 1
        broker.context.topics.auto_create(["other"])
        assert broker.context.topics.partition("other", 0).append is not None
    (found,) = verify(folder, repair=True)
    assert (found.offset, found.path.name) == (51, f"{0:020}.log")
    with serving(folder) as broker:
        groups = broker.context.groups
        assert committed(groups) == {number: offset for number, offset in EXPECTED.items() if number != 51}
        commit(groups, 51, 9)
        assert committed(groups)[51] == 9


def test_the_smallest_segments_there_are(tmp_path: Path) -> None:
    """offsets.topic.segment.bytes at its least: notes of 32 kB roll segments, and all of it comes back."""
    small = {"offsets__topic__segment__bytes": 1 << 20}
    with serving(tmp_path / "data", **small) as broker:
        for number in range(90):
            commit(broker.context.groups, number, number, note=f"{number:03}" + "n" * 32_000)
    assert len(list((tmp_path / "data" / "__consumer_offsets-0").glob("*.log"))) == 3
    with serving(tmp_path / "data", **small) as broker:
        groups = broker.context.groups
        assert committed(groups) == {number: number for number in range(90)}
        assert groups.committed("g89")["t", 0].metadata == "089" + "n" * 32_000
