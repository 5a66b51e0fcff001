"""Request log of a broker's quota managers: requests are judged one after the other on a virtual clock."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.sensor import QuotaViolationError
from kbroker.common.quotas import CLIENT_ID, USER, QuotaEntity
from kbroker.metrics.registry import Metrics
from kbroker.quota._client_quotas import ClientQuotaManagers
from kbroker.quota._entities import DEFAULT_ENTITY
from kbroker.spark.tables.log_schema import arrow_schema

START_MS = 1_767_312_000_000  # 2026-01-02
Quotas = Mapping[QuotaEntity, Mapping[str, float]]
Delay = tuple[int, str, str, str, int]  # record, quota type, tags, milliseconds
MANAGERS = {"Produce": "produce", "Fetch": "fetch", "Request": "request", "ControllerMutation": "controller_mutation"}


@dataclass
class Request:
    """One request, independent of the quotas."""

    time_ms: int
    principal: str
    client_id: str
    api_key: int
    size_bytes: int
    handler_us: int
    network_us: int
    mutations: int = 0


@dataclass
class LoggedBroker:
    """Broker that judges requests by its own managers, and keeps the rows of its request log."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)
    served: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = VirtualClock(START_MS)
        self.managers = ClientQuotaManagers(clock, Metrics(clock=clock, expires=True))
        self._sequences: dict[tuple[str, str, str], int] = {}
        self._sending: list[tuple[int, Callable[[], object]]] = []  # network time is charged once a response is sent

    def set(self, quotas: Quotas) -> None:
        for entity, values in quotas.items():
            names = entity.names
            user, client = ((names[kind] or DEFAULT_ENTITY) if kind in names else None for kind in (USER, CLIENT_ID))
            for key, value in values.items():
                self.managers.update(user, client, key, value)

    def judge(self, request: Request) -> None:
        self.send(request.time_ms)
        user = request.principal.removeprefix("User:")
        now, row = request.time_ms, len(self.rows)
        updates: list[dict[str, Any]] = []
        verdicts: list[dict[str, Any]] = []
        longest = 0
        given = {"updates": updates, "verdicts": verdicts}

        def record(kind: str, value: float, at: int, checked: bool, unrecords: bool = False) -> int:
            manager = getattr(self.managers, MANAGERS[kind])
            if not manager.is_enabled:
                return 0
            tags = manager.resolve(user, request.client_id)
            who = (kind, tags.user_tag, tags.client_id_tag)
            delay, refused, recorded = 0, False, True
            strict = kind == "ControllerMutation" and checked
            if strict:
                try:
                    manager.sensor(user, request.client_id).record_strict(value, at)
                except QuotaViolationError as violation:
                    delay, refused, recorded = violation.throttle_time_ms or 0, True, False
            elif checked:
                delay = manager.record_and_get_throttle(user, request.client_id, value, at)
            elif unrecords:
                manager.unrecord(user, request.client_id, -value, at)
            else:
                manager.record_no_throttle(user, request.client_id, value, at)
            if recorded:
                self._sequences[who] = self._sequences.get(who, 0) + 1
                place = {"quota_type": kind, "user": who[1], "client_id": who[2], "sequence": self._sequences[who]}
                updates.append({**place, "time_ms": at, "value": value, "checked": checked})
            if delay:
                self.delays.append((row, *who, delay))
                judged = {"sequence": self._sequences.get(who, 0), "time_ms": at, "delay_asked_ms": delay}
                names = {"quota_type": kind, "user": who[1], "client_id": who[2]}
                verdicts.append({**names, **judged, "refused": refused})
            return delay

        size = float(request.size_bytes)
        handler = request.handler_us * 1000 * (100 / 1e9)
        if request.api_key == 0:
            longest = max(record("Produce", size, now, True), 0)
        if request.mutations:
            longest = max(longest, record("ControllerMutation", float(request.mutations), now, True))
        longest = max(longest, record("Request", handler, now, True))
        if request.api_key == 1:
            longest = max(longest, record("Fetch", size, now, True))
            if longest:
                record("Fetch", -size, now, False, unrecords=True)
        if request.network_us:
            network = request.network_us * 1000 * (100 / 1e9)
            self._sending.append((now + 1, lambda: record("Request", network, now + 1, False)))
        self.served.append(longest)
        self.rows.append(
            {
                "time": datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=now + 1),
                "broker": 1,
                "sequence": row,
                "api_key": request.api_key,
                "api_version": 9,
                "principal": request.principal,
                "client_id": request.client_id,
                "request_bytes": request.size_bytes if request.api_key != 1 else 60,
                "response_bytes": request.size_bytes if request.api_key == 1 else 40,
                "local_time_us": request.handler_us,
                "network_time_us": request.network_us,
                "send_time_us": 1000,
                "response_queue_time_us": 0,
                "throttle_time_ms": longest,
                **given,
            }
        )

    def send(self, until_ms: int) -> None:
        """Charge the network time of the responses that are sent by then."""
        while self._sending and self._sending[0][0] <= until_ms:
            self._sending.pop(0)[1]()

    def forget(self, now_ms: int) -> None:
        """Expire all counters, each of which must have been idle for an hour."""
        self.managers.expire_inactive(now_ms)
        self._sequences.clear()

    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self.rows, arrow_schema())


def traffic(
    count: int, seed: int, users: Sequence[str] = ("ann", "bob"), clients: Sequence[str] = ("a", "b", "")
) -> list[Request]:
    """Return random requests of all kinds, several in one millisecond, and with gaps."""
    rng = random.Random(seed)
    now, made = START_MS, []
    for _ in range(count):
        now += rng.choice([0, 0, 0, 1, 7, 40, 300])
        api = rng.choices([0, 1, 3, 19], [10, 10, 2, 1])[0]
        made.append(
            Request(
                *(now, f"User:{rng.choice(users)}", rng.choice(clients), api, rng.randint(50, 9_000)),
                *(rng.randint(5, 30_000), rng.choice([0, 10, 4_000]), rng.randint(1, 9) if api == 19 else 0),
            )
        )
    return made


def logged(requests: Sequence[Request], quotas: Quotas) -> LoggedBroker:
    """Return the log of a broker with these quotas and without earlier records."""
    broker = LoggedBroker()
    broker.set(quotas)
    for request in requests:
        broker.judge(request)
    broker.send(requests[-1].time_ms + 1)
    return broker


def lacking(log: pa.Table, dropped: Sequence[int]) -> pa.Table:
    """Return the log of several brokers, numbered from 0, each without one of the records (by `sequence`)."""
    place = log.schema.get_field_index("broker")
    parts = []
    for number, sequence in enumerate(dropped):
        kept = log.filter(pc.not_equal(log["sequence"], sequence))
        parts.append(kept.set_column(place, log.schema.field(place), pa.array([number] * len(kept), pa.int32())))
    return pa.concat_tables(parts)


def in_order(found: pa.Table) -> list[dict[str, Any]]:
    """Return rows in an order that does not depend on the order of arrival."""
    return sorted(found.to_pylist(), key=lambda row: [str(value) for value in row.values()])
