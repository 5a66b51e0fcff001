"""Leaders, ISR and reassignments, compared with their rules under random moves, stops and starts of nodes."""

from hypothesis import example, given
from hypothesis import strategies as st

from kbroker.common.errors import KafkaError
from kbroker.metadata.image.partition_registration import NO_LEADER, UNASSIGNED, PartitionRegistration
from kbroker.metadata.leaders import elected, led_by, reassigned, settled

NODES = range(1, 6)
REPLICAS = st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True)
STEPS = st.one_of(
    st.tuples(st.just("stop"), st.sampled_from(NODES)),
    st.tuples(st.just("start"), st.sampled_from(NODES)),
    st.tuples(st.just("move"), st.sampled_from(NODES)),
    st.tuples(st.just("elect"), st.booleans()),
    st.tuples(st.just("reassign"), st.none() | REPLICAS),
)


def created(replicas: list[int]) -> PartitionRegistration:
    return PartitionRegistration(
        tuple(replicas), (UNASSIGNED,) * len(replicas), tuple(replicas), (), (), replicas[0], 0, 0, 0
    )


def after(partition: PartitionRegistration, step: tuple[str, object], live: set[int]) -> PartitionRegistration:
    """Return the state after a step, which also changes ``live``. A refused step changes nothing."""
    kind, value = step
    try:
        if kind == "move":
            return led_by(partition, value, live)  # type: ignore[arg-type]
        if kind == "elect":
            return elected(partition, live, is_unclean=value)  # type: ignore[arg-type]
        if kind == "reassign":
            return reassigned(partition, value, live)  # type: ignore[arg-type]
    except KafkaError:
        return partition
    (live.add if kind == "start" else live.discard)(value)  # type: ignore[arg-type]
    return settled(partition, live)


@given(REPLICAS, st.lists(STEPS, max_size=30))
@example([3], [("reassign", [1, 2]), ("stop", 1), ("reassign", [1, 2]), ("stop", 3), ("reassign", None)])
@example([3], [("stop", 1), ("reassign", [1, 2]), ("stop", 3), ("reassign", [4, 1])])
def test_the_leader_is_a_live_member_of_the_isr(replicas: list[int], steps: list[tuple[str, object]]) -> None:
    partition, live = created(replicas), set(NODES)
    for step in steps:
        before, partition = partition, after(partition, step, live)
        assert partition.isr, step
        assert set(partition.isr) <= set(partition.replicas) or partition.leader == NO_LEADER, step
        assert len(partition.directories) == len(partition.replicas)
        assert len(set(partition.replicas)) == len(partition.replicas)
        assert set(partition.adding_replicas) | set(partition.removing_replicas) <= set(partition.replicas)
        if partition.leader == NO_LEADER:
            assert not set(partition.isr) & live, step
        else:
            assert partition.leader in live, step
            assert partition.leader in partition.isr, step
            assert set(partition.isr) == set(partition.replicas) & live, step
        if step[0] in ("stop", "start") and not before.adding_replicas + before.removing_replicas:
            assert partition.leader in (NO_LEADER, *before.isr), step


@given(REPLICAS, REPLICAS, st.sets(st.sampled_from(NODES), min_size=1))
def test_a_reassignment_is_complete_once_its_nodes_are_live(
    replicas: list[int], wanted: list[int], stopped: set[int]
) -> None:
    live = set(NODES) - stopped
    partition = settled(created(replicas), live)
    moving = reassigned(partition, wanted, live)
    if partition.leader == NO_LEADER:
        return
    done = settled(moving, set(NODES))
    assert (done.replicas, done.adding_replicas, done.removing_replicas) == (tuple(wanted), (), ())
    assert set(done.isr) == set(wanted)
    if moving.adding_replicas or moving.removing_replicas:
        assert reassigned(moving, None, live).replicas == tuple(
            one for one in moving.replicas if one not in moving.adding_replicas
        )
