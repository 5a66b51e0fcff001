"""Groups of the consumer protocol on kbroker and on Apache Kafka: rebalances, heartbeats, memory.

    python bench/groups_beside_kafka.py [--groups 1000] [--members 10000] [--partitions 5000] [--rounds 3] [--heap 1g]
                                        [--only kbroker|kafka]

Two shapes, each in its own broker: many groups, which share the members and read five topics each; and one group of all
members and all topics. Members are heartbeats on 32 connections, without a client library, so that the client takes
little CPU and is the same for both brokers. A rebalance is complete when each member of a group has the group's epoch,
and each partition of its topics is assigned once. CPU time is that of the broker's process, after a warm-up in which
the JVM compiles. Apache Kafka comes from Maven and needs Java.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.loads.peers import Server, cpu_seconds
from kbroker.protocol import codec
from tests.support import wire
from tests.support.broker import BrokerProcess, rss_bytes
from tests.support.client import Client, new_topics
from tests.support.kafka import COLLECTOR, ApacheKafka

HEARTBEAT, VERSION = 68, 1
CREATE_TOPICS, CREATE_TOPICS_VERSION = 19, 7
CONNECTIONS = 32
IN_FLIGHT = 20  # heartbeats per connection whose buffers have space for them and their responses
PARTITIONS_EACH = 100
TOPICS_OF_A_GROUP = 5
SETTLED_WITHIN_S, READY_WITHIN_S = 240.0, 240.0
TIMEOUT_MS = 300_000
SESSION = {
    "group.consumer.max.session.timeout.ms": "600000",
    "group.consumer.session.timeout.ms": "600000",  # a slow round must not remove members
    "group.consumer.max.size": "100000",
}


@contextlib.contextmanager
def started(name: str, heap: str) -> Iterator[Server]:
    """Run a new broker without data."""
    if name == "kafka":
        with ApacheKafka(SESSION, heap=heap, compiler=COLLECTOR) as kafka:
            yield Server(kafka.name, kafka.port, kafka.pid)
        return
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder) / "data", SESSION)
        broker.start()
        try:
            yield Server("kbroker", broker.port, broker.pid)
        finally:
            broker.stop()


@dataclass
class Member:
    """Assignment of a member, and the contents of its next heartbeat."""

    group: Group
    member_id: str
    epoch: int = 0
    assigned: dict[UUID, tuple[int, ...]] = field(default_factory=dict)
    reports: bool = False  # the assignment has changed since the last heartbeat
    quiet: tuple[bytes, bytes] = (b"", b"")  # a heartbeat without changes: the bytes before and after the epoch
    usual_response: bytes = b""  # response after the correlation id

    def request(self) -> bytes:
        """Return the frame of the member's next heartbeat."""
        if self.epoch > 0 and not self.reports:
            if not self.quiet[0]:
                frame = self._frame(0x7A7A7A7A, None)
                head, _, tail = frame.partition(b"\x7a\x7a\x7a\x7a")
                self.quiet = head, tail
            return self.quiet[0] + struct.pack(">i", self.epoch) + self.quiet[1]
        self.reports = False
        return self._frame(self.epoch, self.assigned if self.epoch > 0 else {})

    def leaving(self) -> bytes:
        return self._frame(-1, None)

    def _frame(self, epoch: int, has: dict[UUID, tuple[int, ...]] | None) -> bytes:
        rows = None if has is None else [{"TopicId": one, "Partitions": list(some)} for one, some in has.items()]
        body = {
            "GroupId": self.group.name,
            "MemberId": self.member_id,
            "MemberEpoch": epoch,
            "RebalanceTimeoutMs": TIMEOUT_MS if epoch == 0 else -1,
            "SubscribedTopicNames": self.group.topics if epoch == 0 else None,
            "TopicPartitions": rows,
        }
        return codec.encode_request_frame(HEARTBEAT, VERSION, 1, "bench", body)

    def take(self, frame: bytes) -> bool:
        """Process a response; return whether it changes anything. Raises: RuntimeError for an error."""
        if frame == self.usual_response:
            return False
        body = codec.decode_response_frame(HEARTBEAT, VERSION, frame)[1]
        if body["ErrorCode"]:
            raise RuntimeError(f"{self.group.name} {self.member_id}: {body['ErrorCode']} {body['ErrorMessage']}")
        has_changed: bool = self.epoch != body["MemberEpoch"]
        self.epoch = body["MemberEpoch"]
        self.usual_response = b""
        if body["Assignment"] is None:
            self.usual_response = frame
            return has_changed
        assigned = {row["TopicId"]: tuple(row["Partitions"]) for row in body["Assignment"]["TopicPartitions"]}
        if assigned != self.assigned:
            self.assigned, self.reports = assigned, True
        return has_changed or self.reports


class Group:
    """Some members of one group."""

    def __init__(self, name: str, topics: Sequence[str], count: int) -> None:
        self.name = name
        self.topics = list(topics)
        self.members = [Member(self, f"{name}-{number:022}") for number in range(count)]

    @property
    def is_settled(self) -> bool:
        """Return whether all members have one epoch, and each partition is assigned once."""
        if len({member.epoch for member in self.members}) > 1 or any(member.reports for member in self.members):
            return False
        given = [(one, index) for member in self.members for one, some in member.assigned.items() for index in some]
        return len(given) == len(set(given)) == len(self.topics) * PARTITIONS_EACH


class Crowd:
    """Groups on several connections."""

    def __init__(self, server: Server, groups: list[Group]) -> None:
        self.server = server
        self.groups = groups
        self._sockets = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(CONNECTIONS)]
        for one in self._sockets:
            one.settimeout(SETTLED_WITHIN_S)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffers = [one.makefile("rb", 1 << 16) for one in self._sockets]
        self.heartbeats = 0

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.close()
        for one in self._sockets:
            one.close()

    @property
    def members(self) -> list[Member]:
        return [member for group in self.groups for member in group.members]

    def _ask(self, members: list[Member], *, leaving: bool = False) -> int:
        """Send a heartbeat of each member; return the number of responses with a change."""
        changed = 0
        step = CONNECTIONS * IN_FLIGHT
        for begin in range(0, len(members), step):
            shares = [members[begin + index : begin + step : CONNECTIONS] for index in range(CONNECTIONS)]
            for to, share in zip(self._sockets, shares, strict=True):
                if share:
                    to.sendall(b"".join(one.leaving() if leaving else one.request() for one in share))
            for buffer, share in zip(self._buffers, shares, strict=True):
                for one in share:
                    (size,) = struct.unpack(">i", buffer.read(4))
                    changed += one.take(buffer.read(size))
        self.heartbeats += len(members)
        return changed

    def settle(self) -> None:
        """Send heartbeats until every group is settled. Raises: TimeoutError."""
        deadline = time.monotonic() + SETTLED_WITHIN_S
        left = self.groups
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(left)} groups are not settled after {SETTLED_WITHIN_S:g} s")
            begun = time.monotonic()
            self._ask([member for group in left for member in group.members])
            left = [group for group in left if not group.is_settled]
            time.sleep(max(0.0, 0.05 - (time.monotonic() - begun)))

    def quiet_rounds(self, count: int) -> None:
        """Send about `count` heartbeats without changes."""
        members = self.members
        for _ in range(max(1, count // len(members))):
            self._ask(members)

    def leave(self, members: list[Member]) -> None:
        self._ask(members, leaving=True)
        for one in members:
            one.group.members.remove(one)


class Figures(NamedTuple):
    """Figures of one shape of groups on one broker."""

    join_s: float
    join_cpu_s: float
    rss_mib: float
    rebalance_s: float
    rebalance_cpu_s: float
    heartbeats_a_second: float
    heartbeat_cpu_us: float


def create_topics(server: Server, names: Sequence[str]) -> None:
    body = {**new_topics(*names, partitions=PARTITIONS_EACH), "timeoutMs": 170_000}
    with Client(server.bootstrap, timeout=180) as client:
        response = client.call(CREATE_TOPICS, CREATE_TOPICS_VERSION, body)
        assert all(row["ErrorCode"] == 0 for row in response["Topics"]), response
    deadline = time.monotonic() + READY_WITHIN_S
    while not all(wire.is_ready(server.bootstrap, name, PARTITIONS_EACH - 1) for name in names):
        if time.monotonic() > deadline:
            raise TimeoutError("the topics are not ready")
        time.sleep(0.2)


def await_coordinator(server: Server) -> None:
    """Wait until the group coordinator serves, for which Kafka first creates its topic."""
    deadline = time.monotonic() + READY_WITHIN_S
    with Client(server.bootstrap) as client:
        while time.monotonic() < deadline:
            found = client.call("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": ["warm"]})["Coordinators"][0]
            if found["ErrorCode"] == 0:
                client.send_raw(Member(Group("warm", [], 0), "warm").request())
                if not codec.decode_response_frame(HEARTBEAT, VERSION, client.receive())[1]["ErrorCode"]:
                    return
            time.sleep(0.2)
    raise TimeoutError("the coordinator does not respond")


def measure(server: Server, groups: list[Group], topics: Sequence[str], heartbeats: int) -> Figures:
    """Measure joins, heartbeats and departures of the members of a shape."""
    create_topics(server, topics)
    await_coordinator(server)
    before_mib = rss_bytes(server.pid) / 2**20
    crowd = Crowd(server, groups)
    try:
        warm = Crowd(server, [Group("warm-up", topics[:TOPICS_OF_A_GROUP], 10)])
        warm.settle()
        warm.quiet_rounds(heartbeats)
        warm.leave(warm.members)
        warm.close()

        begun, used = time.monotonic(), cpu_seconds(server.pid)
        crowd.settle()
        join_s, join_cpu_s = time.monotonic() - begun, cpu_seconds(server.pid) - used
        crowd.quiet_rounds(len(crowd.members))
        rss_mib = rss_bytes(server.pid) / 2**20 - before_mib

        rates, cpus = [], []
        for _ in range(3):
            begun, used, sent = time.monotonic(), cpu_seconds(server.pid), crowd.heartbeats
            crowd.quiet_rounds(heartbeats)
            sent = crowd.heartbeats - sent
            rates.append(sent / (time.monotonic() - begun))
            cpus.append((cpu_seconds(server.pid) - used) / sent * 1e6)

        begun, used = time.monotonic(), cpu_seconds(server.pid)
        crowd.leave([group.members[0] for group in crowd.groups])
        crowd.settle()
        rebalance_s, rebalance_cpu_s = time.monotonic() - begun, cpu_seconds(server.pid) - used
    finally:
        crowd.close()
    return Figures(join_s, join_cpu_s, rss_mib, rebalance_s, rebalance_cpu_s, median(rates), median(cpus))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=5_000)
    parser.add_argument("--heartbeats", type=int, default=50_000, help="of each of three measurements")
    parser.add_argument("--rounds", type=int, default=3, help="of both brokers in turn")
    parser.add_argument("--heap", default="1g", help="of the JVM")
    parser.add_argument("--only", choices=("kbroker", "kafka"))
    given = parser.parse_args()
    topics = [f"topic-{number:03}" for number in range(given.partitions // PARTITIONS_EACH)]
    each = given.members // given.groups

    def many() -> list[Group]:
        count = len(topics) - TOPICS_OF_A_GROUP + 1
        wanted = [topics[number % count : number % count + TOPICS_OF_A_GROUP] for number in range(given.groups)]
        return [Group(f"group-{number:05}", some, each) for number, some in enumerate(wanted)]

    def one() -> list[Group]:
        return [Group("crowd", topics, given.members)]

    shapes = {
        f"{given.groups:,} groups of {each}": many,
        f"one group of {given.members:,}": one,
    }
    for title, make in shapes.items():
        found: dict[str, list[Figures]] = {}
        for _ in range(given.rounds):
            for name in (given.only,) if given.only else ("kbroker", "kafka"):
                with started(name, given.heap) as server:
                    figures = measure(server, make(), topics, given.heartbeats)
                found.setdefault(server.name, []).append(figures)
                shown = ", ".join(f"{key} {value:,.2f}" for key, value in figures._asdict().items())
                print(f"{title}: {server.name}: {shown}", flush=True)
        for name, rounds in found.items():
            middle = [median(values) for values in zip(*rounds, strict=True)]
            shown = ", ".join(f"{key} {value:,.2f}" for key, value in zip(Figures._fields, middle, strict=True))
            print(f"{title}: {name}, medians of {len(rounds)}: {shown}", flush=True)


if __name__ == "__main__":
    main()
