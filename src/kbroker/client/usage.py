"""Repeated snapshots of a broker's usage: clients and throttles, topics, groups with their lag.

Data about clients comes from the X-ray at the HTTP port of a kbroker broker; topics and groups from any Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbroker._core.clock import BaseClock
from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.groups import WITH_OFFSETS, CommittedOffset, Groups
from kbroker.client.http_port import HttpPort, HttpPortError
from kbroker.common.errors import Errors, KafkaError, ignoring
from kbroker.common.topic_names import TopicPartition

XRAY_LIMIT = 500  # maximum number of connections
MOST_PARTITIONS = 5000  # maximum number of partitions whose end offsets a snapshot requests
GROUPS_A_LOOK = 50  # maximum number of groups whose committed offsets a snapshot requests, in turn


@dataclass(slots=True)
class ClientUse:
    """Sums of a client's open connections; rates per second since the previous snapshot, None in the first."""

    principal: str
    client_id: str
    connections: int
    throttled: int
    throttled_by: list[str]
    throttle_left_ms: int
    requests_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    in_flight: int
    memory_pool_bytes: int
    memory_muted: int


@dataclass(slots=True)
class TopicUse:
    """A topic; ``records`` is the sum of the end offsets of its partitions."""

    topic: str
    partitions: int
    records: int
    records_per_s: float | None


@dataclass(slots=True)
class GroupUse:
    """A group; ``lag`` is None without committed offsets that can be read, ``lag_per_s`` is its growth."""

    group: str
    state: str
    topics: int
    lag: int | None
    lag_per_s: float | None


@dataclass(slots=True)
class Usage:
    """One snapshot. ``xray``: the X-ray (docs/xray.md); None if unavailable, for the reason in ``xray_missing``."""

    time_ms: int
    took_ms: float
    interval_s: float | None
    clients: list[ClientUse] = field(default_factory=list)
    topics: list[TopicUse] = field(default_factory=list)
    groups: list[GroupUse] = field(default_factory=list)
    xray: dict[str, Any] | None = None
    xray_missing: str = ""
    topics_truncated: bool = False


class UsageWatch:
    """Source of snapshots of a broker's usage.

    Args: ``connect`` opens a Cluster; ``http_port`` finds the HTTP port, or raises HttpPortError if there is none;
    ``clock``: for the rates.
    Threads: one at a time.
    """

    def __init__(self, connect: Callable[[], Cluster], http_port: Callable[[], HttpPort], clock: BaseClock) -> None:
        self._connect = connect
        self._find_port = http_port
        self._clock = clock
        self._cluster: Cluster | None = None
        self._port: HttpPort | None = None
        self._at_ns: int | None = None
        self._clients: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._topics: dict[str, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._lags: dict[str, tuple[int, int, int | None, float | None]] = {}  # topics, time_ns, lag, growth per second
        self._next_group = 0

    def close(self) -> None:
        """Close the connections. Idempotent."""
        cluster, self._cluster, self._port = self._cluster, None, None
        if cluster is not None:
            cluster.close()

    def look(self) -> Usage:
        """Return a snapshot; its rates cover the time since the previous call.

        Raises: BrokerConnectionError, KafkaError if the broker does not respond; the next call connects again.
        """
        started_ns = self._clock.now_ns()
        interval_s = None if self._at_ns is None else (started_ns - self._at_ns) / 1e9
        usage = Usage(self._clock.epoch_ms(), 0.0, interval_s)
        try:
            if self._cluster is None:
                self._cluster = self._connect()
            self._look_at_topics(self._cluster, usage)
            self._look_at_groups(self._cluster, usage)
        except (BrokerConnectionError, KafkaError):
            self.close()
            self._at_ns = None
            raise
        self._look_at_clients(usage)
        self._at_ns = started_ns
        usage.took_ms = (self._clock.now_ns() - started_ns) / 1e6
        return usage

    # ------------------------------------------------------------ clients

    def _look_at_clients(self, usage: Usage) -> None:
        try:
            if self._port is None:
                self._port = self._find_port()
            snapshot = self._port.get("/xray", {"limit": XRAY_LIMIT})
        except (HttpPortError, BrokerConnectionError, KafkaError) as error:
            self._port = None
            usage.xray_missing = str(error)
            self._clients = {}
            return
        usage.xray = snapshot
        kinds = _throttle_kinds(snapshot["connections"]["shown"])
        totals = {}
        for row in snapshot["clients"]["shown"]:
            client = row["principal"], row["client_id"]
            totals[client] = now = row["requests"], row["bytes_received"], row["bytes_sent"]
            then = self._clients.get(client) if self._clients else None
            before = then or (None, None, None)
            usage.clients.append(
                ClientUse(
                    row["principal"],
                    row["client_id"],
                    row["connections"],
                    row["throttled"],
                    kinds.get(client, []),
                    row["throttle_left_ms"],
                    _rate(now[0], before[0], usage.interval_s),
                    _rate(now[1], before[1], usage.interval_s),
                    _rate(now[2], before[2], usage.interval_s),
                    row["in_flight"],
                    row["memory_pool_bytes"],
                    row["memory_muted"],
                )
            )
        self._clients = totals

    # ------------------------------------------------------------ topics and groups

    def _look_at_topics(self, cluster: Cluster, usage: Usage) -> None:
        admin = Admin(cluster)
        wanted: list[TopicPartition] = []
        counts: dict[str, int] = {}
        for topic in admin.describe_topics():
            if len(wanted) + len(topic.partitions) > MOST_PARTITIONS:
                usage.topics_truncated = True
                break
            counts[topic.name] = len(topic.partitions)
            wanted += [(topic.name, p.partition) for p in topic.partitions if p.leader >= 0]
        ends = dict.fromkeys(counts, 0)
        self._ends = admin.offsets_at(wanted)
        for (name, _), offset in self._ends.items():
            ends[name] += max(0, offset)
        for name, end in ends.items():
            rate = _rate(end, self._topics.get(name), usage.interval_s)
            usage.topics.append(TopicUse(name, counts[name], end, rate))
        self._topics = ends

    def _look_at_groups(self, cluster: Cluster, usage: Usage) -> None:
        client = Groups(cluster)
        listed = [g for g in client.list_groups() if g.group_type in WITH_OFFSETS]
        names = [g.group_id for g in listed]
        for name in self._in_turn(names):
            self._measure(client, name)
        for gone in self._lags.keys() - set(names):
            del self._lags[gone]
        for group in listed:
            topics, _, lag, rate = self._lags.get(group.group_id, (0, 0, None, None))
            usage.groups.append(GroupUse(group.group_id, group.state, topics, lag, rate))

    def _in_turn(self, names: list[str]) -> list[str]:
        if len(names) <= GROUPS_A_LOOK:
            return names
        first = self._next_group % len(names)
        self._next_group = first + GROUPS_A_LOOK
        return (names[first:] + names[:first])[:GROUPS_A_LOOK]

    def _measure(self, client: Groups, name: str) -> None:
        committed: Mapping[TopicPartition, CommittedOffset] = {}
        with ignoring(Errors.GROUP_AUTHORIZATION_FAILED):  # the right to describe the cluster suffices to list it
            committed = client.committed(name)
        known = [tp for tp in committed if tp in self._ends]
        lag = sum(max(0, self._ends[tp] - committed[tp].offset) for tp in known) if known else None
        now_ns = self._clock.now_ns()
        _, then_ns, before, _ = self._lags.get(name, (0, 0, None, None))
        rate = None
        if lag is not None and before is not None and now_ns > then_ns:
            rate = (lag - before) * 1e9 / (now_ns - then_ns)
        self._lags[name] = (len({topic for topic, _ in committed}), now_ns, lag, rate)


def _throttle_kinds(connections: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    kinds: dict[tuple[str, str], list[str]] = {}
    for connection in connections:
        if connection["throttled_by"]:
            found = kinds.setdefault((connection["principal"], connection["client_id"]), [])
            if connection["throttled_by"] not in found:
                found.append(connection["throttled_by"])
    return kinds


def _rate(now: int, then: int | None, interval_s: float | None) -> float | None:
    """Return the growth per second, None without an earlier value.

    A value below the earlier one was reset, by a restart or closed connections; its growth is 0.
    """
    if then is None or interval_s is None or interval_s <= 0:
        return None
    return max(0, now - then) / interval_s
