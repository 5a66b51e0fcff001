"""Recovery after a crash: torn tails are truncated, sealed damage is fenced, indexes and snapshots are rebuilt."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from kbroker.log.segment._segment import OpenFileCache
from tests.support.broker import run_to_end
from tests.support.log_files import NOW_MS, base_of, batch, open_log, read_all
from tests.support.wire import split

SMALL: dict[str, object] = {"segment.bytes": 1000, "index.interval.bytes": 200}


def fill(folder: Path, count: int, config: dict[str, object] | None = None, *, clean: bool = False) -> list[bytes]:
    log = open_log(folder, config=config)
    for i in range(count):
        assert log.append(batch(b"%04d" % i * (1 + i % 5))).error == 0
    data = read_all(log)
    log.close(clean=clean)
    return data


def segment(folder: Path, base: int, suffix: str = ".log") -> Path:
    return folder / f"{base:020d}{suffix}"


def test_torn_tail_at_every_byte(tmp_path: Path) -> None:
    """After truncation at any byte of the last two batches, the whole batches remain, and the next append follows."""
    origin = tmp_path / "origin"
    data = fill(origin, 6)
    whole = b"".join(data)
    assert segment(origin, 0).read_bytes() == whole
    folder = tmp_path / "t-0"
    for size in range(sum(map(len, data[:4])), len(whole) + 1):
        folder.mkdir()
        segment(folder, 0).write_bytes(whole[:size])
        log = open_log(folder)
        kept = next(n for n in range(6, -1, -1) if sum(map(len, data[:n])) <= size)
        assert log.damage is None
        assert log.log_end_offset == kept
        assert read_all(log) == data[:kept]
        assert log.append(batch(b"next")).base_offset == kept
        log.close(clean=False)
        shutil.rmtree(folder)


def test_what_is_cut_is_reported(tmp_path: Path) -> None:
    """The report has the bytes, segment, reason and new end offset; a start of a sound log has no report."""
    data = fill(tmp_path / "t-0", 3)
    path = segment(tmp_path / "t-0", 0)
    log = open_log(tmp_path / "t-0")
    assert log.cut is None
    log.close(clean=False)
    path.write_bytes(path.read_bytes()[:-5])
    log = open_log(tmp_path / "t-0")
    whole = len(data[0]) + len(data[1])
    assert log.cut == (
        f"{len(data[2]) - 5} bytes from byte {whole} of segment {0:020}.log on were cut, the tail of an unclean stop "
        "(the last batch is cut off); the log ends at offset 2"
    )
    log.close(clean=False)
    assert open_log(tmp_path / "t-0").cut is None


def test_an_empty_partition_opens_no_file(tmp_path: Path) -> None:
    """Empty partitions open no file, after a kill and after a stop."""
    files = OpenFileCache(10)
    for clean in (False, True):
        log = open_log(tmp_path / "t-0", files=files, clean=clean)
        assert (log.log_end_offset, files.open_files) == (0, 0)
        log.close(clean=clean)
        assert files.open_files == 0
    log = open_log(tmp_path / "t-0", files=files, clean=True)
    assert log.append(batch(b"first")).base_offset == 0
    assert files.open_files == 1


def test_sealed_damage_is_fenced_not_cut(tmp_path: Path) -> None:
    """Records below damage in a sealed segment are read; later ones get KAFKA_STORAGE_ERROR, and no byte is lost."""
    folder = tmp_path / "t-0"
    data = fill(folder, 40, SMALL)
    log = open_log(folder, config=SMALL)
    bases = [s.base_offset for s in log.segments()]
    log.close(clean=False)
    victim = segment(folder, bases[1])
    content = bytearray(victim.read_bytes())
    content[len(data[bases[1]]) + 70] ^= 1  # in the second batch of the second segment
    victim.write_bytes(content)
    for clean in (False, False):
        log = open_log(folder, config=SMALL, clean=clean)
        bad = bases[1] + 1
        assert log.damage_offset == bad
        assert victim.name in str(log.damage)
        assert "checksum" in str(log.damage)
        assert read_all(log) == data[:bad]
        assert log.read(bad).error == 56
        assert log.read(39).error == 56
        assert log.append(batch(b"x")).error == 56
        assert log.log_end_offset == 40
        assert log.apply_retention(NOW_MS * 2) == 0
        log.close(clean=False)
    assert victim.read_bytes() == bytes(content)


def test_damage_below_the_recovery_point_is_not_cut(tmp_path: Path) -> None:
    """Damage in flushed bytes of the last segment is fenced, because it is not a torn tail."""
    folder = tmp_path / "t-0"
    data = fill(folder, 10)
    content = bytearray(segment(folder, 0).read_bytes())
    content[sum(map(len, data[:4])) + 65] ^= 1
    segment(folder, 0).write_bytes(content)
    log = open_log(folder, recovery_point=8)
    assert log.damage_offset == 4
    assert segment(folder, 0).read_bytes() == bytes(content)
    log.close(clean=False)
    log = open_log(folder, recovery_point=4)
    assert log.damage is None
    assert log.log_end_offset == 4
    log.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_removed", [True, False])
def test_missing_segment(tmp_path: Path, is_removed: bool, clean: bool) -> None:
    """The other segments are served as in Kafka, because compaction may leave gaps, and the gap is reported."""
    folder = tmp_path / "t-0"
    data = fill(folder, 40, SMALL, clean=clean)
    bases = sorted(int(p.stem) for p in folder.glob("*.log"))
    if is_removed:
        segment(folder, bases[2]).unlink()
    else:
        segment(folder, bases[2]).write_bytes(b"")
    log = open_log(folder, config=SMALL, clean=clean)
    assert log.damage is None
    assert log.cut == (
        f"no batch has the offsets {bases[2]} to {bases[3] - 1}, up to the end of segment "
        f"{bases[1] if is_removed else bases[2]:020}.log: the topic was compacted, or records are lost"
    )
    assert read_all(log) == data[: bases[2]] + data[bases[3] :]
    assert log.append(batch(b"x")).base_offset == 40
    log.close()
    assert open_log(folder, config={**SMALL, "was.compacted": True}, clean=True).cut is None


def test_wrong_offset_before_a_gap(tmp_path: Path) -> None:
    """A batch offset that is too high, which no checksum covers, overlaps the next batch or segment, and is damage."""
    origin = tmp_path / "origin"
    data = fill(origin, 40, SMALL)
    bases = sorted(int(p.stem) for p in origin.glob("*.log"))
    for offset in (bases[1], bases[1] + 1, bases[2] - 1):
        folder = tmp_path / f"{offset}"
        shutil.copytree(origin, folder)
        file = segment(folder, bases[1])
        content = bytearray(file.read_bytes())
        at = sum(map(len, data[bases[1] : offset]))
        content[at + 5] ^= 1  # adds 65,536 to the offset
        file.write_bytes(content)
        log = open_log(folder, config=SMALL)
        assert log.damage_offset == offset
        assert read_all(log) == data[:offset]
        log.close(clean=False)


def test_wrong_offset_of_the_last_batch(tmp_path: Path) -> None:
    """A wrong offset of the last batch is damage in a log that was never compacted, because it leaves a gap."""
    folder = tmp_path / "t-0"
    data = fill(folder, 3)
    content = bytearray(segment(folder, 0).read_bytes())
    content[sum(map(len, data[:2])) + 5] ^= 1
    segment(folder, 0).write_bytes(content)
    log = open_log(folder, recovery_point=3)
    assert (log.damage_offset, log.log_end_offset) == (2, 2)
    log.close(clean=False)
    log = open_log(folder)
    assert (log.damage, log.log_end_offset) == (None, 2)
    log.close()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("content", [None, b"", b"\0" * 7, b"\xff" * 96, b"\0" * 4096, b"\0" * 20_000_000])
def test_damaged_index(tmp_path: Path, suffix: str, content: bytes | None) -> None:
    """Every offset is found with a missing, empty, truncated or wrong index."""
    folder = tmp_path / "t-0"
    data = fill(folder, 40, SMALL, clean=True)
    for file in folder.glob(f"*{suffix}"):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
    log = open_log(folder, config=SMALL, clean=True)
    assert log.damage is None
    assert read_all(log) == data
    for offset in range(40):
        assert base_of(log.read(offset).records) == offset
    assert log.offset_for_timestamp(NOW_MS) == (0, NOW_MS, 0)
    assert log.append(batch(b"x")).base_offset == 40
    log.close()


def test_plausible_but_wrong_index_entry(tmp_path: Path) -> None:
    """A read detects an entry that points into the middle of a batch, and searches from the start."""
    folder = tmp_path / "t-0"
    data = fill(folder, 40, {"index.interval.bytes": 200}, clean=True)
    index = segment(folder, 0, ".index")
    content = bytearray(index.read_bytes())
    content[7] ^= 3
    content[15] ^= 5
    index.write_bytes(content)
    log = open_log(folder, clean=True)
    assert read_all(log) == data
    assert [base_of(log.read(o).records) for o in range(40)] == list(range(40))
    log.close()


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\0" * 100])
def test_damaged_snapshot_and_epochs(tmp_path: Path, content: bytes | None) -> None:
    """Snapshot and epochs are rebuilt from the batches."""
    folder = tmp_path / "t-0"
    log = open_log(folder, config=SMALL, leader_epoch=4)
    for i in range(30):
        log.append(batch(b"x" * 20, producer_id=1, producer_epoch=0, base_sequence=i))
    log.close()
    for file in [*folder.glob("*.snapshot"), folder / "leader-epoch-checkpoint", folder / "partition.metadata"]:
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
    log = open_log(folder, config=SMALL, clean=True, leader_epoch=4)
    assert log.leader_epochs() == [(4, 0)]
    assert log.append(batch(b"x", producer_id=1, producer_epoch=0, base_sequence=29 + 2)).error == 45
    assert log.append(batch(b"x", producer_id=1, producer_epoch=0, base_sequence=30)).base_offset == 30
    log.close()


def test_epochs_that_a_power_cut_took_from_their_file(tmp_path: Path) -> None:
    """The file is not synced: after an unclean stop, the batches have the epochs that it lacks."""
    folder = tmp_path / "t-0"
    file = folder / "leader-epoch-checkpoint"
    log = open_log(folder, leader_epoch=4)
    log.append(batch(b"x"))
    stale = file.read_bytes()
    for epoch in (6, 7):
        log.set_leader_epoch(epoch)
        log.append(batch(b"x"))
    log.close()
    fresh = file.read_bytes()
    file.write_bytes(stale)
    log = open_log(folder, clean=False, leader_epoch=8)
    assert log.leader_epochs() == [(4, 0), (6, 1), (7, 2)]
    assert file.read_bytes() == fresh
    log.close()


def test_a_snapshot_that_cannot_be_opened_stays(tmp_path: Path) -> None:
    """The log is not opened, since the batches of the producers in a sound snapshot may be deleted."""
    folder, kept = tmp_path / "t-0", tmp_path / "kept"
    log = open_log(folder)
    log.append(batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0))
    log.roll()
    log.delete_records(1)
    log.close()
    (snapshot,) = folder.glob("*.snapshot")
    snapshot.rename(kept)
    snapshot.symlink_to(snapshot.name)
    with pytest.raises(OSError, match=snapshot.name):
        open_log(folder, clean=True, log_start_offset=1)
    kept.replace(snapshot)
    log = open_log(folder, clean=True, log_start_offset=1)
    assert log.append(batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0)).is_duplicate


def test_tail_rubbish(tmp_path: Path) -> None:
    """Garbage, zeros, a repeated batch and an older batch after the end are truncated."""
    data = fill(tmp_path / "origin", 5)
    for number, extra in enumerate([b"garbage" * 30, b"\0" * 4096, data[4], data[0], b"\x7f" * 61]):
        folder = tmp_path / f"t-{number}"
        folder.mkdir()
        segment(folder, 0).write_bytes(b"".join(data) + extra)
        log = open_log(folder)
        assert (log.log_end_offset, log.damage) == (5, None)
        assert read_all(log) == data
        log.close()


def test_left_over_files(tmp_path: Path) -> None:
    """.deleted and .cleaned files are removed, a .swap file is renamed, and unknown files are kept."""
    folder = tmp_path / "t-0"
    data = fill(folder, 5)
    for name in (
        "00000000000000000009.log.deleted",
        "00000000000000000000.log.cleaned",
        "note.txt",
        "abc.log",
        "7.log",
    ):
        (folder / name).write_bytes(b"?")
    os.rename(segment(folder, 0), folder / f"{0:020d}.log.swap")
    log = open_log(folder)
    assert read_all(log) == data
    names = {p.name for p in folder.iterdir()}
    assert {"note.txt", "abc.log", "7.log"} <= names
    assert not [n for n in names if n.endswith((".deleted", ".cleaned", ".swap"))]
    log.close()


@pytest.mark.parametrize("harm", ["empty", "cut", "flipped", "offset", "foreign"])
def test_a_damaged_swap_file_replaces_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str) -> None:
    """A copy of a folder that was made during a compaction may have half a .swap file beside the segments."""
    folder = tmp_path / "t-0"
    data = fill(folder, 40, SMALL)
    content = bytearray(segment(folder, 0).read_bytes())
    last = 0
    while (after := last + 12 + int.from_bytes(content[last + 8 : last + 12], "big")) < len(content):
        last = after
    if harm == "flipped":
        content[26] ^= 0x40  # the last offset delta, so that the batch seems to replace all later segments
    elif harm == "offset":
        content[last] ^= 0x40  # of the last batch, which no checksum covers
    swap = folder / f"{0:020d}.log.swap"
    swap.write_bytes(bytes({"empty": b"", "cut": content[:-1], "foreign": b"no batch"}.get(harm, content)))
    log = open_log(folder, config=SMALL)
    assert read_all(log) == data
    assert not swap.exists()
    assert f"{swap} is empty or damaged; the segments before its compaction are kept" in caplog.messages
    log.close()


def test_a_damaged_swap_file_that_is_the_only_one(tmp_path: Path) -> None:
    """Its sound batches are served, and it replaces no later segment."""
    folder = tmp_path / "t-0"
    data = fill(folder, 40, SMALL)
    content = bytearray(segment(folder, 0).read_bytes())
    content[-1] ^= 1
    segment(folder, 0).unlink()
    (folder / f"{0:020d}.log.swap").write_bytes(content)
    later = sorted(folder.glob("*.log"))
    log = open_log(folder, config=SMALL)
    assert segment(folder, 0).read_bytes() == content
    assert log.damage is not None
    assert set(later) <= set(folder.glob("*.log"))
    served = read_all(log)
    assert served == data[: len(served)] != []
    log.close()


def test_log_end_below_its_start(tmp_path: Path) -> None:
    """A log whose end is below its start offset begins empty at the start offset."""
    folder = tmp_path / "t-0"
    fill(folder, 5)
    log = open_log(folder, log_start_offset=9)
    assert (log.log_start_offset, log.log_end_offset) == (9, 9)
    assert log.append(batch(b"x")).base_offset == 9
    assert sorted(p.name for p in folder.glob("*.log")) == [f"{9:020d}.log"]
    log.close()


def test_only_what_follows_the_recovery_point_is_checked(tmp_path: Path) -> None:
    """A wrong checksum below the recovery point is not detected: recovery skips flushed segments."""
    folder = tmp_path / "t-0"
    fill(folder, 40, SMALL)
    victim = segment(folder, 0)
    content = bytearray(victim.read_bytes())
    content[66] ^= 1
    victim.write_bytes(content)
    log = open_log(folder, config=SMALL, recovery_point=30)
    assert log.damage is None
    log.close(clean=False)


def test_full_disk_for_real(tmp_path: Path) -> None:
    """At a file size limit an append gets KAFKA_STORAGE_ERROR and is undone, reads succeed, and later appends too."""
    script = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from tests.support.log_files import *
from pathlib import Path
log = open_log(Path({str(tmp_path / "t-0")!r}), config={{"index.interval.bytes": 1000, "segment.index.bytes": 4096}})
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, hard))
count = 0
while (result := log.append(batch(b"x" * 700))).error == 0:
    count += 1
assert result.error == 56 and 20 < count < 30, (count, result)
assert len(read_all(log)) == count
assert log.append(batch(b"x" * 700)).error == 56
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert log.append(batch(b"y" * 700)).base_offset == count
assert all(map(crc_ok, read_all(log))) and len(read_all(log)) == count + 1
log.close()
"""
    root = Path(__file__).parents[3]
    run_to_end([sys.executable, "-c", script], seconds=60, cwd=root)


def test_speed_of_recovery(tmp_path: Path) -> None:
    """Recovery reads more than 100 MB/s, and 500 MB/s on an idle machine."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    big = batch(*[b"x" * 1000] * 900)
    for _ in range(64):
        log.append(big)
    size = log.size_bytes
    log.close(clean=False)
    started = time.perf_counter()
    log = open_log(folder)
    rate = size / (time.perf_counter() - started) / 1e6
    assert log.log_end_offset == 64 * 900
    assert rate > 100
    print(f"{rate:.0f} MB/s")
    log.close()
    assert split(b"") == []
