"""Topics with many partitions that are deleted while other requests change topics."""

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping

import pytest

from kbroker.metadata.topic_removal import REMOVED_AT_ONCE
from kbroker.metadata.topic_rules import NewTopic
from kbroker.testing.waiting import wait_until
from tests.support.server import Bench

COUNT = 3 * REMOVED_AT_ONCE


class Meanwhile:
    """Requests of other threads, each of which begins while a run of partitions is removed.

    Args: ``requests`` by the number of the run; the run ends when the thread waits for its turn.
    Attributes: ``runs``: removed partitions by topic, and whether the folders were synced.
    """

    def __init__(self, bench: Bench, requests: dict[int, Callable[[], object]]) -> None:
        self._delete, self._lock, self._requests = bench.logs.delete_topics, bench.ctx.topics.lock, requests
        self.runs: list[tuple[dict[str, int], bool]] = []
        self.threads: list[threading.Thread] = []
        bench.logs.delete_topics = self.delete  # type: ignore[method-assign, assignment]

    def delete(self, topics: Mapping[str, Iterable[int]], topic_ids: Iterable[uuid.UUID], is_last: bool) -> None:
        runs = {name: list(run) for name, run in topics.items()}
        self.runs.append(({name: len(run) for name, run in runs.items()}, is_last))
        request = self._requests.pop(len(self.runs), None)
        if request is not None:
            self.threads.append(threading.Thread(target=request))
            self.threads[-1].start()
            wait_until(self._lock._next.locked)
        self._delete(runs, topic_ids, is_last)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()


def of_topic(bench: Bench, name: str) -> list[int]:
    return sorted(index for topic, index in bench.logs.open if topic == name)


@pytest.fixture
def topics(bench: Bench) -> Bench:
    """A topic t with many partitions."""
    bench.ctx.topics.create(NewTopic("t", COUNT))
    return bench


def test_changes_of_other_topics_do_not_wait(topics: Bench) -> None:
    """A new topic is in force before the next run is removed, and the deleted topic is not from the first run on."""
    seen: list[object] = []

    def create() -> None:
        topics.ctx.topics.create(NewTopic("new", 1))
        seen.append([view.name for view in topics.ctx.topics.all()])

    opened: list[int] = []
    meanwhile = Meanwhile(topics, {1: create})
    make = topics.logs.create_partitions

    def note(topic: str, *rest: object) -> object:
        opened.append(len(meanwhile.runs))
        return make(topic, *rest)  # type: ignore[arg-type]

    topics.logs.create_partitions = note  # type: ignore[method-assign, assignment]
    topics.ctx.topics.delete("t")
    meanwhile.join()
    assert (seen, opened) == ([["new"]], [1])
    assert [run for run, _ in meanwhile.runs] == [{"t": REMOVED_AT_ONCE}] * 3
    assert [is_last for _, is_last in meanwhile.runs] == [False, False, True]
    assert (of_topic(topics, "t"), topics.logs.noted) == ([], set())


@pytest.mark.parametrize("run", [1, 2])
def test_a_topic_that_is_created_again_meanwhile(topics: Bench, run: int) -> None:
    """The remaining logs of the deleted topic are removed first, durably, and the new topic's logs stay."""
    meanwhile = Meanwhile(topics, {run: lambda: topics.ctx.topics.create(NewTopic("t", COUNT))})
    before = topics.ctx.topics.get("t")
    topics.ctx.topics.delete("t")
    meanwhile.join()
    rest = COUNT - run * REMOVED_AT_ONCE
    assert meanwhile.runs == [({"t": REMOVED_AT_ONCE}, False)] * run + [({"t": rest}, True)]
    view = topics.ctx.topics.get("t")
    assert before is not None
    assert view is not None
    assert of_topic(topics, "t") == list(range(COUNT))
    assert {log.topic_id for log in view.partitions} == {view.topic_id} != {before.topic_id}
    assert topics.logs.noted == set()


def test_coordinators_end_with_the_topic_before_its_logs_are_removed(topics: Bench) -> None:
    """Deletion hooks run after the topic is out of service and before its logs are removed."""
    ended: list[tuple[str, bool, int]] = []

    def note(name: str) -> None:
        ended.append((name, topics.ctx.topics.get(name) is None, len(of_topic(topics, name))))

    topics.ctx.topics.on_deleted.append(note)
    topics.ctx.topics.delete("t")
    assert ended == [("t", True, COUNT)]
    assert of_topic(topics, "t") == []


def test_many_topics_of_one_request(topics: Bench) -> None:
    """The logs of many topics of one request are removed in shared runs and synced once."""
    topics.ctx.topics.create_all([NewTopic("u", 10), NewTopic("kept", 1), NewTopic("v", 20)])
    meanwhile = Meanwhile(topics, {})
    topics.ctx.topics.delete_all(["u", "t", "v"])
    assert meanwhile.runs == [
        ({"u": 10, "t": REMOVED_AT_ONCE - 10}, False),
        ({"t": REMOVED_AT_ONCE}, False),
        ({"t": REMOVED_AT_ONCE}, False),
        ({"t": 10, "v": 20}, True),
    ]
    assert [name for name, _ in topics.logs.open] == ["kept"]


def test_few_partitions_are_removed_at_once(topics: Bench) -> None:
    topics.ctx.topics.create(NewTopic("few", REMOVED_AT_ONCE))
    meanwhile = Meanwhile(topics, {})
    topics.ctx.topics.delete("few")
    assert meanwhile.runs == [({"few": REMOVED_AT_ONCE}, True)]
