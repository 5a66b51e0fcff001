"""Runtime of a coordinator: loaded, unloaded and damaged partitions, and late or overlapping orders."""

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.coordinator.internal_topic import UnreadableError
from kbroker.coordinator.partition_replay import PartitionReplay
from kbroker.coordinator.runtime import LOAD_TIME_WINDOW_MS, CoordinatorRuntime, CoordinatorShard
from tests.support.errors import error_of, raising
from tests.support.fixtures import fixture_of
from tests.support.groups import MemoryTopic


class Words(CoordinatorShard):
    """Shard that holds the keys of a partition."""

    keys: list[bytes]


class Scene:
    """Coordinator of words over one or several partitions."""

    def __init__(self, count: int = 1) -> None:
        self.clock = VirtualClock()
        self.topic = MemoryTopic(self.clock, count)
        self.resumed: list[int] = []
        self.runtime: CoordinatorRuntime[Words] = CoordinatorRuntime(self.topic, "__words", "words", self, self.clock)

    def build(self, index: int, epoch: int, replay: PartitionReplay) -> Words:
        shard = Words(self.topic, index, epoch, self.clock)
        shard.keys = list(replay.values)
        return shard

    def resume(self, shard: Words) -> None:
        self.resumed.append(shard.index)

    def loaded(self) -> CoordinatorRuntime[Words]:
        self.runtime.prepare()
        return self.runtime

    def while_loading(self, act: Callable[[], object]) -> None:
        """Call `act` once, at the beginning of the next load."""
        original = self.topic.partition

        def look(index: int) -> Any:
            self.topic.partition = original  # type: ignore[method-assign]
            act()
            return original(index)

        self.topic.partition = look  # type: ignore[method-assign]


scene = fixture_of(Scene)


def test_a_topic_is_served_from_its_creation_on() -> None:
    """A topic is served after its creation by the coordinator or by another client."""
    scene = Scene(3)
    assert not scene.runtime.exists
    assert error_of(scene.runtime.find, "x") is Errors.NOT_COORDINATOR
    assert scene.runtime.counts == (0, 0, 0)
    scene.loaded()
    assert scene.runtime.find("x").index == scene.runtime.index_of("x")
    assert (scene.runtime.counts, scene.resumed) == ((3, 0, 0), [0, 1, 2])
    other = Scene()
    other.topic.ensure()
    assert other.runtime.find("x").index == 0
    assert error_of(other.runtime.at, 1) is Errors.NOT_COORDINATOR


def test_records_are_read_again(scene: Scene) -> None:
    scene.loaded().find("x").append([(b"x", b"1"), (b"y", b"2")])
    scene.runtime.unload(0, 1)
    scene.runtime.load(0, 2)
    assert scene.runtime.find("x").keys == [b"x", b"y"]
    assert scene.runtime.find("x").epoch == 2


def test_an_unloaded_partition_takes_no_records() -> None:
    """An append to an unloaded partition is refused, even through a shard that was found before the unload."""
    scene = Scene(2)
    shard = scene.loaded().at(0)
    scene.runtime.unload(0, 1)
    assert error_of(scene.runtime.at, 0) is Errors.NOT_COORDINATOR
    assert error_of(shard.append, [(b"x", b"1")]) is Errors.NOT_COORDINATOR
    assert (scene.topic.record_count, scene.runtime.counts) == (0, (1, 0, 0))


def test_a_partition_that_is_offline_or_damaged_serves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The other partitions are served; a repaired partition is loaded with the same epoch."""
    scene = Scene(3)
    kept, scene.topic.logs[1] = scene.topic.logs[1], None
    scene.loaded()
    assert (scene.runtime.counts, scene.resumed) == ((2, 0, 1), [0, 2])
    assert error_of(scene.runtime.at, 1) is Errors.NOT_COORDINATOR
    assert "__words-1 in memory/1 cannot be read: the partition is offline. Its words are not served" in caplog.text
    scene.topic.logs[1] = kept
    scene.runtime.load(1, 0)
    assert scene.runtime.counts == (3, 0, 0)


@pytest.mark.parametrize("error", [UnreadableError("broken"), MemoryError()])
def test_a_partition_that_cannot_be_built_serves_nothing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    with monkeypatch.context() as patch:
        patch.setattr(scene, "build", raising(error))
        scene.loaded()
    assert scene.runtime.counts == (0, 0, 1)
    assert error_of(scene.runtime.find, "x") is Errors.NOT_COORDINATOR
    scene.runtime.load(0, 0)
    assert scene.runtime.find("x").keys == []


def test_a_partition_that_goes_offline_takes_no_records(scene: Scene) -> None:
    shard = scene.loaded().at(0)
    scene.topic.logs[0] = None
    assert error_of(shard.append, [(b"x", b"1")]) is Errors.NOT_COORDINATOR


def test_a_partition_that_is_being_loaded(scene: Scene) -> None:
    """Requests of a partition get COORDINATOR_LOAD_IN_PROGRESS during its load."""
    scene.loaded().unload(0, 1)
    seen: list[object] = []

    def look() -> None:
        seen.extend((error_of(scene.runtime.find, "x"), error_of(scene.runtime.check_loaded), scene.runtime.counts))

    scene.while_loading(look)
    scene.runtime.load(0, 2)
    assert seen == [Errors.COORDINATOR_LOAD_IN_PROGRESS] * 2 + [(0, 1, 0)]
    scene.runtime.check_loaded()
    assert scene.runtime.find("x").index == 0


def test_a_late_order_does_not_undo_a_newer_one(scene: Scene) -> None:
    """An order of an older or equal epoch is ignored; a newer load of a served partition only raises its epoch."""
    runtime = scene.loaded()
    assert runtime.at(0).epoch == 0
    runtime.unload(0, 0)
    assert runtime.at(0).epoch == 0
    runtime.unload(0, 4)
    for late in (0, 3, 4):
        runtime.load(0, late)
        assert error_of(runtime.at, 0) is Errors.NOT_COORDINATOR
    runtime.load(0, 5)
    shard = runtime.at(0)
    for late in (0, 4, 5):
        runtime.unload(0, late)
        assert runtime.at(0) is shard
    runtime.load(0, 7)
    assert (runtime.at(0) is shard, shard.epoch) == (True, 7)
    runtime.unload(0, 6)
    assert runtime.at(0) is shard
    runtime.unload(0, 8)
    assert error_of(runtime.at, 0) is Errors.NOT_COORDINATOR


def test_partitions_have_their_own_orders() -> None:
    """Each partition has its own epoch, and an unload may be its first order."""
    scene = Scene(2)
    scene.runtime.unload(0, 5)
    scene.loaded()
    assert [one.index for one in scene.runtime.shards] == [1]
    scene.runtime.load(0, 6)
    assert scene.runtime.counts == (2, 0, 0)


@pytest.mark.parametrize("served", [False, True])
def test_an_order_that_comes_while_a_partition_is_read(scene: Scene, served: bool) -> None:
    """An unload during a load wins: the partition is served only after a newer load."""
    scene.loaded().unload(0, 1)
    seen = []

    def moves() -> None:
        scene.runtime.unload(0, 3)
        seen.append((error_of(scene.runtime.find, "x"), scene.runtime.counts.loading))

    scene.while_loading(moves)
    scene.resumed.clear()
    scene.runtime.load(0, 2)
    assert seen == [(Errors.NOT_COORDINATOR, 0)]
    assert error_of(scene.runtime.find, "x") is Errors.NOT_COORDINATOR
    assert scene.resumed == []
    if served:
        scene.runtime.load(0, 4)
        assert scene.runtime.find("x").epoch == 4


def test_no_partition_is_read_while_its_last_shard_writes(scene: Scene) -> None:
    """A load waits for the retirement of the previous shard, and reads the records of its last append."""
    shard = scene.loaded().at(0)
    entered = threading.Event()
    retire = shard.retire

    def slow() -> None:
        entered.set()
        shard.append([(b"late", b"1")])
        retire()

    shard.retire = slow  # type: ignore[method-assign]
    with scene.runtime._load_lock:
        unload = threading.Thread(target=scene.runtime.unload, args=(0, 1))
        unload.start()
        while not scene.runtime._retired:
            pass
        load = threading.Thread(target=scene.runtime.load, args=(0, 2))
        load.start()
        assert not entered.is_set()
    for thread in (unload, load):
        thread.join(5)
    assert scene.runtime.find("x").keys == [b"late"]


def test_an_unload_waits_for_a_retirement_that_another_thread_has_begun(scene: Scene) -> None:
    """Another thread can wait for a shard that still writes."""
    shard = scene.loaded().at(0)
    waits: list[int] = []
    shard.retire = lambda: waits.append(len(scene.runtime._retired))  # type: ignore[method-assign]
    scene.runtime.unload(0, 1)
    assert (waits, len(scene.runtime._retired)) == ([1], 0)


def test_a_deleted_topics_epochs_are_forgotten(scene: Scene) -> None:
    """A new topic of the same name begins at epoch 0."""
    shard = scene.loaded().at(0)
    scene.runtime.load(0, 7)
    scene.topic.created = False
    scene.runtime.topic_deleted()
    assert error_of(shard.append, [(b"x", b"1")]) is Errors.NOT_COORDINATOR
    assert not scene.runtime.exists
    scene.loaded()
    assert scene.runtime.at(0).epoch == 0


def test_a_topic_that_is_deleted_while_it_is_loaded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """No order of it is left, whose epoch would be above those of a new topic of the same name."""
    topic, runtime = scene.topic, scene.runtime
    topic.ensure()
    topic.logs[0].set_leader_epoch(7)
    led_epoch = topic.led_epoch

    def delete() -> None:
        topic.created = False
        runtime.topic_deleted()

    def look(index: int) -> int | None:
        found = led_epoch(index)
        if not runtime._lock.locked():  # otherwise the deletion waits until the orders are made
            delete()
        return found

    with monkeypatch.context() as loading:
        loading.setattr(topic, "led_epoch", look)
        runtime.load_all()
    if topic.created:
        delete()
    topic.logs = MemoryTopic(scene.clock, 1).logs
    assert scene.loaded().at(0).epoch == 0


def test_a_closed_coordinator_is_not_available(scene: Scene) -> None:
    scene.loaded().close()
    for ask in (scene.runtime.prepare, scene.runtime.check_loaded, lambda: scene.runtime.find("x")):
        assert error_of(ask) is Errors.COORDINATOR_NOT_AVAILABLE


def test_load_times() -> None:
    """Load times cover the last minute."""
    scene = Scene(2)
    assert math.isnan(scene.runtime.load_times.max_ms)
    scene.while_loading(lambda: None)
    original = scene.topic.logs[0]

    class SlowLog:
        """Log whose load takes ten milliseconds."""

        @property
        def damage(self) -> None:
            scene.clock.advance_ms(10)

        def __getattr__(self, name: str) -> Any:
            return getattr(original, name)

    scene.topic.logs[0] = SlowLog()
    scene.loaded()
    assert scene.runtime.load_times == (5, 10)
    scene.clock.advance_ms(LOAD_TIME_WINDOW_MS + 11)
    assert math.isnan(scene.runtime.load_times.average_ms)
