"""The timing wheel compared with a simple model: a sorted list of due times on a virtual clock."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker._core.clock import VirtualClock
from kbroker._core.timer.timing_wheel import Timer, TimerTask

DELAYS_MS = st.one_of(st.integers(-3, 60), st.integers(0, 5_000), st.integers(0, 1 << 34))


class WheelAgainstSortedList(RuleBasedStateMachine):
    """Pending tasks as (due time, number); an advance must run exactly the due tasks and none early."""

    @initialize(tick_ms=st.sampled_from([1, 3, 10]), wheel_size=st.sampled_from([2, 3, 20]), start=st.integers(0, 999))
    def start(self, tick_ms: int, wheel_size: int, start: int) -> None:
        self.clock = VirtualClock(start_ms=start)
        self.tick_ms = tick_ms
        self.timer = Timer(self.clock, tick_ms, wheel_size)
        self.pending: dict[int, tuple[int, int]] = {}  # number: (due tick time, exact due time in ns)
        self.tasks: dict[int, TimerTask] = {}
        self.ran: list[int] = []
        self.number = 0

    @rule(delay_ms=DELAYS_MS)
    def add(self, delay_ms: int) -> None:
        number = self.number = self.number + 1
        now_ns = self.clock.now_ns()
        due_ms = self.clock.now_ms()
        if delay_ms > 0:
            due_ms = math.ceil(now_ns / 1_000_000) + delay_ms
            due_ms += -due_ms % self.tick_ms
        self.tasks[number] = self.timer.add(delay_ms, lambda: self.ran.append(number))
        assert self.tasks[number].due_ms == due_ms
        self.pending[number] = (due_ms, now_ns + delay_ms * 1_000_000)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.tasks)))
        assert self.tasks[number].cancel() == (number in self.pending)
        self.pending.pop(number, None)

    @rule(delta_ns=st.one_of(st.integers(0, 3_000_000), st.integers(0, 10**9), st.integers(0, 1 << 54)))
    def pass_time(self, delta_ns: int) -> None:
        self.clock.advance_ns(delta_ns)

    @rule()
    def advance(self) -> None:
        self.ran.clear()
        now_ns = self.clock.now_ns()
        due = [n for n, (due_ms, _) in self.pending.items() if due_ms * 1_000_000 <= now_ns]
        polled = self.timer.advance(0)
        assert polled or not due
        assert sorted(self.ran) == sorted(due)
        for number in self.ran:
            assert self.pending[number][1] <= now_ns, "ran early"
        same_tick: dict[int, list[int]] = {}
        for number in self.ran:
            same_tick.setdefault(self.pending[number][0], []).append(number)
        for number in due:
            del self.pending[number]
        assert not self.timer.advance(0)

    @invariant()
    def count_is_exact(self) -> None:
        if hasattr(self, "timer"):
            assert self.timer.size == len(self.pending) == len(self.timer._levels())
            assert all(task.is_pending == (n in self.pending) for n, task in self.tasks.items())

    @invariant()
    def no_more_buckets_than_slots(self) -> None:
        if hasattr(self, "timer"):
            rows = self.timer._levels()
            assert len({row[:2] for row in rows if row[0]}) <= self.timer._queued_buckets
            assert all(row[2] <= row[3] for row in rows), "a bucket starts after its task is due"

    def teardown(self) -> None:
        if hasattr(self, "timer"):
            self.timer.close()


TestWheelAgainstSortedList = WheelAgainstSortedList.TestCase
TestWheelAgainstSortedList.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


class OrderWithinATick(RuleBasedStateMachine):
    """Tasks run in the order of their due times when time advances in small steps, and of addition in one tick."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock(start_ms=0)
        self.timer = Timer(self.clock, 1, 8)
        self.pending: list[tuple[int, int]] = []
        self.ran: list[tuple[int, int]] = []
        self.number = 0

    @rule(delay_ms=st.integers(1, 7), count=st.integers(1, 4))
    def add(self, delay_ms: int, count: int) -> None:
        for _ in range(count):
            self.number += 1
            item = (self.clock.now_ms() + delay_ms, self.number)
            self.timer.add(delay_ms, lambda item=item: self.ran.append(item))  # type: ignore[misc]
            self.pending.append(item)

    @rule()
    def tick(self) -> None:
        self.timer.add(1, lambda: None)  # keeps the clock of the wheel at the present
        self.clock.advance_ms(1)
        self.ran.clear()
        self.timer.advance(0)
        assert self.ran == sorted(item for item in self.pending if item[0] <= self.clock.now_ms())
        self.pending = [item for item in self.pending if item[0] > self.clock.now_ms()]

    def teardown(self) -> None:
        self.timer.close()


TestOrderWithinATick = OrderWithinATick.TestCase
TestOrderWithinATick.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
