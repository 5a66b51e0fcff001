"""Elections that a client requests, including unclean ones, and reassignments."""

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.image.partition_registration import NO_LEADER, RECOVERED, UNASSIGNED, PartitionRegistration
from kbroker.metadata.leaders import elected, reassigned, settled


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


def test_a_reassignment_ends_only_with_a_member_of_the_isr() -> None:
    """Without one it cannot be cancelled, and another reassignment keeps the members until its replicas are in sync."""
    moving = settled(reassigned(partition(3, (3,), 3), [1, 2], {2, 3}), {2})
    assert (moving.replicas, moving.isr, moving.leader) == ((1, 2, 3), (2,), 2)
    with pytest.raises(KafkaError, match=r"original replicas \[3\] is in the ISR \[2\]") as refused:
        reassigned(moving, None, {2})
    assert refused.value.error is Errors.INVALID_REPLICA_ASSIGNMENT
    again = reassigned(moving, [4, 1], {2, 4})
    assert (again.replicas, again.adding_replicas, again.removing_replicas) == ((4, 1, 2, 3), (4,), (2, 3))
    assert (again.isr, again.leader) == ((2, 4), 2)
    done = settled(again, {1, 2, 4})
    assert (done.replicas, done.isr, done.leader) == ((4, 1), (4, 1), 4)
