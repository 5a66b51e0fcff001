"""Random lives of transactional ids compared with a small model: ends, fencing, time-outs, kills, moves."""

import functools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.transaction.transaction_coordinator import NO_PRODUCER, Producer
from kbroker.coordinator.transaction.transaction_metadata import EXHAUSTED_EPOCH, MAX_EPOCH
from tests.support.closing import scope
from tests.support.transactions import T0, T1, T2, Transactions

NAMES = ("x", "y")
TIMEOUT_MS = 20_000
BUSY = frozenset({Errors.CONCURRENT_TRANSACTIONS})

shifts = st.sampled_from([0, 0, 0, 0, -1, 1])

operations = st.one_of(
    st.tuples(st.just("init"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.sampled_from([(T0,), (T1, T2), (T0, T2)]), shifts),
    st.tuples(st.just("end"), st.sampled_from(NAMES), st.booleans(), st.sampled_from([0, 2]), shifts),
    st.tuples(st.just("after"), st.sampled_from([100, 10_000, 40_000])),
    st.tuples(st.just("refuse"), st.sampled_from([T0, T1])),
    st.tuples(st.just("take")),
    st.tuples(st.just("kill")),
    st.tuples(st.just("move"), st.sampled_from(NAMES)),
    st.tuples(st.just("exhaust"), st.sampled_from(NAMES)),
)


@dataclass
class Model:
    """Expected state of one transactional id: its producer and the partitions of its open transaction."""

    producer: Producer = NO_PRODUCER
    places: set[TopicPartition] = field(default_factory=set)
    began_ms: int = -1
    is_open: bool = False


@dataclass
class World:
    """Coordinator, a model of each id, and the expected markers: (producer id, partition, commit)."""

    tx: Transactions = field(default_factory=Transactions)
    leader_epoch: int = 0
    models: dict[str, Model] = field(default_factory=lambda: {name: Model() for name in NAMES})
    expected: list[tuple[int, TopicPartition, bool]] = field(default_factory=list)

    def decide(self, model: Model, commit: bool) -> None:
        self.expected += [(model.producer.producer_id, place, commit) for place in sorted(model.places)]
        model.places = set()
        model.is_open = False

    def settle(self, name: str) -> None:
        """Copy the producer of an id after an end that the client did not request."""
        self.models[name].producer = Producer(*(lambda one: (one.producer_id, one.producer_epoch))(self.tx.see(name)))

    # ---- operations

    def init(self, name: str, names_itself: bool) -> None:
        model = self.models[name]
        mine = model.producer if names_itself and model.producer.producer_id >= 0 else None
        try:
            got = self.tx.init(name, mine, TIMEOUT_MS)
        except KafkaError as error:
            if error.error not in BUSY:
                raise
            if model.is_open:
                self.decide(model, commit=False)
                self.settle(name)
            return
        assert not model.is_open
        assert got > model.producer or (got.producer_epoch == 0 and got.producer_id != model.producer.producer_id)
        model.producer = got

    def add(self, name: str, places: tuple[TopicPartition, ...], shift: int) -> None:
        model = self.models[name]
        producer = model.producer._replace(producer_epoch=model.producer.producer_epoch + shift)
        error = self.tx.add(producer, *places, name=name)
        if model.producer.producer_id < 0:
            assert error is Errors.INVALID_PRODUCER_ID_MAPPING
        elif error not in BUSY:
            is_fenced = shift != 0 or producer.producer_epoch == MAX_EPOCH
            assert error is (Errors.PRODUCER_FENCED if is_fenced else Errors.NONE)
            if not is_fenced:
                model.began_ms = model.began_ms if model.is_open else self.tx.clock.wall_ms()
                model.is_open = True
                model.places |= set(places)

    def end(self, name: str, commit: bool, version: int, shift: int) -> None:
        model = self.models[name]
        producer = model.producer._replace(producer_epoch=model.producer.producer_epoch + shift)
        was_open = model.is_open
        try:
            got = self.tx.end(producer, commit, name, version)
        except KafkaError as error:
            if was_open and shift == 0:
                raise AssertionError(f"an open transaction could not be ended: {error}") from error
            return
        if was_open:
            assert shift == 0
            self.decide(model, commit)
        if version == 2:
            assert got >= model.producer or got.producer_epoch == 0
            model.producer = got
        else:
            assert got == Producer(-1, -1)

    def after(self, ms: int) -> None:
        self.tx.after(ms)
        now_ms = self.tx.clock.wall_ms()
        for name, model in self.models.items():
            if model.is_open and model.began_ms + TIMEOUT_MS < now_ms and self.tx.state(name) != "Ongoing":
                self.decide(model, commit=False)
                self.settle(name)
            if model.is_open:
                assert now_ms <= model.began_ms + TIMEOUT_MS + 10_100

    def refuse(self, place: TopicPartition) -> None:
        self.tx.markers.errors[place] = Errors.KAFKA_STORAGE_ERROR

    def take(self) -> None:
        self.tx.markers.errors.clear()

    def kill(self) -> None:
        self.tx = self.tx.restart()
        self.know_epochs()

    def move(self, name: str) -> None:
        index = self.tx.coordinator.runtime.index_of(name)
        self.leader_epoch += 2
        self.tx.coordinator.runtime.unload(index, self.leader_epoch - 1)
        self.tx.coordinator.runtime.load(index, self.leader_epoch)
        self.tx.scheduler.run_due()
        self.know_epochs()

    def exhaust(self, name: str) -> None:
        """Use up the epochs of an id outside a transaction, whose records have the transaction's epoch."""
        model = self.models[name]
        if model.is_open or model.producer.producer_id < 0 or self.tx.state(name) not in ("Empty", "CompleteCommit"):
            return
        self.tx.metadata(name).producer_epoch = EXHAUSTED_EPOCH - 1
        model.producer = model.producer._replace(producer_epoch=EXHAUSTED_EPOCH - 1)
        self.init(name, names_itself=False)

    def know_epochs(self) -> None:
        """Compare the states after a restart; the coordinator has no state of an id that was never initialized."""
        for name, model in self.models.items():
            if model.producer.producer_id >= 0:
                seen = self.tx.see(name)
                assert model.is_open == (seen.state.label == "Ongoing")
                if model.is_open:
                    assert model.places == seen.partitions

    def check(self) -> None:
        """Check that, once partitions accept markers, exactly the decided ones are written and no id is busy."""
        self.take()
        self.after(10_000)
        for name, model in self.models.items():
            if model.producer.producer_id >= 0:
                assert self.tx.state(name) in ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
                assert model.is_open == (self.tx.state(name) == "Ongoing")
                if not model.is_open:
                    seen = self.tx.see(name)
                    assert (seen.producer_id, seen.producer_epoch) == model.producer
        written = {(row[1], row[0], row[4]) for row in self.tx.markers.written}
        assert written == set(self.expected)
        by_epoch = {(row[0], row[1], row[2]): row[4] for row in self.tx.markers.written}
        versions = {(row[0], row[1], row[2], row[4]) for row in self.tx.markers.written if row[5] >= 2}
        assert len(versions) == len({row[:3] for row in versions}), f"both outcomes of one epoch: {by_epoch}"


@settings(max_examples=60, deadline=None)
@given(st.lists(operations, min_size=80, max_size=120))
@scope()
def test_random_lives(steps: list[tuple[object, ...]]) -> None:
    """Each decision is written to each of its partitions after any failures and kills of the broker."""
    world = World()
    for name in NAMES:
        world.init(name, names_itself=False)
    for kind, *arguments in steps:
        functools.partial(getattr(world, str(kind)), *arguments)()
    world.check()
