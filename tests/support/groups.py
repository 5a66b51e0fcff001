"""Group coordinator on a virtual clock over logs in memory, with short forms of the requests of members."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator.classic_group import JoinResult, SyncResult
from kbroker.coordinator.classic_membership import JoinRequest, LeavingMember, SyncRequest
from kbroker.coordinator.group_coordinator import GroupCoordinator, GroupSettings
from kbroker.coordinator.internal_topic import InternalTopic
from kbroker.coordinator.modern_group.topics_image import TopicsImage
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.metrics.registry import Metrics
from tests.support.closing import close_at_end
from tests.support.fake_image import FakeImage
from tests.support.log_files import memory_log

SESSION_MS, REBALANCE_MS = 10_000, 20_000
RANGE = [("range", b"\0\0\0\0\0\0\xff\xff\xff\xff")]
QUICK = GroupSettings(initial_rebalance_delay_ms=0)


def refuse_share_partition(key: SharePartitionKey) -> NoReturn:
    """Refuse a request where there is no share coordinator."""
    raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)


class MemoryTopic(InternalTopic):
    """``__consumer_offsets`` in memory, which outlives the coordinator."""

    def __init__(self, clock: VirtualClock, count: int = 3, **config: Any) -> None:
        self.logs: list[Any] = [
            memory_log("__consumer_offsets", index, clock, uuid.uuid4(), config) for index in range(count)
        ]
        self.created = False

    def ensure(self) -> None:
        self.created = True

    @property
    def partition_count(self) -> int:
        return len(self.logs) if self.created else 0

    def partition(self, index: int) -> Any:
        return self.logs[index]

    def led_epoch(self, index: int) -> int | None:
        return max(0, self.logs[index].leader_epoch) if self.logs[index] is not None else 0

    def folder(self, index: int) -> str:
        return f"memory/{index}"

    @property
    def record_count(self) -> int:
        return sum(log.log_end_offset for log in self.logs if log is not None)


def open_producers(coordinator: GroupCoordinator, index: int) -> list[int]:
    """Return the ids of the producers whose transactions have pending offsets in a partition."""
    transactions = coordinator.runtime.at(index).transactions
    with transactions.lock:
        return sorted(transactions._groups)


class Responses(list):  # type: ignore[type-arg]
    """Responses to one request: empty until the response is sent, one element afterwards."""

    @property
    def one(self) -> Any:
        (only,) = self
        return only


@dataclass
class Groups:
    """Coordinator with short forms of the requests of clients."""

    settings: GroupSettings = QUICK
    clock: VirtualClock = field(default_factory=VirtualClock)
    topic: MemoryTopic | None = None
    image: TopicsImage | None = None
    metrics: Metrics | None = None

    def __post_init__(self) -> None:
        self.topic = self.topic or MemoryTopic(self.clock)
        image, metrics = self.image or FakeImage(), self.metrics or Metrics(clock=self.clock)
        self.coordinator = close_at_end(
            GroupCoordinator(self.clock, self.topic, self.settings, image, metrics, refuse_share_partition)
        )
        self.coordinator.start()

    def restart(self) -> Groups:
        """Return another coordinator over the same log, as after a kill."""
        return replace(self)

    def after(self, ms: int) -> None:
        """Advance the clock in steps, so that timers expire in the order of their deadlines."""
        while ms > 0:
            step = min(ms, 100)
            self.clock.advance_ms(step)
            self.coordinator.advance()
            ms -= step

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: list[tuple[str, bytes]] | None = None,
        kind: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        known: bool = False,
        skip: bool = False,
    ) -> Responses:
        responses = Responses()
        rows = RANGE if protocols is None else protocols
        request = JoinRequest(
            group, member_id, instance, "client", "/host", rebalance_ms, session_ms, kind, rows, known, skip
        )
        self.coordinator.join(request, responses.append)
        self.coordinator.advance()
        return responses

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        kind: str | None = None,
        name: str | None = None,
    ) -> Responses:
        responses = Responses()
        request = SyncRequest(group, generation, member_id, instance, kind, name, assignments or {})
        self.coordinator.sync(request, responses.append)
        self.coordinator.advance()
        return responses

    def beat(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None) -> Errors:
        error = self.coordinator.heartbeat(group, member_id, instance, generation)
        self.coordinator.advance()
        return error

    def leave(self, *member_ids: str, group: str = "g") -> list[Errors]:
        errors = self.coordinator.leave(group, [LeavingMember(one, None) for one in member_ids])
        self.coordinator.advance()
        return errors

    def state(self, group: str = "g") -> str:
        found = self.coordinator.describe(group)
        return "Dead" if found is None else found.state.value

    def members(self, group: str = "g") -> list[str]:
        found = self.coordinator.describe(group)
        return [] if found is None else [member.member_id for member in found.members]

    def lone(self, *, group: str = "g", **how: Any) -> JoinResult:
        """Make a stable group of one member; return the result of the join."""
        joined: JoinResult = self.join(group=group, **how).one
        assert joined.error is Errors.NONE
        synced: SyncResult = self.sync(
            joined.member_id, joined.generation_id, {joined.member_id: b"all"}, group=group
        ).one
        assert synced.error is Errors.NONE
        return joined

    def joined_pair(self) -> tuple[JoinResult, JoinResult]:
        """Make a group of two that waits for the assignment; return the joins of the leader and the other member."""
        first = self.lone()
        waiting = self.join()
        return self.join(first.member_id).one, waiting.one

    def pair(self) -> tuple[JoinResult, JoinResult]:
        """Make a stable group of two members; return the results of the leader and the other member."""
        one, two = self.joined_pair()
        synced = self.sync(two.member_id, two.generation_id)
        self.sync(one.member_id, one.generation_id, {one.member_id: b"1", two.member_id: b"2"})
        assert synced.one.assignment == b"2"
        return one, two
