"""Members of streams groups on a virtual clock: epochs, tasks, statuses, fencing, timeouts and replay."""

from dataclasses import replace

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.group_shard import GroupShard
from kbroker.coordinator.modern_group.settings import Limits
from kbroker.coordinator.streams_group.internal_topics import Status
from tests.support.errors import error_of, raising
from tests.support.fake_image import FakeImage
from tests.support.fixtures import fixture_of
from tests.support.groups import RANGE
from tests.support.streams_groups import AT_ONCE, Beat, StreamsGroupBench, subtopology, topic, topology

STANDBY = replace(AT_ONCE, standby_replicas=Limits(1, 0, 2))


def stateful(bench: StreamsGroupBench) -> None:
    """Give the group a subtopology with an existing changelog topic."""
    bench.image.create("changelog", 4)


SHAPE = topology(subtopology(changelogs=["changelog"]))


bench = fixture_of(StreamsGroupBench)


def test_a_member_gets_all_tasks_and_shares_them_with_the_next(bench: StreamsGroupBench) -> None:
    assert bench.join("a") == Beat(2, {"0": [0, 1, 2, 3]}, {})
    assert (bench.state(), bench.epochs()) == ("Stable", (2, 2))
    assert bench.join("b") == Beat(3, {}, {})
    assert bench.state() == "Reconciling"
    assert bench.beat("a", 2) == Beat(2, {"0": [0, 1]}, {})
    assert bench.beat("a", 2, active={"0": [0, 1, 2, 3]}) == Beat(2, None)
    assert bench.beat("a", 2, active={"0": [0, 1]}) == Beat(3, None)
    assert bench.beat("b", 3) == Beat(3, {"0": [2, 3]}, {})
    assert bench.state() == "Stable"
    assert bench.beat("b", 3) == Beat(3, None)


def test_an_even_spread_over_processes_and_their_members() -> None:
    bench = StreamsGroupBench(FakeImage(t=6))
    bench.join("a1", process="a")
    bench.join("a2", process="a")
    bench.join("b", process="b")
    target = {one.member.member_id: len(one.target.active.get("0", ())) for one in bench.described().members}
    assert target == {"a1": 2, "a2": 2, "b": 2}


def test_standby_tasks_are_on_another_process() -> None:
    bench = StreamsGroupBench(settings=STANDBY)
    stateful(bench)
    assert bench.join("a", SHAPE) == Beat(2, {"0": [0, 1, 2, 3]}, {})
    assert bench.join("b", SHAPE) == Beat(3, {}, {"0": [0, 1]})
    bench.beat("a", 2)
    assert bench.beat("a", 2, active={"0": [0, 1]}) == Beat(3, None)
    assert bench.beat("b", 3) == Beat(3, {"0": [2, 3]}, {"0": [0, 1]})
    assert bench.beat("a", 3) == Beat(3, {"0": [0, 1]}, {"0": [2, 3]})
    assert bench.state() == "Stable"
    bench.beat("b", -1)
    assert bench.beat("a", 3) == Beat(3, {"0": [0, 1]}, {})  # the member's standby tasks become active
    assert bench.beat("a", 3, active={"0": [0, 1]}) == Beat(4, None)
    assert bench.beat("a", 4) == Beat(4, {"0": [0, 1, 2, 3]}, {})


def test_a_new_number_of_standby_tasks_makes_a_new_assignment() -> None:
    configs: dict[str, str] = {}
    bench = StreamsGroupBench(settings=replace(AT_ONCE, group_configs=lambda group_id: configs))
    stateful(bench)
    for name in ("a", "b"):
        bench.join(name, SHAPE)
    bench.beat("a", 2, active={"0": [0, 1]})
    bench.beat("b", 3)
    configs["streams.num.standby.replicas"] = "5"  # limited to the broker's maximum, 2
    assert bench.beat("a", 3) == Beat(4, {"0": [0, 1]}, {"0": [2, 3]})
    assert bench.epochs() == (4, 4)


def test_the_first_assignment_waits_for_more_members() -> None:
    delayed = replace(AT_ONCE, initial_rebalance_delay=Limits(3000, 0, 15_000))
    bench = StreamsGroupBench(settings=delayed)
    assert bench.join("a") == Beat(1, {}, {}, [Status.ASSIGNMENT_DELAYED])
    bench.after(2999)
    assert bench.join("b") == Beat(1, {}, {}, [Status.ASSIGNMENT_DELAYED])
    assert bench.state() == "Assigning"
    bench.after(1)
    assert bench.epochs() == (3, 3)
    assert bench.beat("a", 1) == Beat(3, {"0": [1, 3]}, {})
    assert bench.beat("b", 1) == Beat(3, {"0": [0, 2]}, {})
    bench.beat("a", -1)
    bench.beat("b", -1)
    assert bench.join("c").statuses == [Status.ASSIGNMENT_DELAYED]


def test_the_assignment_interval_delays_the_target() -> None:
    bench = StreamsGroupBench(settings=replace(AT_ONCE, assignment_interval=Limits(1000, 0, 15_000)))
    bench.join("a")
    assert bench.join("b") == Beat(2, {}, {}, [Status.ASSIGNMENT_DELAYED])
    bench.after(1000)
    assert bench.beat("b", 2) == Beat(3, None)
    assert bench.epochs() == (3, 3)


def test_missing_topics_are_reported_until_they_exist() -> None:
    bench = StreamsGroupBench(FakeImage())
    shape = topology(
        subtopology("0", ["t"], sinks=["r"]), subtopology("1", [], ["changelog"], repartition=[topic("r")])
    )
    assert bench.join("a", shape) == Beat(2, {}, {}, [Status.MISSING_SOURCE_TOPICS])
    assert (bench.texts, bench.state()) == (["Source topics t are missing."], "NotReady")
    bench.image.create("t", 3)
    assert bench.beat("a", 2) == Beat(3, None, None, [Status.MISSING_INTERNAL_TOPICS])
    assert bench.missing == {"r": 3, "changelog": 3}
    assert bench.texts == ["Internal topics are missing: r, changelog"]
    bench.create_missing()
    assert bench.beat("a", 3) == Beat(4, {"0": [0, 1, 2], "1": [0, 1, 2]}, {})
    assert bench.state() == "Stable"
    bench.image.grow("r", 5)
    assert bench.beat("a", 4).statuses == [Status.INCORRECTLY_PARTITIONED_TOPICS]
    assert bench.state() == "NotReady"


def test_another_topology_is_refused_and_an_older_one_is_stale() -> None:
    bench = StreamsGroupBench(FakeImage(t=4, u=4))
    bench.join("a", topology(epoch=1))
    other = topology(subtopology(sources=["u"]), epoch=1)
    with pytest.raises(KafkaError, match="Topology updates are not supported yet"):
        bench.join("b", other)
    assert bench.join("b", topology(epoch=0)).statuses == [Status.STALE_TOPOLOGY]
    assert bench.texts == ["The member's topology epoch 0 is behind the group's topology epoch 1."]


def test_epochs_that_do_not_fit_are_fenced(bench: StreamsGroupBench) -> None:
    bench.join("a")
    bench.join("b")
    bench.beat("a", 2, active={"0": [0, 1]})
    assert bench.refused("a", 4) is Errors.FENCED_MEMBER_EPOCH
    assert bench.refused("a", 2) is Errors.FENCED_MEMBER_EPOCH  # the previous epoch without tasks
    assert bench.refused("a", 2, active={"0": [0, 3]}) is Errors.FENCED_MEMBER_EPOCH
    assert bench.beat("a", 2, active={"0": [0]}).epoch == 3  # repeats the request of a lost response
    assert bench.refused("x", 3) is Errors.UNKNOWN_MEMBER_ID
    assert bench.refused("a", 3, group="other") is Errors.GROUP_ID_NOT_FOUND
    assert bench.refused("a", 3, active={"0": [7]}) is Errors.INVALID_REQUEST
    assert bench.refused("a", 3, active={"9": [0]}) is Errors.INVALID_REQUEST


def test_sessions_and_rebalances_end(bench: StreamsGroupBench) -> None:
    bench.join("a", timeout_ms=10_000)
    bench.join("b")
    bench.beat("a", 2)
    bench.after(9999)
    assert len(bench.described().members) == 2
    bench.after(1)  # the member has not revoked its tasks
    assert [one.member.member_id for one in bench.described().members] == ["b"]
    assert bench.beat("b", 3) == Beat(4, {"0": [0, 1, 2, 3]}, {})
    bench.after(45_000)
    assert bench.state() == "Empty"


def test_a_shutdown_reaches_every_member_until_the_last_one_left(bench: StreamsGroupBench) -> None:
    bench.join("a")
    bench.join("b")
    assert bench.beat("a", -1, shuts_down=True).epoch == -1
    assert bench.beat("b", 3).statuses == [Status.SHUTDOWN_APPLICATION]
    assert bench.texts == [
        "Streams group member a encountered a fatal error and requested a shutdown for the entire application."
    ]
    bench.beat("b", -1)
    assert bench.join("c").statuses == []


def test_endpoints_of_all_members() -> None:
    bench = StreamsGroupBench(settings=STANDBY)
    stateful(bench)
    bench.join("a", SHAPE, endpoint="host-a")
    bench.join("b", SHAPE, endpoint="host-b")
    bench.beat("a", 2, active={"0": [0, 1]})
    bench.beat("b", 3)
    bench.beat("a", 3)
    assert bench.endpoints is not None
    found = {one.endpoint.host: (one.active, one.standby) for one in bench.endpoints}
    assert found == {"host-a": ([("t", [0, 1])], [("t", [2, 3])]), "host-b": ([("t", [2, 3])], [("t", [0, 1])])}
    bench.beat("b", 3, endpoint_epoch=bench.endpoint_epoch)
    assert bench.endpoints is None


def test_everything_is_there_after_a_restart() -> None:
    bench = StreamsGroupBench(settings=STANDBY)
    stateful(bench)
    bench.join("a", SHAPE)
    bench.join("b", SHAPE)
    bench.beat("a", 2)  # the member has to revoke two tasks
    before = bench.described()
    again = bench.restart()
    after = again.described()
    assert after._replace(subtopologies=()) == before._replace(subtopologies=())
    assert [one.changelog_topics[0].partitions for one in after.subtopologies] == [0]  # until the next heartbeat
    assert again.beat("a", 2, active={"0": [0, 1]}) == Beat(3, None)
    assert again.beat("b", 3) == Beat(3, {"0": [2, 3]}, {"0": [0, 1]})
    assert again.epochs() == (3, 3)
    again.after(45_000)
    assert again.state() == "Empty"


def test_tasks_of_a_lost_response_are_assigned_again(bench: StreamsGroupBench) -> None:
    """A heartbeat of the same epoch that reports other tasks gets the assignment again."""
    bench.join("a")
    bench.join("b")
    bench.beat("a", 2, active={"0": [0, 1]})
    assert bench.beat("b", 3, active={}) == Beat(3, {"0": [2, 3]}, {})  # this response is lost
    assert bench.beat("b", 3) == Beat(3, None)
    assert bench.beat("b", 3, active={"0": [2]}) == Beat(3, {"0": [2, 3]}, {})
    assert bench.beat("b", 3, active={"0": [2, 3]}) == Beat(3, None)


def test_a_heartbeat_without_a_rack_keeps_it(bench: StreamsGroupBench) -> None:
    """A member has the rack of its latest heartbeat that names one."""
    racks = []
    epoch = bench.join("a", rack="one").epoch
    for rack in (None, "two", None):
        racks.append(bench.described().members[0].member.rack_id)
        epoch = bench.beat("a", epoch, rack=rack).epoch
    assert [*racks, bench.described().members[0].member.rack_id] == ["one", "one", "two", "two"]


def test_a_full_group_and_groups_of_other_kinds() -> None:
    bench = StreamsGroupBench(settings=replace(AT_ONCE, max_size=1))
    bench.join("a")
    assert bench.refused("b", 0, active={}, shape=topology(), timeout_ms=1) is Errors.GROUP_MAX_SIZE_REACHED
    bench.groups.join(group="classic", protocols=RANGE)
    assert bench.refused("a", 0, active={}, shape=topology(), group="classic") is Errors.GROUP_ID_NOT_FOUND
    with pytest.raises(KafkaError, match="Group g is not a consumer group"):
        bench.coordinator.consumer_groups.describe("g")


def test_an_empty_group_changes_its_kind(bench: StreamsGroupBench) -> None:
    """The type changes in both directions, and the offsets remain."""
    offset = CommittedOffset(5, -1, "", 1)
    bench.coordinator.offsets.commit("g", "", None, -1, {("t", 0): offset})
    assert bench.join("a").epoch == 2
    assert error_of(bench.coordinator.offsets.commit, "g", "", None, -1, {("t", 0): offset}) is Errors.UNKNOWN_MEMBER_ID
    bench.coordinator.offsets.commit("g", "a", None, 2, {("t", 1): offset})
    assert bench.groups.join(group="g", known=False, protocols=RANGE).one.error is Errors.INCONSISTENT_GROUP_PROTOCOL
    bench.beat("a", -1)
    again = bench.restart()
    assert again.groups.join(group="g", known=False, protocols=RANGE).one.error is Errors.NONE
    assert [one.group_type for one in again.coordinator.list_groups()] == ["classic"]
    assert set(again.coordinator.offsets.fetch("g").committed) == {("t", 0), ("t", 1)}


@pytest.mark.parametrize(("is_converted", "epochs"), [(False, [0, 0, 1]), (True, [1, 0, 1])])
def test_endpoints_are_numbered_anew_in_a_converted_group(
    bench: StreamsGroupBench, is_converted: bool, epochs: list[int]
) -> None:
    """The numbers in the responses are those of Apache Kafka 4.3.1; each member gets the endpoints of the others."""
    if is_converted:
        bench.coordinator.offsets.commit("g", "", None, -1, {("t", 0): CommittedOffset(5, -1, "", 1)})
    found = []
    for name, endpoint, known in (("a", "host-a", -1), ("b", None, 1), ("c", "host-c", 1)):
        bench.join(name, endpoint=endpoint, endpoint_epoch=known)
        found.append((bench.endpoint_epoch, bench.endpoints is not None))
    assert found == list(zip(epochs, [True, True, False], strict=True))


def test_commits_of_an_older_epoch_count_for_tasks_the_member_had_then(bench: StreamsGroupBench) -> None:
    bench.join("a")
    bench.join("b")
    bench.beat("a", 2, active={"0": [0, 1]})
    bench.beat("b", 3)
    offset = CommittedOffset(5, -1, "", 1)
    commit = bench.coordinator.offsets.commit
    commit("g", "a", None, 2, {("t", 0): offset})
    for member, epoch, place in (("a", 2, ("t", 2)), ("b", 2, ("t", 2)), ("a", 4, ("t", 0)), ("a", 2, ("other", 0))):
        assert error_of(commit, "g", member, None, epoch, {place: offset}) is Errors.STALE_MEMBER_EPOCH
    assert error_of(bench.coordinator.offsets.fetch, "g", None, False, "a", 2) is Errors.STALE_MEMBER_EPOCH
    assert set(bench.coordinator.offsets.fetch("g", None, False, "a", 3).committed) == {("t", 0)}


def test_a_deleted_group_leaves_nothing(bench: StreamsGroupBench) -> None:
    bench.join("a")
    assert error_of(bench.coordinator.delete, "g") is Errors.NON_EMPTY_GROUP
    bench.beat("a", -1)
    bench.coordinator.delete("g")
    assert bench.restart().coordinator.list_groups() == []


def test_a_write_that_fails_changes_nothing(bench: StreamsGroupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.join("a")
    bench.image.grow("t", 6)
    with monkeypatch.context() as patch:
        patch.setattr(GroupShard, "append", raising(KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)))
        assert bench.refused("a", 2) is Errors.COORDINATOR_NOT_AVAILABLE
    assert bench.epochs() == (2, 2)
    assert bench.beat("a", 2) == Beat(3, {"0": [0, 1, 2, 3, 4, 5]}, {})
