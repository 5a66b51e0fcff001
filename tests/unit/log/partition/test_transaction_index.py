"""Transaction index of a log at its opening and in reads: no aborted record looks committed."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.log._partition_log import PartitionLog, active_producers
from kbroker.log.log_types import AbortedTransaction
from tests.support.compaction import CONFIG, compact, transaction
from tests.support.log_files import NOW_MS, batch, open_log, write_transactional

PID = 7
OUT_OF_RANGE = 1
INDEX = f"{0:020d}.txnindex"


def aborted_log(folder: Path, aborts: int = 1, config: dict[str, int] | None = None) -> PartitionLog:
    """Return a log of aborted transactions with three records each, at offsets 0 to 3, 4 to 7 and so on."""
    log = open_log(folder, config=config)
    for number in range(aborts):
        for sequence in range(3):
            write_transactional(log, sequence + 3 * number)
        log.append_end_marker(PID, 0, 0, False)
    return log


def test_log_that_starts_inside_a_segment(tmp_path: Path) -> None:
    """An unclean start reads the segment from its beginning instead of the log start offset."""
    log = aborted_log(tmp_path / "t-0")
    write_transactional(log, 3, producer_id=8)
    log.delete_records(1)
    before = active_producers(log)
    log.close(clean=False)
    (tmp_path / "t-0" / INDEX).unlink()  # simulates a crash between the marker and its entry
    log = open_log(tmp_path / "t-0", clean=False, log_start_offset=1)
    assert log.read(1, isolation=1).aborted == [AbortedTransaction(PID, 0, 3, 4)]
    assert active_producers(log) == before
    assert log.last_stable_offset == 4


def test_index_that_cannot_be_written(tmp_path: Path) -> None:
    """The partition is not opened without a transaction index."""
    aborted_log(tmp_path / "t-0").close(clean=False)
    (tmp_path / "t-0" / INDEX).unlink()
    (tmp_path / "t-0" / INDEX).mkdir()
    with pytest.raises(OSError, match="directory"):
        open_log(tmp_path / "t-0", clean=False)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data, id="sound"),
        pytest.param(lambda data: data[:40], id="cut"),
        pytest.param(lambda data: data + bytes(34) + data[:20], id="longer"),
        pytest.param(lambda data: data[:34] + bytes([0, 0, 0, 9]) + data[38:], id="other entry"),
        pytest.param(lambda data: bytes([9]) + data[1:], id="other version"),
        pytest.param(lambda data: b"", id="empty"),
    ],
)
def test_index_after_an_unclean_stop(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """The index is rebuilt from the batches, and a correct file is not written, because the disk may be full."""
    log = aborted_log(tmp_path / "t-0", 3)
    expected = log.read(0, isolation=1).aborted
    assert len(expected) == 3
    log.close(clean=False)
    file = tmp_path / "t-0" / INDEX
    right = file.read_bytes()
    file.write_bytes(damage(right))
    before = file.stat()
    log = open_log(tmp_path / "t-0", clean=False)
    assert log.read(0, isolation=1).aborted == expected
    assert file.read_bytes() == right
    if damage(right) == right:
        assert file.stat().st_ino == before.st_ino
    write_transactional(log, 9)
    log.append_end_marker(PID, 0, 0, False)
    log.close()
    assert open_log(tmp_path / "t-0").read(0, isolation=1).aborted == [*expected, AbortedTransaction(PID, 12, 13, 14)]


def test_entries_of_a_marker_that_was_cut(tmp_path: Path) -> None:
    """Entries beyond the log end are removed: a crash may leave an entry without its whole marker."""
    log = aborted_log(tmp_path / "t-0", 2)
    log.close(clean=False)
    segment = tmp_path / "t-0" / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-5])
    log = open_log(tmp_path / "t-0", clean=False)
    assert (log.log_end_offset, log.last_stable_offset) == (7, 4)
    assert log.read(0, isolation=1).aborted == [AbortedTransaction(PID, 0, 3, 4)]
    assert (tmp_path / "t-0" / INDEX).stat().st_size == 34


def test_reading_while_retention_removes_the_segment(tmp_path: Path) -> None:
    """A read_committed fetch whose index file is deleted meanwhile gets OFFSET_OUT_OF_RANGE instead of records."""
    config = {"retention.ms": 1000, "index.interval.bytes": 1 << 30}  # so that a read takes long to find its end
    log = aborted_log(tmp_path / "made")
    plain = batch(b"plain")
    for _ in range(100_000):
        log.append(plain)
    write_transactional(log, producer_id=8)
    log.roll()
    log.close()
    for index in (tmp_path / "made").glob("*index"):
        if index.name != INDEX:
            index.write_bytes(b"")
    for number in range(10):
        folder = tmp_path / f"{number}" / "t-0"
        shutil.copytree(tmp_path / "made", folder, copy_function=os.link)
        log = open_log(folder, VirtualClock(NOW_MS), config=config, clean=True)
        begin = threading.Event()

        def remove(log: PartitionLog = log, begin: threading.Event = begin) -> None:
            begin.wait()
            log.apply_retention(NOW_MS + 5000)

        retention = threading.Thread(target=remove)
        retention.start()
        begin.set()
        got = log.read(0, isolation=1)
        retention.join()
        log.close()
        assert (got.error, bool(got.records), len(got.aborted)) in ((0, True, 1), (OUT_OF_RANGE, False, 0))


# -- a clean stop ------------------------------------------------------------------------------------------------------

CHECKPOINT = "txnindex-checkpoint"


def sealed_log(folder: Path) -> tuple[list[AbortedTransaction], bytes]:
    """Create a sealed segment with two aborted transactions and a third overlapping one, and stop cleanly."""
    log = aborted_log(folder, 2, {"index.interval.bytes": 0})
    write_transactional(log, producer_id=8)
    write_transactional(log, 6)
    log.append_end_marker(PID, 0, 0, False)
    log.roll()
    log.append_end_marker(8, 0, 0, False)
    expected = log.read(0, isolation=1).aborted
    assert len(expected) == 4
    log.close()
    return expected, (folder / INDEX).read_bytes()


def assert_rebuilt(folder: Path, expected: list[AbortedTransaction], right: bytes) -> None:
    """Assert that a clean start has all entries, reports the rebuilt index once, and has corrected the file."""
    log = open_log(folder, clean=True)
    assert log.cut == (
        f"{INDEX} did not agree with the batches of its segment: rebuilt from them, it lists 3 aborted transactions now"
    )
    assert log.read(0, isolation=1).aborted == expected
    log.close()
    assert (folder / INDEX).read_bytes() == right
    log = open_log(folder, clean=True)
    assert log.cut is None
    assert log.read(0, isolation=1).aborted == expected
    log.close()


def test_damaged_index_after_a_clean_stop(tmp_path: Path) -> None:
    """The index is missing, empty, truncated, too long, or has one flipped bit per byte."""
    expected, right = sealed_log(tmp_path / "origin")
    damaged = [None, b"", right[:40], right[:-1], right + right[-34:]]
    damaged += [right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :] for at in range(len(right))]
    for number, data in enumerate(damaged):
        folder = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "origin", folder)
        if data is None:
            (folder / INDEX).unlink()
        else:
            (folder / INDEX).write_bytes(data)
        assert_rebuilt(folder, expected, right)


def test_index_where_no_transaction_was_aborted(tmp_path: Path) -> None:
    """Entries for a segment without aborted transactions, which would hide committed records, are removed."""
    _, right = sealed_log(tmp_path / "other")
    log = open_log(tmp_path / "t-0")
    write_transactional(log)
    log.append_end_marker(PID, 0, 0, True)
    log.close()
    (tmp_path / "t-0" / INDEX).write_bytes(right)
    log = open_log(tmp_path / "t-0", clean=True)
    assert "lists 0 aborted transactions now" in str(log.cut)
    assert log.read(0, isolation=1).aborted == []
    assert not (tmp_path / "t-0" / INDEX).exists()


@pytest.mark.parametrize(
    "text", [None, b"", b"0\n", b"1\n11\n", b"0\n11\n", b"0\n11\n0 3 7\n", b"0\n11\n0 x\n", b"\xff\n"]
)
def test_lost_or_damaged_checkpoint(tmp_path: Path, text: bytes | None) -> None:
    """Without the checkpoint, indexes are compared with the batches: damage is found, and a sound index stays."""
    folder = tmp_path / "t-0"
    expected, right = sealed_log(folder)
    written = (folder / CHECKPOINT).read_bytes()
    for index in (right, right[:34]):
        if text is None:
            (folder / CHECKPOINT).unlink()
        else:
            (folder / CHECKPOINT).write_bytes(text)
        (folder / INDEX).write_bytes(index)
        if index != right:
            assert_rebuilt(folder, expected, right)
            continue
        before = (folder / INDEX).stat()
        log = open_log(folder, clean=True)
        assert log.cut is None
        assert log.read(0, isolation=1).aborted == expected
        assert (folder / CHECKPOINT).read_bytes() == written
        log.close()
        assert (folder / INDEX).stat().st_mtime_ns == before.st_mtime_ns


def test_a_sound_checkpoint_spares_the_batches(tmp_path: Path) -> None:
    """With the checkpoint, a clean start reads no batch of a sealed segment, and so does not find its damage."""
    folder = tmp_path / "t-0"
    sealed_log(folder)
    segment = folder / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[16] = 9  # the magic of the first batch
    segment.write_bytes(data)
    log = open_log(folder, clean=True)
    assert log.damage is None
    log.close()
    (folder / CHECKPOINT).unlink()
    log = open_log(folder, clean=True)
    assert log.damage_offset == 0
    assert log.read(0, isolation=1).error == 56
    log.close()


def test_index_that_is_damaged_while_it_is_open(tmp_path: Path) -> None:
    """The first read_committed fetch reads the index, and fails instead of returning aborted records as committed."""
    folder = tmp_path / "t-0"
    _, right = sealed_log(folder)
    for damaged in (None, right[:34]):
        log = open_log(folder, clean=True)
        if damaged is None:
            (folder / INDEX).unlink()
        else:
            (folder / INDEX).write_bytes(damaged)
        got = log.read(0, isolation=1)
        assert (got.error, got.records) == (56, b"")
        assert log.read(0).error == 0
        log.close()
        (folder / INDEX).write_bytes(right)


def test_compacted_index_has_a_checkpoint(tmp_path: Path) -> None:
    """A clean start accepts the index of a compacted segment, which may differ from one built from the batches."""
    folder = tmp_path / "t-0"
    log = open_log(folder, config=CONFIG)
    transaction(log, PID, (b"k", b"v"), commit=False)
    transaction(log, 8, (b"k", b"v"), commit=True)
    log.roll()
    compact(log, now_ms=NOW_MS)
    expected = log.read(0, isolation=1).aborted
    log.close()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    log = open_log(folder, config=CONFIG, clean=True)
    assert log.cut is None
    assert log.read(0, isolation=1).aborted == expected
    log.close()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
