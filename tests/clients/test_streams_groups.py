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

PROGRAM, GROUP = "StreamsGroup", "streams-application"
WORDS, PAIRS = 16_000, 12_000
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

    def __init__(self, folder: Path, bootstrap: str, guarantee: str) -> None:
        self.workers: list[Worker] = []
        for name in ("one", "two"):
            own = folder / name
            own.mkdir()
            self.workers.append(streams_worker(PROGRAM, own, bootstrap, str(own / "state"), guarantee, f"{name}:1"))

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


def described(bootstrap: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the state of the group, and the numbers of active and standby tasks of each member with tasks."""
    with Client(bootstrap) as client:
        body = {"GroupIds": [GROUP], "IncludeAuthorizedOperations": False}
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


class Outputs:
    """Readers of both outputs, with the expected records."""

    def __init__(self, bootstrap: str, text: list[str]) -> None:
        self.counted, self.joined = (Reader(bootstrap, topic, PARTITIONS) for topic in ("counted", "joined"))
        self._words = Counter(word for line in text for word in line.split())
        self._latest: dict[str, int] = {}

    def progress(self) -> tuple[int, int]:
        """Return the completed parts of both outputs in percent."""
        return self.counted.count() * 100 // WORDS, self.joined.count() * 100 // PAIRS

    def are_done(self) -> bool:
        """Return whether each word has its last count, and each pair is joined."""
        if min(self.progress()) < 100:
            return False
        for word, count in rows(self.counted):
            self._latest[word] = max(self._latest.get(word, 0), int(count))
        are_counted = all(self._latest.get(word, 0) >= count for word, count in self._words.items())
        return are_counted and len(set(rows(self.joined))) == PAIRS

    def check(self) -> None:
        """Assert that each step of each count and each pair exists; records may repeat."""
        steps = {(word, int(count)) for word, count in rows(self.counted)}
        assert {(word, step) for word, count in self._words.items() for step in range(1, count + 1)} <= steps
        assert set(rows(self.joined)) == {(f"key-{n}", f"left-{n}+right-{n}") for n in range(PAIRS)}

    def close(self) -> None:
        self.counted.close()
        self.joined.close()


def rows(reader: Reader) -> list[tuple[str, str]]:
    """Return the records of all partitions."""
    return list(itertools.chain.from_iterable(reader.rows.values()))


def run_over_deaths(broker: BrokerProcess, instances: Instances, outputs: Outputs) -> None:
    """Kill one instance, the broker, and the other instance, which also loses its state, as the work proceeds."""
    one, two = instances.workers

    def reached(percent: int) -> None:
        wait_for(f"{percent} % of one output", lambda: max(outputs.progress()) >= percent, 90, every=0)

    instances.start()
    try:
        wait_for("active and standby tasks in both instances", lambda: is_spread(broker.bootstrap), 90)
        reached(20)
        one.kill()
        wait_for("the tasks of one instance", lambda: len(described(broker.bootstrap)[1]) == 2, 60)
        one.start()
        reached(40)
        broker.kill()
        broker.start()
        reached(60)
        wait_for("records of both outputs", lambda: min(outputs.progress()) > 0, 90, every=0)
        two.kill()
        assert min(outputs.progress()) < 100, "the work was done before the last kill: it needs more input"
        shutil.rmtree(two.folder / "state")  # its stores are restored from their changelog topics
        two.start()
        wait_for("all records", outputs.are_done, 120, every=0)
        wait_for("active and standby tasks in both instances", lambda: is_spread(broker.bootstrap), 90)
    except AssertionError as error:
        shown = one.shown() + two.shown()
        raise AssertionError(f"{error}; {outputs.progress()} % so far\n{shown}\n{broker.tail()}") from error


def is_spread(bootstrap: str) -> bool:
    """Return whether the group is stable, with tasks for the four threads of two instances, standby tasks included."""
    state, counts = described(bootstrap)
    return state == "Stable" and len(counts) == 4 and any(standby for _, standby in counts)


@pytest.mark.parametrize("guarantee", [pytest.param("at_least_once", marks=pytest.mark.soak), "exactly_once_v2"])
def test_word_count_and_windowed_join(broker: BrokerProcess, tmp_path: Path, guarantee: str) -> None:
    """Each word is counted one by one and each pair is joined, with exactly_once_v2 once, otherwise at least once."""
    text = lines(WORDS)
    fill(broker.bootstrap, "lines", ((number % PARTITIONS, "", line) for number, line in enumerate(text)))
    for side in ("left", "right"):
        pairs = ((number % PARTITIONS, f"key-{number}", f"{side}-{number}") for number in range(PAIRS))
        fill(broker.bootstrap, side, pairs)
    outputs = Outputs(broker.bootstrap, text)
    instances = Instances(tmp_path, broker.bootstrap, guarantee)
    try:
        run_over_deaths(broker, instances, outputs)
        outputs.check()
        if guarantee == "exactly_once_v2":
            check_counts(outputs.counted.rows, text)
            assert len(rows(outputs.joined)) == PAIRS
    finally:
        instances.discard()
        outputs.close()
