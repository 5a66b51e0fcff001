"""Offsets in and outside transactions compared with a model, across restarts and cleanings."""

import uuid
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.internal_topic import EndMarker, TransactionalProducer
from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction._cleaner import Cleaner
from kbroker.log.compaction.log_cleaner import CompactionConfig, measure
from tests.support.closing import close_at_end, folder_until_end, scope
from tests.support.groups import Groups, MemoryTopic

PLACES = [("t", 0), ("t", 1), ("u", 0)]
GROUPS = ["a", "b"]
DAY_MS = 86_400_000
Key = tuple[str, tuple[str, int]]  # group and partition

keys = st.tuples(st.sampled_from(GROUPS), st.sampled_from(PLACES))
producers = st.integers(1, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), keys),
        st.tuples(st.just("add"), producers, keys),
        st.tuples(st.just("end"), producers, st.booleans()),
        st.tuples(st.just("delete"), keys),
        st.tuples(st.just("restart")),
        st.tuples(st.just("clean")),
        st.tuples(st.just("reload")),
    ),
    max_size=40,
)


class Model:
    """Offset and time of each key, committed and pending."""

    def __init__(self) -> None:
        self.time = 0
        self.committed: dict[Key, tuple[int, int]] = {}
        self.pending: dict[int, dict[Key, tuple[int, int]]] = {}

    def next(self) -> tuple[int, int]:
        self.time += 1
        return self.time, self.time

    def end(self, producer_id: int, commit: bool) -> None:
        for key, value in self.pending.pop(producer_id, {}).items():
            if commit and value[1] > self.committed.get(key, (0, 0))[1]:
                self.committed[key] = value

    def delete(self, key: Key) -> None:
        self.committed.pop(key, None)
        for rows in self.pending.values():
            rows.pop(key, None)

    def offsets(self, group: str) -> dict[Any, int]:
        return {place: value[0] for (name, place), value in self.committed.items() if name == group}

    def unstable(self, group: str) -> set[Any]:
        return {place for rows in self.pending.values() for name, place in rows if name == group}


class Bench:
    """Groups over one partition on disk."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        topic = MemoryTopic(self.clock, 1)
        config = {"cleanup.policy": "compact"}
        name = "__consumer_offsets"
        log = PartitionLog(folder / f"{name}-0", name, 0, uuid.uuid4(), config, self.clock)
        self.log = close_at_end(log, clean=False)
        topic.logs = [self.log]
        topic.ensure()
        self.groups = Groups(clock=self.clock, topic=topic)
        self.leader_epoch = 0
        self.first_dirty = 0

    def clean(self) -> None:
        """Clean everything that is stable; a day later, markers whose data was removed are removed too."""
        self.log.roll()
        self.clock.advance_ms(2 * DAY_MS)
        now_ms = self.clock.wall_ms()
        dirt = measure(self.log, CompactionConfig(), self.first_dirty, now_ms)
        if dirt.first_uncleanable > dirt.first_dirty:
            result = Cleaner(1 << 20).clean(self.log, dirt.first_dirty, dirt.first_uncleanable, now_ms=now_ms)
            assert result is not None
            self.first_dirty = result.end_offset

    def run(self, step: tuple[Any, ...], model: Model) -> None:
        coordinator = self.groups.coordinator
        kind, *arguments = step
        if kind == "commit":
            ((group, place),) = arguments
            value = model.next()
            coordinator.offsets.commit(group, "", None, -1, {place: self.value(value[0])})
            model.committed[group, place] = value
        elif kind == "add":
            producer_id, (group, place) = arguments
            value = model.next()
            producer = TransactionalProducer(producer_id, 0)
            coordinator.offsets.commit_transactional(group, "", None, -1, producer, {place: self.value(value[0])})
            model.pending.setdefault(producer_id, {})[group, place] = value
        elif kind == "end":
            producer_id, commit = arguments
            coordinator.offsets.complete_transaction(0, EndMarker(producer_id, 0, 0, commit, 0))
            model.end(producer_id, commit)
        elif kind == "delete":
            ((group, place),) = arguments
            if coordinator.describe(group) is not None:
                coordinator.offsets.delete(group, [place])
                model.delete((group, place))
        elif kind == "restart":
            self.groups = self.groups.restart()
        elif kind == "reload":
            self.leader_epoch += 2
            coordinator.runtime.unload(0, self.leader_epoch - 1)
            coordinator.runtime.load(0, self.leader_epoch)
        else:
            self.clean()

    def value(self, offset: int) -> CommittedOffset:
        return CommittedOffset(offset, -1, "", self.clock.wall_ms())

    def check(self, model: Model) -> None:
        for group in GROUPS:
            coordinator = self.groups.coordinator
            found = {place: one.offset for place, one in coordinator.offsets.fetch(group).committed.items()}
            assert found == model.offsets(group)
            assert set(coordinator.offsets.fetch(group, PLACES, True).unstable) == model.unstable(group)


@settings(max_examples=80, deadline=None)
@given(steps)
@scope()
def test_offsets_are_those_of_the_model(script: list[tuple[Any, ...]]) -> None:
    """The coordinator agrees with the model after commits, ends, deletions, cleaning and loads in any order."""
    bench, model = Bench(folder_until_end()), Model()
    for step in script:
        bench.run(step, model)
        bench.check(model)
    bench.groups = bench.groups.restart()
    bench.check(model)
    for producer_id in (1, 2, 3):
        bench.run(("end", producer_id, producer_id != 2), model)
    bench.check(model)
    bench.clean()
    bench.groups = bench.groups.restart()
    bench.check(model)
