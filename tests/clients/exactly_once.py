"""Common parts of the tests of frameworks with exactly-once semantics: killed workers, and committed records.

A test starts a framework's worker on a topic of lines, kills worker and broker during the work, and compares the
committed records with the expected ones: each record exactly once.
"""

import itertools
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from confluent_kafka import Producer

from tests.clients.programs import FRAMEWORKS, archive_of, java_program, rocksdb_options
from tests.support.broker import BrokerProcess, wait_for
from tests.support.kafka import ClassArchive
from tests.support.kill import create_topic
from tests.support.topic_reader import Reader, Row, read_to_end

PARTITIONS = 4
WORDS_OF_A_LINE = 4
ARCHIVE = "classes.jsa"
# The session of a killed member delays its group, and the timeout of its transaction delays readers.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


class Worker:
    """Program that is killed and restarted, with one log file for each start.

    Args: ``archive``: class archive of a Java program whose command has the archive's options; the last run creates the
    archive if it is due.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        archive: ClassArchive | None = None,
    ) -> None:
        self.command = list(command)
        self.lives = 0
        self.folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._archive = archive
        self._process: subprocess.Popen[bytes] | None = None

    def _log(self) -> Path:
        return self.folder / f"worker-{self.lives}.log"

    def start(self) -> None:
        self.lives += 1
        with self._log().open("wb") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End the program with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(20)

    def end(self) -> None:
        """End the program with SIGTERM."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)

    def discard(self) -> None:
        if self.is_alive() and self._archive is not None and self._archive.is_due():
            self.end()
            self._archive.keep(self.folder / ARCHIVE)
        if self.is_alive():
            self.kill()

    def shown(self) -> str:
        """Return the end of the output of each run."""
        found = []
        for life in range(1, self.lives + 1):
            text = (self.folder / f"worker-{life}.log").read_text(errors="replace")
            found.append(f"life {life}:\n{text[-2000:]}")
        return "\n".join(found)


def java_worker(name: str, folder: Path, *arguments: str, pom: Path, options: Sequence[str] = ()) -> Worker:
    """Return a worker of a Java program with a class archive, which halves the CPU time of a start."""
    archive = archive_of(name, pom)
    command = java_program(name, pom, (*archive.options(folder / ARCHIVE), *options))
    return Worker([*command, *arguments], folder, archive=archive)


def streams_worker(name: str, folder: Path, *arguments: str) -> Worker:
    """Return a worker of a Kafka Streams program that does not unpack RocksDB at each start."""
    return java_worker(name, folder, *arguments, pom=FRAMEWORKS, options=rocksdb_options())


def started(start_broker: Callable[..., BrokerProcess], *topics: str) -> BrokerProcess:
    """Return a broker with topics of PARTITIONS partitions."""
    broker = start_broker(**{key.replace(".", "__"): value for key, value in SETTINGS.items()})
    for topic in topics:
        create_topic(broker.bootstrap, topic, PARTITIONS)
    return broker


def lines(words: int, different: int = 200) -> list[str]:
    """Return lines of random words, the same ones for the same arguments."""
    chosen = random.Random(words)
    names = [f"word-{chosen.randrange(different)}" for _ in range(words)]
    return [" ".join(names[at : at + WORDS_OF_A_LINE]) for at in range(0, words, WORDS_OF_A_LINE)]


def fill(bootstrap: str, topic: str, rows: Iterable[tuple[int, str, str]]) -> None:
    """Write rows of partition, key and value."""
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000, "log_level": 0})
    for partition, key, value in rows:
        producer.produce(topic, value, key or None, partition=partition)
    assert producer.flush(60) == 0


def run_over_kills(
    broker: BrokerProcess,
    worker: Worker,
    output: Reader,
    expected: int,
    deaths: Sequence[str],
    seconds: float = 60,
    tend: Callable[[], None] = lambda: None,
) -> None:
    """Start the worker, and kill the worker or the broker (`deaths`) after each further share of the work.

    A worker that ends is restarted, as by a supervisor. Return when the expected number of records is committed.
    Raises: AssertionError if a step takes longer than `seconds`, or the work ends before a kill.

    Args: ``tend`` is called once a second during the work.
    """
    due = 0.0

    def has(count: int) -> bool:
        if not worker.is_alive():
            assert worker.lives <= 2 * len(deaths) + 2, "the worker ends by itself again and again"
            worker.start()
        nonlocal due
        if time.monotonic() > due:
            tend()
            due = time.monotonic() + 1
        return output.count() >= count

    try:
        for number, death in enumerate(deaths, 1):
            share = expected * number // (len(deaths) + 1)
            wait_for(f"{share} of {expected} records", lambda share=share: has(share), seconds, every=0)  # type: ignore[misc]
            victim: Worker | BrokerProcess = worker if death == "worker" else broker
            victim.kill()
            if victim is worker:
                wait_for("the end of the killed worker's transactions", output.is_at_end, every=0)
            assert output.count() < expected, "the work was done before the kill: it needs more input"
            victim.start()
        wait_for(f"all {expected} records", lambda: has(expected), seconds, every=0)
    except AssertionError as error:
        raise AssertionError(f"{error}; {output.count()} records so far\n{worker.shown()}\n{broker.tail()}") from error


def count_over_kills(broker: BrokerProcess, worker: Worker, text: Sequence[str], deaths: Sequence[str]) -> None:
    """Assert that a worker counts the words of a text into "counted" exactly once, in spite of the kills."""
    output = Reader(broker.bootstrap, "counted", PARTITIONS)
    try:
        run_over_kills(broker, worker, output, sum(len(line.split()) for line in text), deaths)
        check_counts(output.rows, text)
        assert read_to_end(broker.bootstrap, "counted", PARTITIONS) == output.rows
    finally:
        worker.discard()
        output.close()


def check_counts(rows: Mapping[int, Sequence[Row]], lines: Iterable[str]) -> None:
    """Assert that each word is counted from 1 to its number of occurrences, in order and without repetition."""
    words = Counter(word for line in lines for word in line.split())
    steps: dict[str, list[int]] = {}
    for word, count in itertools.chain.from_iterable(rows.values()):
        steps.setdefault(word, []).append(int(count))
    assert {word: len(counts) for word, counts in steps.items()} == dict(words)
    wrong = [word for word, counts in steps.items() if counts != list(range(1, words[word] + 1))]
    assert wrong == []
