"""Members of consumer groups on a virtual clock: epochs, reconciliation, fencing, static members and timeouts."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.consumer_group import target_assignment
from kbroker.coordinator.consumer_group.assignors.group_spec import GroupSpec
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.member import Target
from kbroker.coordinator.consumer_group.membership import HeartbeatRequest
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.group_coordinator import GroupSettings
from kbroker.coordinator.group_shard import GroupShard
from kbroker.coordinator.modern_group import timers
from kbroker.coordinator.modern_group.membership import TOPICS_REFRESH_MS
from kbroker.coordinator.modern_group.settings import Limits
from kbroker.coordinator.modern_group.topics_image import TopicMetadata
from tests.support.consumer_groups import AT_ONCE, Beat, ConsumerGroupBench
from tests.support.errors import raising
from tests.support.fake_image import FakeImage


def stable_pair(bench: ConsumerGroupBench) -> tuple[int, int]:
    """Join members a and b, with two partitions each, and return their epochs."""
    bench.join("a")
    bench.join("b")
    bench.beat("a", 2)
    bench.beat("a", 2, has={"t": [0, 1]})
    assert bench.beat("b", 3, has={}).has == {"t": [2, 3]}
    assert bench.described().state.value == "Stable"
    return 3, 3


def test_the_assignment_interval_delays_the_target_and_not_the_member() -> None:
    bench = ConsumerGroupBench(settings=ConsumerGroupSettings())
    bench.join("a")
    assert bench.join("b") == Beat("b", 2, {})
    assert bench.epochs() == (3, 2)
    bench.after(999)
    bench.beat("a", 2)
    assert bench.epochs() == (3, 2)
    bench.after(1)
    assert bench.beat("a", 2) == Beat("a", 2, {"t": [0, 1]})
    assert bench.epochs() == (3, 3)


def test_the_topics_of_a_group_are_read_once_for_all_members_that_join() -> None:
    class CountingImage(FakeImage):
        reads = 0

        def get(self, name: str) -> TopicMetadata | None:
            self.reads += 1
            return super().get(name)

    image = CountingImage(t=4, u=4)
    bench = ConsumerGroupBench(image, ConsumerGroupSettings())
    for number in range(100):
        bench.join(f"member-{number}", ["t", "u"])
    assert bench.epochs() == (101, 2)
    assert image.reads <= 6  # once for the hash, and once for the target assignment
    image.grow("u", 5)
    bench.after(1000)
    bench.beat("member-0", 2)
    assert bench.epochs() == (102, 102)  # the grown topic was read again


def test_topics_are_read_again_after_an_hour_and_not_before(bench: ConsumerGroupBench) -> None:
    """The topics are read again although the image reports no change."""
    bench.join("a")
    version = bench.image.version
    bench.image.grow("t", 5)
    bench.image.version = version
    bench.clock.advance_ms(TOPICS_REFRESH_MS - 1)
    assert bench.beat("a", 2) == Beat("a", 2, None)
    bench.clock.advance_ms(1)
    assert bench.beat("a", 2) == Beat("a", 3, {"t": [0, 1, 2, 3, 4]})


def test_epochs_that_do_not_fit_are_fenced(bench: ConsumerGroupBench) -> None:
    stable_pair(bench)
    assert bench.refused("a", 4) is Errors.FENCED_MEMBER_EPOCH
    assert bench.refused("a", 1) is Errors.FENCED_MEMBER_EPOCH
    assert bench.refused("a", 2) is Errors.FENCED_MEMBER_EPOCH  # the previous epoch without the owned partitions
    assert bench.refused("a", 2, has={"t": [0, 3]}) is Errors.FENCED_MEMBER_EPOCH
    assert bench.beat("a", 2, has={"t": [0]}) == Beat("a", 3, None)  # repeats the request of a lost response
    assert bench.refused("x", 3) is Errors.UNKNOWN_MEMBER_ID
    assert bench.refused("a", 3, group="other") is Errors.GROUP_ID_NOT_FOUND


def test_a_fenced_member_joins_again_and_keeps_its_place(bench: ConsumerGroupBench) -> None:
    stable_pair(bench)
    assert bench.join("a") == Beat("a", 3, {"t": [0, 1]})
    assert bench.epochs() == (3, 3)


def test_a_session_ends_after_its_time_and_not_before(bench: ConsumerGroupBench) -> None:
    stable_pair(bench)
    bench.after(30_000)
    bench.beat("b", 3)
    bench.after(14_900)
    assert len(bench.described().members) == 2
    bench.after(100)
    assert [one.member.member_id for one in bench.described().members] == ["b"]
    assert bench.refused("a", 3) is Errors.UNKNOWN_MEMBER_ID
    assert bench.beat("b", 3) == Beat("b", 4, {"t": [0, 1, 2, 3]})


def test_heartbeats_move_the_end_of_a_session_and_nothing_else() -> None:
    """A session ends a timeout after the last heartbeat; a shorter timeout of the group applies from the next one."""
    configs: dict[str, str] = {}
    settings = replace(AT_ONCE, session_timeout=Limits(45_000, 1000, 60_000), group_configs=lambda group_id: configs)
    bench = ConsumerGroupBench(settings=settings)
    epoch = bench.join("a").epoch
    for _ in range(5):
        bench.after(10_000)
        assert bench.beat("a", epoch) == Beat("a", epoch, None)
    bench.after(44_999)
    assert bench.described().members
    configs["consumer.session.timeout.ms"] = "2000"
    assert bench.beat("a", epoch) == Beat("a", epoch, None)
    bench.after(1999)
    assert bench.described().members
    bench.after(1)
    assert not bench.described().members
    assert bench.refused("a", epoch) is Errors.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("timeout_ms", [-1, 60_000])
def test_a_heartbeat_that_says_nothing_new_costs_no_record(bench: ConsumerGroupBench, timeout_ms: int) -> None:
    """A short or full heartbeat without a change writes no record; a changed client host or client id is written."""
    epoch = bench.join("a").epoch
    assert bench.topic is not None
    before = bench.topic.record_count
    bench.beat("a", epoch, timeout_ms=timeout_ms)
    assert bench.topic.record_count == before
    request = HeartbeatRequest("g", "a", epoch, client_id="client", client_host="/elsewhere")
    bench.coordinator.consumer_groups.heartbeat(request)
    assert bench.described().members[0].member.client_host == "/elsewhere"
    with pytest.raises(KafkaError) as refused:
        bench.coordinator.consumer_groups.heartbeat(request._replace(instance_id="not mine"))
    assert refused.value.error is Errors.UNKNOWN_MEMBER_ID


def test_the_last_session_leaves_an_empty_group_that_expires(bench: ConsumerGroupBench) -> None:
    bench.join("a")
    bench.after(44_900)
    assert bench.described().members
    bench.after(100)
    assert bench.described().state.value == "Empty"
    assert bench.epochs() == (3, 2)
    bench.coordinator.offsets.expire()
    with pytest.raises(KafkaError, match="not found"):
        bench.described()
    with pytest.raises(KafkaError, match="not found"):
        bench.restart().described()


def test_a_member_that_keeps_what_it_should_give_up_is_removed(bench: ConsumerGroupBench) -> None:
    bench.join("a", timeout_ms=10_000)
    bench.join("b")
    bench.beat("a", 2, has={"t": [0, 1, 2, 3]})
    bench.after(9900)
    assert bench.refused("a", 2, has={"t": [0, 1, 2, 3]}) is Errors.NONE
    bench.after(100)
    assert bench.refused("a", 2) is Errors.UNKNOWN_MEMBER_ID
    assert bench.beat("b", 3) == Beat("b", 4, {"t": [0, 1, 2, 3]})


def test_giving_up_in_time_ends_the_rebalance_time_out(bench: ConsumerGroupBench) -> None:
    bench.join("a", timeout_ms=10_000)
    bench.join("b")
    bench.beat("a", 2, has={"t": [0, 1, 2, 3]})
    bench.after(5000)
    assert bench.beat("a", 2, has={"t": [0, 1]}) == Beat("a", 3, None)
    bench.after(20_000)
    assert bench.refused("a", 3) is Errors.NONE


def test_a_group_has_room_for_its_members_only() -> None:
    bench = ConsumerGroupBench(settings=replace(AT_ONCE, max_size=1))
    bench.join("a")
    with pytest.raises(KafkaError, match="maximum capacity of 1 members"):
        bench.join("b")
    assert bench.join("a").epoch == 2


def test_a_refused_join_leaves_no_group(bench: ConsumerGroupBench) -> None:
    with pytest.raises(KafkaError):
        bench.join("a", regex="(")
    assert bench.coordinator.list_groups() == []


# ------------------------------------------------------------ subscriptions and topics


def test_another_subscription_takes_partitions_away_at_once() -> None:
    bench = ConsumerGroupBench(FakeImage(t=2, u=2))
    bench.join("a", ["t", "u"])
    assert bench.beat("a", 2, topics=["u"], has={"t": [0, 1], "u": [0, 1]}) == Beat("a", 2, {"u": [0, 1]})
    assert bench.beat("a", 2, has={"u": [0, 1]}) == Beat("a", 3, None)


def test_an_unsubscribed_topic_is_given_up_before_the_target_follows() -> None:
    """The partitions of the topic are revoked at once, although the interval delays the target assignment."""
    bench = ConsumerGroupBench(FakeImage(t=2, u=2), ConsumerGroupSettings())
    bench.join("a", ["t", "u"])
    beat = bench.beat("a", 2, topics=["u"], has={"t": [0, 1], "u": [0, 1]})
    assert (beat.epoch, beat.has) == (2, {"u": [0, 1]})
    assert bench.epochs() == (3, 2)


def test_a_topic_that_grows_is_assigned_with_the_next_heartbeat(bench: ConsumerGroupBench) -> None:
    bench.join("a")
    bench.image.grow("t", 6)
    assert bench.beat("a", 2) == Beat("a", 3, {"t": [0, 1, 2, 3, 4, 5]})


def test_a_topic_that_is_created_later_is_assigned() -> None:
    bench = ConsumerGroupBench(FakeImage())
    assert bench.join("a", ["later"]) == Beat("a", 2, {})
    bench.image.create("other", 1)
    assert bench.beat("a", 2) == Beat("a", 2, None)  # a topic without a subscription
    bench.image.create("later", 2)
    assert bench.beat("a", 2) == Beat("a", 3, {"later": [0, 1]})


def test_a_deleted_topic_leaves_the_assignment() -> None:
    bench = ConsumerGroupBench(FakeImage(t=1, u=1))
    bench.join("a", ["t", "u"])
    bench.image.delete("t")
    beat = bench.beat("a", 2, has={"u": [0]})
    assert (beat.epoch, beat.has) == (3, {"u": [0]})


def test_a_topic_made_again_is_another_topic(bench: ConsumerGroupBench) -> None:
    bench.join("a")
    bench.image.delete("t")
    bench.image.create("t", 1)
    bench.beat("a", 2, has={})
    found = bench.described().members[0].owned
    assert {topic_id: sorted(some) for topic_id, some in found.items()} == {bench.image.id("t"): [0]}


# ------------------------------------------------------------ static members


def test_a_static_member_that_stays_away_is_removed(bench: ConsumerGroupBench) -> None:
    bench.join("a", instance="i")
    bench.join("b")
    bench.beat("a", -2, instance="i")
    bench.after(30_000)
    bench.beat("b", 3)
    bench.after(15_000)
    assert [one.member.member_id for one in bench.described().members] == ["b"]
    assert bench.beat("b", 3).epoch == 4


@pytest.mark.parametrize(
    ("assignors", "targets"),
    [
        (["uniform", "range"], {"a": [2], "b": [0, 1]}),
        (["range", "uniform"], {"a": [0, 1], "b": [2]}),
        (["uniform", "range", None], {"a": [2], "b": [0], "c": [1]}),
        (["range", "uniform", None], {"a": [0], "b": [2], "c": [1]}),
        (["uniform", "range", "uniform", "range"], {"a": [2], "b": [0], "c": [1]}),
        (["range", "uniform", "range", "uniform"], {"a": [1], "b": [0], "c": [2]}),
    ],
)
def test_between_assignors_with_equally_many_members_the_added_one_counts(
    assignors: list[str | None], targets: dict[str, list[int]]
) -> None:
    """The target assignments are those of Kafka 4.3.1, in whose hash map the assignor that a change adds is first."""
    bench = ConsumerGroupBench(FakeImage(t=3))
    for name, assignor in zip("abcd", assignors, strict=False):
        bench.join(name, assignor=assignor, instance="i" if name == "b" else None)
    assert {name: target["t"] for name, target in bench.targets().items() if target} == targets


# ------------------------------------------------------------ restarts, partitions


def test_everything_is_there_after_a_restart() -> None:
    bench = ConsumerGroupBench(FakeImage(t=4, u=2))
    bench.join("a", ["t", "u"], rack="r", assignor="range")
    bench.join("b", instance="i")
    bench.beat("a", 2, has={"t": [0, 1, 2, 3], "u": [0, 1]})
    again = bench.restart()
    assert again.described() == bench.described()
    assert again.beat("a", 2, has={"t": [0, 1], "u": [0, 1]}) == bench.beat("a", 2, has={"t": [0, 1], "u": [0, 1]})


def test_loaded_members_have_a_session_and_a_rebalance_time_out(bench: ConsumerGroupBench) -> None:
    bench.join("a", timeout_ms=10_000)
    bench.join("b")
    bench.beat("a", 2, has={"t": [0, 1, 2, 3]})
    again = bench.restart()
    again.after(10_000)
    assert again.refused("a", 2) is Errors.UNKNOWN_MEMBER_ID
    again.after(35_000)
    assert again.described().state.value == "Empty"


def test_an_unloaded_partition_has_no_groups_until_it_is_loaded(bench: ConsumerGroupBench) -> None:
    stable_pair(bench)
    before = bench.described()
    index = bench.coordinator.runtime.index_of("g")
    bench.coordinator.runtime.unload(index, 5)
    assert bench.refused("a", 3) is Errors.NOT_COORDINATOR
    bench.after(60_000)
    bench.coordinator.runtime.load(index, 6)
    assert bench.described() == before
    assert bench.beat("a", 3) == Beat("a", 3, None)


def test_a_heartbeat_that_cannot_be_written_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ConsumerGroupBench()
    stable_pair(bench)
    before = bench.described()
    with monkeypatch.context() as patch:
        patch.setattr(GroupShard, "append", raising(KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)))
        assert bench.refused("c", 0, has={}, topics=["t"], timeout_ms=1000) is Errors.COORDINATOR_NOT_AVAILABLE
        assert bench.refused("a", -1) is Errors.COORDINATOR_NOT_AVAILABLE
        assert bench.described() == before
    assert bench.beat("a", 3) == Beat("a", 3, None)


def test_groups_settings_of_their_own_count_within_the_bounds() -> None:
    configs = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "99999"}
    settings = ConsumerGroupSettings(
        assignment_interval=Limits(0, 0, 15_000), group_configs=lambda group_id: configs if group_id == "g" else {}
    )
    bench = ConsumerGroupBench(settings=settings)
    assert settings.heartbeat_interval_ms("g") == 15_000
    bench.join("a")
    bench.join("a", group="h")
    bench.after(49_900)
    assert bench.described("h").state.value == "Empty"
    assert bench.described("g").state.value == "Stable"
    bench.after(100)
    assert bench.described("g").state.value == "Empty"


def test_defaults_are_kafkas() -> None:
    consumer = GroupSettings().consumer
    assert consumer == ConsumerGroupSettings(
        session_timeout=Limits(45_000, 45_000, 60_000),
        heartbeat_interval=Limits(5000, 5000, 15_000),
        assignment_interval=Limits(1000, 0, 15_000),
        assignors=("uniform", "range"),
        migration_policy="bidirectional",
        regex_refresh_interval_ms=600_000,
    )


def test_members_that_want_the_same_share_their_names() -> None:
    """Members share topic names, even after a restart: copies for ten thousand members of fifty topics take 180 MiB."""
    bench = ConsumerGroupBench(FakeImage(t=1, u=1))
    for member_id in ("a", "b"):
        bench.join(member_id, ["t", "u"])
    for one in (bench, bench.restart()):
        a, b = (found.member for found in one.described().members)
        assert a.topic_names is b.topic_names


def test_a_clock_that_is_set_back_holds_no_assignment_up() -> None:
    """A target assignment or resolved expression from the future counts as an old one."""
    image = FakeImage(foo=2)
    bench = ConsumerGroupBench(image, ConsumerGroupSettings())
    bench.join("a", regex="f.*")
    bench.after(1000)
    assert bench.beat("a", 1).has == {"foo": [0, 1]}
    image.create("fool", 1)
    yesterday = VirtualClock(start_epoch_ms=bench.clock.wall_ms() - 86_400_000)
    again = ConsumerGroupBench(image, bench.settings, clock=yesterday, topic=bench.topic)
    epoch = again.beat("a", bench.epochs()[1]).epoch
    again.after(2000)
    assert again.beat("a", epoch).has == {"foo": [0, 1], "fool": [0]}


def test_a_member_that_becomes_static_keeps_its_partitions(bench: ConsumerGroupBench) -> None:
    """A member that joins again with other topics and with its first instance id keeps its target assignment."""
    bench.join("a")
    assert bench.join("a", ["t", "absent"], instance="i").has == {"t": [0, 1, 2, 3]}


def test_a_static_member_that_takes_another_instance_id_releases_its_own(bench: ConsumerGroupBench) -> None:
    """Another member may take the id that is free, as it may after a restart."""
    bench.join("a", instance="i")
    bench.join("a", instance="j")
    assert bench.refused("b", 0, has={}, topics=["t"], timeout_ms=60_000, instance="j") is Errors.UNRELEASED_INSTANCE_ID
    assert bench.join("b", instance="i").member_id == "b"


def test_a_static_member_that_returns_with_other_topics_keeps_its_partitions(bench: ConsumerGroupBench) -> None:
    """A new target assignment, which its topics require, begins with that of the member whose place it takes."""
    bench.join("a", instance="i")
    bench.beat("a", -2, instance="i")
    assert bench.join("b", ["t", "absent"], instance="i").has == {"t": [0, 1, 2, 3]}


@pytest.mark.parametrize("epoch", [-1, -2])
def test_a_member_that_is_removed_leaves_no_time_out(bench: ConsumerGroupBench, epoch: int) -> None:
    """A member that leaves, and a static member whose place is taken, have no time-out left."""
    bench.join("a", instance="i")
    bench.beat("a", epoch, instance="i")
    bench.join("b", instance="i")
    group = bench.coordinator._groups.find("g")
    assert isinstance(group, ConsumerGroup)
    assert list(group.timers) == [(timers.SESSION, "b")]


def test_a_slow_assignment_is_followed_by_a_pause(bench: ConsumerGroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an interval of 0, the second slow assignment is followed by a pause, which limits the cost of many joins."""
    uniform, made = target_assignment.ASSIGNORS["uniform"], []

    def slow(group: GroupSpec) -> Mapping[str, Target]:
        made.append(len(group.members))
        bench.clock.advance_ms(5 * len(group.members))
        return uniform(group)

    monkeypatch.setattr(target_assignment, "ASSIGNORS", {"uniform": slow})
    epochs = [bench.join(name).epoch for name in "abcdefgh"]
    assert made == [1, 2, 3, 4, 5, 6], "the fifth takes 25 ms"
    bench.after(69)  # 99 ms since the sixth began
    bench.beat("h", epochs[-1])
    assert made == [1, 2, 3, 4, 5, 6]
    bench.after(1)
    bench.beat("h", epochs[-1])
    assert made == [1, 2, 3, 4, 5, 6, 8]
