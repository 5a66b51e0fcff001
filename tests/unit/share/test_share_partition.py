"""Deliveries, acknowledgements and locks of a share partition, on a virtual clock."""

import struct
from types import SimpleNamespace
from typing import cast

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.share.persister import StateBatch
from kbroker.log._partition_log import PartitionLog
from kbroker.log.log_types import AbortedTransaction, ReadInfo
from kbroker.protocol.batch_format import LENGTH_AT, LENGTH_FROM, TRANSACTIONAL_BIT
from kbroker.share.acquisition import AcquireMode
from kbroker.share.delayed_share_fetch import ReadPartition, read_enough
from kbroker.share.fetched import AcquiredRecords, Fetched, without
from kbroker.share.share_partition import SharePartitionState, persister_error
from kbroker.share.window import InFlightWindow
from tests.support.control_batches import build_control_batch
from tests.support.errors import raising
from tests.support.fixtures import fixture_of
from tests.support.share import (
    ACCEPT,
    KEY,
    LOCK_MS,
    REJECT,
    RELEASE,
    RENEW,
    MemoryPersister,
    ShareBench,
    batch_of,
    header,
)

LIMIT = AcquireMode.RECORD_LIMIT


bench = fixture_of(ShareBench, (0, 9))


def test_batches_are_delivered_once_and_the_start_moves_past_accepted_ones() -> None:
    bench = ShareBench((0, 9), (10, 19))
    assert bench.fetch("a", 5) == [(0, 9, 1)]  # whole batches
    assert bench.fetch("b", 5) == [(10, 19, 1)]
    assert bench.partition.next_fetch_offset() == 20
    assert bench.ack("b", 10, 19, ACCEPT) is Errors.NONE
    assert bench.partition.window.start_offset == 0
    assert bench.ack("a", 0, 9, ACCEPT) is Errors.NONE
    assert (bench.partition.window.start_offset, bench.partition.window.batches) == (20, [])
    assert bench.timer.size == 0


def test_an_acknowledgement_is_answered_when_it_is_stored(bench: ShareBench) -> None:
    bench.fetch()
    answers: list[KafkaError | None] = []
    found: list[object] = []

    def during_write() -> None:
        found.extend([*answers, bench.partition.window.start_offset])
        found.append(bench.ack("m", 0, 9, ACCEPT))  # the records are being changed

    bench.persister.during_write = during_write
    bench.partition.acknowledge("m", [batch_of(0, 9, [ACCEPT])], answers.append)
    assert found == [0, Errors.INVALID_RECORD_STATE]
    assert answers == [None]
    assert bench.partition.window.start_offset == 10


def test_an_acknowledgement_during_a_write_is_stored_after_it(bench: ShareBench) -> None:
    bench.fetch("a")
    found: list[object] = []
    done: list[KafkaError | None] = []

    def during_write() -> None:
        bench.partition.acknowledge("a", [batch_of(5, 9, [ACCEPT])], done.append)
        found.extend([*done, *bench.persister.writes])

    bench.persister.during_write = during_write
    assert bench.ack("a", 0, 4, ACCEPT) is Errors.NONE
    assert (found, done) == ([], [None])
    assert bench.persister.writes == [[StateBatch(0, 4, 2, 1)], [StateBatch(5, 9, 2, 1)]]
    assert bench.partition.window.start_offset == 10


def test_an_acknowledgement_without_memory(bench: ShareBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The acknowledgement has an error, and none of its records is being changed any more."""
    bench.fetch()
    done: list[KafkaError | None] = []
    with monkeypatch.context() as patch:
        patch.setattr(bench.partition, "_lock_records", raising(MemoryError))
        bench.partition.acknowledge("m", [batch_of(0, 4, [ACCEPT]), batch_of(5, 9, [RENEW])], done.append)
    assert [error and error.error for error in done] == [Errors.UNKNOWN_SERVER_ERROR]
    assert bench.ack("m", 0, 9, ACCEPT) is Errors.NONE
    assert bench.partition.window.start_offset == 10


def test_a_delivery_without_memory(bench: ShareBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records without a lock, whose time would never end, are not acquired."""
    bench.fetch()
    assert bench.ack("m", 0, 9, RELEASE) is Errors.NONE
    with monkeypatch.context() as patch:
        patch.setattr(bench.partition, "_lock_records", raising(MemoryError))
        with pytest.raises(MemoryError):
            bench.fetch()
    assert bench.fetch() == [(0, 9, 2)]


def test_a_write_that_fails_leaves_the_records_acquired(bench: ShareBench) -> None:
    bench.fetch()
    bench.persister.error = Errors.FENCED_STATE_EPOCH
    assert bench.ack("m", 0, 9, ACCEPT) is Errors.NOT_LEADER_OR_FOLLOWER
    assert set(bench.states().values()) == {("a", 1)}
    assert bench.partition.window.complete_count == 0
    bench.persister.error = Errors.NONE
    assert bench.ack("m", 0, 9, ACCEPT) is Errors.NONE


def test_a_lock_that_expires_during_a_failed_write_releases_the_records(bench: ShareBench) -> None:
    bench.fetch()
    bench.persister.error = Errors.COORDINATOR_NOT_AVAILABLE
    found: list[object] = []

    def during_write() -> None:
        bench.after(LOCK_MS)
        found.extend(set(bench.states().values()))

    bench.persister.during_write = during_write
    assert bench.ack("m", 0, 9, REJECT) is Errors.COORDINATOR_NOT_AVAILABLE
    assert found == [("x", 1)]
    assert set(bench.states().values()) == {("v", 1)}
    assert bench.fetch() == [(0, 9, 2)]


def test_expired_locks_make_records_available_until_the_delivery_limit() -> None:
    bench = ShareBench((0, 0))
    for count in range(1, 6):
        assert bench.fetch() == [(0, 0, count)]
        bench.after(LOCK_MS - 1)
        assert bench.partition.next_fetch_offset() == 1
        bench.after(1)
    assert bench.sensors.timeouts == [1] * 5
    assert bench.partition.window.start_offset == 1  # archived after the fifth delivery
    assert bench.persister.offsets[0] == (4, 5)
    assert bench.wakes == 5


def test_released_records_are_delivered_again_with_the_next_count(bench: ShareBench) -> None:
    bench.fetch("a")
    assert bench.ack("a", 2, 4, RELEASE) is Errors.NONE
    assert bench.wakes == 1
    assert bench.fetch("b") == [(2, 4, 2)]
    assert bench.ack("a", 3, 3, ACCEPT) is Errors.INVALID_RECORD_STATE  # the record is acquired by b
    assert bench.ack("b", 3, 3, ACCEPT) is Errors.NONE
    assert bench.states()[3] == ("k", 2)


def test_each_offset_may_have_its_type(bench: ShareBench) -> None:
    bench.fetch()
    types = [ACCEPT, ACCEPT, RELEASE, REJECT, 0, 0, ACCEPT, RELEASE, RENEW, ACCEPT]
    assert bench.ack("m", 0, 9, *types) is Errors.NONE
    assert bench.partition.window.start_offset == 2
    assert "".join(state for state, _ in bench.states().values()) == "kkvxxxkvak"
    assert bench.partition.window.complete_count == 5
    assert bench.fetch() == [(2, 2, 2), (7, 7, 2)]


def test_an_error_undoes_the_whole_acknowledgement() -> None:
    bench = ShareBench((0, 9), (10, 19))
    bench.fetch("a", 5)
    bench.fetch("b", 5)
    acks = [batch_of(0, 9, [ACCEPT]), batch_of(10, 19, [ACCEPT])]
    assert bench.outcome(lambda done: bench.partition.acknowledge("a", acks, done)) is Errors.INVALID_RECORD_STATE
    assert set(bench.states().values()) == {("a", 1)}
    assert bench.persister.writes == []
    assert bench.ack("a", 0, 9, ACCEPT) is Errors.NONE


def test_offsets_that_are_not_in_flight() -> None:
    bench = ShareBench((10, 19), initial_offset=5)
    bench.fetch()
    assert bench.ack("m", 0, 4, ACCEPT) is Errors.NONE  # before the start offset: archived
    bench.partition.window.start_offset = 0
    assert bench.ack("m", 0, 9, ACCEPT) is Errors.INVALID_RECORD_STATE
    assert bench.ack("m", 30, 31, ACCEPT) is Errors.INVALID_REQUEST
    assert bench.ack("m", 15, 25, ACCEPT) is Errors.INVALID_REQUEST
    assert bench.ack("m", 15, 16, ACCEPT, 9) is Errors.INVALID_REQUEST
    assert bench.ack("m", 10, 19, ACCEPT) is Errors.NONE


def test_a_renewed_lock_lasts_for_another_duration(bench: ShareBench) -> None:
    bench.fetch()
    bench.after(20_000)
    assert bench.ack("m", 0, 4, RENEW) is Errors.NONE
    bench.after(10_000)
    assert "".join(state for state, _ in bench.states().values()) == "aaaaavvvvv"
    bench.after(20_000)
    assert {state for state, _ in bench.states().values()} == {"v"}
    assert bench.timer.size == 0
    bench.fetch()
    bench.configs.is_renew_enabled = False
    assert bench.ack("m", 0, 9, RENEW) is Errors.INVALID_RECORD_STATE


def test_a_member_that_leaves_releases_its_records() -> None:
    bench = ShareBench((0, 9), (10, 19))
    bench.fetch("a", 5)
    bench.fetch("b", 5)
    bench.ack("a", 0, 3, ACCEPT)
    assert bench.leave("a") is Errors.NONE
    assert bench.fetch("c") == [(4, 9, 2)]
    assert bench.leave("c2") is Errors.NONE


def test_the_window_is_bounded() -> None:
    bench = ShareBench(*((first, first + 49) for first in range(0, 400, 50)))
    assert bench.fetch("a", 500) == [(0, 199, 1)]
    assert bench.partition.next_fetch_offset() is None
    assert bench.fetch("a") == []
    bench.ack("a", 100, 149, RELEASE)
    assert bench.fetch("b", 20) == [(100, 149, 2)]
    bench.ack("a", 0, 49, ACCEPT)
    assert bench.fetch("b") == [(200, 249, 1)]


def test_record_limit_mode_acquires_no_more_than_the_maximum() -> None:
    bench = ShareBench((0, 99), (100, 119))
    assert bench.fetch("a", 10, mode=LIMIT) == [(0, 9, 1)]
    assert bench.fetch("b", 10, mode=LIMIT) == [(10, 19, 1)]
    assert bench.ack("a", 0, 9, ACCEPT) is Errors.NONE
    assert bench.partition.window.start_offset == 10
    assert bench.fetch("a", 200, mode=LIMIT) == [(20, 99, 1), (100, 119, 1)]


def test_a_batch_size_cuts_at_batch_boundaries() -> None:
    bench = ShareBench(*((first, first + 9) for first in range(0, 100, 10)))
    assert bench.fetch(batch_size=25) == [(0, 29, 1), (30, 59, 1), (60, 89, 1), (90, 99, 1)]
    assert bench.sensors.batches == [30, 30, 30, 10]


@pytest.mark.parametrize("batch_size", [0, -1, -100])
def test_a_batch_size_below_1_delivers_no_record_before_the_start_offset(batch_size: int) -> None:
    bench = ShareBench((0, 9), (10, 19), initial_offset=5)
    assert bench.fetch(batch_size=batch_size) == [(5, 9, 1), (10, 19, 1)]


def test_records_near_the_limit_are_delivered_in_smaller_groups_and_at_last_alone() -> None:
    bench = ShareBench((0, 15), (16, 31))
    for _ in range(3):
        bench.fetch("a")
        bench.after(LOCK_MS)
    assert {count for _, count in bench.states().values()} == {3}
    assert bench.fetch("a") == [(0, 15, 4)]  # half of the batch of 32
    assert bench.fetch("a") == [(16, 31, 4)]
    bench.after(LOCK_MS)
    assert bench.fetch("c") == [(0, 0, 5)]
    assert bench.fetch("c") == [(1, 1, 5)]


def test_the_start_of_the_log_archives_what_was_deleted() -> None:
    bench = ShareBench((0, 9), (10, 19), (20, 29))
    bench.fetch("a", 5)
    bench.fetch("a", 5)
    bench.ack("a", 0, 4, ACCEPT)
    bench.ack("a", 10, 14, RELEASE)
    bench.partition.move_log_start(12)
    assert bench.partition.window.start_offset == 12
    assert [bench.states()[offset][0] for offset in (5, 10, 11, 12, 15)] == ["a", "x", "x", "v", "a"]
    assert bench.fetch("b") == [(12, 14, 2), (20, 29, 1)]
    assert bench.ack("a", 0, 9, ACCEPT) is Errors.NONE  # the records are archived
    bench.after(LOCK_MS)
    assert bench.states()[15] == ("v", 1)
    empty = ShareBench()
    empty.partition.move_log_start(7)
    assert empty.partition.next_fetch_offset() == 7


def test_compacted_records_are_archived() -> None:
    bench = ShareBench((0, 9), (10, 19))
    bench.fetch()
    bench.ack("m", 0, 19, RELEASE)
    bench.batches = [(15, 19)]
    assert bench.fetch() == [(15, 19, 2)]
    assert bench.partition.window.start_offset == 15
    assert bench.partition.window.complete_count == 0


def test_records_of_aborted_transactions_are_archived() -> None:
    marker = build_control_batch(
        commit=False, base_offset=20, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )
    late = header(21, 29, producer_id=7, attributes=TRANSACTIONAL_BIT)
    records = header(0, 9, producer_id=7, attributes=TRANSACTIONAL_BIT) + header(10, 19) + marker + late
    fetched = Fetched.of(records, [AbortedTransaction(7, 0, 20, 21)])
    bench = ShareBench()
    acquired = bench.partition.acquire("m", AcquireMode.BATCH_OPTIMIZED, 500, 500, 0, fetched)
    assert acquired == [(10, 29, 1)]  # the client acknowledges the marker as a gap
    assert bench.partition.window.start_offset == 10
    assert bytes(fetched.slice(acquired)) == records[61:]  # from the batch of the first acquired offset on


def test_aborted_batches_behind_one_without_a_producer() -> None:
    """A batch without a producer id is of no transaction, and those after it are still compared."""
    records = header(0, 9) + header(10, 19, producer_id=7, attributes=TRANSACTIONAL_BIT)
    fetched = Fetched.of(records, [AbortedTransaction(7, 10, 19, 20)])
    assert [batch.base_offset for batch in fetched.aborted_batches()] == [10]


def test_aborted_records_alone_do_not_fill_the_window() -> None:
    bench = ShareBench()
    for first in range(0, 1000, 100):
        records = header(first, first + 99, producer_id=7, attributes=TRANSACTIONAL_BIT)
        assert bench.partition.next_fetch_offset() == first
        fetched = Fetched.of(records, [AbortedTransaction(7, first, first + 99, first + 100)])
        assert bench.partition.acquire("m", AcquireMode.BATCH_OPTIMIZED, 500, 500, first, fetched) == []


def test_acquired_ranges_without_aborted_ones() -> None:
    ranges = [AcquiredRecords(0, 9, 1), AcquiredRecords(10, 19, 2), AcquiredRecords(30, 39, 1)]
    aborted = Fetched.of(header(3, 4) + header(8, 12) + header(19, 30) + header(50, 60)).batches
    assert without(ranges, aborted) == [(0, 2, 1), (5, 7, 1), (13, 18, 2), (31, 39, 1)]
    assert without(ranges, []) == ranges


def test_accepted_records_before_the_start_of_the_log_are_counted_no_longer() -> None:
    bench = ShareBench((0, 9), (10, 19))
    bench.fetch("a", 5)
    bench.fetch("b", 5)
    bench.ack("b", 10, 19, ACCEPT)
    assert bench.partition.window.complete_count == 10
    bench.partition.move_log_start(15)
    assert bench.partition.window.complete_count == 5


def test_damage_ends_the_batches(bench: ShareBench) -> None:
    """Batches before a damaged length are delivered; of a damaged first batch the client gets the error."""
    damaged = bytearray(header(10, 19))
    struct.pack_into(">i", damaged, LENGTH_AT, -LENGTH_FROM)
    fetched = Fetched.of(header(0, 9) + damaged)
    assert [batch.last_offset for batch in fetched.batches] == [9]
    assert fetched.slice([AcquiredRecords(0, 9, 1)]) == header(0, 9)
    info = ReadInfo(0, 20, 20, 0, bytes(damaged), 0, [])
    log = cast(PartitionLog, SimpleNamespace(read=lambda *_, **__: info))
    one = ReadPartition(bench.partition, log)
    assert read_enough(one, 10, 1000, 10, 0, min_one=True)[0] is Errors.CORRUPT_MESSAGE


def test_state_is_recovered_and_its_gaps_are_acquired() -> None:
    bench = ShareBench((0, 9), (10, 19), (20, 29), (30, 39))
    for member in "abc":
        bench.fetch(member, 5)
    bench.ack("a", 0, 4, ACCEPT)
    bench.ack("c", 20, 29, RELEASE)
    again = ShareBench(*bench.batches, persister=bench.persister)
    assert again.partition.window.start_offset == 5
    assert again.fetch("x") == [(5, 19, 1), (20, 29, 2), (30, 39, 1)]
    assert again.partition.window.complete_count == 0
    assert again.ack("x", 5, 39, ACCEPT) is Errors.NONE
    assert again.partition.window.start_offset == 40


def test_a_gap_before_the_start_of_the_log() -> None:
    """Deleted records are not acquired: a range without offsets would stop the start offset forever."""
    bench = ShareBench((0, 20))
    bench.fetch("a")
    bench.ack("a", 0, 4, RELEASE)
    bench.ack("a", 10, 20, RELEASE)
    again = ShareBench(*bench.batches, persister=bench.persister)
    assert again.fetch("x", 5, mode=LIMIT) == [(0, 4, 2)]
    again.partition.move_log_start(12)
    assert again.fetch("y") == [(12, 20, 2)]
    assert again.leave("x") is Errors.NONE
    assert again.ack("y", 12, 20, ACCEPT) is Errors.NONE
    assert (again.partition.window.start_offset, again.partition.window.batches) == (21, [])


def test_a_full_window_whose_last_open_record_is_deleted() -> None:
    """The start offset passes the records that are done, so that the next ones are delivered."""
    bench = ShareBench((0, 19), (20, 29))
    bench.configs.max_record_locks = 10
    bench.fetch("a")
    assert (bench.ack("a", 1, 19, ACCEPT), bench.ack("a", 0, 0, RELEASE)) == (Errors.NONE, Errors.NONE)
    bench.partition.move_log_start(5)
    assert bench.fetch("a") == [(20, 29, 1)]


@pytest.mark.parametrize("type_", [RELEASE, ACCEPT])
def test_a_gap_without_records(type_: int) -> None:
    """Compaction has removed them: the start offset passes the gap, which would fill the window forever."""
    bench = ShareBench((0, 4), (10, 14), (15, 19))
    bench.fetch("a", 5)
    bench.fetch("b", 5)
    assert (bench.ack("a", 0, 4, RELEASE), bench.ack("b", 10, 14, type_)) == (Errors.NONE, Errors.NONE)
    again = ShareBench(*bench.batches, persister=bench.persister)
    again.configs.max_record_locks = 10
    assert again.fetch("x", 5, mode=LIMIT) == [(0, 4, 2)]
    assert again.ack("x", 0, 4, ACCEPT) is Errors.NONE
    for _ in range(3):
        for first, last, _ in again.fetch("x"):
            assert again.ack("x", first, last, ACCEPT) is Errors.NONE
    assert (again.partition.window.start_offset, again.partition.window.batches) == (20, [])


def test_a_state_that_cannot_be_read_fails_the_partition() -> None:
    persister = MemoryPersister()
    persister.error = Errors.COORDINATOR_LOAD_IN_PROGRESS
    bench = ShareBench((0, 9), persister=persister)
    assert bench.partition.state is SharePartitionState.FAILED
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
        bench.partition.initialize()
    persister.error = Errors.NONE
    persister.offsets = {3: (0, 1)}
    persister.start_offset = 3
    assert bench.load().state is SharePartitionState.ACTIVE
    bench.partition.fence()
    with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
        bench.partition.initialize()
    assert bench.fetch() == []


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Errors.NOT_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE),
        (Errors.GROUP_ID_NOT_FOUND, Errors.GROUP_ID_NOT_FOUND),
        (Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.UNKNOWN_TOPIC_OR_PARTITION),
        (Errors.FENCED_LEADER_EPOCH, Errors.NOT_LEADER_OR_FOLLOWER),
        (Errors.UNSUPPORTED_VERSION, Errors.UNKNOWN_SERVER_ERROR),
        (Errors.KAFKA_STORAGE_ERROR, Errors.UNKNOWN_SERVER_ERROR),
    ],
)
def test_errors_of_the_persister(code: Errors, error: Errors) -> None:
    assert persister_error(KafkaError(code)).error is error


def test_one_reader_at_a_time() -> None:
    bench = ShareBench()
    one, other = object(), object()
    assert bench.partition.acquire_fetch_lock(one)
    assert not bench.partition.acquire_fetch_lock(other)
    bench.partition.release_fetch_lock(other)
    assert not bench.partition.acquire_fetch_lock(other)
    bench.partition.release_fetch_lock(one)
    assert bench.partition.acquire_fetch_lock(other)


def test_acknowledged_neighbours_share_a_run() -> None:
    bench = ShareBench((0, 99))
    bench.fetch()
    for offset in [*range(1, 100, 2), *range(2, 100, 2)]:
        assert bench.ack("m", offset, offset, ACCEPT) is Errors.NONE
    assert len(bench.partition.window.batches[0].runs) == 2
    assert bench.timer.size == 1
    bench.ack("m", 0, 0, ACCEPT)
    assert bench.partition.window.start_offset == 100
    assert bench.timer.size == 0


def test_a_stored_state_with_an_unknown_record_state_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    persister = MemoryPersister()
    persister.start_offset, persister.offsets[0] = 0, (77, 1)
    bench = ShareBench((0, 9), persister=persister)
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR: Share partition failed to load g-t-0"):
        bench.partition.initialize()
    assert caplog.messages == [
        "failed to load the share partition g-t-0: UNKNOWN_SERVER_ERROR: Unknown record state id: 77"
    ]
    assert caplog.records[0].exc_info is None


def test_a_group_id_cannot_forge_a_line_of_the_log() -> None:
    assert str(KEY._replace(group_id="g\n\x1b[31m")) == "g\\u000a\\u001b[31m-t-0"


def test_acknowledgements_that_begin_below_the_start_offset() -> None:
    """Offsets below the start offset are passed over, whether they are still in flight or not."""
    bench = ShareBench((0, 9), (10, 19), (20, 29))
    bench.fetch()
    assert bench.ack("m", 0, 9, ACCEPT) is Errors.NONE
    assert bench.ack("m", 0, 19, ACCEPT) is Errors.NONE
    assert bench.partition.window.start_offset == 20
    bench = ShareBench((0, 9), (10, 19), (20, 29))
    bench.fetch("m", 5)
    bench.fetch("m", 5)
    bench.partition.move_log_start(10)  # its records are acquired, and so remain in flight
    assert bench.partition.window.batches[0].first_offset == 0
    assert bench.ack("m", 0, 19, ACCEPT) is Errors.NONE
    assert bench.partition.window.start_offset == 10
    bench.after(LOCK_MS)
    assert (bench.partition.window.start_offset, bench.fetch()) == (20, [(20, 29, 1)])


@pytest.mark.parametrize("acked", [(0, 4), (0, 9)])
@pytest.mark.parametrize("error", [Errors.NONE, Errors.COORDINATOR_NOT_AVAILABLE])
def test_the_log_start_moves_while_an_acknowledgement_is_stored(
    bench: ShareBench, acked: tuple[int, int], error: Errors
) -> None:
    """If the write fails after the lock has expired, records before the log start are not delivered again."""
    bench.fetch()
    found: list[str] = []

    def during_write() -> None:
        bench.partition.move_log_start(2)
        bench.after(LOCK_MS)
        found.extend(state for state, _ in bench.states().values())

    bench.persister.during_write, bench.persister.error = during_write, error
    assert bench.ack("m", *acked, ACCEPT) is error
    last = acked[1]
    assert "".join(found) == "k" * (last + 1) + "v" * (9 - last)
    bench.persister.error = Errors.NONE
    first = 2 if error is not Errors.NONE else last + 1
    assert bench.partition.next_fetch_offset() == first
    bench.batches = [(first, 9)] if first < 9 else [(10, 19)]
    end = bench.batches[0][1]
    assert bench.fetch("x") == [(first, end, 1 if first > 9 else 2)]
    assert bench.ack("x", first, end, ACCEPT) is Errors.NONE
    assert (bench.partition.window.start_offset, bench.partition.window.complete_count) == (end + 1, 0)


def test_a_persister_that_raises(bench: ShareBench, caplog: pytest.LogCaptureFixture) -> None:
    """The acknowledgement gets UNKNOWN_SERVER_ERROR, the records remain acquired, and the traceback is logged."""
    bench.fetch()
    fail = raising(ZeroDivisionError("division by zero"))
    write_state, bench.persister.write_state = bench.persister.write_state, fail  # type: ignore[method-assign]
    assert bench.ack("m", 0, 9, ACCEPT) is Errors.UNKNOWN_SERVER_ERROR
    assert set(bench.states().values()) == {("a", 1)}
    assert caplog.messages == ["cannot write the state of the share partition g-t-0"]
    assert "ZeroDivisionError" in caplog.text
    bench.persister.write_state = write_state  # type: ignore[method-assign]
    assert bench.ack("m", 0, 9, ACCEPT) is Errors.NONE


def test_an_acknowledgement_whose_end_raises_delays_no_other(
    bench: ShareBench, caplog: pytest.LogCaptureFixture
) -> None:
    """The writes that are queued after the first one are done, and the traceback is logged."""
    bench.fetch("a")
    done: list[KafkaError | None] = []

    def during_write() -> None:
        bench.partition.acknowledge("a", [batch_of(5, 9, [ACCEPT])], done.append)

    bench.persister.during_write = during_write
    bench.partition.acknowledge("a", [batch_of(0, 4, [ACCEPT])], raising(ZeroDivisionError("division by zero")))
    assert done == [None]
    assert bench.partition.window.start_offset == 10
    assert caplog.messages == ["cannot end a write of the state of the share partition g-t-0"]


def test_released_locks_that_cannot_be_stored(bench: ShareBench) -> None:
    """The records are available nevertheless: the stored state already has them as available."""
    bench.fetch()
    bench.persister.error = Errors.COORDINATOR_NOT_AVAILABLE
    bench.after(LOCK_MS)
    assert set(bench.states().values()) == {("v", 1)}
    assert bench.sensors.timeouts == [10]
    assert bench.fetch() == [(0, 9, 2)]


@pytest.mark.parametrize("stored", [(4, 2), (0, 3)])
def test_a_stored_batch_that_cannot_be(stored: tuple[int, int]) -> None:
    """A batch that ends before it begins, or begins below the start offset, fails the load."""
    window = InFlightWindow()
    with pytest.raises(KafkaError, match=f"invalid stored batch {stored[0]} to {stored[1]}"):
        window.load(2, [StateBatch(*stored, 0, 1)])


def test_a_load_that_raises(bench: ShareBench, caplog: pytest.LogCaptureFixture) -> None:
    """The share partition has failed, and the traceback is logged."""
    bench.persister.start_offset = -1
    partition = bench.new(lambda: 1 // 0, lambda: None)
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR: ZeroDivisionError: "):
        partition.initialize()
    assert partition.state is SharePartitionState.FAILED
    assert caplog.messages[0] == "failed to load the share partition g-t-0"
    assert "ZeroDivisionError" in caplog.text
