"""Leader epochs: the end offset of each, as in the responses to OffsetForLeaderEpoch and Fetch."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker.common.errors import Errors
from kbroker.log._partition_log import PartitionLog
from tests.native import append_lock
from tests.support.log_files import batch, open_log


def of_epochs(latest: int) -> PartitionLog:
    """Return a log with records of the epochs 2, from offset 0, and 4, from offset 20, that ends at 40."""
    log = open_log(None, in_memory=True, leader_epoch=2)
    for epoch in (2, 4):
        log.set_leader_epoch(epoch)
        assert log.append(batch(*[b"v"] * 20)).error == 0
    log.set_leader_epoch(latest)
    return log


@pytest.mark.parametrize(
    ("wanted", "response"),
    [
        (-2, (-2, 0)), (-1, (-1, -1)), (0, (0, 0)), (1, (1, 0)),
        (2, (2, 20)), (3, (2, 20)), (4, (4, 40)), (5, (-1, -1)),
    ],
)  # fmt: skip
def test_end_of_an_epoch(wanted: int, response: tuple[int, int]) -> None:
    """The largest epoch at or below the requested epoch ends where the next begins; the leader's ends with the log."""
    assert of_epochs(4).end_of_epoch(wanted) == response


@pytest.mark.parametrize(
    ("wanted", "response"), [(0, (0, 0)), (3, (2, 20)), (4, (4, 40)), (5, (4, 40)), (6, (6, 40)), (7, (-1, -1))]
)
def test_end_of_an_epoch_before_the_leader_has_written(wanted: int, response: tuple[int, int]) -> None:
    """Epochs with records end where the leader's epoch, still without records, begins: an election loses no record."""
    assert of_epochs(6).end_of_epoch(wanted) == response


def test_an_empty_log() -> None:
    """The leader's epoch of a log without records ends at its start."""
    log = open_log(None, in_memory=True, leader_epoch=2)
    assert [log.end_of_epoch(wanted) for wanted in (0, 1, 2, 3)] == [(0, 0), (1, 0), (2, 0), (-1, -1)]


@pytest.mark.parametrize(("log_start", "first", "second"), [(10, (2, 20), (4, 40)), (30, (2, 30), (4, 40))])
def test_ends_after_the_log_start(log_start: int, first: tuple[int, int], second: tuple[int, int]) -> None:
    """Epochs of deleted records are forgotten: no end is before the log start."""
    log = of_epochs(4)
    log.delete_records(log_start)
    assert (log.end_of_epoch(2), log.end_of_epoch(4)) == (first, second)


def test_a_slow_append_holds_no_question_up() -> None:
    """Ends of epochs are found while a slow append holds the append lock, since Fetch needs them in network threads."""
    log = of_epochs(4)
    append_lock.hold(log)
    with ThreadPoolExecutor(1) as pool:
        try:
            for wanted, response in ((2, (2, 20)), (3, (2, 20)), (4, (4, 40))):
                assert pool.submit(log.end_of_epoch, wanted).result(10) == response
            assert pool.submit(log.leader_epochs).result(10) == [(2, 0), (4, 20)]
        finally:
            append_lock.release(log)


def test_ends_while_epochs_begin() -> None:
    """While a writer begins epochs, each earlier epoch ends where its successor begins, and no later."""
    log = open_log(None, in_memory=True)
    last = 200

    def write() -> None:
        for epoch in range(last + 1):
            log.set_leader_epoch(epoch)
            assert log.append(batch(b"v")).error == 0

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        wanted = 0
        while wanted < last:
            has_ended = log.log_end_offset > wanted + 1
            found = log.end_of_epoch(wanted)
            if has_ended:
                assert found == (wanted, wanted + 1)
                wanted += 1
            else:
                assert found in ((-1, -1), (wanted, wanted), (wanted, wanted + 1))
                assert not written.done() or written.result() is None
        written.result(10)
    assert len(log.leader_epochs()) == last + 1


def test_an_epoch_whose_file_is_not_written_is_forgotten(tmp_path: Path) -> None:
    """An append that cannot write the epoch checkpoint fails, and its epoch does not begin."""
    log = open_log(tmp_path / "t-0", leader_epoch=2)
    assert log.append(batch(b"v")).error == 0
    log.set_leader_epoch(3)
    checkpoint = tmp_path / "t-0" / "leader-epoch-checkpoint"
    checkpoint.unlink()
    checkpoint.mkdir()
    assert log.append(batch(b"v")).error == Errors.KAFKA_STORAGE_ERROR
    assert log.leader_epochs() == [(2, 0)]
    checkpoint.rmdir()
    assert log.append(batch(b"v")).error == 0
    assert log.leader_epochs() == [(2, 0), (3, 1)]
