"""Block of a generated request log as an Arrow table, in the form of a broker's log.

Rows are in the order of their times and have every column of the log. Each client's counters record each value,
numbered from 1 without a gap: `Request` the handler's time, then the network thread's, `Produce` and `Fetch` the bytes,
`ControllerMutation` the requested topics. A throttled fetch subtracts its bytes, and a refused mutation records
nothing. Verdicts have the form of real ones, and their delay follows from the observed values, but the values are not
judged by a sensor: `replay --check` finds different verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.pipeline.population import ADMIN, CONSUMER, DAY_US, PRODUCER, Array, Population, mixed
from kbroker.spark.tables.log_schema import arrow_schema

NO_QUOTA = -1
QUOTAS = ("Produce", "Fetch", "ControllerMutation", "Request")
REQUEST = QUOTAS.index("Request")
WINDOW_MS = 11_000
THROTTLING_QUOTA_EXCEEDED = 89
CONNECTIONS_PER_ROW = 2_000  # records of a breaching client per delayed connection
_LOCAL = "127.0.0.1:9092"


@dataclass(frozen=True)
class _Api:
    """Request of clients; `quota`: index in QUOTAS, beside Request; sizes in bytes, `handler_us` on average."""

    key: int
    name: str
    version: int
    request_bytes: int
    response_bytes: int
    handler_us: int
    remote_us: int
    quota: int = NO_QUOTA


APIS = (
    _Api(0, "PRODUCE", 11, 0, 70, 90, 2_000, QUOTAS.index("Produce")),
    _Api(1, "FETCH", 17, 140, 0, 60, 120_000, QUOTAS.index("Fetch")),
    _Api(3, "METADATA", 12, 60, 900, 150, 0),
    _Api(8, "OFFSET_COMMIT", 9, 180, 60, 120, 1_500),
    _Api(12, "HEARTBEAT", 4, 110, 16, 25, 0),
    _Api(19, "CREATE_TOPICS", 7, 120, 90, 900, 4_000, QUOTAS.index("ControllerMutation")),
    _Api(32, "DESCRIBE_CONFIGS", 4, 70, 2_500, 250, 0),
)
#: Repeated requests of a client of each role. The last role has only the Request quota.
_TURNS = {
    PRODUCER: (2, *[0] * 18, 2),
    CONSUMER: (2, *[1] * 8, 4, *[1] * 8, 3, 4),
    ADMIN: (2, 5, 6, 5, 2, 5, 6, 2, 5, 2) * 2,
}
TURN = 20
#: Pattern of a breaching client's values per quota: every third of the first 90 is delayed or refused, then none.
_BREACH = 600
_HITS = tuple(place < 90 and place % 3 == 0 for place in range(_BREACH))


def block_rows(population: Population, block: int) -> tuple[pa.Table, Array]:
    """Return the rows of a block in the order of their times, and the entity number of each row.

    Args: `block`: from 0 to below `Shape.blocks`.
    """
    made = _Block(population, block)
    return made.table(), made.who


class _Block:
    """Columns of the rows as numpy arrays, first grouped by client, then in the order of their times."""

    def __init__(self, population: Population, block: int) -> None:
        shape = population.shape
        self.population, self.block, self.seed = population, block, shape.seed
        self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([shape.seed, block])))
        self.begin_us, end_us = shape.span_us(block)
        before, after = population.counts_before(self.begin_us), population.counts_before(end_us)
        counts = after - before
        self.first_sequence = int(before.sum())
        who = np.repeat(np.arange(len(counts)), counts)
        of_own = np.arange(len(who)) - np.repeat(np.cumsum(counts) - counts, counts)
        ordinal = before[who] + of_own
        time_us = self._times(who, ordinal, end_us - self.begin_us)
        order = np.argsort(time_us, kind="stable")
        self.who, self.ordinal, self.time_us = who[order], ordinal[order], time_us[order]

    def _times(self, who: Array, ordinal: Array, length_us: int) -> Array:
        """Return the times of the requests, in bursts of a client and in the order of the client's requests."""
        if len(who) == 0:
            return np.zeros(0, np.int64)
        burst = ordinal // self.population.burst[who]
        begins = np.concatenate([[True], (np.diff(who) != 0) | (np.diff(burst) != 0)])
        number = np.cumsum(begins) - 1
        start = self.rng.integers(0, length_us, int(number[-1]) + 1)
        # exponential distribution with a mean of 0.2 s
        within = (-200_000 * np.log1p(-self.rng.random(len(who)))).astype(np.int64)
        found = (start[number] + within) % length_us
        return self.begin_us + found[np.lexsort((found, who))]  # requests of each client in the order of time

    def table(self) -> pa.Table:
        people, who, ordinal, rng = self.population, self.who, self.ordinal, self.rng
        n = len(who)
        turns = np.array([_TURNS[role] for role in (PRODUCER, CONSUMER, ADMIN)], np.int8)
        api: Array = turns[people.role[who], ordinal % TURN]
        is_waiting = people.is_breaching[who] & (ordinal % CONNECTIONS_PER_ROW == CONNECTIONS_PER_ROW - 1)
        quota: Array = _of_api("quota", np.int8)[api]
        quota[is_waiting] = NO_QUOTA
        nth = self._nth(turns, quota)
        hit, hits_before = self._hits(quota, nth)
        is_refused = hit & (quota == 2)
        is_delayed = (hit & ~is_refused) | is_waiting

        excess = rng.exponential(0.06, n)
        asked_ms = np.maximum(1, np.round(excess * WINDOW_MS)).astype(np.int64)
        spans = self._spans(api, n)
        request_bytes, response_bytes = self._sizes(api, n)
        repeated = np.where((api == 1) & (response_bytes < 100), rng.integers(1, 20, n), 1)
        total_us = sum(spans[name] for name in _TOTAL)
        answered_ms = (self.time_us - spans["send_time_us"] - spans["response_queue_time_us"]) // 1000
        values = _Values(
            self, quota, nth, hits_before, hit, is_refused, is_waiting, answered_ms, request_bytes, response_bytes,
            spans["local_time_us"], spans["network_time_us"], excess, asked_ms,
        )  # fmt: skip
        _, principal, client = people.names
        keys = {name: _of_api(name, np.int64)[api] for name in ("key", "version")}
        columns: dict[str, Any] = {
            "time": pa.array(self.time_us, pa.timestamp("us", "UTC")),
            "broker": np.ones(n, np.int32),
            "sequence": self.first_sequence + 1 + np.arange(n),
            "api_key": keys["key"],
            "api_version": keys["version"],
            "api_name": pa.array([one.name for one in APIS]).take(pa.array(api)),
            "correlation_id": ordinal % 2**31,
            "client_id": client.take(pa.array(who)),
            "connection": self._connections(),
            "address": self._addresses(),
            "principal": principal.take(pa.array(who)),
            "listener": _same("SASL_PLAINTEXT", n),
            "security_protocol": _same("SASL_PLAINTEXT", n),
            "software_name": _one_of(("apache-kafka-java", "librdkafka", "kafka-python"), mixed(self.seed, 8, who)),
            "software_version": _one_of(("4.3.1", "2.10.0", "3.0.2"), mixed(self.seed, 8, who)),
            "request_bytes": request_bytes,
            "response_bytes": response_bytes,
            **spans,
            "total_time_us": total_us,
            "throttle_time_ms": np.where(is_delayed, asked_ms, 0),
            "error_code": np.where(is_refused, THROTTLING_QUOTA_EXCEEDED, 0),
            "error_count": is_refused.astype(np.int32),
            "sampling": np.ones(n),
            "repeated": repeated,
            "verdicts": values.verdicts(),
            "updates": values.updates(),
        }
        arrays = []
        for field in arrow_schema():
            column = columns.get(field.name, pa.nulls(n, field.type))  # columns of refusals and transactions stay null
            if not isinstance(column, pa.Array):
                column = pa.array(column).cast(field.type)
            arrays.append(_only(column, ~is_waiting) if field.name not in _OF_CONNECTIONS else column)
        return pa.table(arrays, schema=arrow_schema())

    def _nth(self, turns: Array, quota: Array) -> Array:
        """Return the number of earlier requests of a row's quota and client; 0 for a row without a quota."""
        quota_of = _of_api("quota", np.int8)
        own = quota_of[turns] >= 0  # a role has one quota beside Request
        before = np.concatenate([np.zeros((len(turns), 1), np.int64), np.cumsum(own, axis=1)], axis=1)
        role = self.population.role[self.who]
        nth = self.ordinal // TURN * before[role, TURN] + before[role, self.ordinal % TURN]
        return np.where(quota >= 0, nth, 0)

    def _hits(self, quota: Array, nth: Array) -> tuple[Array, Array]:
        """Return whether each row exceeds its own quota, and the number of its client's earlier rows that did."""
        people = self.population
        may = people.is_breaching[self.who] & (quota >= 0)
        at, begun = nth + people.phase[self.who], people.phase[self.who]
        hits = np.array(_HITS, bool)
        before = np.concatenate([[0], np.cumsum(hits)])

        def so_far(place: Array) -> Array:
            return place // _BREACH * before[_BREACH] + before[place % _BREACH]

        return may & hits[at % _BREACH], np.where(may, so_far(at) - so_far(begun), 0)

    def _spans(self, api: Array, n: int) -> dict[str, Array]:
        rng = self.rng

        def around(mean: Any) -> Array:
            return np.asarray(mean * rng.standard_exponential(n, np.float32)).astype(np.int64)

        return {
            "request_queue_time_us": around(30),
            "local_time_us": 5 + around(_of_api("handler_us", np.int64)[api]),
            "remote_time_us": around(_of_api("remote_us", np.int64)[api]),
            "response_queue_time_us": around(15),
            "send_time_us": 3 + around(20),
            "network_time_us": 4 + around(15),
        }

    def _sizes(self, api: Array, n: int) -> tuple[Array, Array]:
        batch = (self.population.size_bytes[self.who] * (0.5 + self.rng.random(n, np.float32))).astype(np.int64)
        idle = self.rng.random(n, np.float32) < 0.3  # a poll without records
        request, response = (_of_api(name, np.int64)[api] for name in ("request_bytes", "response_bytes"))
        response = np.where(api == 1, np.where(idle, 45, 120 + 4 * batch), response)
        return np.where(api == 0, 130 + batch, request), response

    def _addresses(self) -> pa.Array:
        who, place = _numbered(self.who)
        parts = [pa.array(part).cast(pa.string()) for part in (who // 65_536 % 256, who // 256 % 256, who % 256)]
        return pc.binary_join_element_wise("10", *parts, ".").take(pa.array(place))

    def _connections(self) -> pa.Array:
        """Return the connections: a client has several at a time, uses each for a while, and opens new ones daily."""
        people, day = self.population, (self.begin_us - self.population.shape.start_us) // DAY_US
        link = self.ordinal // 100 % people.links[self.who]
        (pair, place) = _numbered(self.who * 8 + link)
        who, link = pair // 8, pair % 8
        port = (32_768 + mixed(self.seed, 9, who, link, np.full(len(who), day)) % np.uint64(28_000)).astype(np.int64)
        numbers = (who // 65_536 % 256, who // 256 % 256, who % 256, port, (who * 8 + link) % 1_000_000)
        a, b, c, port_text, last = (pa.array(one).cast(pa.string()) for one in numbers)
        address = pc.binary_join_element_wise("10", a, b, c, ".")
        peer = pc.binary_join_element_wise(address, port_text, ":")
        return pc.binary_join_element_wise(peer, _LOCAL, last, "-").take(pa.array(place))


_TOTAL = ("request_queue_time_us", "local_time_us", "remote_time_us", "response_queue_time_us", "send_time_us")
#: Columns in the record of a delayed connection.
_OF_CONNECTIONS = ("time", "broker", "sequence", "address", "listener", "sampling", "verdicts", "updates")


class _Values:
    """Values and verdicts of the clients' counters, as the log's lists."""

    def __init__(
        self, block: _Block, quota: Array, nth: Array, hits_before: Array, hit: Array, is_refused: Array,
        is_waiting: Array, answered_ms: Array, request_bytes: Array, response_bytes: Array, local_us: Array,
        network_us: Array, excess: Array, asked_ms: Array,
    ) -> None:  # fmt: skip

        self.block, self.quota, self.hit, self.is_refused, self.is_waiting = block, quota, hit, is_refused, is_waiting
        self.answered_ms, self.excess, self.asked_ms = answered_ms, excess, asked_ms
        self.own_value = np.choose(quota.clip(0), (request_bytes, response_bytes, np.ones(len(quota)))).astype(float)
        self.handler = local_us / 1e4  # percent of a thread in a second
        self.network = network_us / 1e4
        # number of a value of the row's quota: delayed fetches have a second one, refusals none
        more = np.where(quota == 1, hits_before, np.where(quota == 2, -hits_before, 0))
        self.own_sequence = nth + more + 1
        waited = np.where(block.population.is_breaching[block.who], block.ordinal // CONNECTIONS_PER_ROW, 0)
        self.request_sequence = 2 * (block.ordinal - waited) + 1

    def updates(self) -> pa.Array:
        n = len(self.quota)
        of_request = ~self.is_waiting
        is_own = (self.quota >= 0) & ~self.is_refused
        given_back = self.hit & (self.quota == 1)
        counts = is_own.astype(np.int32) + given_back + 2 * of_request
        offsets = np.concatenate([[0], np.cumsum(counts)])
        size = int(offsets[-1])
        at = offsets[:-1]
        row = np.repeat(np.arange(n), counts)
        quota, sequence = np.full(size, REQUEST, np.int8), np.zeros(size, np.int64)
        time_ms, value, checked = np.zeros(size, np.int64), np.zeros(size), np.ones(size, bool)
        sent_ms = self.block.time_us // 1000

        def put(rows: Array, behind: Array, numbers: Array, times: Array, values: Array, kind: Array | int) -> Array:
            to = (at + behind)[rows]
            quota[to] = kind[rows] if isinstance(kind, np.ndarray) else kind
            sequence[to], time_ms[to], value[to] = numbers[rows], times[rows], values[rows]
            return to

        first = is_own.astype(np.int64)
        put(is_own, 0, self.own_sequence, self.answered_ms, self.own_value, self.quota)
        back = put(given_back, 1, self.own_sequence + 1, self.answered_ms, -self.own_value, 1)
        checked[back] = False
        second = first + given_back
        put(of_request, second, self.request_sequence, self.answered_ms, self.handler, REQUEST)
        late = put(of_request, second + 1, self.request_sequence + 1, sent_ms, self.network, REQUEST)
        checked[late] = False
        fields = {
            "quota_type": pa.array(QUOTAS).take(pa.array(quota)),
            **self._names(row),
            "sequence": sequence,
            "time_ms": time_ms,
            "value": value,
            "checked": checked,
        }
        return _lists("updates", offsets, fields)

    def verdicts(self) -> pa.Array:
        judged = self.hit | self.is_waiting
        both = self.hit & ~self.is_refused & (self.asked_ms % 8 == 0)  # the request quota has half the delay
        counts = judged.astype(np.int32) + both
        offsets = np.concatenate([[0], np.cumsum(counts)])
        row = np.repeat(np.arange(len(judged)), counts)
        size = int(offsets[-1])
        is_second = np.zeros(size, bool)
        is_second[(offsets[:-1] + 1)[both]] = True
        waits, refused = self.is_waiting[row], self.is_refused[row]
        asked = np.where(is_second, self.asked_ms[row] // 2, self.asked_ms[row])
        limit = self._limits(row, is_second)
        kind = np.where(waits, len(QUOTAS), np.where(is_second, REQUEST, self.quota[row])).clip(0)
        sequence = np.where(is_second, self.request_sequence[row], self.own_sequence[row] - refused)
        names = {name: _only(column, ~waits, "") for name, column in self._names(row).items()}
        fields = {
            "quota_type": pa.array([*QUOTAS, "ConnectionRate"]).take(pa.array(kind)),
            **names,
            "ip": _only(self.block._addresses().take(pa.array(row)), waits),
            "level": np.where(waits, 0, 1),
            "observed": limit * (1 + asked / WINDOW_MS),
            "limit": limit,
            "window_ms": np.full(size, WINDOW_MS),
            "delay_asked_ms": asked,
            "delay_served_ms": np.where(is_second | refused, 0, asked),
            "refused": refused,
            "sequence": pa.array(sequence, mask=waits),
            "time_ms": self.answered_ms[row],
        }
        return _lists("verdicts", offsets, fields)

    def _limits(self, row: Array, is_second: Array) -> Array:
        """Return the client's quota as a round number."""
        people, who = self.block.population, self.block.who[row]
        size = 10.0 ** np.ceil(np.log10(people.size_bytes[who]))
        own = np.choose(self.quota[row].clip(0), (size * 10, size * 40, np.full(len(row), 5.0)))
        return np.where(self.is_waiting[row], 10.0, np.where(is_second, 25.0, own))

    def _names(self, row: Array) -> dict[str, Any]:
        user, _, client = self.block.population.names
        who = pa.array(self.block.who[row])
        return {"user": user.take(who), "client_id": client.take(who)}


def _lists(name: str, offsets: Array, columns: dict[str, Any]) -> pa.Array:
    kind = arrow_schema().field(name).type.value_type
    arrays = []
    for at in range(kind.num_fields):
        column = columns[kind.field(at).name]
        column = column if isinstance(column, pa.Array) else pa.array(column)
        arrays.append(column.cast(kind.field(at).type))
    elements = pa.StructArray.from_arrays(arrays, fields=[kind.field(at) for at in range(kind.num_fields)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements).cast(arrow_schema().field(name).type)


def _only(column: pa.Array, wanted: Array, otherwise: str | None = None) -> pa.Array:
    """Return a column with null or `otherwise` in unwanted rows."""
    if wanted.all():
        return column
    return pc.if_else(pa.array(wanted), column, pa.scalar(otherwise, column.type))


def _same(text: str, n: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), n)


def _one_of(texts: tuple[str, ...], number: Array) -> pa.Array:
    return pa.array(texts).take(pa.array((number % np.uint64(len(texts))).astype(np.int8)))


def _of_api(name: str, kind: Any) -> Array:
    return np.array([getattr(one, name) for one in APIS], kind)


def _numbered(values: Array) -> tuple[Array, Array]:
    """Return the distinct values, and the index of each element among them."""
    return np.unique(values, return_inverse=True)
