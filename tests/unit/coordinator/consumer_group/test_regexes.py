"""Regular expressions of members, which the broker resolves outside heartbeats."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.consumer_group import regexes
from kbroker.coordinator.consumer_group.background import BackgroundTasks
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.records import ResolvedRegex
from tests.support.consumer_groups import Beat, ConsumerGroupBench
from tests.support.errors import raising
from tests.support.fake_image import FakeImage


def resolve(*arguments: Any) -> dict[str, ResolvedRegex]:
    """Resolve expressions to the end, slice by slice."""
    slices = regexes.resolve(*arguments)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: dict[str, ResolvedRegex] = end.value
            return found


def test_topics_come_with_a_later_heartbeat() -> None:
    bench = ConsumerGroupBench(FakeImage(foo1=1, foo2=2, bar=1))
    assert bench.join("a", regex="foo.*") == Beat("a", 1, {})
    assert bench.epochs() == (1, 1)
    bench.after(100)
    assert bench.epochs() == (2, 1)
    assert bench.beat("a", 1) == Beat("a", 2, {"foo1": [0], "foo2": [0, 1]})


def test_the_whole_name_must_match() -> None:
    found = resolve(["foo", "o+", "f.o|bar"], FakeImage(foo=1, foot=1, bar=1), 7)
    assert {regex: sorted(one.topics) for regex, one in found.items()} == {
        "foo": ["foo"],
        "o+": [],
        "f.o|bar": ["bar", "foo"],
    }


@pytest.mark.parametrize("regex", ["(", "a{2,1}", "[b-a]", "a(?=b)", "(a)\\1"])
def test_what_re2_does_not_know_is_refused(bench: ConsumerGroupBench, regex: str) -> None:
    with pytest.raises(KafkaError) as refused:
        bench.join("a", regex=regex)
    assert refused.value.error is Errors.INVALID_REGULAR_EXPRESSION
    assert str(refused.value.message).startswith(f"SubscribedTopicRegex `{regex}` is not a valid regular expression: ")


@pytest.mark.parametrize(("length", "shown"), [(200, "(" * 200), (201, "(" * 200 + "...")])
def test_a_long_expression_is_cut_in_the_error(length: int, shown: str) -> None:
    with pytest.raises(KafkaError) as refused:
        regexes.compile_regex("(" * length)
    assert str(refused.value.message).startswith(f"SubscribedTopicRegex `{shown}` is not a valid regular expression: ")


def test_a_known_expression_bumps_the_epoch_at_once() -> None:
    bench = ConsumerGroupBench(FakeImage(foo=2))
    bench.join("a", regex="f.*")
    bench.after(100)
    bench.beat("a", 1)
    assert bench.join("b", regex="f.*") == Beat("b", 3, {})
    assert bench.epochs() == (3, 3)


def test_a_new_topic_is_found_after_ten_seconds() -> None:
    bench = ConsumerGroupBench(FakeImage(foo=1))
    bench.join("a", regex="f.*")
    bench.after(100)
    assert bench.beat("a", 1).has == {"foo": [0]}
    bench.image.create("fox", 1)
    bench.after(1000)
    bench.beat("a", 2)
    bench.after(100)
    assert bench.epochs() == (2, 2)
    bench.after(9000)
    bench.beat("a", 2)
    bench.after(100)
    assert bench.beat("a", 2) == Beat("a", 3, {"foo": [0], "fox": [0]})


def test_topics_are_looked_up_again_after_the_refresh_interval() -> None:
    bench = ConsumerGroupBench(FakeImage(foo=1, fox=1))
    bench.join("a", regex="f.*")
    bench.after(100)
    bench.beat("a", 1)
    bench.image.delete("fox")
    assert bench.beat("a", 2, has={"foo": [0]}) == Beat("a", 3, {"foo": [0]})
    for _ in range(20):
        bench.after(30_000)
        bench.beat("a", 3)
    assert bench.described().epoch == 3
    bench.after(1000)
    bench.beat("a", 3)
    bench.after(100)
    assert bench.described().epoch == 4  # the deleted topic no longer matches


def test_the_last_member_of_an_expression_takes_it_along() -> None:
    bench = ConsumerGroupBench(FakeImage(foo=2))
    bench.join("a", regex="f.*")
    bench.join("b", ["foo"])
    bench.after(100)
    bench.beat("a", 1)
    bench.beat("a", -1)
    again = bench.restart()
    assert again.described() == bench.described()
    assert again.coordinator.offsets.delete("g", [("foo", 0)]) == {("foo", 0): Errors.GROUP_SUBSCRIBED_TO_TOPIC}
    bench.beat("b", -1)
    assert bench.restart().coordinator.offsets.delete("g", [("foo", 0)]) == {("foo", 0): Errors.NONE}


def test_names_take_the_place_of_an_expression() -> None:
    bench = ConsumerGroupBench(FakeImage(foo=1, bar=1))
    bench.join("a", regex="f.*")
    bench.after(100)
    bench.beat("a", 1)
    beat = bench.beat("a", 2, topics=["bar"], regex="", has={"foo": [0]})
    assert (beat.epoch, beat.has) == (2, {})
    assert bench.beat("a", 2, has={}) == Beat("a", 3, {"bar": [0]})


def test_expressions_are_there_after_a_restart() -> None:
    bench = ConsumerGroupBench(FakeImage(foo=1))
    bench.join("a", regex="f.*")
    bench.after(100)
    bench.beat("a", 1)
    again = bench.restart()
    assert again.described() == bench.described()
    assert again.beat("a", 2) == Beat("a", 2, None)
    again.after(100)
    assert again.epochs() == (2, 2)


def test_a_client_gets_only_topics_that_it_may_know_of() -> None:
    image = FakeImage(foo1=1, foo2=1)
    found = resolve(["f.*"], image, 7, lambda names: [name for name in names if name != "foo2"])
    assert found["f.*"].topics == {"foo1"}


class SlowImage(FakeImage):
    """Image whose topic names wait for `may_answer`; ``asked`` signals a waiting caller."""

    def __init__(self, **counts: int) -> None:
        super().__init__(**counts)
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def names(self) -> list[str]:
        self.asked.set()
        assert self.may_answer.wait(30)
        return super().names()


def test_an_expression_that_takes_long_holds_nobody_up() -> None:
    """Heartbeats of the group and sessions of other groups do not wait for a slow expression."""
    image = SlowImage(foo=1, bar=1)
    bench = ConsumerGroupBench(image)
    background = bench.coordinator.consumer_groups.membership.regexes.background
    background.has_thread = True
    bench.join("a", regex="f.*")
    bench.join("x", ["bar"], group="other")
    bench.after(100)
    assert image.asked.wait(30)
    assert bench.beat("a", 1) == Beat("a", 1, None)
    assert bench.join("b", ["bar"]).has == {"bar": [0]}
    bench.after(30_000)
    bench.beat("a", 1)
    bench.beat("b", 2)
    bench.after(15_000)
    assert bench.described("other").members == []
    image.may_answer.set()
    background.join(30)
    assert bench.beat("a", 2).has == {"foo": [0]}


def test_an_expression_whose_member_left_meanwhile_is_not_stored() -> None:
    image = SlowImage(foo=1)
    bench = ConsumerGroupBench(image)
    background = bench.coordinator.consumer_groups.membership.regexes.background
    background.has_thread = True
    bench.join("a", regex="f.*")
    bench.join("b", ["foo"])
    bench.after(100)
    assert image.asked.wait(30)
    bench.beat("a", -1)
    before = bench.described()
    image.may_answer.set()
    background.join(30)
    assert bench.described() == before
    assert bench.restart().coordinator.offsets.delete("g", [("foo", 0)]) == {
        ("foo", 0): Errors.GROUP_SUBSCRIBED_TO_TOPIC
    }


def test_a_group_has_so_many_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further expression is refused and an equal one is accepted; each group has its own limit."""
    monkeypatch.setattr(regexes, "MOST_EXPRESSIONS", 2)
    bench = ConsumerGroupBench(FakeImage(foo=1))
    bench.join("a", regex="f.*")
    bench.join("b", regex="fo.*")
    with pytest.raises(KafkaError) as refused:
        bench.join("c", regex="foo.*")
    assert refused.value.error is Errors.INVALID_REGULAR_EXPRESSION
    assert refused.value.message == "Group g has 2 different regular expressions, the maximum."
    assert bench.join("c", regex="fo.*").epoch > 0
    assert bench.join("c", regex="foo.*", group="other").epoch > 0
    bench.beat("a", -1)
    assert bench.join("d", regex="foo.*").epoch > 0


def test_a_costly_expression_uses_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each expression of a group has a share of the steps, and unused steps are available to later expressions."""
    monkeypatch.setattr(regexes, "MOST_STEPS", 60_000)
    bits = (f"{number * 0x9E3779B97F4A7C15:0100b}".replace("0", "a") for number in range(100))
    image = FakeImage(**{f"{name}-{number}": 1 for number, name in enumerate(bits)})
    costly = "(a|1)*a(a|1){30}.*"
    found = resolve([costly, ".*1", f"{costly}1", r".*-\d?2"], image, 7)
    assert [len(one.topics) for one in found.values()] == [0, 10, 0, 10]


def test_without_a_thread_expressions_are_matched_later(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ConsumerGroupBench(FakeImage(foo=1))
    background = bench.coordinator.consumer_groups.membership.regexes.background
    background.has_thread = True
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        bench.join("a", regex="f.*")
        bench.after(100)
    bench.beat("a", 1)
    bench.after(100)
    background.join(30)
    assert bench.beat("a", 1).has == {"foo": [0]}


def test_an_expression_without_its_members_does_not_count_for_another() -> None:
    """A member that replaces a static member continues with that member's expression; its own is not counted."""
    bench = ConsumerGroupBench(FakeImage(foo=1, bar=1))
    bench.join("a", regex="f.*")
    bench.join("b", regex="b.*", instance="i")
    bench.after(11_000)
    bench.beat("a", 1)
    bench.after(11_000)
    bench.beat("b", -2, instance="i")
    bench.join("a", regex="b.*", instance="i")
    bench.after(100)
    bench.join("c", regex="ba.*")
    bench.after(11_000)
    bench.join("c", regex="ba.*")
    bench.after(11_000)
    group = bench.coordinator._groups.find("g")
    assert isinstance(group, ConsumerGroup)
    assert sorted(group.resolved) == ["b.*", "ba.*"]


def test_expressions_of_members_that_left_are_not_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expressions whose members left before the resolution are skipped."""
    bench = ConsumerGroupBench(FakeImage(foo=1))
    background = bench.coordinator.consumer_groups.membership.regexes.background
    tasks: list[Iterator[None]] = []
    monkeypatch.setattr(background, "run", tasks.append)
    bench.join("a", regex="f.*")
    bench.after(100)
    bench.beat("a", -1)
    asked: list[str] = []
    monkeypatch.setattr(bench.image, "names", lambda: asked)
    monkeypatch.setattr(regexes, "compile_regex", lambda regex, most_steps: asked.append(regex))
    (task,) = tasks
    assert list(task) == []
    assert not asked


def test_expressions_of_groups_take_turns() -> None:
    """Expressions of one group delay those of another by one slice at most."""
    background = BackgroundTasks()
    background.has_thread = True
    may_begin, seen = threading.Event(), []

    def task(name: str, slices: int) -> Iterator[None]:
        assert may_begin.wait(30)
        for _ in range(slices):
            seen.append(name)
            yield

    background.run(task("costly", 9))
    background.run(task("cheap", 1))
    may_begin.set()
    background.join(30)
    assert seen[:2] == ["costly", "cheap"]
    assert len(seen) == 10


def test_a_costly_expression_is_matched_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice is limited by steps and by topic names."""
    image = FakeImage(**{f"a1a1a1a1{number}": 1 for number in range(40)})
    assert len(list(regexes.resolve(["(a|1)*a(a|1){30}.*"], image, 7))) == 1
    with monkeypatch.context() as patch:
        patch.setattr(regexes, "SLICE_STEPS", 50)
        assert len(list(regexes.resolve(["(a|1)*a(a|1){30}.*"], image, 7))) > 4
    monkeypatch.setattr(regexes, "SLICE_NAMES", 10)
    assert len(list(regexes.resolve(["b"], image, 7))) == 5
