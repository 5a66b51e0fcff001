"""Leader epochs: where the records of each end, which OffsetForLeaderEpoch and Fetch respond."""

import pytest

from kbroker.log._partition_log import PartitionLog
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
