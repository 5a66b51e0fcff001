"""Kafka Streams with group.protocol=streams, unmodified, with kill -9 of broker and instances."""

import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.exactly_once import PARTITIONS, SETTINGS, Worker, check_counts, fill, lines, streams_worker
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Client
from tests.support.kill import create_topic
from tests.support.topic_reader import Reader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = "StreamsGroup"
GROUPS = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.session.timeout.ms": "2000",
    "group.streams.session.timeout.ms": "2000",
    "group.streams.min.heartbeat.interval.ms": "200",
    "group.streams.heartbeat.interval.ms": "300",
    "group.streams.num.standby.replicas": "1",
}


class Instances:
    """Two instances of an application."""

    def __init__(self, folder: Path, bootstrap: str, guarantee: str, kind: str) -> None:
        self.workers: list[Worker] = []
        for name in ("one", "two"):
            own = folder / name
            own.mkdir()
            self.workers.append(
                streams_worker(PROGRAM, own, bootstrap, str(own / "state"), guarantee, kind, f"{name}:1")
            )

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def discard(self) -> None:
        """End both instances."""
        for worker in self.workers:
            worker.discard()


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    broker = start_broker(**{key.replace(".", "__"): value for key, value in {**SETTINGS, **GROUPS}.items()})
    for topic in ("lines", "counted", "left", "right", "joined"):
        create_topic(broker.bootstrap, topic, PARTITIONS)
    return broker


def described(bootstrap: str, group: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the state of a group, and the numbers of active and standby tasks of each member with tasks."""
    with Client(bootstrap) as client:
        body = {"GroupIds": [group], "IncludeAuthorizedOperations": False}
        (found,) = client.call("StreamsGroupDescribe", 0, body)["Groups"]
    if found["ErrorCode"]:  # the group does not exist yet, or is loading
        return "", []
    counts = []
    for member in found["Members"]:
        tasks = member["Assignment"]
        active, standby = (
            sum(len(row["Partitions"]) for row in tasks[role]) for role in ("ActiveTasks", "StandbyTasks")
        )
        if active or standby:
            counts.append((active, standby))
    return found["GroupState"], counts


def run_over_deaths(
    broker: BrokerProcess, instances: Instances, output: Reader, group: str, is_done: Callable[[], bool], expected: int
) -> None:
    """Kill one instance, the broker, and the other instance, which also loses its state, as the work proceeds."""
    one, two = instances.workers

    def reached(share: int) -> None:
        wait_for(f"{share} of {expected} records", lambda: output.count() >= share, 90, every=0)

    instances.start()
    try:
        wait_for("active and standby tasks in both instances", lambda: is_spread(broker.bootstrap, group), 90)
        reached(expected // 5)
        one.kill()
        wait_for("the tasks of one instance", lambda: len(described(broker.bootstrap, group)[1]) == 2, 60)
        one.start()
        reached(expected * 2 // 5)
        broker.kill()
        broker.start()
        reached(expected * 3 // 5)
        two.kill()
        assert output.count() < expected, "the work was done before the kill: it needs more input"
        shutil.rmtree(two.folder / "state")  # its stores are restored from their changelog topics
        two.start()
        wait_for(f"all of {expected} records", lambda: output.count() >= expected and is_done(), 120, every=0)
        wait_for("active and standby tasks in both instances", lambda: is_spread(broker.bootstrap, group), 90)
    except AssertionError as error:
        shown = one.shown() + two.shown()
        raise AssertionError(f"{error}; {output.count()} records so far\n{shown}\n{broker.tail()}") from error


def is_spread(bootstrap: str, group: str) -> bool:
    """Return whether the group is stable, with tasks for the four threads of two instances, standby tasks included."""
    state, counts = described(bootstrap, group)
    return state == "Stable" and len(counts) == 4 and any(standby for _, standby in counts)


@pytest.mark.parametrize("guarantee", [pytest.param("at_least_once", marks=pytest.mark.soak), "exactly_once_v2"])
def test_word_count(broker: BrokerProcess, tmp_path: Path, guarantee: str) -> None:
    """Each word is counted one by one; at_least_once may repeat counts."""
    text = lines(24_000)
    fill(broker.bootstrap, "lines", ((number % PARTITIONS, "", line) for number, line in enumerate(text)))
    words = Counter(word for line in text for word in line.split())
    output = Reader(broker.bootstrap, "counted", PARTITIONS)
    latest: dict[str, int] = {}

    def is_done() -> bool:
        for word, count in itertools.chain.from_iterable(output.rows.values()):
            latest[word] = max(latest.get(word, 0), int(count))
        return all(latest.get(word, 0) >= count for word, count in words.items())

    instances = Instances(tmp_path, broker.bootstrap, guarantee, "count")
    try:
        run_over_deaths(broker, instances, output, "streams-count", is_done, sum(words.values()))
        if guarantee == "exactly_once_v2":
            check_counts(output.rows, text)
        steps = {(word, int(count)) for word, count in itertools.chain.from_iterable(output.rows.values())}
        assert {(word, step) for word, count in words.items() for step in range(1, count + 1)} <= steps
    finally:
        instances.discard()
        output.close()


@pytest.mark.parametrize("guarantee", ["at_least_once", pytest.param("exactly_once_v2", marks=pytest.mark.soak)])
def test_windowed_join(broker: BrokerProcess, tmp_path: Path, guarantee: str) -> None:
    """Each pair is joined, and only once with exactly_once_v2."""
    count = 12_000
    for topic in ("left", "right"):
        rows = ((number % PARTITIONS, f"key-{number}", f"{topic}-{number}") for number in range(count))
        fill(broker.bootstrap, topic, rows)
    expected = {(f"key-{number}", f"left-{number}+right-{number}") for number in range(count)}
    output = Reader(broker.bootstrap, "joined", PARTITIONS)

    def rows_so_far() -> list[tuple[str, str]]:
        return list(itertools.chain.from_iterable(output.rows.values()))

    instances = Instances(tmp_path, broker.bootstrap, guarantee, "join")
    try:
        is_done = lambda: len(set(rows_so_far())) == count  # noqa: E731
        run_over_deaths(broker, instances, output, "streams-join", is_done, count)
        found = rows_so_far()
        assert set(found) == expected
        if guarantee == "exactly_once_v2":
            assert len(found) == count
    finally:
        instances.discard()
        output.close()
