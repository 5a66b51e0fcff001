"""Idempotent producers of a partition: vectors of Kafka's ProducerStateManagerTest, and related rules."""

import struct
from pathlib import Path

import pytest

from kbroker._core.codec.crc32c import crc32c
from tests.native.producer_slots import producer_slots
from tests.native.producer_state import ProducerStateManager
from tests.support.fixtures import fixture_of

INT32_MAX = 2**31 - 1
OUT_OF_ORDER, BAD_EPOCH, BAD_TXN_STATE, COORDINATOR_FENCED = 45, 47, 48, 52
PID = 7
state = fixture_of(ProducerStateManager)


def row(state: ProducerStateManager, producer_id: int = PID) -> dict[str, int]:
    return next(dict(r) for r in state.describe() if r["producer_id"] == producer_id)  # type: ignore[arg-type]


def test_sequence_wraps_to_zero(state: ProducerStateManager) -> None:
    """PS-1: after the maximum int32, the sequence is 0."""
    assert state.append(PID, 15, INT32_MAX, 735, from_client=False)[0] == 0
    assert state.append(PID, 15, 0, 736) == (0, 736, 0)
    assert row(state)["last_sequence"] == 0
    assert state.append(PID, 15, INT32_MAX, 999) == (0, 735, 0)  # a duplicate of the remembered batch


def test_sequence_one_after_the_wrap_is_a_gap(state: ProducerStateManager) -> None:
    """PS-2: after the maximum int32, sequence 1 is out of order."""
    state.append(PID, 15, INT32_MAX, 735, from_client=False)
    assert state.append(PID, 15, 1, 736)[0] == OUT_OF_ORDER


def test_batch_across_the_wrap_is_found_again() -> None:
    """A batch whose sequences wrap within it is detected as a duplicate."""
    state = ProducerStateManager()
    assert state.append(PID, 0, INT32_MAX - 1, 0, record_count=4)[0] == 0
    assert row(state)["last_sequence"] == 1
    assert state.append(PID, 0, INT32_MAX - 1, 50, record_count=4) == (0, 0, 0)
    assert state.append(PID, 0, 2, 4) == (0, 4, 0)


def test_marker_alone_sets_the_epoch(state: ProducerStateManager) -> None:
    """PS-3: a marker sets the epoch of an unknown producer, whose next sequence must be 0."""
    assert state.end_transaction(PID, 2, 99, commit=True) == (0, None)
    assert row(state)["last_sequence"] == -1
    assert state.append(PID, 0, 0, 100)[0] == BAD_EPOCH
    assert state.append(PID, 2, 17, 100)[0] == OUT_OF_ORDER
    assert state.append(PID, 2, 0, 100)[0] == 0


def test_plain_write_inside_a_transaction(state: ProducerStateManager) -> None:
    """PS-4: a non-transactional batch during the producer's transaction is refused."""
    assert state.append(PID, 0, 0, 0, transactional=True)[0] == 0
    assert state.append(PID, 0, 1, 1)[0] == BAD_TXN_STATE
    assert state.append(PID, 0, 1, 1, from_client=False)[0] == BAD_TXN_STATE


def test_replica_accepts_gaps(state: ProducerStateManager) -> None:
    """PS-5: a gap is refused from a client, and accepted from the log."""
    state.append(PID, 0, 0, 0)
    assert state.append(PID, 0, 3, 1)[0] == OUT_OF_ORDER
    assert state.append(PID, 0, 3, 1, from_client=False)[0] == 0
    assert row(state)["last_sequence"] == 3


def test_first_unstable_offset(state: ProducerStateManager) -> None:
    """PS-6, PS-7: the offset is the oldest open transaction, or one whose marker is above the high watermark."""
    assert state.first_unstable_offset is None
    state.append(1, 0, 0, 99, transactional=True)
    assert state.first_unstable_offset == 99
    state.append(2, 0, 0, 105, transactional=True)
    assert state.first_unstable_offset == 99
    assert state.end_transaction(1, 0, 109, commit=True) == (0, None)
    assert state.first_unstable_offset == 99
    state.set_high_watermark(100)
    assert state.first_unstable_offset == 99
    state.set_high_watermark(110)
    assert state.first_unstable_offset == 105
    assert state.end_transaction(2, 0, 112, commit=False) == (0, (2, 105, 112, 113))
    assert state.first_unstable_offset == 105
    state.set_high_watermark(112)
    assert state.first_unstable_offset == 105
    state.set_high_watermark(113)
    assert state.first_unstable_offset is None


def test_aborted_entry_names_the_oldest_other_transaction(state: ProducerStateManager) -> None:
    """An abort's last stable offset is the first offset of the oldest other open transaction."""
    state.append(1, 0, 0, 10, transactional=True)
    state.append(2, 0, 0, 11, transactional=True)
    state.append(3, 0, 0, 12, transactional=True)
    assert state.end_transaction(1, 0, 13, commit=False) == (0, (1, 10, 13, 11))
    assert state.end_transaction(3, 0, 14, commit=False) == (0, (3, 12, 14, 11))
    assert state.end_transaction(2, 0, 15, commit=False) == (0, (2, 11, 15, 16))


def test_coordinator_fencing(state: ProducerStateManager) -> None:
    """PS-8: a marker of an older coordinator is fenced."""
    state.append(PID, 0, 0, 0)
    for offset, coordinator_epoch in ((1, 1), (2, 1), (3, 2)):
        assert state.end_transaction(PID, 0, offset, commit=True, coordinator_epoch=coordinator_epoch)[0] == 0
    assert state.end_transaction(PID, 0, 4, commit=True, coordinator_epoch=1)[0] == COORDINATOR_FENCED
    assert row(state)["coordinator_epoch"] == 2


def test_marker_of_an_older_epoch(state: ProducerStateManager) -> None:
    """A marker with an epoch below the producer's is refused."""
    state.append(PID, 3, 0, 0, transactional=True)
    assert state.end_transaction(PID, 2, 1, commit=True)[0] == BAD_EPOCH


def test_expired_producer_is_fresh(state: ProducerStateManager) -> None:
    """PS-9: any sequence is accepted after the expiration."""
    state.append(PID, 0, 0, 0, timestamp_ms=1000)
    state.expire(1000 + 86_400_000 - 1, 86_400_000)
    assert len(state) == 1
    state.expire(1000 + 86_400_000, 86_400_000)
    assert len(state) == 0
    assert state.append(PID, 0, 42, 1)[0] == 0


def test_open_transaction_does_not_expire(state: ProducerStateManager) -> None:
    """A producer with an open transaction does not expire."""
    state.append(PID, 0, 0, 0, transactional=True)
    state.expire(10**15, 1)
    assert len(state) == 1


def test_snapshot_of_an_open_transaction(state: ProducerStateManager, tmp_path: Path) -> None:
    """PS-10: a snapshot has only the last batch and the open transaction."""
    state.append(PID, 0, 0, 0, transactional=True)
    state.append(PID, 0, 1, 1, transactional=True)
    state.write_snapshot(tmp_path / "2.snapshot")
    reloaded = ProducerStateManager()
    reloaded.load_snapshot(tmp_path / "2.snapshot")
    assert row(reloaded) == row(state) | {"batch_count": 1}
    assert row(reloaded)["current_txn_first_offset"] == 0
    assert reloaded.first_unstable_offset == 0
    assert reloaded.append(PID, 0, 1, 99, transactional=True) == (0, 1, 0)
    assert reloaded.append(PID, 0, 0, 99, transactional=True)[0] == OUT_OF_ORDER
    assert reloaded.append(PID, 0, 2, 2, transactional=True)[0] == 0


def test_five_batches_are_remembered(state: ProducerStateManager) -> None:
    """A duplicate of the last five batches returns its offset and time; an older one is out of order."""
    for i in range(6):
        assert state.append(PID, 0, 2 * i, 10 * i, record_count=2, timestamp_ms=i)[0] == 0
    for i in range(1, 6):
        assert state.append(PID, 0, 2 * i, 999, record_count=2) == (0, 10 * i, i)
    assert state.append(PID, 0, 0, 999, record_count=2)[0] == OUT_OF_ORDER
    assert state.append(PID, 0, 10, 999)[0] == OUT_OF_ORDER  # part of a remembered batch
    assert state.append(PID, 0, 9, 999, record_count=3)[0] == OUT_OF_ORDER  # overlaps a remembered batch


def test_a_new_epoch_starts_at_zero(state: ProducerStateManager) -> None:
    """A newer epoch begins with sequence 0 and clears the batches; the older epoch is refused."""
    state.append(PID, 0, 5, 0)
    assert state.append(PID, 1, 6, 1)[0] == OUT_OF_ORDER
    assert state.append(PID, 1, 0, 1)[0] == 0
    assert row(state)["batch_count"] == 1
    assert state.append(PID, 0, 5, 2)[0] == BAD_EPOCH


def test_old_epoch_is_judged_before_the_sequence(state: ProducerStateManager) -> None:
    """A batch of an old epoch with a wrong sequence gets error 47 instead of 45."""
    state.append(PID, 4, 0, 0)
    assert state.append(PID, 3, 77, 1)[0] == BAD_EPOCH


def test_refusal_changes_nothing(state: ProducerStateManager) -> None:
    """A refused batch does not change the state."""
    state.append(PID, 1, 0, 0, timestamp_ms=5)
    before = state.describe()
    for epoch, sequence in ((0, 0), (1, 7), (2, 1)):
        assert state.append(PID, epoch, sequence, 1, timestamp_ms=9)[0] != 0
    assert state.append(PID, 1, 0, 1, timestamp_ms=9) == (0, 0, 5)
    assert state.describe() == before


def test_markers_keep_or_clear_the_batches(state: ProducerStateManager) -> None:
    """A marker of the same epoch keeps the sequence, and one of a newer epoch restarts it at 0."""
    state.append(PID, 0, 0, 0, transactional=True)
    state.end_transaction(PID, 0, 1, commit=True)
    assert row(state)["current_txn_first_offset"] == -1
    assert state.append(PID, 0, 1, 2, transactional=True)[0] == 0
    state.end_transaction(PID, 1, 3, commit=True)
    assert state.append(PID, 1, 2, 4)[0] == OUT_OF_ORDER
    assert state.append(PID, 1, 0, 4)[0] == 0


SNAPSHOT = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", PID, 3, 11, 50, 1, 777, 2, -1)


def frame(body: bytes, version: int = 1) -> bytes:
    return struct.pack(">hI", version, crc32c(body)) + body


def test_snapshot_bytes_are_kafkas(state: ProducerStateManager, tmp_path: Path) -> None:
    """A snapshot has version, checksum, count, and 46 bytes per producer in Kafka's order of fields."""
    path = tmp_path / "51.snapshot"
    state.end_transaction(PID, 3, 5, commit=True, coordinator_epoch=2)
    state.append(PID, 3, 0, 39, record_count=10)
    state.append(PID, 3, 10, 49, record_count=2, timestamp_ms=777)
    state.write_snapshot(path)
    assert path.read_bytes() == frame(SNAPSHOT)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["51.snapshot"]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        frame(SNAPSHOT)[:-1],
        frame(SNAPSHOT) + b"\0",
        frame(SNAPSHOT, version=2),
        frame(struct.pack(">i", 0x7FFFFFFF)),
        frame(struct.pack(">i", -1)),
        frame(struct.pack(">i", 1) + struct.pack(">qhiqiqiq", -5, 3, 11, 50, 1, 777, 2, -1)),
        frame(struct.pack(">i", 1) + struct.pack(">qhiqiqiq", PID, 3, 11, 50, -9, 777, 2, -1)),
    ],
    ids=["empty", "short", "long", "version", "count", "negative count", "negative id", "negative delta"],
)
def test_corrupt_snapshot_is_refused(state: ProducerStateManager, tmp_path: Path, damaged: bytes) -> None:
    """The error has the name of the damaged snapshot, and the state is not changed."""
    path = tmp_path / "1.snapshot"
    path.write_bytes(damaged)
    state.append(1, 0, 0, 0)
    with pytest.raises(ValueError, match=r"1\.snapshot"):
        state.load_snapshot(path)
    assert len(state) == 1


def test_every_flipped_bit_is_seen(state: ProducerStateManager, tmp_path: Path) -> None:
    """A snapshot with any single flipped bit is refused."""
    path, good = tmp_path / "1.snapshot", frame(SNAPSHOT)
    for bit in range(len(good) * 8):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="corrupt"):
            state.load_snapshot(path)


def test_load_leaves_expired_producers_out(state: ProducerStateManager, tmp_path: Path) -> None:
    """A producer that has expired while the broker was stopped is not loaded."""
    path = tmp_path / "1.snapshot"
    path.write_bytes(frame(SNAPSHOT))
    state.load_snapshot(path, now_ms=777 + 100, expiration_ms=100)
    assert len(state) == 0
    state.load_snapshot(path, now_ms=777 + 99, expiration_ms=100)
    assert len(state) == 1


def test_a_missing_file_raises_oserror(state: ProducerStateManager, tmp_path: Path) -> None:
    """The error has its cause and the path."""
    with pytest.raises(FileNotFoundError, match="absent"):
        state.load_snapshot(tmp_path / "absent")


@pytest.mark.parametrize(
    "args", [(-1, 0, 0, 0), (1, -1, 0, 0), (1, 40000, 0, 0), (1, 0, -1, 0), (1, 0, 0, -1), (2**63, 0, 0, 0)]
)
def test_wrong_numbers_are_refused(state: ProducerStateManager, args: tuple[int, int, int, int]) -> None:
    """A number out of range raises ValueError without a change."""
    with pytest.raises(ValueError, match="must be in"):
        state.append(*args)
    with pytest.raises(TypeError):
        state.append("x", 0, 0, 0)  # type: ignore[arg-type]
    assert len(state) == 0


def test_many_producers_grow_and_shrink(state: ProducerStateManager, tmp_path: Path) -> None:
    """Ten thousand producers are found, partly expired, written and read."""
    for i in range(10_000):
        assert state.append(i * 1000, 0, i, i, timestamp_ms=i)[0] == 0
    state.expire(5_000 + 10, 10)  # producers stamped 0 to 5000
    assert len(state) == 4_999
    for i in reversed(range(10_000)):
        assert state.append(i * 1000, 0, i + 1, 20_000 + i, timestamp_ms=i)[0] == 0
    assert len(state) == 10_000
    state.write_snapshot(tmp_path / "x.snapshot")
    again = ProducerStateManager()
    again.load_snapshot(tmp_path / "x.snapshot")
    assert [r | {"batch_count": 1} for r in state.describe()] == again.describe()


def test_producer_ids_made_to_collide() -> None:
    """Clients may send any producer id: ids with equal fixed hashes are spread by a secret hash."""
    ids = [one for one in (unmixed(i << 40) for i in range(4096)) if one < 1 << 63][:1024]
    assert len(set(producer_slots(ids, 1024))) > 512  # a fixed hash would have one slot


def unmixed(value: int) -> int:
    """Return the number whose splitmix64 finalizer is value."""
    word = (1 << 64) - 1
    value ^= value >> 31 ^ value >> 62
    value = value * pow(0x94D049BB133111EB, -1, 1 << 64) & word
    value ^= value >> 27 ^ value >> 54
    value = value * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & word
    return value ^ value >> 30 ^ value >> 60
