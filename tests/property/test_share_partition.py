"""Random lives of a share partition compared with a model by offset: fetches, acknowledgements, time, failures."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.common.errors import Errors
from kbroker.share.acquisition import AcquireMode
from tests.support.share import ACCEPT, LOCK_MS, REJECT, RELEASE, RENEW, ShareBench

MEMBERS = ("a", "b")
DELIVERIES = 4
#: Log with batches of several sizes and with offsets without a record.
BATCHES = ((0, 0), (1, 9), (10, 29), (33, 34), (35, 35), (36, 59), (60, 79))
OFFSETS = [offset for first, last in BATCHES for offset in range(first, last + 1)]

offsets = st.integers(0, 85)
types = st.sampled_from([0, ACCEPT, ACCEPT, RELEASE, REJECT, RENEW])
operations = st.one_of(
    st.tuples(
        st.just("fetch"), st.sampled_from(MEMBERS), st.integers(1, 40), st.integers(1, 30), st.sampled_from(AcquireMode)
    ),
    st.tuples(st.just("ack"), st.sampled_from(MEMBERS), offsets, st.integers(0, 20), st.lists(types, min_size=21)),
    st.tuples(st.just("ack_own"), st.sampled_from(MEMBERS), offsets, types),
    st.tuples(st.just("ack_own"), st.sampled_from(MEMBERS), offsets, types),
    st.tuples(st.just("leave"), st.sampled_from(MEMBERS)),
    st.tuples(st.just("after"), st.sampled_from([1000, LOCK_MS - 1, LOCK_MS])),
    st.tuples(st.just("refuse")),
    st.tuples(st.just("cut"), offsets),
    st.tuples(st.just("kill")),
)


@dataclass
class Row:
    """State of one offset: number of deliveries, owner, end of the lock, and whether the record is done."""

    count: int = 0
    owner: str = ""
    due_ms: int = 0
    is_done: bool = False
    stored_count: int = 0
    is_stored: bool = False


@dataclass
class World:
    bench: ShareBench = field(default_factory=lambda: ShareBench(*BATCHES))
    rows: dict[int, Row] = field(default_factory=lambda: {offset: Row() for offset in range(100)})
    log_start: int = 0

    def __post_init__(self) -> None:
        self.bench.configs.delivery_count_limit = DELIVERIES
        self.bench.configs.max_record_locks = 40

    @property
    def window(self):  # type: ignore[no-untyped-def]
        return self.bench.partition.window

    def fetch(self, member: str, maximum: int, batch_size: int, mode: AcquireMode) -> int:
        if (self.bench.partition.next_fetch_offset() or 0) < self.log_start:
            self.move_log_start()
        rows = self.bench.fetch(member, maximum, batch_size=batch_size, mode=mode)
        total = 0
        for first, last, count in rows:
            for offset in range(first, last + 1):
                row = self.rows[offset]
                assert not row.is_done
                assert not row.owner
                assert row.count == count - 1
                row.count, row.owner, row.due_ms = count, member, self.bench.clock.now_ms() + LOCK_MS
                total += offset in OFFSETS
        assert mode is AcquireMode.BATCH_OPTIMIZED or sum(last - first + 1 for first, last, _ in rows) <= maximum
        return total

    def ack(self, member: str, first: int, length: int, types_: list[int]) -> None:
        last = first + length
        self.acknowledge(member, first, last, types_[: length + 1])

    def ack_own(self, member: str, near: int, type_: int) -> None:
        """Acknowledge the first range of records that a member owns from an offset on."""
        first = next((offset for offset in range(near, 100) if self.rows[offset].owner == member), None)
        if first is not None:
            last = next(offset for offset in range(first, 101) if offset == 100 or self.rows[offset].owner != member)
            self.acknowledge(member, first, last - 1, [type_])

    def acknowledge(self, member: str, first: int, last: int, types_: list[int]) -> None:
        start = self.window.start_offset
        states = self.bench.states()
        live = [offset for offset in range(max(first, start), last + 1) if offset in states]
        is_good = last < start or (
            all(self.rows[offset].owner == member for offset in live)
            and last in states
            and self.window.batches[0].first_offset <= max(first, start)
        )
        is_in_hole = first >= start and first not in states  # the batch before the hole decides
        error = self.bench.ack(member, first, last, *types_)
        assert is_in_hole or (error is Errors.NONE) == is_good, (error, first, last)
        if error is not Errors.NONE:
            return
        assert is_good
        for offset in live:
            row = self.rows[offset]
            type_ = types_[0] if len(types_) == 1 else types_[offset - first]
            if type_ == RENEW:
                row.due_ms = self.bench.clock.now_ms() + LOCK_MS
            else:
                self.end(offset, is_released=type_ == RELEASE)

    def end(self, offset: int, *, is_released: bool) -> None:
        row = self.rows[offset]
        row.owner = ""
        is_before = offset < self.window.start_offset and offset < self.log_start
        row.is_done = row.is_done or not is_released or row.count >= DELIVERIES or is_before
        row.stored_count, row.is_stored = row.count, True

    def leave(self, member: str) -> None:
        owned = [offset for offset, row in self.rows.items() if row.owner == member]
        assert self.bench.leave(member) is Errors.NONE
        for offset in owned:
            self.end(offset, is_released=True)

    def after(self, ms: int) -> None:
        self.bench.after(ms)
        for offset, row in self.rows.items():
            if row.owner and row.due_ms <= self.bench.clock.now_ms():
                self.end(offset, is_released=True)

    def refuse(self) -> None:
        """Fail writes of acknowledgements, which must change nothing."""
        self.bench.persister.error = Errors.COORDINATOR_NOT_AVAILABLE
        for member in MEMBERS:
            first = next((offset for offset in range(100) if self.rows[offset].owner == member), None)
            if first is not None and first >= self.window.start_offset:
                assert self.bench.ack(member, first, first, ACCEPT) is Errors.COORDINATOR_NOT_AVAILABLE
        self.bench.persister.error = Errors.NONE

    def cut(self, offset: int) -> None:
        """Delete records."""
        self.log_start = max(self.log_start, min(offset, 80))
        self.bench.batches = [(first, last) for first, last in self.bench.batches if last >= self.log_start]

    def move_log_start(self) -> None:
        """Move the log start offset, because the offset to fetch is out of range."""
        self.bench.partition.move_log_start(self.log_start)
        for one in range(self.log_start):
            row = self.rows[one]
            row.is_done = row.is_done or not row.owner

    def kill(self) -> None:
        self.bench.partition.fence()
        self.bench.load()
        for row in self.rows.values():
            row.owner = ""
            if not row.is_done or not row.is_stored:
                row.count = row.stored_count

    def check(self) -> None:
        window, states = self.window, self.bench.states()
        done = sum(1 for offset, (state, _) in states.items() if state in "kx" and offset >= window.start_offset)
        assert window.complete_count == done
        for offset, (state, count) in states.items():
            row = self.rows[offset]
            if state == "a":
                assert row.owner
                assert row.count == count
        for offset, row in self.rows.items():
            if row.owner:
                assert states[offset][0] == "a"
        firsts = [batch.first_offset for batch in window.batches]
        assert firsts == sorted(set(firsts))
        for batch in window.batches:
            assert batch.is_split or len(batch.runs) == 1
            assert batch.runs[0].first_offset == batch.first_offset
            assert batch.runs[-1].last_offset == batch.last_offset
            ends = [run.last_offset + 1 for run in batch.runs[:-1]]
            assert ends == [run.first_offset for run in batch.runs[1:]]
        locks = {run.lock for batch in window.batches for run in batch.runs if run.lock is not None}
        assert {lock.holders for lock in locks} <= set(range(1, 100))

    def drain(self) -> None:
        """Check that every record that is not done is delivered, and that no timer remains."""
        for _ in range(400):
            self.after(LOCK_MS)
            if self.fetch("a", 40, 10, AcquireMode.BATCH_OPTIMIZED):
                for offset in range(100):
                    if self.rows[offset].owner and offset >= self.window.start_offset:
                        self.acknowledge("a", offset, offset, [ACCEPT])
            following = self.bench.partition.next_fetch_offset()
            if following is not None and following >= 80:
                break
        missing = [offset for offset in OFFSETS if not self.rows[offset].is_done and offset >= self.log_start]
        assert missing == []
        assert self.bench.timer.size == 0


@settings(deadline=None)
@given(st.lists(operations, max_size=40))
def test_random_lives(lives: list[tuple[object, ...]]) -> None:
    world = World()
    for name, *arguments in lives:
        getattr(world, str(name))(*arguments)
        world.check()
    world.drain()
