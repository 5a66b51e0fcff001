"""`kbroker log verify` on transactions: an aborted one that its index does not know is found, and put right."""

from pathlib import Path

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
    """What compaction took out of a log and its indexes is not missing."""
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
