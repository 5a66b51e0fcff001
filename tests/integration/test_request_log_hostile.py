"""Request log and quotas with hostile clients: the log stays complete, and other clients are not affected."""

import json
import logging
import random
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from kbroker.common.request_log import COLUMNS
from kbroker.protocol import codec
from kbroker.protocol.records import iter_batches
from kbroker.testing import EmbeddedBroker, VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.integration.test_request_log import LOG, USER, Record, records
from tests.support import wire
from tests.support.client import Client, fetch_body, produce_body
from tests.support.wire import Connection
from tests.support.wire_bodies import message_of, random_body

TARGET = "target"  # a name that no random body contains
SETTINGS = {
    "num.network.threads": "1",
    "log.flush.interval.messages": "9223372036854775807",
    "kbroker.request.log.topic": LOG,
    # a burst of 64 connections may exceed Kafka's 50, and the system delays such a client for a second
    "socket.listen.backlog.size": "256",
}
HUGE = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e9}


def mutated(rng: random.Random, frame: bytes) -> bytes:
    """Flip, cut, extend or repeat bytes, or write a wrong length; mostly, the frame's length is corrected."""
    body = bytearray(frame[4:])
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(body) + 1) if body else 0
        match rng.randrange(6):
            case 0 if body:
                body[at % len(body)] ^= 1 << rng.randrange(8)
            case 1 if body:
                body[at % len(body)] = rng.choice([0, 1, 127, 128, 255])
            case 2:
                del body[at:]
            case 3:
                body[at:at] = rng.randbytes(rng.choice([1, 2, 4, 100, 5000]))
            case 4:
                body[at:at] = body[at : at + rng.randrange(1, 40)]
            case _:
                body[at : at + 4] = rng.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"])
    size = len(body) if rng.random() < 0.97 else rng.choice([0, len(body) // 2, len(body) + 7])
    return size.to_bytes(4, "big") + bytes(body)


def valid_frames(rng: random.Random, ranges: dict[int, tuple[int, int]]) -> list[bytes]:
    """Return one frame of each version of each API, with the bodies of real clients for Produce and Fetch."""
    found = []
    for key, (first, last) in sorted(ranges.items()):
        served = codec.api(key).request_versions  # Produce 0 to 2 is advertised for old clients, and refused
        message = message_of(codec.api(key), "request")
        for version in range(max(first, served[0]), min(last, served[1]) + 1):
            body = random_body(rng, message, version)
            if key == wire.PRODUCE:
                body = produce_body(TARGET, wire.batch([rng.randbytes(50)]), rng.choice([0, 1, -1]))
            elif key == wire.FETCH and 4 <= version <= 11:
                body = fetch_body(TARGET, 0, (0, -1))
            client_id = rng.choice(["app", "", None, "ünï 🎉", '"}]', "a\0b"])
            found.append(codec.encode_request_frame(key, version, rng.randrange(1 << 31), client_id, body))
    return found


def send_all(broker: EmbeddedBroker, frames: list[bytes]) -> None:
    """Send each frame over a new connection, without waiting for responses."""
    with ExitStack() as connections:
        for frame in frames:
            one = connections.enter_context(Connection(broker.bootstrap_servers))
            one.send_raw(frame)
        assert wire.responses(broker.bootstrap_servers)


@pytest.mark.parametrize("seed", range(3))
def test_mutated_requests_leave_a_whole_log(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Mutated requests of each API leave complete lines without gaps in the log, and another client is served."""
    rng = random.Random(seed)
    folder = tmp_path / "files"
    settings = {**SETTINGS, "kbroker.request.log.dir": str(folder)}
    with caplog.at_level(logging.WARNING), EmbeddedBroker(settings) as broker:
        broker.create_topic(TARGET)
        for name, value in HUGE.items():
            broker.context.quotas.update(USER, None, name, value)
        with Client(broker.bootstrap_servers, "neighbour") as neighbour:
            ranges = wire.ranges(broker.bootstrap_servers)
            for _ in range(4):
                frames = [mutated(rng, frame) for frame in valid_frames(rng, ranges)]
                for begin in range(0, len(frames), 64):
                    send_all(broker, frames[begin : begin + 64])
                    neighbour.produce(TARGET, 10)
                    assert neighbour.end()["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0
        wait_until(lambda: len(broker.parts.python_requests) == 0, 60, "the end of what waits, which a stop refuses")
        assert broker.request_log.figures.dropped == 0
    found = []
    for file in sorted(folder.iterdir()):
        found += [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [record["sequence"] for record in found] == list(range(1, len(found) + 1))
    refusals = [record for record in found if "refusal" in record]
    assert len({record["requestHeader"]["requestApiKey"] for record in found if "refusal" not in record}) > 20
    assert sum(record["repeated"] for record in refusals) > 300
    names = {column.json.partition(".")[0] for column in COLUMNS}
    assert all(record.keys() - {"version"} <= names for record in found)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


HOSTILE = [
    "grüße 🎉", '"quoted"', "back\\slash", "per%cent%20%00", "line\nbreak\r\t", "\u2028\u2029\x85", "nul\0inside", " ",
    "<default>", "x" * 30_000, "\x7f\x1b[31m", "a\0b\0c", "../../etc", "{}[]:,", "é" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_hostile_entities_keep_their_names(form: str) -> None:
    """Verdicts and updates have the exact name of a client, in both formats."""
    with VirtualBroker({**SETTINGS, "kbroker.request.log.format": form}) as broker:
        broker.create_topic("t")
        for name in HOSTILE:
            broker.context.quotas.update(USER, name, "producer_byte_rate", 10.0)
        for name in HOSTILE:
            with Client(broker.bootstrap_servers, name) as client:
                client.produce("t", 1000)
                assert client.end()["ThrottleTimeMs"] > 0
        wait_until(lambda: (broker.request_log.flush() or broker.request_log.figures.written) >= len(HOSTILE))  # type: ignore[func-returns-value]
        found = names_of(broker) if form == "json" else names_in_arrow(broker)
    produced = [row for row in found if row[0] == "PRODUCE"]
    assert sorted(produced) == sorted(("PRODUCE", name, [(USER, name)], [(USER, name)]) for name in HOSTILE)


def names_of(broker: EmbeddedBroker) -> list[tuple[str, str, list[tuple[str, str]], list[tuple[str, str]]]]:
    return [
        (
            r["requestHeader"]["requestApiKeyName"],
            r["requestHeader"]["clientId"],
            [(v["user"], v["clientId"]) for v in r["quota"]["verdicts"]],
            [(u["user"], u["clientId"]) for u in r["quota"]["updates"]],
        )
        for r in records(broker)
    ]


def names_in_arrow(broker: EmbeddedBroker) -> list[tuple[str, str, list[tuple[str, str]], list[tuple[str, str]]]]:
    pa = pytest.importorskip("pyarrow")
    view = broker.context.topics.get(LOG)
    assert view is not None
    rows: list[Record] = []
    for log in view.partitions:
        for batch in iter_batches(log.read(0, 1 << 28).records):
            for _, _, _, value, _ in batch.records():
                table = pa.ipc.open_stream(value).read_all()
                table.validate(full=True)
                rows += table.to_pylist()
    return [
        (
            r["api_name"],
            r["client_id"],
            [(v["user"], v["client_id"]) for v in r["verdicts"]],
            [(u["user"], u["client_id"]) for u in r["updates"]],
        )
        for r in rows
    ]


def test_live_quota_changes_under_load_keep_log_and_clients_agreed() -> None:
    """While quotas change under load, every throttle time of a response is that of a verdict in the log."""
    throttles: list[int] = []
    lock = threading.Lock()
    with EmbeddedBroker(SETTINGS) as broker:
        broker.create_topic("t")

        def produce(number: int) -> None:
            with Client(broker.bootstrap_servers, f"app{number % 2}", timeout=60) as client:
                for _ in range(150):
                    client.produce("t", 500)
                    delay = client.end()["ThrottleTimeMs"]
                    with lock:
                        throttles.append(delay)

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        rng = random.Random(1)
        quotas = broker.context.quotas
        try:
            while any(thread.is_alive() for thread in threads):
                user, client = rng.choice([(USER, None), (USER, "app0"), (None, "app1"), (USER, "app1")])
                name, high, low = rng.choice(
                    [("producer_byte_rate", 1e9, 100_000.0), ("request_percentage", 1e6, 50.0)]
                )
                quotas.update(user, client, name, rng.choice([None, high, low]))
        finally:
            for thread in threads:
                thread.join()
        wait_until(lambda: len([r for r in records(broker) if r["requestHeader"]["clientId"] != ""]) >= 600)
        found = records(broker)
        assert broker.request_log.figures.dropped == 0
    assert len(throttles) == 600
    assert sum(r["throttleTimeMs"] for r in found) == sum(throttles)
    assert sum(v["delayServedMs"] for r in found for v in r["quota"]["verdicts"]) == sum(throttles)
    assert [r["sequence"] for r in found] == list(range(1, len(found) + 1))
    taken = Counter(
        (u["quotaType"], u["user"], u["clientId"], u["sequence"]) for r in found for u in r["quota"]["updates"]
    )
    assert taken, "no quota was set while a client produced"
    assert max(taken.values()) == 1, "a counter gave the same number twice"
