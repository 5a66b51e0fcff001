"""`kbroker log verify` on transactions: an aborted one without an index entry is found and repaired."""

import struct
from pathlib import Path

import pytest

from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction._cleaner import Cleaner
from kbroker.log.log_types import AbortedTransaction
from kbroker.log.tools.verify import verify
from tests.support.compaction import keyed
from tests.support.log_files import NOW_MS, open_log

PID = 7


def write(log: PartitionLog, sequence: int, *, commit: bool) -> None:
    data = keyed((b"k", b"v"), producer_id=PID, producer_epoch=0, base_sequence=sequence, transactional=True)
    assert log.append(data).error == 0
    assert log.append_end_marker(PID, 0, 0, commit).error == 0


def test_lost_transaction_index(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_log(folder)
    for sequence, commit in enumerate((True, False, False)):
        write(log, sequence, commit=commit)
        log.roll()
    log.close()
    assert verify(tmp_path) == []
    (folder / f"{2:020d}.txnindex").unlink()
    (finding,) = verify(tmp_path)
    assert (finding.path.name, finding.offset, finding.repair) == (f"{2:020d}.txnindex", 2, "")
    assert finding.problem == "the aborted transaction of producer 7, offsets 2 to 3, is not in the index"
    (finding,) = verify(tmp_path, repair=True)
    assert finding.repair == "the next start rebuilds it"
    log = open_log(folder, clean=False)
    assert log.read(2, isolation=1).aborted == [AbortedTransaction(PID, 2, 3, 4)]
    log.close()
    assert verify(tmp_path) == []


def test_compacted_transactions_are_sound(tmp_path: Path) -> None:
    """Records that compaction removed from a log and its indexes are not reported as missing."""
    log = open_log(tmp_path / "t-0", config={"cleanup.policy": "compact"})
    for sequence in range(6):
        write(log, sequence, commit=sequence % 2 == 0)
        log.roll()
    for day in range(1, 4):
        limit = log.segments()[-1].base_offset
        assert Cleaner(1 << 20).clean(log, 0, limit, now_ms=NOW_MS + day * 86_400_000) is not None
        log.close()
        assert [finding for finding in verify(tmp_path) if finding.path.suffix == ".txnindex"] == []
        log = open_log(tmp_path / "t-0", config={"cleanup.policy": "compact"})


def index_findings(folder: Path) -> list[str]:
    return [finding.problem for finding in verify(folder) if finding.path.suffix == ".txnindex"]


@pytest.mark.parametrize("is_compacted", [True, False])
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_every_flip_is_found(tmp_path: Path, is_compacted: bool, has_checkpoint: bool) -> None:
    """A flip of each byte of an index is found.

    Without the checkpoint, the batches of a compacted segment show neither the start of a transaction before their
    first record nor the last stable offset.
    """
    folder = tmp_path / "t-0"
    log = open_log(folder, config={"cleanup.policy": "compact"} if is_compacted else {})
    for sequence, commit in enumerate((True, False, False, True)):
        write(log, sequence, commit=commit)
    log.roll()
    if is_compacted:
        assert Cleaner(1 << 20).clean(log, 4, log.segments()[-1].base_offset, now_ms=NOW_MS) is not None
    write(log, 4, commit=True)
    log.close()
    if not has_checkpoint:
        (folder / "txnindex-checkpoint").unlink()
    assert index_findings(tmp_path) == []
    index = folder / f"{0:020d}.txnindex"
    right = index.read_bytes()
    missed = set()
    for at in range(len(right)):
        index.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
        if not index_findings(tmp_path):
            missed.add(at % 34)
    assert len(right) == 68
    unproven = {*range(10, 18), *range(26, 34)} if is_compacted and not has_checkpoint else set()
    assert missed <= unproven


def test_wrong_entries(tmp_path: Path) -> None:
    """The finding has the transaction and both versions of its entry."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    write(log, 0, commit=False)
    log.close()
    index = folder / f"{0:020d}.txnindex"
    right = index.read_bytes()
    index.write_bytes(right[:17] + b"\1" + right[18:])
    (finding,) = verify(tmp_path)
    assert finding.problem == (
        "the aborted transaction of producer 7, offsets 0 to 1, last stable offset 2, is in the index with first "
        "offset 1 and last stable offset 2"
    )
    index.write_bytes(right[:9] + b"\1" + right[10:])
    assert [finding.problem for finding in verify(tmp_path)] == [
        "the aborted transaction of producer 7, offsets 0 to 1, is not in the index",
        "the aborted transaction of producer 1, offsets 0 to 1, is in the index, and the segment has no such marker",
    ]


def test_an_entry_of_a_marker_without_records(tmp_path: Path) -> None:
    """An abort marker of a producer without records in the log has no entry, and an added one is found."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    write(log, 0, commit=True)
    assert log.append_end_marker(PID, 0, 0, False).error == 0
    log.close()
    assert verify(tmp_path) == []
    index = folder / f"{0:020d}.txnindex"
    index.write_bytes(struct.pack(">hqqqq", 0, PID, 2, 2, 3))
    assert index_findings(tmp_path) == [
        "the aborted transaction of producer 7, offsets 2 to 2, is in the index, and the segment has no such records"
    ]
