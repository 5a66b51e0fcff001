"""Orders of requests, expired sessions and moves of the coordinator in a classic group, with the real coordinator.

A state is reached by repeating its steps: a move loses the part that a coordinator has in memory only, such as waiting
joins.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator import offset_metadata_manager
from kbroker.coordinator.classic_group import ClassicGroup
from kbroker.coordinator.classic_membership import Membership
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.coordinator.group_records import CommittedOffset
from tests.support.closing import scope
from tests.support.groups import REBALANCE_MS, SESSION_MS, Groups, Responses

PARTITIONS = "01"
# errors for a member that the group has removed, or whose group has another generation
REFUSALS = (Errors.UNKNOWN_MEMBER_ID, Errors.ILLEGAL_GENERATION, Errors.REBALANCE_IN_PROGRESS)
Step = tuple[str, str]


@dataclass
class Client:
    """Member. ``used``: its partitions in ``generation``; ``waits``: responses to its open request."""

    name: str
    member_id: str = ""
    generation: int = -1
    used: str = ""
    others: list[str] = field(default_factory=list)  # the members that a leader received
    phase: str = "out"  # out, joins, joined, syncs, stable
    waits: Responses | None = None

    def reset(self, error: Errors = Errors.NONE) -> None:
        self.phase, self.used, self.waits = "out", "", None
        if error is Errors.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def take_response(self) -> None:
        if not self.waits:
            return
        got, self.waits = self.waits.one, None
        if got.error is Errors.MEMBER_ID_REQUIRED:
            self.phase, self.member_id = "out", got.member_id
        elif got.error is not Errors.NONE:
            assert got.error in REFUSALS, f"{self.name} gets {got.error.name}"
            self.reset(got.error)
        elif self.phase == "joins":
            self.phase, self.member_id, self.generation = "joined", got.member_id, got.generation_id
            self.others = [one.member_id for one in got.members]
        else:
            self.phase, self.used = "stable", got.assignment.decode()


class Scene:
    """Group of two clients, brought to a state by steps."""

    def __init__(self, way: tuple[Step, ...] = ()) -> None:
        self.groups = Groups()
        self.clients = {name: Client(name) for name in "ab"}
        self.committed = 0
        for step in way:
            self.take(step)

    def steps(self) -> list[Step]:
        found = [("move", "")]
        for client in self.clients.values():
            if client.phase == "joined":
                found.append(("sync", client.name))
            if client.phase in ("out", "stable"):
                found.append(("join", client.name))
            if client.phase == "stable":
                found += [("beat", client.name), ("leave", client.name), ("commit", client.name)]
            if client.phase == "out" and not client.member_id:
                found.append(("name", client.name))
            if client.phase == "joins" and client.member_id:
                found.append(("leave", client.name))
            if client.phase in ("joined", "stable"):
                found.append(("expire", client.name))
            if client.phase == "stable" and any(other.phase == "joins" for other in self.clients.values()):
                found.append(("linger", client.name))
        return found

    def take(self, step: Step) -> None:
        what, name = step
        if what == "move":
            self.groups = self.groups.restart()
            for client in self.clients.values():
                if client.waits is not None:
                    client.reset()
        else:
            getattr(self, what)(self.clients[name])
        for client in self.clients.values():
            client.take_response()

    def join(self, client: Client) -> None:
        client.phase, client.used = "joins", ""
        client.waits = self.groups.join(client.member_id)

    def name(self, client: Client) -> None:
        """Send a JoinGroup without a member id; the group then waits for the member with the new id."""
        client.phase, client.waits = "joins", self.groups.join(known=True)

    def sync(self, client: Client) -> None:
        shares = {one: PARTITIONS[at :: len(client.others)].encode() for at, one in enumerate(client.others)}
        client.phase, client.waits = "syncs", self.groups.sync(client.member_id, client.generation, shares)

    def beat(self, client: Client) -> None:
        error = self.groups.beat(client.member_id, client.generation)
        if error not in (Errors.NONE, Errors.REBALANCE_IN_PROGRESS):
            client.reset(error)

    def leave(self, client: Client) -> None:
        self.groups.leave(client.member_id)
        client.reset(Errors.UNKNOWN_MEMBER_ID)

    def expire(self, client: Client) -> None:
        """Make a session expire while the other member sends heartbeats."""
        for _ in range(2):
            for other in self.clients.values():
                if other is not client and other.phase == "stable":
                    self.beat(other)
            self.groups.after(SESSION_MS * 2 // 3)
        assert client.member_id not in self.groups.members(), "a silent member remains"
        client.reset()

    def linger(self, client: Client) -> None:
        """Send heartbeats, without joining again, until the rebalance timeout; the partitions stay in use."""
        for _ in range(REBALANCE_MS // 5000):
            self.groups.beat(client.member_id, client.generation)
            self.groups.after(5000)

    def commit(self, client: Client) -> None:
        rows = {("t", 0): CommittedOffset(self.committed + 1, -1, "", self.groups.clock.wall_ms())}
        try:
            self.groups.coordinator.offsets.commit("g", client.member_id, None, client.generation, rows)
        except KafkaError as error:
            client.reset(error.error)
        else:
            self.committed += 1

    def check(self) -> None:
        owned = [(one.generation, partition) for one in self.clients.values() for partition in one.used]
        assert len(owned) == len(set(owned)), "a partition has two owners in one generation"
        offsets = self.groups.coordinator.offsets.fetch("g").committed
        assert [one.offset for one in offsets.values()] == [self.committed][: self.committed], "a commit is lost"

    def key(self) -> str:
        """Return the state with the ranks of generations and the clients' names."""
        group = self.groups.coordinator.describe("g")
        names = {client.member_id: name for name, client in self.clients.items()}
        coordinator = self.groups.coordinator
        found = coordinator.runtime.find("g").groups.get("g") if coordinator.runtime.exists else None
        generation = found.generation_id if isinstance(found, ClassicGroup) else 0
        pending = sorted(names.get(one, "?") for one in found.pending_joins) if isinstance(found, ClassicGroup) else []
        known = sorted({generation, *(client.generation for client in self.clients.values())})
        members = [] if group is None else [(names.get(one.member_id, "?"), one.assignment) for one in group.members]
        clients = [
            (known.index(one.generation), one.used, len(one.others), one.phase, bool(one.member_id))
            for one in self.clients.values()
        ]
        return repr((known.index(generation), self.groups.state(), members, pending, clients, min(self.committed, 1)))


def explore(limit: int) -> int:
    """Explore about ``limit`` states and return their number. Raises: AssertionError with the steps."""
    order = random.Random(0)
    seen, rest = {""}, [(tuple[Step, ...](), Scene().steps())]
    while rest and len(seen) < limit:
        way, steps = rest.pop(order.randrange(len(rest)))
        for step in steps:
            with scope():
                scene = Scene(way)
                try:
                    scene.take(step)
                    scene.check()
                except AssertionError as error:
                    raise AssertionError(f"{' '.join(map(' '.join, (*way, step)))}: {error}") from None
                known = scene.key()
            if known not in seen:
                seen.add(known)
                rest.append(((*way, step), scene.steps()))
    return len(seen)


def test_no_step_and_no_move_breaks_a_classic_group(soak: bool) -> None:
    explored = explore(5000 if soak else 400)
    print(f"{explored} states")
    assert explored >= 400


NEXT_GENERATION = ClassicGroup.next_generation


def same_generation(group: ClassicGroup, now_ms: int) -> None:
    NEXT_GENERATION(group, now_ms)
    group.generation_id = 1


@pytest.mark.parametrize(
    ("owner", "decision", "replacement", "violation"),
    [
        (GroupCoordinator, "save", lambda *_: None, "two owners in one generation"),
        (ClassicGroup, "next_generation", same_generation, "two owners in one generation"),
        (Membership, "resume", lambda *_: None, "a silent member remains"),
        (offset_metadata_manager, "_records", lambda *_: [(b"", b"")], "a commit is lost"),
    ],
)
def test_a_decision_that_is_removed_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, decision: str, replacement: Callable[..., object], violation: str
) -> None:
    monkeypatch.setattr(owner, decision, replacement)
    with pytest.raises(AssertionError, match=violation):
        explore(800)
