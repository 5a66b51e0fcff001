"""Elections that a client requests, of a leader that need not be in sync too."""

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.image.partition_registration import NO_LEADER, RECOVERED, UNASSIGNED, PartitionRegistration
from kbroker.metadata.leaders import elected


def partition(leader: int, isr: tuple[int, ...], *replicas: int) -> PartitionRegistration:
    directories = (UNASSIGNED,) * len(replicas)
    return PartitionRegistration(replicas, directories, isr, (), (), leader, RECOVERED, 4, 7)


def refusal(before: PartitionRegistration, live: set[int], *, is_unclean: bool) -> Errors:
    with pytest.raises(KafkaError) as refused:
        elected(before, live, is_unclean=is_unclean)
    return refused.value.error


def test_an_unclean_election() -> None:
    """The first live replica leads; all live ones are in sync, as the nodes of a process have one log."""
    before = partition(NO_LEADER, (1,), 1, 2, 3)
    after = elected(before, {2, 3}, is_unclean=True)
    assert (after.leader, after.isr, after.replicas) == (2, (2, 3), (1, 2, 3))
    assert after.leader_recovery_state == RECOVERED
    assert refusal(before, set(), is_unclean=True) is Errors.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert refusal(partition(1, (1,), 1, 2), {1, 2}, is_unclean=True) is Errors.ELECTION_NOT_NEEDED


def test_a_preferred_election() -> None:
    """The first replica leads if it is live and in sync."""
    before = partition(2, (1, 2), 1, 2)
    after = elected(before, {1, 2}, is_unclean=False)
    assert (after.leader, after.isr) == (1, (1, 2))
    assert refusal(after, {1, 2}, is_unclean=False) is Errors.ELECTION_NOT_NEEDED
    assert refusal(before, {2}, is_unclean=False) is Errors.PREFERRED_LEADER_NOT_AVAILABLE
    assert refusal(partition(2, (2,), 1, 2), {1, 2}, is_unclean=False) is Errors.PREFERRED_LEADER_NOT_AVAILABLE
