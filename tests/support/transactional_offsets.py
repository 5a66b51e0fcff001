"""Groups with offsets committed in transactions, for tests of the group coordinator."""

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.group_coordinator import GroupSettings
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.internal_topic import EndMarker, TransactionalProducer
from tests.support.groups import Groups, MemoryTopic

PLACE, OTHER = ("t", 0), ("u", 1)
ONE, TWO = TransactionalProducer(1, 0), TransactionalProducer(2, 0)
DAY_MS = 24 * 3600 * 1000


def single(clock: VirtualClock | None = None, **settings: int) -> Groups:
    """Return groups over one partition."""
    clock = clock or VirtualClock()
    known = GroupSettings(initial_rebalance_delay_ms=0, **settings)  # type: ignore[arg-type]  # settings that are numbers
    return Groups(known, clock, MemoryTopic(clock, 1))


def commit(groups: Groups, offset: int, *, group: str = "g", place: TopicPartition = PLACE) -> None:
    value = CommittedOffset(offset, -1, "", groups.clock.wall_ms())
    groups.coordinator.offsets.commit(group, "", None, -1, {place: value})


def add(
    groups: Groups,
    offset: int,
    *,
    by: TransactionalProducer = ONE,
    group: str = "g",
    place: TopicPartition = PLACE,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
) -> None:
    value = CommittedOffset(offset, -1, "", groups.clock.wall_ms())
    groups.coordinator.offsets.commit_transactional(group, member, instance, generation, by, {place: value})


def end(groups: Groups, *, by: TransactionalProducer = ONE, commit: bool = True, group: str = "g") -> Errors:
    return complete(groups, groups.coordinator.runtime.index_of(group), by, commit=commit)


def complete(groups: Groups, index: int, by: TransactionalProducer = ONE, *, commit: bool = True) -> Errors:
    try:
        groups.coordinator.offsets.complete_transaction(
            index, EndMarker(by.producer_id, by.producer_epoch, 0, commit, 0)
        )
    except KafkaError as error:
        return error.error
    return Errors.NONE


def committed(groups: Groups, group: str = "g") -> dict[tuple[str, int], int]:
    return {place: one.offset for place, one in groups.coordinator.offsets.fetch(group).committed.items()}


def unstable(groups: Groups, *places: tuple[str, int], group: str = "g") -> set[tuple[str, int]]:
    return set(groups.coordinator.offsets.fetch(group, places or None, True).unstable)
