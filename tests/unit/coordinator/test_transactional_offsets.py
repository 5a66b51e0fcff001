"""Offsets in transactions: permission to commit, visibility, and state after a restart."""

import random
import sys
import threading

import pytest

from kbroker.common.errors import Errors
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator import group_records
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.internal_topic import TransactionalProducer
from kbroker.protocol import codec
from kbroker.protocol.records import build_batch, iter_batches
from tests.support.errors import error_of
from tests.support.groups import MemoryTopic, open_producers
from tests.support.transactional_offsets import (
    DAY_MS,
    ONE,
    OTHER,
    PLACE,
    TWO,
    add,
    commit,
    committed,
    complete,
    end,
    single,
    unstable,
)

# ---------------------------------------------------------------- commit and abort


@pytest.mark.parametrize("restarts", [False, True])
def test_offsets_of_a_transaction_count_when_it_commits(restarts: bool) -> None:
    """A pending offset replaces the committed one at the commit marker, with or without restarts in between."""
    groups = single()
    commit(groups, 3)
    add(groups, 7)
    add(groups, 8, place=OTHER)
    groups = groups.restart() if restarts else groups
    assert committed(groups) == {PLACE: 3}
    assert unstable(groups, PLACE, OTHER, ("v", 0)) == {PLACE, OTHER}
    assert end(groups) is Errors.NONE
    groups = groups.restart() if restarts else groups
    assert committed(groups) == {PLACE: 7, OTHER: 8}
    assert unstable(groups, PLACE, OTHER) == set()


@pytest.mark.parametrize("restarts", [False, True])
def test_offsets_of_a_transaction_that_aborts_are_dropped(restarts: bool) -> None:
    """The committed offset remains after an abort, with or without restarts."""
    groups = single()
    commit(groups, 3)
    add(groups, 7)
    groups = groups.restart() if restarts else groups
    assert end(groups, commit=False) is Errors.NONE
    groups = groups.restart() if restarts else groups
    assert committed(groups) == {PLACE: 3}
    assert unstable(groups, PLACE) == set()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_fetch_that_needs_no_stable_offsets_has_the_committed_ones(restarts: bool) -> None:
    """A fetch without RequireStable returns committed offsets; a fetch of all partitions omits those without one."""
    groups = single()
    commit(groups, 3)
    add(groups, 7)
    add(groups, 8, place=OTHER)
    groups = groups.restart() if restarts else groups
    found = groups.coordinator.offsets.fetch("g", [PLACE, OTHER], False)
    assert ({place: one.offset for place, one in found.committed.items()}, found.unstable) == ({PLACE: 3}, frozenset())
    everything = groups.coordinator.offsets.fetch("g", None, True)
    assert (everything.committed, everything.unstable) == ({}, frozenset({PLACE}))


def test_the_records_are_those_of_kafka() -> None:
    """Records have the producer id and epoch, sequence 0 and the transactional flag; the marker has no sequence."""
    groups = single()
    add(groups, 7, by=TransactionalProducer(41, 3))
    end(groups, by=TransactionalProducer(41, 3))
    data, marker = iter_batches(groups.topic.logs[0].read(0).records)
    for batch in (data, marker):
        assert (batch.producer_id, batch.producer_epoch, batch.is_transactional) == (41, 3, True)
    assert (data.base_sequence, marker.base_sequence) == (0, -1)
    assert (data.is_control, marker.is_control) == (False, True)
    ((_, _, key, value, _),) = data.records()
    assert key == group_records.offset_key("g", *PLACE)
    assert group_records.decode_offset(value).offset == 7  # type: ignore[arg-type]


@pytest.mark.parametrize("restarts", [False, True])
def test_of_two_offsets_the_later_record_counts(restarts: bool) -> None:
    """A marker does not replace an offset that was written after its transaction's offset."""
    groups = single()
    add(groups, 1)
    commit(groups, 2)
    end(groups)
    add(groups, 10, by=ONE, place=OTHER)
    add(groups, 11, by=TWO, place=OTHER)
    end(groups, by=TWO)
    groups = groups.restart() if restarts else groups
    end(groups, by=ONE)
    assert committed(groups) == {PLACE: 2, OTHER: 11}
    assert committed(groups.restart()) == {PLACE: 2, OTHER: 11}


def test_a_transaction_may_write_offsets_of_several_groups() -> None:
    """One marker completes the offsets of all groups of a transaction in a partition, and none of another producer."""
    groups = single()
    add(groups, 1, group="a")
    add(groups, 2, group="b")
    add(groups, 3, group="b", by=TWO, place=OTHER)
    end(groups)
    assert (committed(groups, "a"), committed(groups, "b")) == ({PLACE: 1}, {PLACE: 2})
    assert unstable(groups, PLACE, OTHER, group="b") == {OTHER}
    assert open_producers(groups.coordinator, 0) == open_producers(groups.restart().coordinator, 0) == [2]


def test_the_same_place_twice_in_a_transaction() -> None:
    """The last offset of a partition in a transaction counts."""
    groups = single()
    add(groups, 1)
    add(groups, 2)
    assert committed(groups.restart()) == {}
    end(groups)
    assert committed(groups) == committed(groups.restart()) == {PLACE: 2}


def test_a_marker_without_offsets_is_written_all_the_same() -> None:
    """A marker for a partition without offsets is written, and a repeated marker changes nothing."""
    groups = single()
    groups.topic.ensure()
    assert end(groups) is Errors.NONE
    add(groups, 1)
    assert [end(groups), end(groups), end(groups, commit=False)] == [Errors.NONE] * 3
    assert committed(groups) == committed(groups.restart()) == {PLACE: 1}


def test_markers_that_cannot_be_written() -> None:
    """A marker for a partition that does not exist or is offline gets NOT_COORDINATOR, and a retry succeeds."""
    groups = single()
    assert complete(groups, 0) is Errors.NOT_COORDINATOR
    add(groups, 1)
    assert complete(groups, 1) is Errors.NOT_COORDINATOR
    kept, groups.topic.logs[0] = groups.topic.logs[0], None
    assert end(groups) is Errors.NOT_COORDINATOR
    assert unstable(groups, PLACE) == {PLACE}
    groups.topic.logs[0] = kept
    assert end(groups) is Errors.NONE
    assert committed(groups) == {PLACE: 1}


def test_an_older_epoch_is_refused() -> None:
    """A commit and a marker of an older epoch are refused and change nothing."""
    groups = single()
    newer, older = TransactionalProducer(1, 5), TransactionalProducer(1, 4)
    add(groups, 7, by=newer)
    assert error_of(add, groups, 9, by=older) is Errors.INVALID_PRODUCER_EPOCH
    assert end(groups, by=older) is Errors.INVALID_PRODUCER_EPOCH
    assert unstable(groups, PLACE) == {PLACE}
    end(groups, by=newer)
    assert committed(groups) == committed(groups.restart()) == {PLACE: 7}


def test_a_commit_needs_the_guard_of_its_verification() -> None:
    """A commit verified before the end of its transaction does not reopen the transaction (KIP-890)."""
    groups = single()
    start = groups.coordinator.offsets.start_verification
    index, guard = start("g", 1, 0, False)
    assert (index, guard > 0) == (0, True)
    end(groups, commit=False)
    verified = TransactionalProducer(1, 0, guard)
    assert error_of(add, groups, 7, by=verified) is Errors.INVALID_TXN_STATE
    assert (committed(groups), open_producers(groups.coordinator, 0)) == ({}, [])
    _, guard = start("g", 1, 0, False)
    add(groups, 7, by=TransactionalProducer(1, 0, guard))
    assert start("g", 1, 0, False) == (0, 0)
    add(groups, 8, by=TransactionalProducer(1, 0, 0))
    end(groups)
    assert committed(groups) == {PLACE: 8}


def test_many_offsets_of_a_transaction_are_one_append() -> None:
    """Offsets above the maximum batch size are committed with one guard."""
    groups = single()
    offsets = {("t", index): CommittedOffset(index, -1, "m" * 1000, 5) for index in range(2000)}
    _, guard = groups.coordinator.offsets.start_verification("g", 1, 0, False)
    producer = TransactionalProducer(1, 0, guard)
    groups.coordinator.offsets.commit_transactional("g", "", None, -1, producer, offsets)
    again = groups.restart()
    end(again)
    assert (
        again.coordinator.offsets.fetch("g").committed
        == groups.restart().coordinator.offsets.fetch("g").committed
        == offsets
    )


# ---------------------------------------------------------------- permission to commit


def test_who_may_commit_in_a_transaction() -> None:
    """A member of the current generation, a client without a member id, and any client in an empty group may commit."""
    groups = single()
    one = groups.lone()
    add(groups, 1, member=one.member_id, generation=1)
    add(groups, 2)
    assert error_of(add, groups, 3, member=one.member_id, generation=2) is Errors.ILLEGAL_GENERATION
    assert error_of(add, groups, 3, member=one.member_id) is Errors.ILLEGAL_GENERATION
    assert error_of(add, groups, 3, member="stranger", generation=1) is Errors.UNKNOWN_MEMBER_ID
    assert error_of(add, groups, 3, member="stranger") is Errors.UNKNOWN_MEMBER_ID
    assert error_of(add, groups, 3, generation=1) is Errors.UNKNOWN_MEMBER_ID
    assert error_of(add, groups, 3, group="unknown", member="m", generation=1) is Errors.ILLEGAL_GENERATION
    assert error_of(add, groups, 3, group="") is Errors.INVALID_GROUP_ID
    groups.leave(one.member_id)
    add(groups, 4, member="anybody")
    end(groups)
    assert committed(groups) == {PLACE: 4}
    assert [one.group_id for one in groups.coordinator.list_groups()] == ["g"]


def test_a_static_member_that_was_replaced_is_fenced() -> None:
    """A commit of a replaced static member gets FENCED_INSTANCE_ID; an unknown instance gets UNKNOWN_MEMBER_ID."""
    groups = single()
    old = groups.lone(instance="i")
    new = groups.join(instance="i").one
    assert error_of(add, groups, 1, member=old.member_id, generation=1, instance="i") is Errors.FENCED_INSTANCE_ID
    assert error_of(add, groups, 1, member=old.member_id, generation=1, instance="j") is Errors.UNKNOWN_MEMBER_ID
    add(groups, 1, member=new.member_id, generation=1, instance="i")


def test_the_state_of_the_group_makes_no_difference() -> None:
    """A member commits in a transaction while its group rebalances (KIP-447)."""
    groups = single()
    groups.join(group="half")
    (half,) = groups.members("half")
    assert groups.state("half") == "CompletingRebalance"
    add(groups, 1, group="half", member=half, generation=1)
    one = groups.lone()
    groups.join()
    assert groups.state() == "PreparingRebalance"
    add(groups, 1, member=one.member_id, generation=1)


def test_a_commit_in_a_transaction_is_no_sign_of_life() -> None:
    """A transactional commit does not extend the member's session, as in Kafka."""
    groups = single()
    one = groups.lone(session_ms=10_000)
    groups.after(6_000)
    add(groups, 1, member=one.member_id, generation=1)
    groups.after(4_500)
    assert groups.state() == "Empty"


# ---------------------------------------------------------------- deletion and expiry


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("how", ["offset", "group", "topic"])
def test_what_is_deleted_does_not_come_back_with_the_marker(how: str, restarts: bool) -> None:
    """A pending offset is deleted with the committed one by OffsetDelete, DeleteGroups or the deletion of its topic."""
    groups = single()
    commit(groups, 3)
    add(groups, 7)
    add(groups, 8, place=("t", 1))
    if how == "offset":
        groups.coordinator.offsets.delete("g", [PLACE, ("t", 1)])
    elif how == "group":
        groups.coordinator.delete("g")
        assert groups.coordinator.describe("g") is None
    else:
        groups.coordinator.topic_deleted("t")
    groups = groups.restart() if restarts else groups
    assert unstable(groups, PLACE, ("t", 1)) == set()
    assert end(groups) is Errors.NONE
    assert committed(groups) == committed(groups.restart()) == {}


def test_what_is_written_after_a_deletion_counts() -> None:
    """An offset that a transaction writes after the deletion of its group is committed."""
    groups = single()
    add(groups, 7)
    groups.coordinator.delete("g")
    add(groups, 9)
    assert unstable(groups.restart(), PLACE) == {PLACE}
    end(groups)
    assert committed(groups) == committed(groups.restart()) == {PLACE: 9}


def test_a_subscribed_topic_keeps_its_pending_offsets() -> None:
    """OffsetDelete refuses the pending offset of a subscribed topic, as it refuses a committed one."""
    groups = single()
    subscription = codec.encode_versioned("ConsumerProtocolSubscription", 1, {"Topics": ["t"]})
    one = groups.lone(protocols=[("range", subscription)])
    add(groups, 7, member=one.member_id, generation=1)
    assert groups.coordinator.offsets.delete("g", [PLACE]) == {PLACE: Errors.GROUP_SUBSCRIBED_TO_TOPIC}
    assert unstable(groups, PLACE) == {PLACE}


@pytest.mark.parametrize("restarts", [False, True])
def test_neither_offsets_nor_groups_with_open_transactions_expire(restarts: bool) -> None:
    """An offset with a pending change does not expire, since an abort restores it; other offsets of its group do."""
    groups = single(offsets_retention_ms=7 * DAY_MS)
    commit(groups, 3)
    commit(groups, 4, place=OTHER)
    add(groups, 7)
    add(groups, 9, group="new")
    groups = groups.restart() if restarts else groups
    groups.clock.advance_ms(7 * DAY_MS)
    assert groups.coordinator.offsets.expire() == 1
    assert (committed(groups), unstable(groups, PLACE)) == ({PLACE: 3}, {PLACE})
    assert unstable(groups, PLACE, group="new") == {PLACE}
    end(groups, commit=False)
    assert groups.coordinator.offsets.expire() == 1
    assert groups.coordinator.list_groups() == groups.restart().coordinator.list_groups() == []


def test_a_deleted_offsets_topic_takes_its_transactions_along() -> None:
    """The transactions of a deleted offsets topic are discarded."""
    groups = single()
    add(groups, 7)
    groups.topic.logs = MemoryTopic(groups.clock, 1).logs
    groups.coordinator.topic_deleted("__consumer_offsets")
    assert open_producers(groups.coordinator, 0) == []
    assert groups.coordinator.list_groups() == []


# ---------------------------------------------------------------- replay


def test_a_log_is_replayed_in_the_order_of_its_offsets() -> None:
    """Replay of interleaved transactional and plain batches, as Kafka writes them, keeps each key's latest value."""
    groups = single()
    (log,) = groups.topic.logs
    groups.topic.ensure()

    def put(place: TopicPartition, offset: int | None, producer_id: int = -1) -> None:
        key = group_records.offset_key("g", *place)
        value = group_records.encode_offset(CommittedOffset(offset, -1, "", 5)) if offset is not None else None
        epoch = 0 if producer_id >= 0 else -1
        data = build_batch(
            [(key, value)], producer_id=producer_id, producer_epoch=epoch, transactional=producer_id >= 0
        )
        assert log.append(data, is_client=False).error == 0

    def mark(producer_id: int, commit: bool) -> None:
        assert log.append_end_marker(producer_id, 0, 0, commit).error == 0

    a, b, c, d = (("t", index) for index in range(4))
    put(a, 1, 71)
    put(b, 1)
    put(b, 2, 72)
    mark(71, True)
    put(a, 3, 71)  # second transaction of the same producer
    put(c, 4, 72)
    put(c, None)
    mark(72, True)
    put(d, 5, 71)
    again = groups.restart()
    assert committed(again) == {a: 1, b: 2}
    assert unstable(again, a, b, c, d) == {a, d}
    mark(71, False)
    assert committed(groups.restart()) == {a: 1, b: 2}


def test_a_pending_offset_that_is_malformed_fences_its_partition() -> None:
    """A partition with a malformed pending offset is not served: the outcome of its transaction is unknown."""
    groups = single()
    (log,) = groups.topic.logs
    groups.topic.ensure()
    bad = [(group_records.offset_key("g", *PLACE), b"\0\3")]
    log.append(build_batch(bad, producer_id=1, producer_epoch=0, transactional=True), is_client=False)
    assert error_of(committed, groups.restart()) is Errors.NOT_COORDINATOR


# ---------------------------------------------------------------- threads


def test_threads_leave_what_the_log_says() -> None:
    """Concurrent commits, markers, deletions and expirations leave the state that a restart reads from the log."""
    groups = single()
    groups.coordinator.runtime.prepare()  # until the partition is loaded, requests get COORDINATOR_LOAD_IN_PROGRESS
    names, places = ["a", "b", "c"], [PLACE, OTHER]
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(300):
                group, place, by = rng.choice(names), rng.choice(places), TransactionalProducer(rng.randrange(4), 0)
                kind = rng.randrange(8)
                if kind < 4:
                    add(groups, rng.randrange(1000), by=by, group=group, place=place)
                elif kind < 6:
                    assert end(groups, by=by, commit=kind == 4) is Errors.NONE
                elif kind == 6:
                    commit(groups, rng.randrange(1000), group=group, place=place)
                elif groups.coordinator.describe(group) is not None:
                    groups.coordinator.offsets.delete(group, [place])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as many thread switches as possible
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert failures == []
    again = groups.restart()
    for name in names:
        assert committed(groups, name) == committed(again, name)
        assert unstable(groups, *places, group=name) == unstable(again, *places, group=name)
    for number in range(4):
        end(again, by=TransactionalProducer(number, 0))
        end(groups, by=TransactionalProducer(number, 0))
    for name in names:
        assert committed(groups, name) == committed(again, name)
