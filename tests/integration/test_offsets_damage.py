"""Start of a broker with a damaged index, segment or log end of ``__consumer_offsets``."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.common.errors import Errors
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.log.tools.verify import verify
from tests.support.errors import error_of

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
    groups.offsets.commit(f"g{number}", "", None, -1, {("t", 0): CommittedOffset(offset, -1, note, 5)})


def committed(groups: GroupCoordinator) -> dict[int, int]:
    found = {number: groups.offsets.fetch(f"g{number}").committed.get(("t", 0)) for number in range(GROUPS)}
    return {number: one.offset for number, one in found.items() if one is not None}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a stopped broker: 200 groups with offset 1 in a closed segment, 100 of them with offset 2 in the active
    one.
    """
    folder = tmp_path_factory.mktemp("offsets") / "data"
    with serving(folder) as broker:
        groups = broker.context.groups
        groups.runtime.prepare()
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


def kill_mark(folder: Path, is_clean: bool) -> None:
    """Delete the clean shutdown file, as if after kill -9, unless the stop was clean."""
    if not is_clean:
        (folder / ".kafka_cleanshutdown").unlink()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("content", [None, b"", b"garbage!", b"\xff" * 240])
def test_a_broken_index_costs_nothing(folder: Path, suffix: str, content: bytes | None, is_clean: bool) -> None:
    """A deleted, short or invalid index is rebuilt: every offset is found, and new commits are kept."""
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
    """After a kill, bytes after the last batch are truncated and logged: every offset is found, and new commits are
    kept.
    """
    path = segment(folder, GROUPS)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + garbage)
    kill_mark(folder, False)
    with serving(folder) as broker:
        assert committed(broker.context.groups) == EXPECTED
        assert path.stat().st_size == size
        commit(broker.context.groups, 7, 3)
    lost = f"partition __consumer_offsets-0: {len(garbage)} bytes from byte {size} of segment {GROUPS:020} on were cut"
    assert any(record.getMessage().startswith(lost.replace(" on were", ".log on were")) for record in caplog.records)
    with serving(folder) as broker:
        assert committed(broker.context.groups) == {**EXPECTED, 7: 3}


def batch(data: bytes, offset: int) -> tuple[int, int]:
    """Return the range of the batch with this offset in a segment, in which each batch has one record."""
    at = 0
    while int.from_bytes(data[at : at + 8], "big") != offset:
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
    return at, at + int.from_bytes(data[at + 8 : at + 12], "big") + 12


def damaged(data: bytes, how: str, offset: int) -> bytes:
    """Return a segment with one damaged batch."""
    at, end = batch(data, offset)
    part = bytearray(data[at:end])
    if how == "a record":
        part[75] ^= 0x40
    elif how == "a length too large":
        part[8:12] = (1 << 20).to_bytes(4, "big")
    elif how == "a length below zero":
        part[8:12] = b"\xff\xff\xff\xf0"
    elif how == "the format":
        part[16] = 9
    elif how == "zeros":
        part[:] = bytes(len(part))
    return data[:at] + bytes(part) + data[end:]


WAYS = ("a record", "a length too large", "a length below zero", "the format", "zeros")


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("base", [0, GROUPS])
def test_nothing_is_acknowledged_behind_what_cannot_be_read(
    folder: Path, how: str, base: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With a batch that was damaged after a clean stop, fetches and commits of the partition's groups are refused.

    The log names the command that repairs the segment, after which only one offset is lost and commits are kept.
    """
    path = segment(folder, base)
    path.write_bytes(damaged(path.read_bytes(), how, base + 51))
    with serving(folder) as broker:
        groups = broker.context.groups
        end = broker.context.topics.partition("__consumer_offsets", 0).log_end_offset
        for number in (7, 51, 150):
            for refused in (lambda n=number: groups.offsets.fetch(f"g{n}"), lambda n=number: commit(groups, n, 100)):
                assert error_of(refused) is Errors.NOT_COORDINATOR
        assert broker.context.topics.partition("__consumer_offsets", 0).log_end_offset == end
        broker.context.topics.auto_create(["other"])
        assert broker.context.topics.partition("other", 0).append is not None
    assert f"__consumer_offsets-0 in {folder / '__consumer_offsets-0'} cannot be read" in caplog.text
    assert f"run: kbroker log verify --repair {folder / '__consumer_offsets-0'}" in caplog.text
    (found,) = verify(folder, repair=True)
    assert (found.offset, found.path.name) == (base + 51, f"{base:020}.log")
    # the second segment has the even groups, whose earlier offset is still in the first segment
    number = 51 if base == 0 else 102
    left = {n: offset for n, offset in EXPECTED.items() if n != 51} if base == 0 else {**EXPECTED, 102: 1}
    with serving(folder) as broker:
        assert committed(broker.context.groups) == left
        commit(broker.context.groups, number, 100)
    with serving(folder) as broker:
        assert committed(broker.context.groups) == {**left, number: 100}


def test_a_damaged_segment_is_fenced_until_it_is_repaired(folder: Path) -> None:
    """A damaged batch that is found after a kill is not truncated: its groups are refused, and topics are served.

    After ``log verify --repair``, one offset is lost and commits are accepted.
    """
    path = segment(folder, 0)
    path.write_bytes(damaged(path.read_bytes(), "a record", 51))
    kill_mark(folder, False)
    (folder / "recovery-point-offset-checkpoint").unlink()  # only the log above the recovery point is read
    with serving(folder) as broker:
        groups = broker.context.groups
        for refused in (lambda: commit(groups, 7, 3), lambda: groups.offsets.fetch("g7")):
            assert error_of(refused) is Errors.NOT_COORDINATOR
        broker.context.topics.auto_create(["other"])
        assert broker.context.topics.partition("other", 0).append is not None
    found, *_ = verify(folder, repair=True)
    assert (found.offset, found.path.name) == (51, f"{0:020}.log")
    with serving(folder) as broker:
        groups = broker.context.groups
        assert committed(groups) == {number: offset for number, offset in EXPECTED.items() if number != 51}
        commit(groups, 51, 9)
        assert committed(groups)[51] == 9


def test_a_client_of_a_group_whose_partition_is_offline(folder: Path) -> None:
    """A client whose group's partition is offline receives an error, and later its committed offset."""
    confluent_kafka = pytest.importorskip("confluent_kafka")

    def asked(broker: Broker) -> int:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g7"}
        with closing(confluent_kafka.Consumer(settings)) as consumer:
            (place,) = consumer.committed([confluent_kafka.TopicPartition("t", 0)], timeout=3)
            return int(place.offset)

    shutil.move(folder / "__consumer_offsets-0" / "partition.metadata", folder / "kept")
    (folder / "__consumer_offsets-0" / "partition.metadata").write_text("nonsense")
    with serving(folder) as broker:
        assert broker.context.topics.is_offline("__consumer_offsets", 0)
        with pytest.raises(confluent_kafka.KafkaException):
            asked(broker)
        shown = broker.exposition.text()[0].decode()
        assert 'kafka_group_coordinator_num_partitions{state="failed"} 1.0' in shown
        assert 'kafka_group_coordinator_num_partitions{state="active"} 0.0' in shown
    shutil.move(folder / "kept", folder / "__consumer_offsets-0" / "partition.metadata")
    with serving(folder) as broker:
        assert asked(broker) == 1


def test_the_smallest_segments_there_are(tmp_path: Path) -> None:
    """With the smallest `offsets.topic.segment.bytes`, metadata of 32 kB rolls segments, and every offset is found."""
    small = {"offsets__topic__segment__bytes": 1 << 20}
    with serving(tmp_path / "data", **small) as broker:
        for number in range(90):
            commit(broker.context.groups, number, number, note=f"{number:03}" + "n" * 32_000)
    assert len(list((tmp_path / "data" / "__consumer_offsets-0").glob("*.log"))) == 3
    with serving(tmp_path / "data", **small) as broker:
        groups = broker.context.groups
        assert committed(groups) == {number: number for number in range(90)}
        assert groups.offsets.fetch("g89").committed["t", 0].metadata == "089" + "n" * 32_000
