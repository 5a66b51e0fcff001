"""Every order of requests, silent members and moves of the coordinator in a small group, with the real coordinator.

A state is the log of ``__consumer_offsets`` and the state of the clients. Each step begins with a coordinator that has
just loaded the log, as after a move or a kill, so that a step which depends on anything outside the log fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator import offset_metadata_manager
from kbroker.coordinator.consumer_group import reconciliation
from kbroker.coordinator.consumer_group.group import NOT_OWNED, ConsumerGroup
from kbroker.coordinator.consumer_group.member import Owned
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.group_shard import GroupShard
from tests.support.closing import scope
from tests.support.consumer_groups import ConsumerGroupBench
from tests.support.fake_image import FakeImage
from tests.support.groups import MemoryTopic
from tests.support.wire import split

IMAGE = FakeImage(t=2)
SESSION_MS = 45_000
REJOINS = (Errors.FENCED_MEMBER_EPOCH, Errors.UNKNOWN_MEMBER_ID)


class Client(NamedTuple):
    """Member: the partitions that it uses, and an assignment that it has not applied yet."""

    epoch: int = 0
    used: frozenset[int] = frozenset()
    given: frozenset[int] | None = None
    is_lost: bool = False  # the last response was lost: the next heartbeat has all fields
    is_silent: bool = False  # the session has expired, but the client has not received an error yet


class State(NamedTuple):
    log: tuple[bytes, ...]
    clients: dict[str, Client]
    committed: dict[int, int]  # acknowledged offset by partition

    def with_client(self, name: str, client: Client) -> State:
        return self._replace(clients={**self.clients, name: client})


Step = tuple[str, Callable[[ConsumerGroupBench, State], State]]


def loaded(state: State) -> ConsumerGroupBench:
    clock = VirtualClock()
    topic = MemoryTopic(clock, 1)
    topic.ensure()
    for data in state.log:
        assert topic.partition(0).append(bytes(8) + data[8:]).error == 0
    return ConsumerGroupBench(IMAGE, clock=clock, topic=topic)


def beat(name: str, is_lost: bool) -> Callable[[ConsumerGroupBench, State], State]:
    """Return the step of a heartbeat whose response may be lost."""

    def step(bench: ConsumerGroupBench, state: State) -> State:
        client = state.clients[name]
        is_full = client.epoch == 0 or client.is_lost
        how: dict[str, Any] = {"topics": ["t"], "timeout_ms": 300_000} if is_full else {}
        try:
            got = bench.beat(name, client.epoch, has={"t": client.used} if client.used else {}, **how)
        except KafkaError as error:
            if error.error not in REJOINS:
                raise
            return state.with_client(name, Client())
        if is_lost:
            return state.with_client(name, client._replace(is_lost=True))
        given = client.given if got.has is None else frozenset(got.has.get("t", ()))
        return state.with_client(name, client._replace(epoch=got.epoch, given=given, is_lost=False, is_silent=False))

    return step


def take(name: str) -> Callable[[ConsumerGroupBench, State], State]:
    def step(_: ConsumerGroupBench, state: State) -> State:
        client = state.clients[name]
        return state.with_client(name, client._replace(used=client.given or frozenset(), given=None))

    return step


def leave(name: str) -> Callable[[ConsumerGroupBench, State], State]:
    def step(bench: ConsumerGroupBench, state: State) -> State:
        bench.refused(name, -1)
        return state.with_client(name, Client())

    return step


def expire(name: str) -> Callable[[ConsumerGroupBench, State], State]:
    """Return the step in which a silent member's session expires while the other members send heartbeats."""

    def step(bench: ConsumerGroupBench, state: State) -> State:
        for _ in range(2):
            for other, client in state.clients.items():
                if other != name and client.epoch > 0:
                    state = beat(other, True)(bench, state)
            bench.after(SESSION_MS * 2 // 3)
        assert name not in bench.targets(), "a silent member remains"
        return state.with_client(name, state.clients[name]._replace(is_silent=True))

    return step


def commit(name: str, partition: int) -> Callable[[ConsumerGroupBench, State], State]:
    def step(bench: ConsumerGroupBench, state: State) -> State:
        offset = state.committed.get(partition, 0) + 1
        rows = {("t", partition): CommittedOffset(offset, -1, "", bench.clock.wall_ms())}
        try:
            bench.coordinator.offsets.commit("g", name, None, state.clients[name].epoch, rows)
        except KafkaError:
            return state
        return state._replace(committed={**state.committed, partition: offset})

    return step


def steps(state: State) -> Iterator[Step]:
    for name, client in state.clients.items():
        yield f"{name} sends a heartbeat", beat(name, False)
        if client.epoch > 0 and not client.is_silent:
            yield f"{name} loses the response to a heartbeat", beat(name, True)
            yield f"{name} leaves", leave(name)
            yield f"the session of {name} expires", expire(name)
        # A client that applies an assignment before it resends a lost heartbeat has its commits fenced, as in Kafka.
        if client.given is not None and client.given != client.used and not client.is_lost:
            yield f"{name} takes its assignment over", take(name)
        if 0 in client.used and not state.committed:
            yield f"{name} commits an offset", commit(name, 0)


def check(bench: ConsumerGroupBench, state: State) -> None:
    """Check that no partition is used by two members and that no acknowledged offset is lost."""
    users = [one for client in state.clients.values() if not client.is_silent for one in client.used]
    assert len(users) == len(set(users)), "a partition is used by two members"
    offsets = bench.coordinator.offsets.fetch("g").committed
    assert {place[1]: one.offset for place, one in offsets.items()} == state.committed, "a committed offset is lost"


def key(bench: ConsumerGroupBench, state: State) -> str:
    """Return the state with the ranks of its epochs, whose differences are irrelevant."""
    found = bench.described() if bench.kind() == "Consumer" else None
    members = [] if found is None else found.members
    epochs = {client.epoch for client in state.clients.values()} | (
        {found.epoch, found.target_epoch} if found else set()
    )
    for one in members:
        held = [some for owned in (one.member.assigned, one.member.pending_revocation) for some in owned.values()]
        epochs |= {
            one.member.member_epoch,
            one.member.previous_member_epoch,
            *(e for some in held for e in some.values()),
        }
    rank = {epoch: number for number, epoch in enumerate(sorted(epochs))}

    def ranked(owned: Owned) -> list[tuple[int, int]]:
        return [(partition, rank[epoch]) for some in owned.values() for partition, epoch in some.items()]

    clients = [(name, rank[one.epoch], *one[1:]) for name, one in state.clients.items()]
    rows = [
        (
            one.member.member_id,
            rank[one.member.member_epoch],
            rank[one.member.previous_member_epoch],
            one.member.state,
            ranked(one.member.assigned),
            ranked(one.member.pending_revocation),
            *one.target.values(),
        )
        for one in members
    ]
    return repr(
        (clients, sorted(state.committed.items()), found and (rank[found.epoch], rank[found.target_epoch]), rows)
    )


def explore(limit: int) -> int:
    """Explore about ``limit`` states and return their number. Raises: AssertionError with the steps."""
    order = random.Random(0)
    start = State((), {"a": Client(), "b": Client()}, {})
    seen = {""}
    rest: list[tuple[State, tuple[str, ...]]] = [(start, ())]
    while rest and len(seen) < limit:
        state, way = rest.pop(order.randrange(len(rest)))
        for name, step in steps(state):
            with scope():
                bench = loaded(state)
                try:
                    after = step(bench, state)
                    assert bench.topic is not None
                    after = after._replace(log=tuple(split(bench.topic.partition(0).read(0).records)))
                    check(bench, after)
                    known = key(bench, after)
                    if known not in seen:
                        seen.add(known)
                        rest.append((after, (*way, name)))
                        moved = loaded(after)
                        check(moved, after)
                        assert key(moved, after) == known, "a move changes the group"
                except (AssertionError, KafkaError) as error:
                    raise AssertionError("; ".join([*way, name, str(error)])) from None
    return len(seen)


def test_no_step_and_no_move_breaks_a_consumer_group(soak: bool) -> None:
    explored = explore(100_000 if soak else 300)
    print(f"{explored} states")
    assert explored >= 300


@pytest.mark.parametrize(
    ("owner", "decision", "replacement", "violation"),
    [
        (ConsumerGroup, "partition_epoch", lambda *_: NOT_OWNED, "used by two members"),
        (ConsumerGroup, "_own", lambda *_: None, "used by two members"),
        (reconciliation, "_owns", lambda *_: False, "used by two members"),
        (offset_metadata_manager, "_records", lambda *_: [(b"", b"")], "a committed offset is lost"),
        (GroupShard, "_restore", lambda *_: None, "GROUP_ID_NOT_FOUND"),
        (GroupCoordinator, "resume", lambda *_: None, "a silent member remains"),
    ],
)
def test_a_decision_that_is_removed_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, decision: str, replacement: Callable[..., object], violation: str
) -> None:
    monkeypatch.setattr(owner, decision, replacement)
    with pytest.raises(AssertionError, match=violation):
        explore(300)
