"""Offsets of consumer groups: commits and fetches by member and epoch, deletion and expiration."""

from kbroker.common.errors import Errors
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.internal_topic import TransactionalProducer
from tests.support.consumer_groups import ConsumerGroupBench
from tests.support.errors import error_of
from tests.support.fake_image import FakeImage

DAY_MS = 24 * 3600 * 1000


def commit(
    bench: ConsumerGroupBench, member_id: str, epoch: int, *partitions: int, version: int = 9, topic: str = "t"
) -> Errors:
    now_ms = bench.clock.wall_ms()
    offsets = {(topic, one): CommittedOffset(1, -1, "", now_ms) for one in partitions}
    return error_of(bench.coordinator.offsets.commit, "g", member_id, None, epoch, offsets, version)


def commit_transactional(bench: ConsumerGroupBench, member_id: str, epoch: int, partition: int) -> Errors:
    producer = TransactionalProducer(1, 0)
    offsets = {("t", partition): CommittedOffset(1, -1, "", bench.clock.wall_ms())}
    commit_offsets = bench.coordinator.offsets.commit_transactional
    return error_of(commit_offsets, "g", member_id, None, epoch, producer, offsets)


def test_an_older_epoch_is_good_for_partitions_it_had_then(bench: ConsumerGroupBench) -> None:
    bench.join("a")
    bench.join("b")
    bench.beat("a", 2)
    bench.beat("a", 2, has={"t": [0, 1]})
    bench.beat("b", 3)
    assert commit(bench, "a", 2, 0, 1) is Errors.NONE  # the member owns the partition since epoch 2
    assert commit(bench, "a", 1, 0) is Errors.STALE_MEMBER_EPOCH
    assert commit(bench, "a", 2, 0, 2) is Errors.STALE_MEMBER_EPOCH  # epoch 2 is before the current ownership
    assert commit(bench, "b", 2, 2) is Errors.STALE_MEMBER_EPOCH  # the member owns the partition since epoch 3
    assert commit(bench, "b", 3, 2) is Errors.NONE


def test_a_member_may_commit_what_it_is_giving_up(bench: ConsumerGroupBench) -> None:
    bench.join("a")
    bench.join("b")
    bench.beat("a", 2)
    assert commit(bench, "a", 2, 2, 3) is Errors.NONE


def test_transactional_commits_have_codes_that_producers_know(bench: ConsumerGroupBench) -> None:
    bench.join("a")
    assert commit_transactional(bench, "a", 2, 0) is Errors.NONE
    assert commit_transactional(bench, "", -1, 0) is Errors.NONE
    assert commit_transactional(bench, "", -2, 0) is Errors.UNKNOWN_MEMBER_ID
    assert commit_transactional(bench, "a", 3, 0) is Errors.ILLEGAL_GENERATION
    assert commit_transactional(bench, "a", 1, 0) is Errors.ILLEGAL_GENERATION
    assert commit_transactional(bench, "x", 2, 0) is Errors.UNKNOWN_MEMBER_ID


def test_deleting_offsets_and_groups() -> None:
    bench = ConsumerGroupBench(FakeImage(t=1, u=1))
    bench.join("a", ["t"])
    commit(bench, "a", 2, 0)
    commit(bench, "a", 2, 0, topic="u")
    found = bench.coordinator.offsets.delete("g", [("t", 0), ("u", 0)])
    assert found == {("t", 0): Errors.GROUP_SUBSCRIBED_TO_TOPIC, ("u", 0): Errors.NONE}
    assert error_of(bench.coordinator.delete, "g") is Errors.NON_EMPTY_GROUP
    bench.beat("a", -1)
    bench.coordinator.delete("g")
    assert bench.restart().coordinator.list_groups() == []


def test_offsets_of_topics_that_nobody_wants_expire() -> None:
    bench = ConsumerGroupBench(FakeImage(t=1, u=1))
    bench.join("a", ["t"])
    commit(bench, "a", 2, 0)
    commit(bench, "a", 2, 0, topic="u")
    bench.clock.advance_ms(7 * DAY_MS)
    bench.beat("a", 2)
    assert bench.coordinator.offsets.expire() == 1
    assert list(bench.coordinator.offsets.fetch("g", None, False).committed) == [("t", 0)]
