"""Records per second and size of topics over ten minutes, on a virtual clock."""

import uuid
from types import SimpleNamespace
from typing import Any

from kbroker._core.clock import VirtualClock
from kbroker.console import topic_history
from kbroker.console.topic_history import EVERY_MS, SAMPLES, Point, TopicHistory
from tests.support.fixtures import fixture_of

T0 = 1_700_000_000_000


class Rig:
    """Topics that a test changes, and their history."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.clock = VirtualClock(T0)
        self.history = TopicHistory(lambda: self.topics.values(), self.clock)
        self.now_ms = T0

    def set(self, name: str, *ends: int, size_bytes: int = 0, topic_id: uuid.UUID | None = None) -> None:
        logs = tuple(SimpleNamespace(high_watermark=end, size_bytes=size_bytes) for end in ends)
        known = self.topics.get(name)
        kept = topic_id or (known.topic_id if known is not None else uuid.uuid4())
        self.topics[name] = SimpleNamespace(name=name, topic_id=kept, partitions=(*logs, None))

    def look(self, later_ms: int = EVERY_MS) -> None:
        self.now_ms += later_ms
        self.history.look(self.now_ms)


rig = fixture_of(Rig)


def test_the_rate_of_a_topic_is_that_of_all_its_partitions(rig: Rig) -> None:
    rig.set("t", 100, 50)
    rig.look(0)
    assert (rig.history.rate("t"), rig.history.points("t")) == (None, []), "the first sample has no rate"
    rig.set("t", 300, 150, size_bytes=7)
    rig.look()
    assert rig.history.rate("t") == 30
    assert rig.history.points("t") == [Point(T0 + EVERY_MS, 30.0, 14)]
    rig.look()
    assert rig.history.rate("t") == 0
    assert (rig.history.rate("none"), rig.history.points("none")) == (None, [])


def test_a_sample_is_taken_when_it_is_due(rig: Rig) -> None:
    rig.set("t", 0)
    rig.look(0)
    rig.set("t", 1000)
    rig.look(EVERY_MS - 1)
    assert rig.history.rate("t") is None
    rig.look(1)
    assert rig.history.rate("t") == 100


def test_a_pause_has_no_rate(rig: Rig) -> None:
    """The first page after a pause shows neither an old rate nor the average of the pause."""
    rig.set("t", 0)
    rig.look(0)
    rig.look()
    assert rig.history.rate("t") == 0
    rig.set("t", 3_600_000)
    rig.clock.advance_ms(3_600_000)
    assert rig.history.rate("t") is None
    rig.look(3_600_000)
    assert rig.history.rate("t") is None
    rig.set("t", 3_601_000)
    rig.look()
    assert [point.records for point in rig.history.points("t")] == [0.0, 100.0]


def test_a_slow_sample_delays_the_next_one(rig: Rig) -> None:
    rig.set("t", 0)

    def slow() -> Any:
        rig.clock.advance_ms(500)
        return rig.topics.values()

    history = TopicHistory(slow, rig.clock)
    history.look(T0)
    rig.set("t", 500_000)
    history.look(T0 + 49_999)
    assert history.rate("t") is None, "a sample of half a second allows one every 50 seconds"
    history.look(T0 + 50_000)
    assert history.rate("t") == 10_000


def test_ten_minutes_are_kept(rig: Rig) -> None:
    for number in range(SAMPLES + 20):
        rig.set("t", number * 10)
        rig.look()
    points = rig.history.points("t")
    assert len(points) == SAMPLES
    assert [point.records for point in points] == [1.0] * SAMPLES
    assert points[-1].time_ms - points[0].time_ms == (SAMPLES - 1) * EVERY_MS


def test_a_topic_of_the_same_name_begins_anew(rig: Rig) -> None:
    rig.set("t", 1000)
    rig.look()
    rig.look()
    assert len(rig.history.points("t")) == 1
    rig.set("t", 5, topic_id=uuid.uuid4())
    rig.look()
    assert rig.history.points("t") == []
    del rig.topics["t"]
    rig.look()
    assert rig.history.rate("t") is None


def test_topics_beyond_the_limit_have_no_values(monkeypatch: Any) -> None:
    monkeypatch.setattr(topic_history, "MAX_TOPICS", 2)
    rig = Rig()
    for name in ("a", "b", "c"):
        rig.set(name, 0)
    rig.look(0)
    rig.look()
    assert [rig.history.rate(name) for name in ("a", "b", "c")] == [0, 0, None]
    del rig.topics["a"]
    rig.look()
    rig.look()
    assert rig.history.rate("c") == 0
