"""The purgatory compared with a simple model: dictionaries of lists and a sorted list of deadlines."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kbroker._core.clock import VirtualClock
from kbroker._core.timer.purgatory import DelayedOperation, Purgatory

KEYS = st.sampled_from([0, 1, -1, -2, "a", ("t", 3)])


class Op(DelayedOperation):
    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.ready = False
        self.completed = 0
        self.expired = 0

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.completed += 1

    def on_expiration(self) -> None:
        self.expired += 1


class PurgatoryAgainstModel(RuleBasedStateMachine):
    @initialize(purge_interval=st.integers(0, 4), shards=st.sampled_from([1, 3, 512]))
    def start(self, purge_interval: int, shards: int) -> None:
        self.clock = VirtualClock()
        self.purgatory = Purgatory("model", self.clock, purge_interval, shards)
        self.ops: list[Op] = []
        self.deadline: dict[Op, int] = {}  # pending operations only
        self.lists: dict[object, list[Op]] = {}
        self.expired: set[Op] = set()
        self.interval, self.estimated = purge_interval, 0

    @rule(timeout_ms=st.integers(0, 50), keys=st.lists(KEYS, min_size=1, max_size=3), ready=st.booleans())
    def watch(self, timeout_ms: int, keys: list[object], ready: bool) -> None:
        op = Op(timeout_ms)
        op.ready = ready
        assert self.purgatory.try_complete_else_watch(op, keys) == ready
        self.ops.append(op)
        if not ready:
            self.deadline[op] = self.clock.now_ms() + timeout_ms
            self.estimated += 1
            for key in keys:
                self.lists.setdefault(hash(key), []).append(op)

    @rule(data=st.data(), ready=st.booleans())
    def change_one(self, data: st.DataObject, ready: bool) -> None:
        if self.deadline:
            op = data.draw(st.sampled_from([op for op in self.ops if op in self.deadline]))
            if ready:
                op.ready = True
            else:
                assert op.force_complete()
                assert not op.force_complete()
                del self.deadline[op]

    @rule(key=KEYS)
    def check(self, key: object) -> None:
        watched = self.lists.get(hash(key), [])
        done = {op for op in watched if op in self.deadline and op.ready}
        assert self.purgatory.check_and_complete(key) == len(done)
        for op in done:
            del self.deadline[op]
        self.lists[hash(key)] = [op for op in watched if op in self.deadline]

    @rule(delta_ms=st.integers(0, 30))
    def pass_time(self, delta_ms: int) -> None:
        self.clock.advance_ms(delta_ms)
        self.purgatory.advance(0)
        for op in [op for op, deadline in self.deadline.items() if deadline <= self.clock.now_ms()]:
            del self.deadline[op]
            self.expired.add(op)
        if self.estimated - len(self.deadline) > self.interval:
            self.estimated = len(self.deadline)
            self.lists = {k: [op for op in ops if op in self.deadline] for k, ops in self.lists.items()}

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "purgatory"):
            assert self.purgatory.delayed == len(self.deadline)
            assert self.purgatory.watched == sum(map(len, self.lists.values()))
            for op in self.ops:
                assert op.is_completed == (op not in self.deadline)
                assert op.completed == (op not in self.deadline)
                assert op.expired == (op in self.expired)

    def teardown(self) -> None:
        if hasattr(self, "purgatory"):
            self.purgatory.close()


TestPurgatoryAgainstModel = PurgatoryAgainstModel.TestCase
TestPurgatoryAgainstModel.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
