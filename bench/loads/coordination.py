"""Measurements of the coordinators beside Apache Kafka: rebalances of 1,000 members, heartbeats, offset commits."""

import itertools
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack

from bench.groups_beside_kafka import PARTITIONS_EACH, SESSION, Crowd, Group, Member, await_coordinator
from bench.loads import peers
from bench.loads.breadth import Case, pair, row_of
from bench.loads.generator import Frame
from bench.loads.loads import Loads
from bench.loads.peers import Server
from bench.loads.report import Row, at_least, at_most_of_peer
from kbroker.protocol import codec
from tests.support.wire import Connection

MEMBERS, TOPICS = 1_000, 10
OFFSET_COMMIT, OFFSET_COMMIT_VERSION = 8, 7
JOIN_GROUP, JOIN_GROUP_VERSION, SYNC_GROUP, SYNC_GROUP_VERSION, MEMBER_ID_REQUIRED = 11, 5, 14, 3, 79
names = itertools.count()


def request(key: int, version: int, body: codec.Body) -> bytes:
    """Return a request without its length."""
    return codec.encode_request_frame(key, version, 1, "bench", body)[4:]


def commits(loads: Loads, servers: list[Server]) -> list[Row]:
    """Measure commits of one offset by five groups in turn."""
    bodies: list[codec.Body] = [
        {
            "GroupId": f"commits-{number}",
            "Topics": [{"Name": "load", "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1}]}],
        }
        for number in range(5)
    ]
    first, *others = (request(OFFSET_COMMIT, OFFSET_COMMIT_VERSION, body) for body in bodies)
    # correlation id, throttle time, topics, name, partitions, partition
    frame = Frame(first, 4 + 4 + 4 + 2 + len("load") + 4 + 4, others)
    return [row_of(loads, Case("offset commits, 8 x 5", "load", frame, 8, 5), 1.0, *servers)]


def settled(server: Server) -> tuple[Crowd, float]:
    """Join 1,000 members of the consumer protocol; return them and the seconds until they have settled."""
    group = Group(f"crowd-{next(names)}", [f"topic-{number}" for number in range(TOPICS)], MEMBERS)
    crowd = Crowd(server, [group])
    begun = time.monotonic()
    crowd.settle()
    return crowd, time.monotonic() - begun


def consumer_protocol(loads: Loads, servers: list[Server]) -> list[Row]:
    """Measure a join and a departure of 1,000 members, and heartbeats without a change."""
    goal = "< Kafka"
    joins, leaves = (
        Row(f"1,000 members of the consumer protocol {what}", "s", goal, is_reached=at_most_of_peer(1.0))
        for what in ("join and settle", "settle after one left")
    )
    beats = Row("heartbeats of the consumer protocol, 8 x 100", "req/s", "> Kafka", is_reached=at_least(1.0))
    for row in (joins, leaves, beats):
        row.peer_name = servers[1].name
    for _ in range(loads.plan.rounds):
        for server, of in zip(servers, ("ours", "peer"), strict=True):
            crowd, taken = settled(server)
            try:
                getattr(joins, of).append(taken)
                time.sleep(1.5)  # a target assignment is computed once a second, so that another epoch may follow
                crowd.settle()
                first, *others = (member.request()[4:] for member in crowd.members[:100])
                # correlation id, tagged fields, throttle time
                case = Case(beats.name, "", Frame(first, 4 + 1 + 4, others), 8, 100)
                rate, cpu_us = case.run(loads, server)
                getattr(beats, of).append(rate)
                getattr(beats, f"{of}_cpu_us").append(cpu_us)
                begun = time.monotonic()
                crowd.leave([crowd.members[0]])
                crowd.settle()
                getattr(leaves, of).append(time.monotonic() - begun)
                crowd.leave(crowd.members)
            finally:
                crowd.close()
    return [joins, leaves, beats]


class ClassicGroup:
    """Members of the classic protocol on separate connections, since a join completes when all members have joined."""

    def __init__(self, bootstrap: str, stack: ExitStack) -> None:
        self.name = f"classic-{next(names)}"
        self._connections = [stack.enter_context(Connection(bootstrap, timeout=60)) for _ in range(MEMBERS)]
        self._ids = [""] * MEMBERS
        self._round = 0

    def _ask(self, key: int, version: int, bodies: list[codec.Body]) -> list[codec.Body]:
        for connection, body in zip(self._connections, bodies, strict=True):
            connection.send(request(key, version, body))
        return [codec.decode_response_frame(key, version, c.receive())[1] for c in self._connections]

    def _join(self) -> list[codec.Body]:
        self._round += 1  # sent as user data: changed metadata of a member starts a rebalance
        metadata = struct.pack(">hiii", 0, 0, 4, self._round)
        body = {
            "GroupId": self.name,
            "SessionTimeoutMs": 45_000,
            "RebalanceTimeoutMs": 60_000,
            "ProtocolType": "consumer",
            "Protocols": [{"Name": "range", "Metadata": metadata}],
        }
        return self._ask(JOIN_GROUP, JOIN_GROUP_VERSION, [{**body, "MemberId": one} for one in self._ids])

    def rebalance(self) -> None:
        """Join and sync all members until one generation has all of them. Raises: RuntimeError."""
        while True:
            joined = self._join()
            new = [row["ErrorCode"] == MEMBER_ID_REQUIRED for row in joined]
            self._ids = [row["MemberId"] for row in joined]
            if any(new):
                continue
            if any(row["ErrorCode"] for row in joined):
                raise RuntimeError(f"a join of {self.name} got error {max(row['ErrorCode'] for row in joined)}")
            generations = {row["GenerationId"] for row in joined}
            bodies = [self._sync(row) for row in joined]
            synced = self._ask(SYNC_GROUP, SYNC_GROUP_VERSION, bodies)
            if len(generations) == 1 and not any(row["ErrorCode"] for row in synced):
                return

    def _sync(self, joined: codec.Body) -> codec.Body:
        body = {"GroupId": self.name, "GenerationId": joined["GenerationId"], "MemberId": joined["MemberId"]}
        shares = [{"MemberId": row["MemberId"], "Assignment": b"share"} for row in joined["Members"]]
        return {**body, "Assignments": shares if joined["Leader"] == joined["MemberId"] else []}


def classic_protocol(loads: Loads, servers: list[Server]) -> list[Row]:
    """Measure a rebalance of 1,000 members, which all rejoin and sync."""
    row = Row("1,000 members of the classic protocol rebalance", "s", "< Kafka", is_reached=at_most_of_peer(1.0))
    row.peer_name = servers[1].name
    for _ in range(loads.plan.rounds):
        for server, figures in zip(servers, (row.ours, row.peer), strict=True):
            with ExitStack() as stack:
                group = ClassicGroup(server.bootstrap, stack)
                group.rebalance()
                begun = time.monotonic()
                group.rebalance()
                figures.append(time.monotonic() - begun)
    return [row]


def coordination(loads: Loads) -> list[Row]:
    first = {"group.initial.rebalance.delay.ms": "3000"}  # the first generation of the classic group has all members
    with pair(loads, {**SESSION, **first, "socket.listen.backlog.size": "2000"}) as servers:
        for server in servers:
            for number in range(TOPICS):
                peers.make_topic(server, f"topic-{number}", PARTITIONS_EACH)
            await_coordinator(server)
            Case("warm", "", Frame(Member(Group("none", [], 0), "none").request()[4:]), 1).run(loads, server)
        return [*commits(loads, servers), *classic_protocol(loads, servers), *consumer_protocol(loads, servers)]


MEASURES: dict[str, Callable[[Loads], list[Row]]] = {"coordination": coordination}
