"""X-ray of a broker: its current activity, from a snapshot that stops nothing.

Each network thread copies its own connections between two polls; watch lists are copied under their own locks in
steps of microseconds; the other values are atomics. docs/xray.md has the schema of the result.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker._core.network.event_loop import MUTE_REASONS
from kbroker._core.requests.request_queue import Queue
from kbroker._core.timer.purgatory import Purgatory
from kbroker.network.processor._processor import Processor
from kbroker.network.processor._processor_snapshot import client_connections
from kbroker.network.processor._processor_snapshot import snapshot as processor_snapshot
from kbroker.observe.broker_parts import BrokerParts
from kbroker.observe.thread_times import Look, Looks, ThreadTimes
from kbroker.quota.explanation import ClientConnections

VERSION = 1
DEFAULT_LIMIT = 100
MOST_SHOWN = 10_000
MOST_CLIENTS = 1000
KEY_CHARACTERS = 249  # maximum of each part of a key: ids of groups may have 32,767
_CLIENT_SUMS = (
    "connections",
    "throttled",
    "throttle_left_ms",
    "in_flight",
    "requests",
    "bytes_received",
    "bytes_sent",
    "memory_pool_bytes",
    "memory_muted",
)


_NetworkThreads = list[tuple[Processor, threading.Thread]]


class XRay:
    """Source of snapshots of a broker. Threads: any; one snapshot at a time, the next waits."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._thread_times = ThreadTimes()
        self._idle = Looks()

    def snapshot(self, limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
        """Return the broker's state as JSON values, as docs/xray.md describes it.

        Args: ``limit``: number of the most urgent connections, and operations of each purgatory, 1 to 10000.
        Raises: ValueError for another limit.
        """
        if not 1 <= limit <= MOST_SHOWN:
            raise ValueError(f"limit must be 1 to {MOST_SHOWN}, got {limit}")
        with self._lock:
            return self._take(limit)

    def connection(self, connection_id: str) -> Mapping[str, Any] | None:
        """Return the facts of an open connection, as in a snapshot; None if no connection has this id."""
        numbers = re.search(r"-([0-9]{1,9})-([0-9]{1,9})\Z", connection_id)
        if numbers is None:
            return None
        processor_id, index = map(int, numbers.groups())
        with self._lock:
            for processor, _ in self._parts.server.network_threads:
                if processor.processor_id == processor_id:
                    found = client_connections(processor, 1, index=index)
                    is_open: list[dict[str, Any]] = [facts for _, _, facts in found.get("connections", ())]
                    return next((facts for facts in is_open if facts["connection"] == connection_id), None)
        return None

    def client(self, principal: str, client_id: str, address: str | None, limit: int) -> ClientConnections:
        """Return the open connections of one client, ``limit`` of them with their facts, throttled ones first.

        Args: ``address``: None for any.
        """
        with self._lock:
            found = [
                client_connections(processor, limit, principal=principal, client_id=client_id, address=address)
                for processor, _ in self._parts.server.network_threads
            ]
        answered = [each for each in found if each["answer"] == "ok"]
        ranked = sorted(
            (one for each in answered for one in each["connections"]), key=lambda one: one[:2], reverse=True
        )
        return ClientConnections(
            sum(each["count"] for each in answered),
            [facts for _, _, facts in ranked[:limit]],
            {client_id for each in answered for client_id in each["client_ids"]},
            len(answered) == len(found) and all(each["is_complete"] for each in answered),
        )

    def _take(self, limit: int) -> dict[str, Any]:
        parts = self._parts
        started_ns = parts.ctx.clock.now_ns()
        purgatories = self._purgatories(limit)
        wanted: dict[int, set[int]] = {}
        for purgatory in purgatories:
            for operation in purgatory["operations"]:
                if "processor" in operation:
                    wanted.setdefault(operation["processor"], set()).add(operation["channel_number"])
        network_threads = parts.server.network_threads
        processors = [
            processor_snapshot(each, limit, numbers=wanted.get(each.processor_id, ())) for each, _ in network_threads
        ]
        named = {
            (each["processor"], number): names for each in processors for number, names in each.get("named", {}).items()
        }
        for purgatory in purgatories:
            for operation in purgatory["operations"]:
                if "processor" in operation:
                    place = operation.pop("processor"), operation.pop("channel_number")
                    operation["connection"], operation["client_id"] = named.get(place, (None, None))
        return {
            "version": VERSION,
            "node_id": parts.ctx.node_id,
            "time_ms": parts.ctx.clock.epoch_ms(),
            "took_ms": round((parts.ctx.clock.now_ns() - started_ns) / 1e6, 3),
            "connections": self._connections(processors, limit),
            "clients": self._clients(processors),
            "purgatories": purgatories,
            "share_partitions": self._share_partitions(limit),
            "memory_pool": self._memory_pool(processors),
            "queues": self._queues(network_threads),
            "network_threads": [
                {"name": thread.name, "listener": each["listener"], "answer": each["answer"], "open": each.get("open")}
                for each, (_, thread) in zip(processors, network_threads, strict=True)
            ],
            **self._threads(network_threads),
            "requests": self._requests(processors, named),
        }

    # ------------------------------------------------------------ delayed operations

    def _purgatories(self, limit: int) -> list[dict[str, Any]]:
        found = [{"name": name, **facts} for name, facts in self._parts.native_apis.waiting_operations(limit).items()]
        groups = self._parts.ctx.group_service.started
        if groups is not None:
            waiting = groups.coordinator.joins, groups.coordinator.heartbeats
            found += [_group_purgatory(purgatory, limit) for purgatory in waiting]
        share_partitions = self._parts.ctx.share_partition_service.started
        if share_partitions is not None:
            found.append(_group_purgatory(share_partitions.manager.purgatory, limit))
        return found

    def _share_partitions(self, limit: int) -> dict[str, Any]:
        """Return share partitions, those with the most records in flight first."""
        service = self._parts.ctx.share_partition_service.started
        if service is None:
            return {"count": 0, "shown": [], "is_truncated": False}
        from kbroker.share.snapshots import facts_of

        now_ms = self._parts.ctx.clock.now_ms()
        known = sorted(service.manager.partitions(), key=lambda share: share.window.record_count, reverse=True)
        shown = [facts_of(share, now_ms) for share in known[:limit]]
        return {"count": len(known), "shown": shown, "is_truncated": len(shown) < len(known)}

    # ------------------------------------------------------------ connections

    def _connections(self, processors: list[dict[str, Any]], limit: int) -> dict[str, Any]:
        answered = [each for each in processors if each["answer"] == "ok"]
        ranked = [connection for each in answered for connection in each["connections"]]
        ranked.sort(key=lambda one: one[:2], reverse=True)
        shown = []
        for _, _, facts in ranked[:limit]:
            del facts["number"]
            shown.append(facts)
        open_connections = sum(each["open"] for each in answered)
        return {
            "open": open_connections,
            "muted": {reason: sum(each["muted"][reason] for each in answered) for reason in MUTE_REASONS},
            "shown": shown,
            "is_truncated": len(shown) < open_connections,
        }

    def _clients(self, processors: list[dict[str, Any]]) -> dict[str, Any]:
        clients: dict[tuple[str, str], list[int]] = {}
        for each in processors:
            for client, sums in each.get("clients", {}).items():
                so_far = clients.get(client)
                if so_far is None:
                    clients[client] = sums
                else:
                    longest = max(so_far[2], sums[2])
                    clients[client] = [a + b for a, b in zip(so_far, sums, strict=True)]
                    clients[client][2] = longest
        order = sorted(clients.items(), key=lambda one: (one[1][1], one[1][5] + one[1][6]), reverse=True)
        shown = [
            {"principal": principal, "client_id": client_id, **dict(zip(_CLIENT_SUMS, sums, strict=True))}
            for (principal, client_id), sums in order[:MOST_CLIENTS]
        ]
        return {"count": len(clients), "shown": shown, "is_truncated": len(shown) < len(clients)}

    # ------------------------------------------------------------ memory, queues, threads

    def _memory_pool(self, processors: list[dict[str, Any]]) -> dict[str, Any] | None:
        pool = self._parts.pool
        if pool is None:
            return None
        available = pool.available_bytes
        return {
            "size_bytes": pool.size_bytes,
            "available_bytes": available,
            "connections_bytes": sum(each.get("memory_pool_bytes", 0) for each in processors),
            "is_out_of_memory": available <= 0,
            "depleted_ms": round(pool.depleted_ns / 1e6, 3),
            "depletions": pool.depletion_count,
        }

    def _queues(self, network_threads: _NetworkThreads) -> list[dict[str, Any]]:
        parts = self._parts
        queues = [
            _queue("requests", parts.requests, len(parts.handlers.threads)),
            _queue("python_requests", parts.python_requests, parts.ctx.config.integer("kbroker.python.threads")),
        ]
        responses = sum(processor.counters()["responses_queued"] for processor, _ in network_threads)
        return [*queues, {"name": "responses", "depth": responses}]

    def _threads(self, network_threads: _NetworkThreads) -> dict[str, Any]:
        parts = self._parts
        found, window_ms = self._thread_times.look()
        idle: dict[object, tuple[int, ...]] = {"handlers": (parts.requests.idle_ns,)}
        for processor, thread in network_threads:
            idle[thread.name] = (processor.counters()["wait_ns"],)
        shares, _ = self._idle.shares(Look(parts.ctx.clock.now_ns(), idle))
        for each in found:
            share = shares.get(each["name"])
            each["idle_share"] = None if share is None else round(min(1.0, share[0]), 4)
        found.sort(key=lambda each: (-(each["cpu_share"] or 0.0), each["name"]))  # type: ignore[operator]
        handlers, count = shares.get("handlers"), len(parts.handlers.threads)
        return {
            "threads": found,
            "threads_window_ms": window_ms,
            "handlers_idle_share": None
            if handlers is None or not count
            else round(max(0.0, min(1.0, handlers[0] / count)), 4),
        }

    # ------------------------------------------------------------ requests

    def _requests(
        self, processors: list[dict[str, Any]], named: Mapping[tuple[int, int], tuple[str, str]]
    ) -> dict[str, Any]:
        latest, slowest = [], []
        for each in processors:
            if each["answer"] == "ok":
                latest += self._time_lines(each["requests"]["latest"], each["processor"], named)
                slowest += self._time_lines(each["requests"]["slowest"], each["processor"], named)
        latest.sort(key=lambda one: one["age_ms"])
        slowest.sort(key=_slowness, reverse=True)
        return {"latest": latest[:64], "slowest": slowest[:32]}

    def _time_lines(
        self, samples: Iterable[dict[str, Any]], processor: int, named: Mapping[tuple[int, int], tuple[str, str]]
    ) -> list[dict[str, Any]]:
        found = []
        for sample in samples:
            connection, _ = named.get((processor, sample.pop("channel_number")), (None, None))
            name = self._parts.api_names.get(sample["api_key"], str(sample["api_key"]))
            found.append({"api": name, "connection": connection, **sample})
        return found


def _slowness(sample: Mapping[str, Any]) -> float:
    """Return a request's total time in ms, but for a Fetch without its remote time, the wait for records."""
    return float(sample["total_ms"] - (sample["remote_ms"] if sample["api_key"] == 1 else 0))


def _queue(name: str, queue: Queue, takers: int) -> dict[str, Any]:
    return {
        "name": name,
        "depth": len(queue),
        "capacity": queue.capacity,
        "takers": takers,
        "idle_takers": queue.sleepers,
        "put_blocked_ms": round(queue.put_blocked_ns / 1e6, 3),
    }


def _group_purgatory(purgatory: Purgatory, limit: int) -> dict[str, Any]:
    facts = purgatory.snapshot(limit)
    for each in facts["operations"]:
        each["operation"] = type(each["operation"]).__name__
        each["keys"] = [_words(key) for key in each["keys"] or ()]
        each["key_count"] = len(each["keys"])
    return {"name": purgatory.name, **facts}


def _words(key: object) -> list[str]:
    return [str(part)[:KEY_CHARACTERS] for part in (key if isinstance(key, tuple) else (key,))]
