"""Power cut after a flush: aborted transactions below the recovery point are kept."""

from contextlib import closing
from pathlib import Path

import pytest

from kbroker.log.log_types import AbortedTransaction
from tests.support.closing import scope
from tests.support.log_files import batch, open_log
from tests.support.power_cut import Disk, mounted

PID = 7


@pytest.mark.slow
def test_transaction_index_is_on_disk_with_the_log(tmp_path: Path) -> None:
    """The transaction index is synced with the log, as markers below the recovery point are not read again."""
    with closing(Disk(tmp_path)) as disk, scope():  # a log keeps its files open until it is freed
        log = open_log(disk.folder / "t-0")
        for sequence in range(3):
            error, guard = log.start_verification(PID, 0, sequence)
            assert error == 0
            data = batch(b"v", producer_id=PID, producer_epoch=0, base_sequence=sequence, transactional=True)
            assert log.append(data, verification_guard=guard).error == 0
            assert log.append_end_marker(PID, 0, 0, False).error == 0
            log.roll()
        recovery_point = log.flush()
        image = disk.cut()
        log.close(clean=False)
        del log, data
    with mounted(image) as folder, scope():
        log = open_log(folder / "t-0", clean=False, recovery_point=recovery_point)
        found = [log.read(offset, isolation=1).aborted for offset in (0, 2, 4)]
        log.close(clean=False)
        del log
    assert recovery_point == 6
    assert found == [[AbortedTransaction(PID, first, first + 1, first + 2)] for first in (0, 2, 4)]
