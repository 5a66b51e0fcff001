"""Explanation of one client's quotas: the value that applies and why, counters, remaining quota, decisions.

It reads copies of the counters, so it creates none, changes none and delays no client. docs/explain.md has the
schema.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

from kbroker.common.quota_levels import APPLIES, LevelOutcome, address_levels, client_levels
from kbroker.common.quotas import CLIENT_ID, CONNECTION_CREATION_RATE, IP, USER, is_shadow_key, shadow_key
from kbroker.common.request_log import QUOTA_TYPES
from kbroker.network.connections._connection_quotas import ConnectionQuotas
from kbroker.quota._client_quotas import KEYS, ClientQuotaManager, ClientQuotaManagers
from kbroker.quota._counter_snapshots import CounterSnapshot, address_snapshot, client_snapshot
from kbroker.quota.entity_store import QuotaEntityStore
from kbroker.quota.verdict import Verdict

VERSION = 1
MOST_VERDICTS = 20
MOST_CONNECTIONS = 50
MOST_CLIENT_IDS = 20
# maximum length of names in verdicts, and in the X-ray's connections
VERDICT_TEXT_BYTES = 128
SHOWN_PRINCIPAL_BYTES, SHOWN_CLIENT_ID_BYTES = 127, 64

#: Key of each type of quota in verdicts.
KEY_OF_TYPE = dict(zip(QUOTA_TYPES, (*KEYS, CONNECTION_CREATION_RATE), strict=True))

#: Unit of each quota; each is a rate per second.
UNITS = {
    "producer_byte_rate": "bytes",
    "consumer_byte_rate": "bytes",
    "request_percentage": "percent of one thread",
    "controller_mutation_rate": "partitions",
    CONNECTION_CREATION_RATE: "connections",
}


class ClientConnections(NamedTuple):
    """Open connections of a client: their number, and some with their facts, throttled ones first.

    ``client_ids``: those of all connections of its user. ``is_complete``: whether all open connections were examined.
    """

    number: int
    shown: Sequence[Mapping[str, Any]]
    client_ids: Set[str]
    is_complete: bool


class OpenConnections(Protocol):
    """Open connections of a broker, with facts as in the X-ray."""

    def connection(self, connection_id: str) -> Mapping[str, Any] | None:
        """Return the facts of a connection; None if no open connection has this id."""

    def client(self, principal: str, client_id: str, address: str | None, limit: int) -> ClientConnections:
        """Return a client's connections, ``limit`` of them with facts. ``address``: None for any."""


class UnknownConnectionError(LookupError):
    """Error for an id that no open connection has; the message is one sentence."""


class Client(NamedTuple):
    """Client to explain. ``client_id``: empty for none; ``address``: None where it does not matter."""

    user: str
    client_id: str
    address: str | None = None
    connection: str | None = None


class QuotaExplainer:
    """Explanations of the quotas of one broker.

    Args: ``managers``, ``addresses``, ``entities``: the quotas to explain. ``now_ms``: the time of quotas.
    ``connections``: the open connections.
    Threads: any.
    """

    def __init__(
        self,
        managers: ClientQuotaManagers,
        addresses: ConnectionQuotas,
        entities: QuotaEntityStore,
        now_ms: Callable[[], int],
        connections: OpenConnections,
    ) -> None:
        self._managers = managers
        self._addresses = addresses
        self._entities = entities
        self._now_ms = now_ms
        self._connections = connections

    def explain(
        self,
        user: str = "ANONYMOUS",
        client_id: str = "",
        address: str | None = None,
        *,
        connection: str | None = None,
        compare: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Explain one client: a plain dict that JSON can represent; docs/explain.md describes it.

        Args:
            user: its principal's name without "User:".
            client_id: empty for a client that sends none.
            address: the IP address that it connects from; None leaves connection_creation_rate out.
            connection: the id of an open connection, in place of the three.
            compare: other limits by key; the result has their decisions about the same traffic.
        Raises: UnknownConnectionError; ValueError for an invalid address, or a limit that is not above 0.
        """
        client = Client(user, client_id, None if address is None else _address(address))
        only = None
        if connection is not None:
            only = self._connections.connection(connection)
            client = _client_of(connection, only)
        is_open = self._connections.client(f"User:{client.user}", client.client_id, client.address, MOST_CONNECTIONS)
        count, own = (is_open.number, is_open.shown) if only is None else (1, [only])
        now_ms = self._now_ms()
        compare = compare or {}
        verdicts = self._managers.verdicts()
        quotas = [self._client_quota(place, key, client, now_ms, compare.get(key)) for place, key in enumerate(KEYS)]
        if client.address is not None:
            quotas.append(self._address_quota(client.address, now_ms, compare.get(CONNECTION_CREATION_RATE)))
        decided = [one for one in verdicts if _concerns(one, client, quotas)]
        return {
            "version": VERSION,
            "source": "broker",
            "missing": [],
            "time_ms": now_ms,
            **client._asdict(),
            "is_known": bool(count or decided or any(_is_counted(one) for one in quotas)),
            "quotas": quotas,
            "connections": count,
            "connections_complete": is_open.is_complete,
            "waiting": _waiting(own),
            "client_ids": sorted(is_open.client_ids)[:MOST_CLIENT_IDS],
            "verdicts": [_verdict(one, client) for one in decided[: -MOST_VERDICTS - 1 : -1]],
            "verdicts_truncated": len(decided) > MOST_VERDICTS,
        }

    # ------------------------------------------------------------ one quota

    def _client_quota(self, place: int, key: str, client: Client, now_ms: int, compare: float | None) -> dict[str, Any]:
        quota = self._of_manager(self._managers.enforced[place], key, client, now_ms, compare)
        shadow = self._of_manager(self._managers.shadows[place], shadow_key(key), client, now_ms, None)
        return {"quota": key, "unit": UNITS[key], **quota, "shadow": _if_any(shadow)}

    def _of_manager(
        self, manager: ClientQuotaManager, key: str, client: Client, now_ms: int, compare: float | None
    ) -> dict[str, Any]:
        limit, level, user_tag, client_tag, counter = client_snapshot(manager, client.user, client.client_id)
        counted_for = {kind: tag for kind, tag in ((USER, user_tag), (CLIENT_ID, client_tag)) if tag}
        levels = client_levels(self._entities.of, key, client.user, client.client_id)
        return _quota(limit, level, levels, manager.is_enabled, counted_for, counter, now_ms, compare)

    def _address_quota(self, address: str, now_ms: int, compare: float | None) -> dict[str, Any]:
        key = CONNECTION_CREATION_RATE
        quota = self._of_address(key, address, now_ms, compare)
        shadow = self._of_address(shadow_key(key), address, now_ms, None)
        return {"quota": key, "unit": UNITS[key], **quota, "shadow": _if_any(shadow)}

    def _of_address(self, key: str, address: str, now_ms: int, compare: float | None) -> dict[str, Any]:
        levels = address_levels(self._entities.of_address, key, address)
        winner = next((one for one in levels if one.outcome == APPLIES), None)
        counter = address_snapshot(self._addresses, address, is_shadow_key(key))
        limit, level = (None, 0) if winner is None else (winner.limit, winner.level)
        is_enabled = limit is not None or counter is not None
        return _quota(limit, level, levels, is_enabled, {IP: address}, counter, now_ms, compare)


def _if_any(shadow: dict[str, Any]) -> dict[str, Any] | None:
    return None if shadow["limit"] is None and shadow["counter"] is None else shadow


def _quota(
    limit: float | None,
    level: int,
    levels: list[LevelOutcome],
    is_enabled: bool,
    counted_for: Mapping[str, str],
    counter: CounterSnapshot | None,
    now_ms: int,
    compare: float | None,
) -> dict[str, Any]:
    """Explain one quota of the client.

    Args: ``level``: 0 where no quota applies.
    """
    winner = next((one for one in levels if one.level == level), None)
    return {
        "limit": _number(limit),
        "level": level or None,
        "entity": None if winner is None else winner.entity.names,
        "levels": [{**one.json(), "limit": _number(one.limit)} for one in levels],
        "is_enabled": is_enabled,
        "counted_for": dict(counted_for) if is_enabled and counted_for else None,
        "counter": None if counter is None else _counter(counter, now_ms),
        "compare": None if compare is None else _compared(counter, compare, now_ms),
    }


def _counter(counter: CounterSnapshot, now_ms: int) -> dict[str, Any]:
    rate, window_ms, tokens, most_tokens = counter.measure(now_ms)
    delay_ms, asked_ms = counter.next_delay(now_ms)
    return {
        "observed": _number(rate),
        "window_ms": window_ms,
        "limit": _number(counter.limit),
        "left": _number(counter.left(now_ms)),
        "tokens": _number(tokens),
        "most_tokens": _number(most_tokens),
        "delay_ms": delay_ms,
        "asked_ms": asked_ms,
        "sample_ms": counter.sample_ms,
        "sample_count": counter.sample_count,
        "records": counter.record_count,
        "samples": [
            {"start_ms": start_ms, "last_ms": last_ms, "value": _number(value), "records": records}
            for start_ms, last_ms, value, records in counter.samples()
        ],
    }


def _compared(counter: CounterSnapshot | None, limit: float, now_ms: int) -> dict[str, Any]:
    """Return the decisions of another limit about the counted traffic. Raises: ValueError unless it is above 0."""
    if not limit > 0 or not math.isfinite(limit):
        raise ValueError(f"a limit must be above 0, got {limit}")
    rows = [] if counter is None else counter.replay(limit, now_ms)
    return {
        "limit": limit,
        "delayed": sum(delay_ms > 0 for _, _, delay_ms, _ in rows[:-1]),
        "longest_delay_ms": max((delay_ms for _, _, delay_ms, _ in rows), default=0),
        "is_complete": bool(rows) and all(is_complete for *_, is_complete in rows),
        "now": None if not rows else _compared_at(rows[-1]),
        "samples": [_compared_at(row) for row in rows[:-1]],
    }


def _compared_at(row: tuple[int, float, int, bool]) -> dict[str, Any]:
    time_ms, observed, delay_ms, is_complete = row
    return {"time_ms": time_ms, "observed": _number(observed), "delay_ms": delay_ms, "is_complete": is_complete}


def _number(value: float | None) -> float | None:
    """Return the value if JSON can represent it, else None."""
    return value if value is not None and math.isfinite(value) else None


# ---------------------------------------------------------------- the client


def _is_counted(quota: Mapping[str, Any]) -> bool:
    shadow = quota["shadow"]
    return quota["counter"] is not None or (shadow is not None and shadow["counter"] is not None)


def _client_of(connection: str, found: Mapping[str, Any] | None) -> Client:
    if found is None:
        raise UnknownConnectionError(f"no open connection has the id {connection[:200]}: `kbroker xray` lists them")
    principal, client_id = found["principal"], found["client_id"] or ""
    if len(principal.encode()) >= SHOWN_PRINCIPAL_BYTES or len(client_id.encode()) >= SHOWN_CLIENT_ID_BYTES:
        raise UnknownConnectionError(
            f"the names of connection {connection[:200]} are too long to be known in full: name its user and client id"
        )
    address = found["address"] or None
    return Client(_user(principal), client_id, address, connection)


def _address(text: str) -> str:
    """Return an address in the form that sockets use. Raises: ValueError."""
    import ipaddress

    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        raise ValueError(f"expected an IP address, got {text[:100]!r}") from None
    return str(getattr(address, "ipv4_mapped", None) or address)


def _user(principal: str) -> str:
    """Return a principal's name: alice of User:alice."""
    return principal.partition(":")[2] or principal


def _waiting(own: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the connections that are not read until a throttle ends, the longest wait first."""
    rows = [
        {
            "connection": one["connection"],
            "left_ms": one["throttle_left_ms"],
            "quota": KEY_OF_TYPE.get(one["throttled_by"]),
        }
        for one in own
        if "throttled" in one["muted"]
    ]
    rows.sort(key=lambda row: -(row["left_ms"] or 0))
    return rows


# ---------------------------------------------------------------- verdicts


def _concerns(verdict: Verdict, client: Client, quotas: list[dict[str, Any]]) -> bool:
    """Return whether a verdict is on a request of this client, or of another client of the same counter."""
    if verdict.quota_type == QUOTA_TYPES[4]:
        return client.address is not None and verdict.address == client.address
    if _is_own(verdict, client):
        return True
    quota = quotas[QUOTA_TYPES.index(verdict.quota_type)]
    found = quota["shadow"] if verdict.is_shadow else quota
    counted_for = None if found is None else found["counted_for"]
    return (
        counted_for is not None
        and verdict.user == _cut(counted_for.get(USER, ""))
        and verdict.client_tag == _cut(counted_for.get(CLIENT_ID, ""))
    )


def _is_own(verdict: Verdict, client: Client) -> bool:
    if verdict.quota_type == QUOTA_TYPES[4]:
        return True
    if client.connection is not None:
        return verdict.connection == client.connection
    return verdict.principal == _cut(f"User:{client.user}") and verdict.client_id == _cut(client.client_id)


def _cut(name: str) -> str:
    """Return a name cut to its length in verdicts."""
    return name.encode("utf-8", "surrogateescape")[:VERDICT_TEXT_BYTES].decode("utf-8", "replace")


def _verdict(verdict: Verdict, client: Client) -> dict[str, Any]:
    return {
        "time_ms": verdict.time_ms,
        "quota": KEY_OF_TYPE[verdict.quota_type],
        "is_shadow": verdict.is_shadow,
        "is_own": _is_own(verdict, client),
        "principal": verdict.principal,
        "client_id": verdict.client_id,
        "address": verdict.address,
        "connection": verdict.connection,
        "api_key": verdict.api_key,
        "level": verdict.level or None,
        "observed": _number(verdict.observed),
        "limit": _number(verdict.limit),
        "delay_asked_ms": verdict.delay_asked_ms,
        "delay_served_ms": verdict.delay_served_ms,
        "refused": verdict.refused,
    }
