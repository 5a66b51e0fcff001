"""Network threads that execute requests: a slow append does not delay other connections; appends are gathered."""

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker.testing import EmbeddedBroker
from tests.native import append_lock
from tests.support.broker import wait_for
from tests.support.client import Client, values_of
from tests.support.hostile import framed
from tests.support.wire import Connection, batch, create_topic, fetch, fetched, produce, produced

ONE_THREAD = {"num.network.threads": 1, "num.io.threads": 8}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "data"), **ONE_THREAD}
    with EmbeddedBroker(settings) as running:
        running.create_topic("t", 2)
        yield running


def log_of(broker: EmbeddedBroker, partition: int = 0) -> object:
    topic = broker.context.topics.get("t")
    assert topic is not None
    return topic.partitions[partition]


def slow_append(broker: EmbeddedBroker) -> tuple[threading.Event, threading.Thread]:
    """Start a thread that appends to the log until an event; return the two when appends wait for it."""
    log, until, held = log_of(broker), threading.Event(), threading.Event()

    def append() -> None:
        append_lock.hold(log)  # type: ignore[arg-type]
        held.set()
        until.wait(60)
        append_lock.release(log)  # type: ignore[arg-type]

    holder = threading.Thread(target=append)
    holder.start()
    assert held.wait(10)
    return until, holder


@pytest.mark.parametrize("producers", [1, 5])
def test_a_slow_append_holds_no_other_connection_up(broker: EmbeddedBroker, producers: int) -> None:
    """While the network thread waits for an append, its other connections are accepted, read and served."""
    writers = [Connection(broker.bootstrap_servers) for _ in range(producers)]
    with Client(broker.bootstrap_servers) as other, Client(broker.bootstrap_servers) as idle:
        for _ in range(3):  # another thread takes over the network loop and returns it each time
            until, holder = slow_append(broker)
            for writer in writers:
                writer.send(produce("t", 0, batch([b"late"])))
            for _ in range(21):
                other.call("ApiVersions", 3, {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"})
                with Connection(broker.bootstrap_servers) as new:
                    assert produced(new.ask(produce("t", 1, batch([b"elsewhere"])))).error_code == 0
            until.set()
            holder.join(10)
            for writer in writers:
                assert produced(writer.receive()).error_code == 0
        idle.call("Metadata", 1, {"Topics": None})
        assert log_of(broker).log_end_offset == 3 * producers  # type: ignore[attr-defined]
    for writer in writers:
        writer.close()


def test_a_slow_append_holds_no_request_up_that_was_read_with_it(broker: EmbeddedBroker) -> None:
    """A request that the network thread read together with one whose append is slow is served."""
    with Connection(broker.bootstrap_servers) as writer, Client(broker.bootstrap_servers) as other:
        assert produced(writer.ask(produce("t", 1, batch([b"served"])))).error_code == 0
        other.call("ApiVersions", 3, {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"})
        before, names = os.sched_getaffinity(0), Path("/proc/self/task").glob("*/comm")
        networks = [int(name.parent.name) for name in names if name.read_text() == "network-0\n"]
        assert networks  # of all brokers in the process
        until, holder = slow_append(broker)
        for thread in (0, *networks):  # on one processor, a network thread runs when this thread waits for the response
            os.sched_setaffinity(thread, {min(before)})
        for thread in networks:
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        try:
            writer.send_raw(framed(produce("t", 0, batch([b"late"]))) * 2)
            other.call("ApiVersions", 3, {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"})
        finally:
            for thread in (0, *networks):
                os.sched_setaffinity(thread, before)
            for thread in networks:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            until.set()
            holder.join(10)
        for _ in range(2):
            assert produced(writer.receive()).error_code == 0


def test_a_stop_during_a_slow_append(broker: EmbeddedBroker) -> None:
    """A stop waits for the append and then completes."""
    until, holder = slow_append(broker)
    with Connection(broker.bootstrap_servers) as writer, Client(broker.bootstrap_servers) as other:
        writer.send_raw(framed(produce("t", 0, batch([b"late"]))) * 2)
        other.call("ApiVersions", 3, {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"})
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        until.set()
        stopping.join(20)
        assert not stopping.is_alive()
    holder.join(10)


def test_gathered_appends_keep_the_order_of_each_connection(broker: EmbeddedBroker) -> None:
    """Pipelined requests of many producers, some idempotent, are appended once and in order, with their own offsets."""
    requests, producers = 200, 8

    def write(number: int) -> list[int]:
        offsets = []
        with Connection(broker.bootstrap_servers) as one:
            for first in range(0, requests, 10):
                for sequence in range(first, first + 10):
                    data = [f"{number}:{sequence}".encode()]
                    if number % 2:
                        made = batch(data, producer_id=1000 + number, producer_epoch=0, base_sequence=sequence)
                    else:
                        made = batch(data)
                    one.send(produce("t", 0, made))
                for _ in range(10):
                    answer = produced(one.receive())
                    assert answer.error_code == 0
                    offsets.append(answer.base_offset)
        return offsets

    with ThreadPoolExecutor(producers) as pool:
        offsets = list(pool.map(write, range(producers)))
    assert sorted(offset for each in offsets for offset in each) == list(range(requests * producers))
    assert all(each == sorted(each) for each in offsets)
    found = [value or b"" for value in values_of(broker)]
    assert len(found) == requests * producers
    for number, each in enumerate(offsets):
        assert [found[offset] for offset in each] == [f"{number}:{i}".encode() for i in range(requests)]


def test_a_refused_request_among_gathered_ones(broker: EmbeddedBroker) -> None:
    """A corrupt, a duplicate and an out-of-order batch have their own results; the other batches are appended."""
    damaged = bytearray(batch([b"damaged"]))
    damaged[-1] ^= 1
    good = batch([b"a"], producer_id=7, producer_epoch=0, base_sequence=0)
    requests = [
        (good, 0, 0),
        (bytes(damaged), 2, -1),
        (good, 0, 0),  # a duplicate returns the offset of the original
        (batch([b"gap"], producer_id=7, producer_epoch=0, base_sequence=5), 45, -1),
        (batch([b"b"], producer_id=7, producer_epoch=0, base_sequence=1), 0, 1),
        (batch([b"plain"]), 0, 2),
    ]
    with Connection(broker.bootstrap_servers) as one:
        one.socket.sendall(b"".join(framed(produce("t", 0, data)) for data, _, _ in requests))
        for _, error, offset in requests:
            answer = produced(one.receive())
            assert (answer.error_code, answer.base_offset) == (error, offset)
    assert log_of(broker).log_end_offset == 3  # type: ignore[attr-defined]


def test_a_slow_append_delays_no_fetch_of_another_partition(broker: EmbeddedBroker) -> None:
    """A delayed fetch completes with its append, although the next append of the thread is slow."""
    with (
        Connection(broker.bootstrap_servers) as reader,
        Connection(broker.bootstrap_servers) as writer,
        Connection(broker.bootstrap_servers) as slow,
    ):
        reader.send(fetch("t", (1,), max_wait_ms=20_000))
        wait_for("the fetch waits", lambda: broker.waiting_fetches == 1)
        until, holder = slow_append(broker)
        writer.send(produce("t", 1, batch([b"wake"])))
        slow.send(produce("t", 0, batch([b"late"])))
        assert produced(writer.receive()).error_code == 0
        assert fetched(reader.receive()).batches()[0][0] == 0
        assert not until.is_set()
        until.set()
        assert produced(slow.receive()).error_code == 0
        holder.join(10)


def test_gathered_appends_roll_by_time_as_single_ones(broker: EmbeddedBroker) -> None:
    """The first batch of an empty segment starts the time until the next roll, also for batches gathered with it."""
    with Client(broker.bootstrap_servers) as one:
        configs = {"segment.ms": "1000", "message.timestamp.before.max.ms": str(1 << 60)}
        one.ask(create_topic("rolls", 1, configs=configs))
        start = int(time.time() * 1000) - 10_000_000
        batches = [batch([b"x"], timestamp_ms=start + number * 100_000) for number in range(4)]
        one.send_raw(b"".join(framed(produce("rolls", 0, data)) for data in batches))
        for offset in range(4):
            assert produced(one.receive()).base_offset == offset
    topic = broker.context.topics.get("rolls")
    assert topic is not None
    assert len(topic.partitions[0].segments()) == 4


def test_every_produce_gets_its_response_after_its_flush(tmp_path: Path) -> None:
    """With `log.flush.interval.messages` above 1, an append during a flush waits for the next flush only."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "log.flush.interval.messages": 7}
    with EmbeddedBroker({**settings, **ONE_THREAD}) as running:
        running.create_topic("t")

        def write(seed: int) -> None:
            sizes = random.Random(seed)
            with Connection(running.bootstrap_servers, 5) as one:  # a forgotten response would be sent after 30 s
                for _ in range(150):
                    number = sizes.choice((1, 1, 2, 3))
                    one.send_raw(framed(produce("t", 0, batch([b"x"]))) * number)
                    for _ in range(number):
                        assert produced(one.receive()).error_code == 0

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(write, range(6)))


@pytest.mark.parametrize("helps", [True, False])
def test_without_help_handlers_execute_all(tmp_path: Path, helps: bool) -> None:
    """With `kbroker.network.thread.helps=false`, handlers execute every request."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), **ONE_THREAD}
    settings["kbroker.network.thread.helps"] = helps
    with EmbeddedBroker(settings) as running, Client(running.bootstrap_servers) as one:
        assert running._runtime is not None
        queue = running._runtime.parts.requests
        wait_for("idle handlers", lambda: queue.sleepers == 8)
        before = queue.wakeups
        for _ in range(20):
            one.call("ApiVersions", 3, {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"})
            wait_for("idle handlers", lambda: queue.sleepers == 8)
        assert queue.wakeups - before == (0 if helps else 20)
