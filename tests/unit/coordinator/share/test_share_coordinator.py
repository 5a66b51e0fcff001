"""Share coordinator: state of share partitions, fencing, snapshots, restarts, deleted topics and records."""

from dataclasses import replace
from uuid import UUID

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import SHARE_STATE_TOPIC
from kbroker.coordinator import internal_topic
from kbroker.coordinator.internal_topic import Written
from kbroker.coordinator.share.persister import ShareState, StateBatch, StateChange
from kbroker.coordinator.share.share_coordinator import SNAPSHOT_INTERVAL_MS, ShareSettings, ShareStatePersister
from kbroker.coordinator.share.share_records import SNAPSHOT, SharePartitionKey, encode_key, is_key_text
from kbroker.protocol.records import iter_batches
from tests.support.errors import error_of
from tests.support.groups import MemoryTopic
from tests.support.share_groups import KEY, TOPIC_ID, Share

AVAILABLE, ACKNOWLEDGED = 0, 2
NO_EPOCH = -1


def batch(first: int, last: int, state: int = ACKNOWLEDGED, count: int = 1) -> StateBatch:
    return StateBatch(first, last, state, count)


def initialized(**how: int) -> Share:
    share = Share(ShareSettings(**how))
    share.coordinator.initialize(KEY, 0, -1)
    return share


def kinds(share: Share, key: SharePartitionKey = KEY) -> list[int]:
    """Return the kinds of the records in the partition of a key, from the log start offset."""
    log = share.coordinator.runtime.find(key.text).log
    found = log.read(log.log_start_offset, 1 << 20)
    keys = [record[2] or b"" for one in iter_batches(found.records) for record in one.records()]
    return [key[1] for key in keys]


def test_the_state_survives_a_restart() -> None:
    share = initialized()
    assert share.stored() == ShareState(start_offset=-1, delivery_complete_count=-1)
    assert share.coordinator.read(KEY, 4).leader_epoch == 0
    share.coordinator.write(KEY, StateChange(0, 4, 10, 2, [batch(12, 12), batch(14, 15)]))
    share.coordinator.write(KEY, StateChange(0, 4, -1, 4, [batch(13, 13), batch(16, 16, AVAILABLE)]))
    expected = ShareState(
        start_offset=10, delivery_complete_count=4, leader_epoch=4, batches=(batch(12, 15), batch(16, 16, AVAILABLE))
    )
    assert share.stored() == expected
    assert share.restart().stored() == expected
    assert share.restart().coordinator.summary(KEY) == expected._replace(batches=())


@pytest.mark.parametrize(
    ("start_offset", "lag"), [(10, -7), (-5, 8), (4 - 2**63, 2**63 - 1), (3 - 2**63, -(2**63)), (-(2**63), 3 - 2**63)]
)
def test_a_lag_is_a_long_of_java(start_offset: int, lag: int) -> None:
    """Any start offset can be stored; the lag of one near the minimum overflows as in Kafka."""
    assert ShareState(start_offset=start_offset, delivery_complete_count=0).lag(3) == lag


@pytest.mark.parametrize("verb", ["read", "delete"])
def test_a_change_that_another_request_has_begun_is_on_disk(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """A request that finds its change made returns when the records of the first request are synced."""
    clock = VirtualClock()
    share = Share(clock=clock, topic=MemoryTopic(clock, **{"flush.messages": 1}))
    share.coordinator.initialize(KEY, 0, -1)
    log = share.coordinator.runtime.find(KEY.text).log

    def request() -> None:
        if verb == "read":
            share.coordinator.read(KEY, 4)
        else:
            share.coordinator.delete(KEY)

    with monkeypatch.context() as patch:
        patch.setattr(Written, "await_disk", lambda written: None)  # the first request still waits
        request()
    end_offset = log.log_end_offset
    assert log.flushed_offset < end_offset
    request()
    assert log.flushed_offset == log.log_end_offset == end_offset


def test_epochs_fence() -> None:
    """A read with a higher leader epoch fences the previous leader; a new state epoch fences writes of the old one."""
    share = initialized()
    share.coordinator.read(KEY, 3)
    assert error_of(share.coordinator.read, KEY, 2) is Errors.FENCED_LEADER_EPOCH
    assert error_of(share.coordinator.write, KEY, StateChange(0, 2, 0, 0, [])) is Errors.FENCED_LEADER_EPOCH
    share.coordinator.initialize(KEY, 5, 30)
    assert error_of(share.coordinator.write, KEY, StateChange(4, 3, 0, 0, [])) is Errors.FENCED_STATE_EPOCH
    assert error_of(share.coordinator.initialize, KEY, 4, 0) is Errors.FENCED_STATE_EPOCH
    share = share.restart()
    assert error_of(share.coordinator.read, KEY, 2) is Errors.FENCED_LEADER_EPOCH
    assert error_of(share.coordinator.write, KEY, StateChange(4, 3, 0, 0, [])) is Errors.FENCED_STATE_EPOCH
    found = share.stored()
    assert (found.state_epoch, found.start_offset, found.delivery_complete_count, found.batches) == (5, 30, 0, ())


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (KEY._replace(partition=1), Errors.INVALID_REQUEST, "operation on uninitialized share partition not allowed."),
        (KEY._replace(partition=-1), Errors.INVALID_REQUEST, "The partition id cannot be a negative number."),
    ],
)
def test_refused_share_partitions(key: SharePartitionKey, error: Errors, text: str) -> None:
    share = initialized()
    for run in (
        lambda: share.coordinator.read(key, 0),
        lambda: share.coordinator.write(key, StateChange(0, 0, 0, 0, [])),
    ):
        with pytest.raises(KafkaError, match=text) as raised:
            run()
        assert raised.value.error is error


def test_an_idle_share_partition_gets_a_snapshot_after_the_clock_was_set_back() -> None:
    """The snapshot is written although the clock was set back; without it, older records could not be deleted."""
    share = initialized()
    share.coordinator.write(KEY, StateChange(0, 0, 5, 0, []))
    yesterday = VirtualClock(start_epoch_ms=share.clock.wall_ms() - 86_400_000)
    share = replace(share, clock=yesterday)
    share.coordinator.snapshot_idle()
    assert kinds(share) == [0, 1, 0]


def test_unknown_topics_and_partitions() -> None:
    share = initialized()
    for key in (KEY._replace(topic_id=UUID(int=9)), KEY._replace(partition=3)):
        assert error_of(share.coordinator.initialize, key, 0, 0) is Errors.UNKNOWN_TOPIC_OR_PARTITION
        assert error_of(share.coordinator.summary, key) is Errors.UNKNOWN_TOPIC_OR_PARTITION
        assert error_of(share.coordinator.delete, key) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert share.coordinator.summary(KEY._replace(partition=2)) == ShareState()


def test_a_snapshot_follows_so_many_updates() -> None:
    share = initialized(updates_per_snapshot=2)
    for offset in range(5):
        share.coordinator.write(KEY, StateChange(0, 0, offset, 0, [batch(offset, offset)]))
    assert kinds(share) == [0, 1, 1, 0, 1, 1]
    assert share.stored() == share.restart().stored()
    assert share.stored().batches == (batch(4, 4),)
    assert share.restart().coordinator.runtime.find(KEY.text).stored[KEY].state.snapshot_epoch == 1


def test_records_before_the_oldest_snapshot_are_deleted() -> None:
    """The oldest snapshot of a share partition without updates delays the deletion until it is written again."""
    share = Share(ShareSettings(updates_per_snapshot=1), topic=MemoryTopic(VirtualClock(), count=1))
    other = KEY._replace(partition=1)
    for key in (other, KEY):
        share.coordinator.initialize(key, 0, 0)
    for offset in range(4):
        share.coordinator.write(KEY, StateChange(0, 0, offset, 0, []))
    log = share.coordinator.runtime.find(KEY.text).log
    assert not share.coordinator.prune()
    share.clock.advance_ms(SNAPSHOT_INTERVAL_MS)
    share.coordinator.snapshot_idle()
    expected = share.stored(), share.stored(other)
    assert share.coordinator.prune()
    assert log.log_start_offset > 2
    again = share.restart()
    assert (again.stored(), again.stored(other)) == expected
    end = log.log_end_offset
    share.coordinator.snapshot_idle()
    assert log.log_end_offset == end, "idle share partitions are not written again"


def test_deletion() -> None:
    share = initialized()
    share.coordinator.delete(KEY)
    share.coordinator.delete(KEY)
    assert kinds(share) == [0, 0]
    assert error_of(share.coordinator.read, KEY, 0) is Errors.INVALID_REQUEST
    assert error_of(share.restart().coordinator.read, KEY, 0) is Errors.INVALID_REQUEST
    share.coordinator.initialize(KEY, 0, -1)
    assert share.restart().stored().start_offset == -1


def test_share_partitions_of_deleted_topics_are_deleted() -> None:
    """Share partitions of topics that were deleted while the coordinator was stopped are deleted too."""
    share = initialized()
    share.topics.clear()
    share.coordinator.topic_deleted("t")
    share.topics[TOPIC_ID] = 1
    assert error_of(share.coordinator.read, KEY, 0) is Errors.INVALID_REQUEST
    share.coordinator.initialize(KEY, 0, -1)
    share.topics.clear()
    again = share.restart()
    again.topics[TOPIC_ID] = 1
    assert error_of(again.coordinator.read, KEY, 0) is Errors.INVALID_REQUEST


def test_a_malformed_value_fences_its_partition(caplog: pytest.LogCaptureFixture) -> None:
    topic = MemoryTopic(VirtualClock(), count=1)
    topic.created = True
    internal_topic.append(topic.logs[0], [(encode_key(SNAPSHOT, KEY), b"\0\0cut")], 5)
    share = Share(topic=topic)
    assert share.coordinator.runtime.counts == (0, 0, 1)
    with pytest.raises(KafkaError, match="Unable to read share group state: __share_group_state-0 cannot be read"):
        share.stored()
    assert "the state of share partition g:AAAAAAAAAAAAAAAAAAAABw:0 is malformed" in caplog.text


def test_the_persister_reports_states_and_errors() -> None:
    share = Share()
    persister = ShareStatePersister(lambda key: share.coordinator)
    with pytest.raises(KafkaError, match="INVALID_REQUEST: Write operation on uninitialized"):
        persister.write_state("g", TOPIC_ID, 0, StateChange(1, 0, 8, 0, []))
    share.coordinator.initialize(KEY, 1, 7)
    persister.write_state("g", TOPIC_ID, 0, StateChange(1, 0, 8, 0, [batch(9, 9)]))
    assert persister.read_state("g", TOPIC_ID, 0, 0) == ShareState(1, 8, 0, 0, (batch(9, 9),))
    share.coordinator.delete(KEY)
    with pytest.raises(KafkaError, match="INVALID_REQUEST: Read operation on uninitialized"):
        persister.read_state("g", TOPIC_ID, 0, 0)


def test_keys_of_others_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """A key without a version, a malformed one and one of a later release are skipped, and the state is served."""
    topic = MemoryTopic(VirtualClock(), count=1)
    share = Share(topic=topic)
    share.coordinator.initialize(KEY, 0, 3)
    internal_topic.append(topic.logs[0], [(b"\0", b"v"), (b"\0\0cut", b"v"), (b"\0\x63", b"v")], 5)
    again = share.restart()
    assert again.stored().start_offset == 3
    malformed, cut, newer = caplog.messages
    assert (
        malformed
        == "__share_group_state: skipped a record with a malformed key: INVALID_REQUEST: record key without a version"
    )
    assert cut.startswith("__share_group_state: skipped a record with a malformed key: ")
    assert newer == "__share_group_state: skipped a record of a newer kind"


def test_snapshots_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    """Background work that fails is logged and retried later."""
    topic = MemoryTopic(VirtualClock(), count=1)
    share = Share(topic=topic)
    share.coordinator.initialize(KEY, 0, 3)
    share.coordinator.write(KEY, StateChange(0, 0, 4, 0, []))
    share.clock.advance_ms(SNAPSHOT_INTERVAL_MS)
    topic.logs[0].is_under_min_isr = True
    share.coordinator.snapshot_idle()
    (line,) = caplog.messages
    assert line.startswith("__share_group_state-0: cannot write snapshots: COORDINATOR_NOT_AVAILABLE")
    assert kinds(share) == [0, 1]
    topic.logs[0].is_under_min_isr = False
    share.coordinator.snapshot_idle()
    assert kinds(share) == [0, 1, 0]


def test_the_deletion_of_the_own_topic() -> None:
    """After the deletion, the states are those of the new topic, which has none."""
    share = initialized()
    assert share.topic is not None
    share.topic.logs = MemoryTopic(share.clock).logs
    assert share.stored().start_offset == -1
    share.coordinator.topic_deleted(SHARE_STATE_TOPIC)
    assert error_of(share.coordinator.read, KEY, -1) is Errors.INVALID_REQUEST


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g:AAAAAAAAAAAAAAAAAAAABw:0", True),
        ("a:b:AAAAAAAAAAAAAAAAAAAABw:0", True),
        ("g:AAAAAAAAAAAAAAAAAAAABw:-1", True),
        (" :AAAAAAAAAAAAAAAAAAAABw:0", False),
        ("g:AAAAAAAAAAAAAAAAAAAABw", False),
        ("g:AAAA:0", False),
        ("g:AAAAAAAAAAAAAAAAAAAABw:2147483648", False),
        ("", False),
    ],
)
def test_texts_of_keys(text: str, expected: bool) -> None:
    assert is_key_text(text) is expected
