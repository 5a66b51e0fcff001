"""Jumps of the wall clock by a day in both directions under load: no record is lost, and clients continue."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.support import cli
from tests.support.broker import BrokerProcess, wait_for
from tests.support.clock_jump import ClockJump

DAY_S = 24 * 60 * 60
TOPICS = ("created", "appended")  # the records of the second topic have the broker's timestamps

pytestmark = pytest.mark.slow


class Member:
    """The only member of a group. Args: ``protocol``: protocol and id of the group."""

    def __init__(self, bootstrap: str, protocol: str) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": protocol, "group.protocol": protocol}
        self._consumer = Consumer({**config, "auto.offset.reset": "earliest", "enable.auto.commit": False})
        self._consumer.subscribe(list(TOPICS), on_assign=self._assigned, on_revoke=self._revoked)
        self.assignments = self.revocations = 0
        self.values: list[bytes] = []
        self.days_ahead: set[int] = set()

    def _assigned(self, consumer: object, partitions: object) -> None:
        self.assignments += 1

    def _revoked(self, consumer: object, partitions: object) -> None:
        self.revocations += 1

    def read(self, count: int) -> None:
        """Consume and commit until ``count`` records are read."""

        def is_read() -> bool:
            for message in self._consumer.consume(1000, 0.05):
                assert message.error() is None
                self.values.append(message.value() or b"")
                if message.topic() == TOPICS[1]:
                    self.days_ahead.add(round((message.timestamp()[1] / 1000 - time.time()) / DAY_S))
            return len(self.values) >= count

        wait_for(f"{count} records in the group {self._consumer}", is_read)
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def jump(tmp_path: Path) -> ClockJump:
    return ClockJump(tmp_path)


@pytest.fixture
def broker(jump: ClockJump, start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    started = start_broker(
        wrapper=jump.wrapper,
        log__retention__check__interval__ms="50",
        log__segment__bytes="1048576",
        log__index__interval__bytes="256",
    )
    configs = ("message.timestamp.after.max.ms=9223372036854775807", "message.timestamp.type=LogAppendTime")
    for topic, config in zip(TOPICS, configs, strict=True):
        made = cli.run(None, "topics", "create", topic, "--config", config, "--bootstrap-server", started.bootstrap)
        assert made.exit_code == 0, made.stderr
    return started


@pytest.fixture
def members(broker: BrokerProcess) -> Iterator[list[Member]]:
    with contextlib.ExitStack() as stack:
        made = [Member(broker.bootstrap, protocol) for protocol in ("classic", "consumer")]
        for member in made:
            stack.callback(member.close)
        yield made


def test_a_day_ahead_and_back(broker: BrokerProcess, jump: ClockJump, members: list[Member]) -> None:
    """Clock jumps remove no record, rebalance no group and fail no producer; the logs are intact after a kill."""
    server = ("--bootstrap-server", broker.bootstrap)
    plain = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    transactional = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "jumps"})
    transactional.init_transactions()
    numbers = itertools.count()
    written: list[bytes] = []
    for ahead_days in (0, 1, -1, 0, 3, 0):
        jump.set_ahead(ahead_days * DAY_S)
        transactional.begin_transaction()
        for producer, topic in itertools.product((plain, transactional), TOPICS):
            for _ in range(50):
                written.append(b"%04000d" % next(numbers))
                producer.produce(topic, written[-1])
        assert plain.flush(20) == 0
        transactional.commit_transaction(20)
        for member in members:
            member.read(len(written))
    for member in members:
        assert sorted(member.values) == written
        assert (member.assignments, member.revocations) == (1, 0)
        assert member.days_ahead == {0, 1, -1, 3}
    broker.kill()
    jump.set_ahead(-DAY_S)
    broker.start()
    for topic in TOPICS:
        read = cli.run(None, "consume", topic, "--from-beginning", "--timeout", "1", *server)
        assert sorted(read.stdout.encode().split()) == [
            value for value in written if int(value[-9:]) // 50 % 2 == TOPICS.index(topic)
        ]
    broker.stop()
    verified = cli.run(None, "log", "verify", str(broker.folder))
    assert verified.exit_code == 0, verified.stdout
    assert not [line for line in broker.output if "Traceback" in line or "ERROR" in line]
