"""`kbroker.client.quotas` against a scripted broker: requests, results, and closed connections."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.quotas import (
    AsyncQuotaClient,
    BrokerConnectionError,
    Difference,
    Errors,
    KafkaError,
    LevelOutcome,
    QuotaClient,
    QuotaEntity,
    QuotaFileError,
    ResolvedQuota,
    read_quota_file,
)
from tests.support.broker import wait_for
from tests.support.fake_broker import Body
from tests.support.quota_broker import ALTER, DESCRIBE, QuotaBroker
from tests.support.thread_starts import allow_threads

ALICE = QuotaEntity.of({"user": "alice"})
ANYBODY = QuotaEntity.of({"user": None})
APP = QuotaEntity.of({"client-id": "app"})
RATE = "producer_byte_rate"

T = TypeVar("T")


@pytest.fixture
def broker() -> Iterator[QuotaBroker]:
    with QuotaBroker() as started:
        started.quotas = {ALICE.parts: {RATE: 1024.0}, ANYBODY.parts: {RATE: 99.0}, APP.parts: {RATE: 7.0}}
        yield started


def open_sockets(broker: QuotaBroker) -> int:
    """Return the number of connections that their client has not closed."""
    count = 0
    for sock in broker.sockets:
        sock.settimeout(0)
        try:
            count += sock.recv(1, 2) != b""  # MSG_PEEK
        except BlockingIOError:
            count += 1
    return count


# ---------------------------------------------------------------- synchronous


def test_describe_alter_resolve_diff_apply(broker: QuotaBroker) -> None:
    """The five methods share one connection, which is closed at the end."""
    with QuotaClient(broker.bootstrap) as quotas:
        assert quotas.describe() == {APP: {RATE: 7.0}, ANYBODY: {RATE: 99.0}, ALICE: {RATE: 1024.0}}
        assert quotas.describe({"user": "alice"}, strict=True) == {ALICE: {RATE: 1024.0}}
        assert quotas.of(QuotaEntity.of({"user": "bob"})) == {}
        assert quotas.alter({ALICE: {RATE: 2048.0}, APP: {RATE: None}}) == {ALICE: None, APP: None}
        wanted = {ALICE: {RATE: 1.0}, APP: {}}
        assert quotas.diff(wanted) == [Difference(ALICE, RATE, 2048.0, 1.0)]
        assert quotas.diff(wanted, prune=True)[1:] == [Difference(ANYBODY, RATE, 99.0, None)]
        done = quotas.apply(wanted, prune=True)
        assert (len(done.made), done.refusals) == (2, {})
        assert quotas.apply(wanted, prune=True).differences == []
        assert broker.quotas == {ALICE.parts: {RATE: 1.0}}
        assert [len(body["Entries"]) for _, body in broker.asked(ALTER)] == [2, 2]
        assert quotas.broker_count() == 1
    assert len(broker.sockets) == 1
    wait_for("the connection is closed", lambda: open_sockets(broker) == 0)
    quotas.close()


def test_resolve_says_which_level_applies_and_why_the_others_do_not(broker: QuotaBroker) -> None:
    """A resolved quota has its limit, its level, the entity of its counter, and the outcome of every level."""
    with QuotaClient(broker.bootstrap) as quotas:
        found = {one.key: one for one in quotas.resolve("alice", "app", "10.0.0.1")}
    assert found["consumer_byte_rate"].limit is None
    assert found[RATE][:5] == (RATE, 1024.0, 3, ALICE, ALICE)
    assert [(one.level, one.limit, one.outcome) for one in found[RATE].levels] == [
        (1, None, "not set"), (2, None, "not set"), (3, 1024.0, "applies"), (4, None, "not set"), (5, None, "not set"),
        (6, 99.0, "overridden"), (7, 7.0, "overridden"), (8, None, "not set"),
    ]  # fmt: skip
    address = QuotaEntity.of({"ip": "10.0.0.1"}), QuotaEntity.of({"ip": None})
    levels = tuple(LevelOutcome(n, entity, None, "not set") for n, entity in enumerate(address, 1))
    key = "connection_creation_rate"
    assert found[key] == ResolvedQuota(key, None, None, None, None, levels)


def test_a_refusal_stands_alone(broker: QuotaBroker) -> None:
    """The other entities are changed, and `check` raises the refusal."""
    broker.unknown_keys = {"speed"}
    with QuotaClient(broker.bootstrap) as quotas:
        done = quotas.apply({ALICE: {RATE: 1024.0, "speed": 1.0}, APP: {RATE: 8.0}})
    assert done.made == [Difference(APP, RATE, 7.0, 8.0)]
    assert done.refusals[ALICE].error is Errors.INVALID_REQUEST
    with pytest.raises(KafkaError, match="Invalid configuration key speed"):
        done.check()


def test_a_lost_connection_and_a_passing_error_are_tried_again(broker: QuotaBroker) -> None:
    """Reading and setting a quota are idempotent, so a lost connection or a retriable error is retried."""
    describe, failures = broker.describe, iter(("lost", "error"))

    def flaky(version: int, body: Body) -> Body | None:
        match next(failures, None):
            case "lost":
                return None
            case "error":
                return {"ErrorCode": 7, "ErrorMessage": "not now", "Entries": None}
        return describe(version, body)

    broker.handlers[DESCRIBE] = flaky
    with QuotaClient(broker.bootstrap) as quotas:
        assert quotas.of(ALICE) == {RATE: 1024.0}
    assert len(broker.sockets) == 2


def test_a_cluster_that_is_given_stays_open(broker: QuotaBroker) -> None:
    """The owner of a given cluster closes it, and properties together with a cluster are rejected."""
    with Cluster(broker.bootstrap) as cluster:
        with QuotaClient(cluster) as quotas:
            quotas.describe()
        QuotaClient(cluster).describe()
        with pytest.raises(ValueError, match="got them with a Cluster"):
            QuotaClient(cluster, {})
    assert len(broker.sockets) == 1


def test_properties_secure_the_connection(broker: QuotaBroker) -> None:
    """Properties have Kafka's names, and an invalid property is rejected before anything is sent."""
    with pytest.raises(ValueError, match=r"security\.protocol must be one of"):
        QuotaClient(broker.bootstrap, {"security.protocol": "TLS"})
    assert broker.sockets == []


def test_a_file_is_read_and_a_typo_has_its_place(tmp_path: Path) -> None:
    """The exception has line and column for programs."""
    path = tmp_path / "q.yaml"
    path.write_text("- entity: {user: alice}\n  quotas: {producer_byte_rate: 1 MiB/s}\n")
    assert read_quota_file(path) == {ALICE: {RATE: 1048576.0}}
    path.write_text("- entity: {user: alice}\n  quotas: {producer_bite_rate: 1 MiB/s}\n")
    with pytest.raises(QuotaFileError, match="did you mean producer_byte_rate") as caught:
        read_quota_file(str(path))
    assert (caught.value.path, caught.value.line, caught.value.column) == (path, 2, 12)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("\udcff", "expected a user in UTF-8, got '\\\\udcff'"),
        ("\u0439" * 20_000, "expected a user of at most 32767 bytes, got 40000"),
    ],
)
def test_a_name_that_no_request_can_carry(broker: QuotaBroker, tmp_path: Path, name: str, problem: str) -> None:
    """A name that a broker would not accept or would change is rejected without a request."""
    entity = QuotaEntity.of({"user": name})
    with QuotaClient(broker.bootstrap) as quotas:
        for ask in (lambda: quotas.of(entity), lambda: quotas.alter({entity: {RATE: 5.0}})):
            with pytest.raises(ValueError, match=problem):
                ask()
    assert broker.asked(DESCRIBE) == broker.asked(ALTER) == []
    path = tmp_path / "q.json"
    path.write_text(json.dumps([{"entity": {"user": name}, "quotas": {RATE: 5}}]))
    with pytest.raises(QuotaFileError, match=f"entry 1: {problem}"):
        read_quota_file(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"alice": {RATE: 1}}, "expected a QuotaEntity such as QuotaEntity.of({'user': 'alice'}), got 'alice'"),
        ({ALICE: 1000}, "user alice: expected a number for each key, got 1000"),
        ({ALICE: {RATE: "1MiB"}}, "user alice: producer_byte_rate: expected a number or None, got '1MiB'"),
    ],
)
def test_changes_of_another_type(broker: QuotaBroker, changes: Any, problem: str) -> None:
    """Anything but numbers by entity and key is refused before a request is sent."""
    with QuotaClient(broker.bootstrap) as quotas, pytest.raises(TypeError, match=re.escape(problem)):
        quotas.alter(changes)
    assert broker.asked(ALTER) == []


def test_the_longest_name(broker: QuotaBroker) -> None:
    """A client id of 32,767 bytes is set and found again."""
    entity = QuotaEntity.of({"client-id": "\u0439" * 16_383 + "x"})
    with QuotaClient(broker.bootstrap) as quotas:
        assert quotas.alter({entity: {RATE: 5.0}}) == {entity: None}
        assert quotas.of(entity) == {RATE: 5.0}


# ---------------------------------------------------------------- asyncio


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kbroker-client")]


def test_the_same_verbs_awaited(broker: QuotaBroker) -> None:
    """Any number of tasks share one thread and one connection, and both end with the client."""

    async def use() -> None:
        async with AsyncQuotaClient(broker.bootstrap) as quotas:
            found = await asyncio.gather(*(quotas.of(ALICE) for _ in range(20)))
            assert found == [{RATE: 1024.0}] * 20
            assert len(threads()) == 1
            assert await quotas.alter({ALICE: {RATE: 5.0}}) == {ALICE: None}
            assert await quotas.diff({ALICE: {}}) == [Difference(ALICE, RATE, 5.0, None)]
            assert (await quotas.apply({ALICE: {}})).made == [Difference(ALICE, RATE, 5.0, None)]
            assert [one.level for one in await quotas.resolve("alice", "app") if one.key == RATE] == [6]
            assert ALICE not in await quotas.describe()
            assert await quotas.broker_count() == 1
        await quotas.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            await quotas.describe()

    asyncio.run(use())
    assert len(broker.sockets) == 1
    wait_for("the connection is closed", lambda: open_sockets(broker) == 0)
    wait_for("the thread ends", lambda: threads() == [])


def test_a_call_without_a_thread_is_refused(broker: QuotaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call fails and is not made later; the next call, which gets a thread, succeeds."""

    async def use() -> None:
        quotas = AsyncQuotaClient(broker.bootstrap)
        with monkeypatch.context() as patch:
            allow_threads(patch, 0)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await quotas.alter({ALICE: {RATE: 1.0}})
        assert await asyncio.wait_for(quotas.of(ALICE), 10) == {RATE: 1024.0}
        await quotas.close()

    asyncio.run(use())
    assert broker.asked(ALTER) == []


def test_a_cancelled_call_ends_at_once_and_the_next_one_works(broker: QuotaBroker) -> None:
    """A stuck request is abandoned with its connection, and the next call is served."""
    describe, is_stuck, released = broker.describe, threading.Event(), threading.Event()

    def stuck(version: int, body: Body) -> Body | None:
        if is_stuck.is_set():
            return describe(version, body)
        is_stuck.set()
        released.wait(10)
        return None

    broker.handlers[DESCRIBE] = stuck

    async def use() -> None:
        async with AsyncQuotaClient(broker.bootstrap) as quotas:
            call = asyncio.create_task(quotas.of(ALICE))
            await asyncio.to_thread(is_stuck.wait, 10)
            following = asyncio.create_task(quotas.of(ALICE))
            began = time.monotonic()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await following == {RATE: 1024.0}
            assert time.monotonic() - began < 5  # the request alone would have waited for 30 s
            waiting = asyncio.create_task(quotas.of(ALICE))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await quotas.of(ALICE) == {RATE: 1024.0}

    asyncio.run(use())
    released.set()
    assert len(broker.sockets) == 2


def test_a_call_cancelled_between_two_attempts_makes_no_other_one(broker: QuotaBroker) -> None:
    """A wait before a retry is interrupted, and the call ends."""
    asked = threading.Event()

    def lost(version: int, body: Body) -> None:
        asked.set()

    broker.handlers[DESCRIBE] = lost

    async def use() -> None:
        async with AsyncQuotaClient(broker.bootstrap) as quotas:
            call = asyncio.create_task(quotas.describe())
            await asyncio.to_thread(asked.wait, 10)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await quotas.broker_count() == 1
        count = len(broker.asked(DESCRIBE))
        assert count <= 3

    asyncio.run(use())


@pytest.mark.parametrize("use", [lambda quotas: quotas.describe(), lambda quotas: quotas.__aenter__()])
def test_a_broker_that_is_not_there(use: Callable[[AsyncQuotaClient], Awaitable[T]]) -> None:
    """The error is that of the synchronous client, and no thread is left."""

    async def fail() -> None:
        quotas = AsyncQuotaClient("127.0.0.1:1", connect_timeout_s=1)
        with pytest.raises(BrokerConnectionError, match="refused"):
            await use(quotas)
        await quotas.close()

    asyncio.run(fail())
    wait_for("the thread ends", lambda: threads() == [])


@pytest.mark.parametrize("make", [QuotaClient, AsyncQuotaClient])
def test_an_address_of_a_wrong_type(make: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"expected a text host:port\[,host:port\.\.\.\].*, got int"):
        make(9092)


def test_wrong_arguments_are_refused_before_a_thread_starts() -> None:
    async def fail() -> None:
        with pytest.raises(ValueError, match="expected host:port"):
            AsyncQuotaClient("host:port")
        with pytest.raises(ValueError, match=r"security\.protocol"):
            AsyncQuotaClient("host:1", {"security.protocol": "TLS"})

    asyncio.run(fail())
    assert threads() == []
