"""Consumer groups whose records cannot be stored or whose calculations fail."""

import logging
from collections.abc import Iterator

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.consumer_group import target_assignment
from kbroker.coordinator.consumer_group.background import BackgroundTasks
from tests.support.consumer_groups import Beat, ConsumerGroupBench
from tests.support.errors import raising
from tests.support.fake_image import FakeImage

SESSION_MS = 45_000


def take_replicas_away(bench: ConsumerGroupBench, are_gone: bool = True) -> None:
    """Make appends fail for lack of replicas, or succeed again."""
    assert bench.topic is not None
    for log in bench.topic.logs:
        log.is_under_min_isr = are_gone


def refusal(bench: ConsumerGroupBench, member_id: str, epoch: int) -> tuple[Errors, str]:
    with pytest.raises(KafkaError) as refused:
        bench.beat(member_id, epoch, has={}, topics=["t"], timeout_ms=60_000)
    return refused.value.error, refused.value.message


def test_a_member_that_cannot_be_removed_now(bench: ConsumerGroupBench, caplog: pytest.LogCaptureFixture) -> None:
    """A member whose session ends while the log is not writable is removed a session later."""
    bench.join("a")
    take_replicas_away(bench)
    bench.after(SESSION_MS)
    assert [row.member.member_id for row in bench.described().members] == ["a"]
    (record,) = (row for row in caplog.records if "cannot remove" in row.getMessage())
    assert record.getMessage().startswith("group g: cannot remove a: COORDINATOR_NOT_AVAILABLE")
    assert record.levelno == logging.WARNING
    assert not record.exc_info
    take_replicas_away(bench, False)
    bench.after(SESSION_MS - 100)
    assert len(bench.described().members) == 1
    bench.after(100)
    assert len(bench.described().members) == 0


def test_a_member_that_revokes_nothing_and_cannot_be_removed_now(bench: ConsumerGroupBench) -> None:
    """A member whose rebalance time-out ends while the log is not writable is removed a session later.

    Its heartbeats do not keep it: otherwise the others would wait for its partitions without end.
    """
    bench.join("a", timeout_ms=30_000)
    bench.join("b")
    assert bench.beat("a", 2).has == {"t": [0, 1]}
    bench.beat("b", 3)
    take_replicas_away(bench)
    for passed_ms in range(0, 30_000 + SESSION_MS, 15_000):
        assert bench.targets().keys() == {"a", "b"}
        assert (bench.beat("a", 2).epoch, bench.beat("b", 3).has) == (2, None)
        if passed_ms == 45_000:
            take_replicas_away(bench, False)
        bench.after(15_000)
    assert bench.beat("b", 3).has == {"t": [0, 1, 2, 3]}


def test_an_assignor_that_fails(
    bench: ConsumerGroupBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The heartbeat gets UNKNOWN_SERVER_ERROR with the reason, and the group is unchanged."""
    bench.join("a")
    before = bench.described()
    with monkeypatch.context() as patch:
        patch.setattr(target_assignment, "ASSIGNORS", {"uniform": raising(ZeroDivisionError("division by zero"))})
        assert refusal(bench, "b", 0) == (
            Errors.UNKNOWN_SERVER_ERROR,
            "Failed to compute a new target assignment for epoch 3: division by zero",
        )
    assert "group g: the assignor uniform failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert bench.described() == before
    assert bench.join("b") == Beat("b", 3, {})


class BrokenImage(FakeImage):
    """Image whose names cannot be read for a while."""

    is_broken = True

    def names(self) -> list[str]:
        if self.is_broken:
            raise ZeroDivisionError("division by zero")
        return super().names()


def test_an_expression_that_cannot_be_resolved_now(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged, and a later heartbeat resolves the expression."""
    image = BrokenImage(foo=2)
    bench = ConsumerGroupBench(image)
    bench.join("a", regex="f.*")
    bench.after(100)
    assert "group g: regular expressions cannot be matched now" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    image.is_broken = False
    assert bench.beat("a", 1) == Beat("a", 1, None)
    bench.after(100)
    assert bench.beat("a", 1) == Beat("a", 2, {"foo": [0, 1]})


def test_topics_of_an_expression_that_cannot_be_stored(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged, and a later heartbeat resolves the expression."""
    bench = ConsumerGroupBench(FakeImage(foo=2))
    bench.join("a", regex="f.*")
    take_replicas_away(bench)
    bench.after(100)
    (line,) = (line for line in caplog.messages if "cannot store" in line)
    assert line.startswith("group g: cannot store the topics of regular expressions: COORDINATOR_NOT_AVAILABLE")
    assert bench.epochs() == (1, 1)
    take_replicas_away(bench, False)
    bench.beat("a", 1)
    bench.after(100)
    assert bench.beat("a", 1) == Beat("a", 2, {"foo": [0, 1]})


def test_a_background_task_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The other tasks are completed, and later tasks run."""
    done: list[str] = []

    def task(name: str, fails: bool = False) -> Iterator[None]:
        yield
        if fails:
            raise ZeroDivisionError("division by zero")
        done.append(name)

    tasks = BackgroundTasks()
    tasks.has_thread = True
    for name, fails in (("one", False), ("two", True), ("three", False)):
        tasks.run(task(name, fails))
    tasks.join(30)
    assert done == ["one", "three"]
    assert caplog.messages == ["a background task of a consumer group failed"]
