"""Routes of the control port, without HTTP: from a method and a path to a response."""

from __future__ import annotations

import base64
import inspect
import itertools
import threading
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any

from kbroker._core.clock import BaseClock, VirtualClock
from kbroker.common.errors import KafkaError
from kbroker.common.similar_names import did_you_mean
from kbroker.metadata.topic_rules import MAX_PARTITIONS_PER_REQUEST, too_many_partitions
from kbroker.protocol.records import Record
from kbroker.testing.embedded import EmbeddedBroker, Snapshot
from kbroker.testing.faults import Fault
from kbroker.testing.transactions import HeldMarkers

Body = dict[str, Any]
LONGEST_WAIT_MS = 300_000
LONGEST_STEP_MS = 366 * 86_400_000
MOST_RECORDS = 10_000
NAMED = ("topics", "groups", "faults", "snapshots", "held-markers", "nodes")  # in a path, a name follows these
_MISSING = object()


class ControlError(Exception):
    """Failure of a request; status 400 marks wrong usage."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def document(self) -> dict[str, object]:
        """Return the response as a JSON object."""
        response: dict[str, object] = {"error": str(self)}
        if self.code is not None:
            response["code"] = self.code
        if self.status == 400:
            response["usage"] = True
        return response


class RouteTable:
    """Actions by method and path; ``lock`` is for actions that stop or start a broker."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: Functions by method and path, with * for a name. Arguments: the name, and ``body`` if that is a parameter.
        self.table: dict[tuple[str, str], Callable[..., Body | None]] = {}

    def serve(self, method: str, parts: list[str], body: Body) -> Body:
        """Serve a request. Raises: ControlError."""
        names = parts[1:2] if len(parts) > 1 and parts[0] in NAMED else []
        path = "/".join([parts[0], "*", *parts[2:]] if names else parts)
        action = self.table.get((method, path))
        if action is None:
            known = [verb for verb, pattern in self.table if pattern == path]
            if known:
                raise ControlError(405, f"{'/'.join(parts) or '/'} takes {' or '.join(known)}")
            routes = ", ".join(f"{verb} /{pattern}" for verb, pattern in self.table)
            raise ControlError(404, f"no such path; there are: {routes}")
        try:
            if "body" in inspect.signature(action).parameters:
                return action(*names, body=body) or {}
            end(body)
            return action(*names) or {}
        except KafkaError as error:
            raise ControlError(409, str(error), error.error.name) from None
        except TimeoutError as error:
            raise ControlError(408, str(error)) from None
        except (ValueError, TypeError) as error:
            raise ControlError(400, str(error)) from None
        except RuntimeError as error:
            raise ControlError(409, str(error)) from None


class Routes(RouteTable):
    """The actions on one broker.

    Args: ``on_shutdown`` must return at once.
    Threads: any; snapshots and restores one at a time.
    """

    def __init__(self, broker: EmbeddedBroker, on_shutdown: Callable[[], None]) -> None:
        super().__init__()
        self._broker = broker
        self._snapshots: dict[int, Snapshot] = {}
        self._numbers = itertools.count(1)
        self._held: dict[int, tuple[str | None, HeldMarkers]] = {}
        self._held_numbers = itertools.count(1)
        self.table |= {
            ("GET", ""): self._describe,
            ("GET", "topics"): self._topics,
            ("POST", "topics"): self._create_topic,
            ("DELETE", "topics/*"): broker.delete_topic,
            ("GET", "topics/*/records"): partial(self._shown, broker.records),
            ("GET", "topics/*/committed-records"): partial(self._shown, broker.committed_records),
            ("GET", "groups/*/members"): self._group_members,
            ("POST", "groups/*/fence"): self._fence_member,
            ("POST", "groups/*/rebalance"): broker.rebalance,
            ("GET", "transactions"): self._transactions,
            ("GET", "held-markers"): self._list_held_markers,
            ("POST", "held-markers"): self._hold_markers,
            ("DELETE", "held-markers"): self._release_all_markers,
            ("DELETE", "held-markers/*"): self._release_markers,
            ("GET", "faults"): self._faults,
            ("POST", "faults"): self._add_faults,
            ("DELETE", "faults"): self._clear_faults,
            ("DELETE", "faults/*"): self._remove_fault,
            ("POST", "faults/*/wait"): self._wait_fault,
            ("POST", "clock/advance"): self._advance,
            ("GET", "snapshots"): self._list_snapshots,
            ("POST", "snapshots"): self._snapshot,
            ("POST", "snapshots/*/restore"): self._restore,
            ("DELETE", "snapshots/*"): self._discard,
            ("POST", "shutdown"): on_shutdown,
        }

    # ------------------------------------------------------------ broker

    def _describe(self) -> Body:
        broker = self._broker
        clock = broker.clock
        return {
            "bootstrap_servers": broker.bootstrap_servers,
            "cluster_id": broker.cluster_id,
            "node_id": broker.config.node_id,
            "waiting_fetches": broker.waiting_fetches,
            "clock": {"virtual": clock.is_virtual, "now_ms": clock.wall_ms()},
        }

    # ------------------------------------------------------------ topics

    def _topics(self) -> Body:
        return {"topics": [{"name": name, "partitions": count} for name, count in self._broker.topics.items()]}

    def _create_topic(self, body: Body) -> Body:
        name, partitions, configs = topic_settings(body)
        end(body)
        self._broker.create_topic(name, partitions, configs)
        return {"name": name, "partitions": self._broker.topics.get(name, partitions)}  # -1 takes the broker's default

    def _shown(self, read: Callable[[str, int], list[Record]], name: str) -> Body:
        partitions = self._broker.topics.get(name)
        if partitions is None:
            raise ControlError(404, f"topic {name} does not exist")
        shown: list[Body] = []
        for partition in range(partitions):
            shown += [_shown_record(partition, record) for record in read(name, partition)]
            if len(shown) > MOST_RECORDS:
                raise ControlError(409, f"{name} has more than {MOST_RECORDS} records: read them with a consumer")
        return {"records": shown}

    # ------------------------------------------------------------ groups of the consumer protocol

    def _group_members(self, name: str) -> Body:
        members = sorted(self._broker.group_members(name).items())
        return {
            "members": [
                {
                    "member_id": member_id,
                    "partitions": [{"topic": topic, "partition": index} for topic, index in sorted(places)],
                }
                for member_id, places in members
            ]
        }

    def _fence_member(self, name: str, body: Body) -> None:
        member_id = take(body, "member_id", str)
        end(body)
        self._broker.fence_member(name, member_id)

    # ------------------------------------------------------------ transactions

    def _transactions(self) -> Body:
        states = sorted(self._broker.transactions.items())
        return {"transactions": [{"transactional_id": name, "state": state} for name, state in states]}

    def _list_held_markers(self) -> Body:
        with self.lock:
            return {"held_markers": [_shown_markers(number, *held) for number, held in sorted(self._held.items())]}

    def _hold_markers(self, body: Body) -> Body:
        topic = take(body, "topic", str, None)
        end(body)
        with self.lock:
            number = next(self._held_numbers)
            self._held[number] = (topic, self._broker.hold_markers(topic))
        return {"id": number}

    def _release_all_markers(self) -> Body:
        with self.lock:
            return {"removed": self._forget_markers(list(self._held))}

    def _release_markers(self, name: str) -> Body:
        with self.lock:
            number = numbered(name, self._held, f"there are no held markers {name}")
            return {"removed": self._forget_markers([number])}

    def forget_markers(self) -> None:
        """Release all held markers, before the broker stops."""
        with self.lock:
            self._forget_markers(list(self._held))

    def _forget_markers(self, numbers: list[int]) -> int:
        """Release held markers and return their number. The caller holds the lock."""
        for number in numbers:
            _, held = self._held.pop(number)
            held.release()
        return len(numbers)

    # ------------------------------------------------------------ faults

    def _faults(self) -> Body:
        return {"faults": [_notified(fault) for fault in self._broker.faults.all()]}

    def _add_faults(self, body: Body) -> Body:
        rules = take(body, "rules", list)
        end(body)
        added: list[Fault] = []
        try:
            added.extend(self._add_fault(rule) for rule in rules)
        except BaseException:
            for fault in added:
                fault.remove()
            raise
        if not added:
            raise ValueError("rules must have at least one rule")
        return {"ids": [fault.id for fault in added]}

    def _add_fault(self, rule: object) -> Fault:
        if not isinstance(rule, dict):
            raise ValueError("a rule must be an object")
        rule = dict(rule)
        keys = take(rule, "keys", list, [])
        fault = {
            "topic": take(rule, "topic", str, None),
            "client_id": take(rule, "client_id", str, None),
            "error": take(rule, "error", (str, int), None),
            "delay_ms": take(rule, "delay_ms", int, 0),
            "drop": take(rule, "drop", bool, False),
            "disconnect": take(rule, "disconnect", bool, False),
            "execute": take(rule, "execute", bool, False),
            "count": take(rule, "count", int, 1),
            "skip": take(rule, "skip", int, 0),
        }
        end(rule, ("keys", *fault))
        return self._broker.faults.add(tuple(keys) or None, **fault)

    def _clear_faults(self) -> Body:
        return {"removed": self._broker.faults.clear()}

    def _remove_fault(self, name: str) -> Body:
        self._fault(name).remove()
        return {"removed": 1}

    def _wait_fault(self, name: str, body: Body) -> Body:
        hits, timeout_ms = take(body, "hits", int, 1), take(body, "timeout_ms", int, 30_000)
        end(body)
        fault = self._fault(name)
        fault.wait(hits, min(max(timeout_ms, 0), LONGEST_WAIT_MS) / 1000)
        return {"hits": fault.hits}

    def _fault(self, name: str) -> Fault:
        for fault in self._broker.faults.all():
            if str(fault.id) == name:
                return fault
        raise ControlError(404, f"there is no fault {name}")

    # ------------------------------------------------------------ clock

    def _advance(self, body: Body) -> Body:
        clock = self._broker.clock
        delta_ms = step_ms(body, clock)
        assert isinstance(clock, VirtualClock)
        clock.advance_ms(delta_ms)
        if self._broker.is_running:
            self._broker.wait_until_quiet()
        return {"now_ms": clock.wall_ms()}

    # ------------------------------------------------------------ state

    def _list_snapshots(self) -> Body:
        return {"snapshots": sorted(self._snapshots)}

    def _snapshot(self) -> Body:
        with self.lock:
            number = next(self._numbers)
            self._snapshots[number] = self._broker.snapshot()
            self._forget_markers(list(self._held))  # the broker has been started again
        return {"id": number}

    def _restore(self, name: str) -> Body:
        with self.lock:
            self._broker.restore(self._snapshots[self._number(name)])
            self._forget_markers(list(self._held))  # the broker that starts holds none
        return {"bootstrap_servers": self._broker.bootstrap_servers}

    def _discard(self, name: str) -> Body:
        with self.lock:
            self._snapshots.pop(self._number(name)).discard()
        return {"removed": 1}

    def _number(self, name: str) -> int:
        return numbered(name, self._snapshots, f"there is no snapshot {name}")


def _notified(fault: Fault) -> Body:
    names = ("id", "hits", "left", "action", "keys", "topic", "client_id")
    return {name: getattr(fault, name) for name in names} | {"keys": sorted(fault.keys)}


def _shown_markers(number: int, topic: str | None, held: HeldMarkers) -> Body:
    places = [{"topic": name, "partition": partition} for name, partition in sorted(held.partitions)]
    return {"id": number, "topic": topic, "active": held.is_active, "partitions": places}


def _shown_record(partition: int, record: Record) -> Body:
    """Return a record with its bytes in base64: a topic may contain any bytes."""
    headers = [{"key": key, "value": _base64(value)} for key, value in record.headers]
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _base64(record.key),
        "value": _base64(record.value),
        "headers": headers,
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def numbered(name: str, known: Container[int], missing: str) -> int:
    """Return the number in a path. Raises: ControlError 404 with the text ``missing`` for one that is not known."""
    if not (name.isascii() and name.isdigit() and len(name) < 20) or int(name) not in known:
        raise ControlError(404, missing)
    return int(name)


def take(body: Body, name: str, kind: type | tuple[type, ...], default: Any = _MISSING) -> Any:
    """Remove a field from an object and return it, checked. Raises: ValueError."""
    if name not in body:
        if default is _MISSING:
            raise ValueError(f"{name} is missing")
        return default
    value = body.pop(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        words = {str: "a text", int: "a whole number", bool: "true or false", dict: "an object", list: "a list"}
        raise ValueError(f"{name} must be {' or '.join(words[one] for one in kinds)}, got {value!r}")
    return value


def end(body: Body, known: Iterable[str] = ()) -> None:
    """Raise ValueError if an unknown field is left. Args: ``known``: names that it may misspell."""
    if body:
        name = min(body)
        raise ValueError(f"unknown field {name!r}{did_you_mean(name, known)}")


def step_ms(body: Body, clock: BaseClock) -> int:
    """Return the time by which to advance a virtual clock. Raises: ValueError; ControlError for another clock."""
    delta_ms: int = take(body, "ms", int)
    end(body)
    if not clock.is_virtual:
        raise ControlError(
            409, "this broker follows the system's clock: start it with kbroker.control.virtual.clock=true"
        )
    if not 0 <= delta_ms <= LONGEST_STEP_MS:
        raise ValueError(f"ms must be 0 to {LONGEST_STEP_MS}, got {delta_ms}")
    return delta_ms


def topic_settings(body: Body) -> tuple[str, int, dict[str, str]]:
    """Return name, number of partitions and configs of a topic to create.

    Raises: ValueError; KafkaError for too many partitions.
    """
    name, partitions = take(body, "name", str), take(body, "partitions", int, 1)
    if partitions > MAX_PARTITIONS_PER_REQUEST:
        raise too_many_partitions()
    configs = take(body, "configs", dict, {})
    if not all(isinstance(value, (str, int, float)) for value in configs.values()):
        raise ValueError("configs must be an object of texts")
    return name, partitions, {key: _text(value) for key, value in configs.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
