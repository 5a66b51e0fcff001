"""The explanation of a client's quotas equals the results of its sensors on a virtual clock."""

import json
import math
import random
from collections.abc import Mapping
from contextlib import nullcontext as nothing
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.common.quotas import QuotaEntity
from kbroker.metrics.registry import MetricName
from kbroker.network.connections._connection_quotas import ConnectionQuotas
from kbroker.observe.explanation_route import explanation_of_query
from kbroker.observe.http_routes import HttpError
from kbroker.quota._client_quotas import ClientQuotaManagers
from kbroker.quota._entities import DEFAULT_ENTITY
from kbroker.quota.entity_rules import Alteration, QuotaOp
from kbroker.quota.entity_store import QuotaEntityStore
from kbroker.quota.explanation import ClientConnections, QuotaExplainer, UnknownConnectionError, _compared
from kbroker.quota.verdict import Verdict
from tests.native import connection_admission as admission
from tests.support import quotas
from tests.support.fixtures import fixture_of
from tests.support.metadata import MemoryController, following
from tests.support.quotas import FETCH, KEYS, MUTATION, PRODUCE, REQUEST, START_MS

RATE = "connection_creation_rate"


class Connections:
    """Open connections that a test sets, in place of the network threads."""

    def __init__(self, rows: list[dict[str, Any]], is_complete: bool) -> None:
        self._rows, self._is_complete = rows, is_complete

    def connection(self, connection_id: str) -> Mapping[str, Any] | None:
        return next((row for row in self._rows if row["connection"] == connection_id), None)

    def client(self, principal: str, client_id: str, address: str | None, limit: int) -> ClientConnections:
        own = [
            row
            for row in self._rows
            if (row["principal"], row["client_id"]) == (principal, client_id) and address in (None, row["address"])
        ]
        client_ids = {row["client_id"] for row in self._rows if row["principal"] == principal}
        return ClientConnections(len(own), own[:limit], client_ids, self._is_complete)


class Bench(quotas.Bench):
    """Quota managers, entities and connections that an explanation reads, without a broker."""

    def __init__(self, **settings: int) -> None:
        super().__init__(**settings)
        self.by_key = dict(zip(KEYS, self.managers.enforced, strict=True))
        self.addresses = ConnectionQuotas(clock=self.clock)
        self.addresses.update_listener("PLAINTEXT")
        controller = MemoryController()
        self.entities = following(controller, QuotaEntityStore(controller, resolve={"there": "10.0.0.7"}.get))
        self.entities.on_change(self.put_in_force)
        self.open: list[dict[str, Any]] = []
        self.explainer = QuotaExplainer(
            self.managers, self.addresses, self.entities, self.clock.epoch_ms, Connections(self.open, True)
        )

    def put_in_force(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        names = entity.names
        if "ip" in names:
            rate = None if value is None else int(value)
            self.addresses.update_ip_rate(names["ip"], rate, shadow=key.startswith("shadow."))
            return
        user, client_id = (names[kind] or DEFAULT_ENTITY if kind in names else None for kind in ("user", "client-id"))
        self.managers.update(user, client_id, key, value)

    def set(self, names: Mapping[str, str | None], **quotas: float | None) -> None:
        entity = QuotaEntity.of(names)
        changed = self.entities.alter([Alteration(entity, [QuotaOp(*one) for one in quotas.items()])])
        assert changed == {entity: None}

    def explain(self, user: str = "alice", client_id: str = "app", **more: Any) -> dict[str, Any]:
        found = self.explainer.explain(user, client_id, **more)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        return found

    def quota(self, key: str, user: str = "alice", client_id: str = "app", **more: Any) -> dict[str, Any]:
        found: dict[str, Any]
        (found,) = [one for one in self.explain(user, client_id, **more)["quotas"] if one["quota"] == key]
        return found


bench = fixture_of(Bench)


def outcomes(quota: Mapping[str, Any]) -> list[tuple[int, float | None, str]]:
    return [(one["level"], one["limit"], one["outcome"]) for one in quota["levels"]]


# ---------------------------------------------------------------- which value applies


def test_the_level_that_applies_and_why_the_others_lost(bench: Bench) -> None:
    """Entities in force determine the applicable level and the shared counter, independently of other keys."""
    bench.set({"user": "alice"}, producer_byte_rate=1000)
    bench.set({"user": None}, producer_byte_rate=10, consumer_byte_rate=20)
    bench.set({"client-id": "app"}, producer_byte_rate=5)
    quota = bench.quota(PRODUCE)
    assert (quota["limit"], quota["level"], quota["entity"], quota["counted_for"]) == (
        1000, 3, {"user": "alice"}, {"user": "alice"},
    )  # fmt: skip
    assert outcomes(quota) == [
        (1, None, "not set"), (2, None, "not set"), (3, 1000, "applies"), (4, None, "not set"), (5, None, "not set"),
        (6, 10, "overridden"), (7, 5, "overridden"), (8, None, "not set"),
    ]  # fmt: skip
    assert (bench.quota(FETCH)["level"], bench.quota(FETCH)["entity"]) == (6, {"user": None})
    nothing = bench.quota(REQUEST)
    assert [nothing[name] for name in ("limit", "level", "entity", "counted_for", "counter", "is_enabled")] == [
        None, None, None, None, None, False,
    ]  # fmt: skip
    bench.set({"client-id": None}, producer_byte_rate=4)
    assert outcomes(bench.quota(PRODUCE, "bob", ""))[5:] == [
        (6, 10, "applies"), (7, None, "no client id"), (8, 4, "no client id"),
    ]  # fmt: skip


def test_an_infinite_limit_is_null(bench: Bench) -> None:
    """JSON has no infinity, which request_percentage can be."""
    bench.set({"user": "alice"}, request_percentage=math.inf)
    quota = bench.quota(REQUEST)
    assert (quota["limit"], quota["level"], outcomes(quota)[2]) == (None, 3, (3, None, "applies"))


def test_each_of_the_eight_levels_in_its_turn(bench: Bench) -> None:
    """After each removal of the most specific quota, the next level applies in the broker and in the explanation."""
    levels: list[dict[str, str | None]] = [
        {"user": "alice", "client-id": "app"}, {"user": "alice", "client-id": None}, {"user": "alice"},
        {"user": None, "client-id": "app"}, {"user": None, "client-id": None}, {"user": None},
        {"client-id": "app"}, {"client-id": None},
    ]  # fmt: skip
    for level, names in enumerate(levels, 1):
        bench.set(names, producer_byte_rate=100.0 * level, **{"shadow.producer_byte_rate": 1000.0 * (9 - level)})
    for level, names in enumerate(levels, 1):
        quota = bench.quota(PRODUCE)
        assert (quota["limit"], quota["level"], quota["entity"]) == (100.0 * level, level, names)
        assert [one["entity"] for one in quota["levels"]] == levels
        assert outcomes(quota) == [
            *((lost, None, "not set") for lost in range(1, level)),
            (level, 100.0 * level, "applies"),
            *((lost, 100.0 * lost, "overridden") for lost in range(level + 1, 9)),
        ]
        assert bench.managers.produce.resolve("alice", "app")[:2] == (100.0 * level, level)
        assert (quota["shadow"]["level"], quota["shadow"]["limit"]) == (1, 8000.0), "separate levels"
        bench.set(names, producer_byte_rate=None)
    assert (bench.quota(PRODUCE)["level"], bench.quota(PRODUCE)["limit"]) == (None, None)


def test_an_unknown_entity_is_no_error(bench: Bench) -> None:
    """The explanation has the limit that would apply and marks the client as unknown; no counter is created."""
    bench.set({"user": None, "client-id": None}, producer_byte_rate=10)
    found = bench.explain("no-such-user", "no-such-client")
    assert (found["is_known"], found["verdicts"], found["waiting"], found["connections"]) == (False, [], [], 0)
    assert (found["quotas"][0]["level"], found["quotas"][0]["counter"]) == (5, None)
    tags = {"user": "no-such-user", "client-id": "no-such-client"}
    assert bench.registry.get(MetricName.of("byte-rate", "Produce", tags)) is None
    assert bench.managers.produce.record_and_get_throttle("no-such-user", "no-such-client", 1.0) == 0
    assert bench.explain("no-such-user", "no-such-client")["is_known"]
    with pytest.raises(ValueError, match=r"expected an IP address, got 'nowhere\.invalid'"):
        bench.explain(address="nowhere.invalid")


# ---------------------------------------------------------------- the numbers are the sensors'


Step = tuple[int, float]


def traffic(seed: int, largest: int = 9000) -> list[Step]:
    """Return random pauses in milliseconds and values, with bursts, silences and pauses at sample boundaries."""
    source = random.Random(seed)
    pauses = (0, 1, 999, 1000, 1001, 250, 3000, 11_000, 12_500)
    return [(source.choice(pauses), float(source.randrange(largest))) for _ in range(60)]


def after(key: str, limit: float, steps: list[Step], pause_ms: int) -> Bench:
    """Return a bench without earlier explanations after these records and a pause."""
    bench = Bench()
    bench.set({"user": "alice"}, **{key: limit})
    for before_ms, value in steps:
        bench.clock.advance_ms(before_ms)
        bench.by_key[key].record_and_get_throttle("alice", "app", value)
    bench.clock.advance_ms(pause_ms)
    return bench


@pytest.mark.parametrize(("key", "seed"), [(PRODUCE, 0), (PRODUCE, 1), (FETCH, 2), (REQUEST, 3)])
def test_every_number_of_a_rate_is_the_sensors(key: str, seed: int) -> None:
    """Rate, window, delay, headroom and samples equal the values of a sensor that was not explained before."""
    steps, limit = traffic(seed), 700.0
    for count in range(0, len(steps), 6):
        for pause_ms in (0, 400, 10_500):
            situation = (key, limit, steps[:count], pause_ms)
            counter = after(*situation).quota(key)["counter"]
            if count == 0:
                assert counter is None
                continue
            asked = after(*situation)
            ((_, metric),) = asked.by_key[key].sensor("alice", "app").metrics.items()
            assert counter["samples"] == [
                {"start_ms": start, "last_ms": last, "value": value, "records": records}
                for start, last, records, value in sorted(metric.samples())
                if records
            ]
            assert counter["observed"] == metric.measure()
            assert counter["window_ms"] == metric.window_size_ms()
            assert (counter["limit"], counter["records"], counter["tokens"]) == (limit, count, None)
            assert (counter["sample_ms"], counter["sample_count"]) == (1000, 11)
            assert counter["delay_ms"] == after(*situation).by_key[key].record_and_get_throttle("alice", "app", 0)
            left = counter["left"]
            more = [after(*situation).by_key[key].record_and_get_throttle("alice", "app", left + n) for n in (-1, 1)]
            assert (more[0], more[1] > 0) == (0, True) if left > 1 else counter["delay_ms"] >= 0


@pytest.mark.parametrize("seed", range(2))
def test_every_number_of_a_token_bucket_is_the_sensors(seed: int) -> None:
    """Tokens, capacity, delay and rate of a bucket equal the values of its sensor."""
    steps, limit = traffic(seed, 20), 2.0
    for count in range(1, len(steps), 6):
        for pause_ms in (0, 400, 10_500):
            situation = (MUTATION, limit, steps[:count], pause_ms)
            counter = after(*situation).quota(MUTATION)["counter"]
            asked = after(*situation)
            rate, tokens = asked.by_key[MUTATION].sensor("alice", "app").metrics.values()
            assert counter["observed"] == rate.measure()
            assert (counter["tokens"], counter["left"]) == (tokens.measure(), tokens.measure())
            assert (counter["most_tokens"], counter["limit"]) == (22.0, limit)
            delay_ms = after(*situation).by_key[MUTATION].record_and_get_throttle("alice", "app", 1)
            assert counter["delay_ms"] == delay_ms
            assert (delay_ms > 0) == (counter["tokens"] < 0)


@pytest.mark.parametrize("key", [PRODUCE, MUTATION])
def test_looking_changes_nothing(key: str) -> None:
    """Explanations before and after each record do not change any delay."""
    seen, alone = Bench(), Bench()
    steps = traffic(7, 9000 if key == PRODUCE else 20)
    delays: list[list[int]] = [[], []]
    for bench, found in zip((seen, alone), delays, strict=True):
        bench.set({"user": "alice"}, **{key: 700.0 if key == PRODUCE else 2.0})
        for pause_ms, value in steps:
            bench.clock.advance_ms(pause_ms)
            if bench is seen:
                bench.explain(compare=dict.fromkeys(KEYS, 5.0))
            found.append(bench.by_key[key].record_and_get_throttle("alice", "app", value))
            if bench is seen:
                bench.explain(compare=dict.fromkeys(KEYS, 5.0))
    assert delays[0] == delays[1]
    assert any(delays[0])


def test_the_largest_delay_is_capped_as_it_is_served(bench: Bench) -> None:
    """The delay of request time is capped at one window; the uncapped delay is reported too."""
    bench.set({"user": "alice"}, request_percentage=0.1)
    bench.managers.request.record_and_get_throttle("alice", "app", 100.0)
    counter = bench.quota(REQUEST)["counter"]
    assert (counter["delay_ms"], counter["asked_ms"]) == (1000, 990_000)


# ---------------------------------------------------------------- another limit, the same traffic


@pytest.mark.parametrize("limit", [50.0, 700.0, 3000.0])
def test_another_limit_says_what_its_counter_would_have_said(limit: float) -> None:
    """With one record a sample, each rate and delay, and the current ones, are those of a counter with that limit."""
    steps = [(1000, float(n * 397 % 9000)) for n in range(1, 30)]
    compared = after(PRODUCE, 1e12, steps, 300).quota(PRODUCE, compare={PRODUCE: limit})["compare"]
    expected = []
    other = Bench()
    other.set({"user": "alice"}, producer_byte_rate=limit)
    for pause_ms, value in steps:
        other.clock.advance_ms(pause_ms)
        delay_ms = other.managers.produce.record_and_get_throttle("alice", "app", value)
        (metric,) = other.managers.produce.sensor("alice", "app").metrics.values()
        expected.append((other.clock.epoch_ms(), metric.measure(), delay_ms))
    found = [(row["time_ms"], row["observed"], row["delay_ms"]) for row in compared["samples"]]
    assert len(found) == 11
    assert found[-1] == expected[-1]
    assert [row["is_complete"] for row in compared["samples"]] == [False] * 10 + [True]
    assert compared["now"]["observed"] == after(PRODUCE, limit, steps, 300).quota(PRODUCE)["counter"]["observed"]
    assert compared["delayed"] == sum(delay_ms > 0 for _, _, delay_ms in found)
    assert (compared["limit"], compared["is_complete"]) == (limit, False)


def test_another_limit_knows_all_while_no_sample_is_overwritten(bench: Bench) -> None:
    """All rows are exact while no sample is overwritten; a long silence is not a gap."""
    bench.set({"user": "alice"}, producer_byte_rate=1e12)
    other = Bench()
    other.set({"user": "alice"}, producer_byte_rate=100)
    expected = []
    for value in (500.0, 1500.0, 10.0, 0.0, 900.0):
        for each in (bench, other):
            each.clock.advance_ms(2100)
            delay_ms = each.managers.produce.record_and_get_throttle("alice", "app", value)
        expected.append((each.clock.epoch_ms(), delay_ms))
    compared = bench.quota(PRODUCE, compare={PRODUCE: 100.0})["compare"]
    assert [(row["time_ms"], row["delay_ms"]) for row in compared["samples"]] == expected
    assert (compared["is_complete"], compared["delayed"]) == (True, 4)
    assert compared["longest_delay_ms"] == max(delay_ms for _, delay_ms in expected)


def test_a_delay_of_a_millisecond_counts() -> None:
    """The last row is the present decision, which is not one of the delayed samples."""
    rows = [(0, 9.0, 1, True), (1000, 8.0, 0, True), (2000, 9.0, 5, True)]
    counter: Any = SimpleNamespace(replay=lambda limit, now_ms: rows)
    found = _compared(counter, 8.0, 2000)
    assert (found["delayed"], found["longest_delay_ms"], found["now"]["delay_ms"]) == (1, 5, 5)


def test_another_rate_of_a_bucket(bench: Bench) -> None:
    """A bucket with another rate begins full before the first sample and refuses like a strict quota."""
    bench.set({"user": "alice"}, controller_mutation_rate=1000)
    other = Bench()
    other.set({"user": "alice"}, controller_mutation_rate=1)
    for value in (30.0, 5.0):
        for each in (bench, other):
            delay_ms = each.managers.controller_mutation.record_and_get_throttle("alice", "app", value)
            each.clock.advance_ms(30_000)
    compared = bench.quota(MUTATION, compare={MUTATION: 1.0})["compare"]
    assert delay_ms == 0
    _, tokens = other.managers.controller_mutation.sensor("alice", "app").metrics.values()
    assert compared["now"]["observed"] == tokens.measure()
    assert [row["observed"] for row in compared["samples"]] == [-19.0, 6.0]
    with pytest.raises(ValueError, match="a limit must be above 0"):
        bench.explain(compare={MUTATION: 0.0})


def test_without_a_counter_another_limit_says_nothing(bench: Bench) -> None:
    """Without a counter there are no samples to compare."""
    compared = bench.quota(PRODUCE, compare={PRODUCE: 5.0})["compare"]
    assert compared == {
        "limit": 5.0, "delayed": 0, "longest_delay_ms": 0, "is_complete": False, "now": None, "samples": [],
    }  # fmt: skip


# ---------------------------------------------------------------- shadows


def test_a_shadow_is_explained_beside_the_quota(bench: Bench) -> None:
    """A shadow quota has its own level and a counter with the values of an enforced quota."""
    bench.set({"user": "alice"}, **{PRODUCE: 10_000.0})
    bench.set({"client-id": "app"}, **{"shadow.producer_byte_rate": 100.0})
    other = Bench()
    other.set({"client-id": "app"}, producer_byte_rate=100)
    for value in (500.0, 900.0, 4000.0):
        for each in (bench, other):
            each.clock.advance_ms(700)
            each.managers.produce.record_and_get_throttle("alice", "app", value)
        bench.managers.shadows[0].record_and_get_throttle("alice", "app", value)
    quota = bench.quota(PRODUCE)
    shadow, alone = quota["shadow"], other.quota(PRODUCE)
    assert (quota["level"], quota["counter"]["delay_ms"]) == (3, 0)
    assert (shadow["level"], shadow["entity"], shadow["counted_for"]) == (7, {"client-id": "app"}, {"client-id": "app"})
    assert shadow["counter"] == alone["counter"]
    assert shadow["counter"]["delay_ms"] > 0
    assert alone["shadow"] is None


# ---------------------------------------------------------------- addresses, connections, verdicts


def test_connections_of_an_address(bench: Bench) -> None:
    """An address has its own rate, the rate of its host name, or the default rate."""
    bench.set({"ip": None}, connection_creation_rate=100)
    bench.set({"ip": "10.0.0.1"}, connection_creation_rate=2)
    bench.set({"ip": "there"}, connection_creation_rate=7)
    for number in range(30):
        with pytest.raises(admission.ConnectionThrottledError) if number >= 20 else nothing():
            admission.admit(bench.addresses, "PLAINTEXT", "10.0.0.1")
    quota = bench.quota(RATE, address="10.0.0.1")
    assert outcomes(quota) == [(1, 2, "applies"), (2, 100, "overridden")]
    assert quota["counter"]["observed"] == bench.addresses.ip_rates()["10.0.0.1"]
    assert quota["counter"]["delay_ms"] > 0
    assert bench.quota(RATE, address="10.0.0.7")["limit"] == 7
    assert bench.quota(RATE, address="10.9.9.9")["limit"] == 100
    assert bench.quota(RATE, address="10.9.9.9")["counter"] is None
    assert quota["shadow"] is None
    bench.set({"ip": None}, **{"shadow.connection_creation_rate": 1})
    admission.admit(bench.addresses, "PLAINTEXT", "10.9.9.9")
    shadow = bench.quota(RATE, address="10.9.9.9")["shadow"]
    assert (shadow["limit"], shadow["level"], shadow["counter"]["observed"]) == (1, 2, 0.1)


def connection(number: int, **facts: Any) -> dict[str, Any]:
    return {
        "connection": f"127.0.0.1:9092-10.0.0.1:{number}-0-{number}",
        "principal": "User:alice",
        "client_id": "app",
        "address": "10.0.0.1",
        "muted": [],
        "throttle_left_ms": None,
        "throttled_by": None,
        **facts,
    }


def test_who_waits_and_until_when(bench: Bench) -> None:
    """Throttled connections of a client are sorted by delay, the longest first; a connection id selects its client."""
    bench.open[:] = [
        connection(1),
        connection(2, muted=["throttled"], throttle_left_ms=1500, throttled_by="Fetch"),
        connection(3, muted=["throttled"], throttle_left_ms=2500, throttled_by="Produce"),
        connection(4, client_id="other", muted=["throttled"], throttle_left_ms=9000, throttled_by="Produce"),
        connection(5, principal="User:bob"),
    ]
    found = bench.explain()
    assert (found["connections"], found["is_known"], found["client_ids"]) == (3, True, ["app", "other"])
    assert [(row["left_ms"], row["quota"]) for row in found["waiting"]] == [(2500, PRODUCE), (1500, FETCH)]
    one = bench.explain(connection="127.0.0.1:9092-10.0.0.1:2-0-2")
    assert (one["user"], one["client_id"], one["address"], one["connections"]) == ("alice", "app", "10.0.0.1", 1)
    assert [row["left_ms"] for row in one["waiting"]] == [1500]
    assert len(one["quotas"]) == 5
    with pytest.raises(UnknownConnectionError, match="no open connection has the id 1-2-3"):
        bench.explain(connection="1-2-3")


def test_a_connection_with_a_cut_name_identifies_no_client(bench: Bench) -> None:
    """A truncated name may belong to several clients."""
    principal = ("User:" + "é" * 100).encode()[:127].decode("utf-8", "replace")
    bench.open[:] = [connection(1, principal=principal), connection(2, client_id="x" * 64)]
    for one in bench.open:
        with pytest.raises(UnknownConnectionError, match="too long to be known in full: name its user and client id"):
            bench.explain(connection=one["connection"])


class WithVerdicts:
    """Managers with verdicts that a test sets."""

    def __init__(self, managers: ClientQuotaManagers, verdicts: list[Verdict]) -> None:
        self.enforced, self.shadows = managers.enforced, managers.shadows
        self._verdicts = verdicts

    def verdicts(self) -> list[Verdict]:
        return self._verdicts


def verdict(number: int, **facts: Any) -> Verdict:
    return Verdict(
        **{
            "time_ms": START_MS + number, "principal": "User:alice", "client_id": "app", "address": "10.0.0.1",
            "connection": "c", "api_key": 0, "quota_type": "Produce", "user": "alice", "client_tag": "", "level": 3,
            "observed": 2.0, "limit": 1.0, "window_ms": 10_000, "delay_asked_ms": 10, "delay_served_ms": 10,
            "refused": False, **facts,
        }
    )  # fmt: skip


def test_the_last_verdicts_that_concern_a_client(bench: Bench) -> None:
    """The newest 20 verdicts of the client and its shared counters are listed; long names are compared as truncated."""
    bench.set({"user": "alice"}, producer_byte_rate=1)
    other, stranger = {"client_id": "other"}, {"principal": "User:bob", "user": "bob"}
    written = [
        verdict(1),
        verdict(2, **other),
        verdict(3, **stranger),
        verdict(4, quota_type="Fetch", user="", client_tag="app"),
        verdict(5, **other, quota_type="Fetch"),
        verdict(6, **other, is_shadow=True),
        verdict(7, quota_type="ConnectionRate", principal="", client_id="", user=""),
        verdict(8, quota_type="ConnectionRate", principal="", client_id="", user="", address="10.0.0.2"),
    ]
    explainer = QuotaExplainer(
        WithVerdicts(bench.managers, written),  # type: ignore[arg-type]
        bench.addresses,
        bench.entities,
        bench.clock.epoch_ms,
        Connections([], False),
    )
    found = explainer.explain("alice", "app")
    assert [(one["time_ms"] - START_MS, one["is_own"]) for one in found["verdicts"]] == [
        (4, True),
        (2, False),
        (1, True),
    ]
    assert (found["is_known"], found["connections_complete"], found["verdicts_truncated"]) == (True, False, False)
    at_address = explainer.explain("alice", "app", "10.0.0.1")["verdicts"]
    assert (at_address[0]["time_ms"], at_address[0]["quota"]) == (START_MS + 7, RATE)
    long = "ä" * 100
    written[:] = [verdict(n, client_id=long.encode()[:128].decode("utf-8", "replace"), user="") for n in range(30)]
    found = explainer.explain("alice", long)
    assert [one["time_ms"] - START_MS for one in found["verdicts"]] == list(range(29, 9, -1))
    assert found["verdicts_truncated"]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"usr": "a"}, "no such parameter: 'usr'"),
        ({"connection": "c", "user": "a"}, "expected connection alone"),
        ({"connection": "c"}, "no open connection has the id c"),
        ({"user": "x" * 40_000}, "expected at most 32767 characters of a name"),
        ({"ip": "x\x1b[2J"}, r"expected an IP address, got 'x\\x1b[2J'"),
        ({"compare.producer_byte_rate": "-1"}, "expected compare.producer_byte_rate to be a number above 0"),
        ({"compare.producer_byte_rate": "nan"}, "expected compare.producer_byte_rate to be a number above 0"),
        ({"compare.speed": "1"}, "no such parameter: 'compare.speed'"),
    ],
)
def test_a_wrong_question_is_refused_with_one_sentence(bench: Bench, query: dict[str, str], sentence: str) -> None:
    """An invalid query gets status 400 with one sentence."""
    with pytest.raises(HttpError) as caught:
        explanation_of_query(bench.explainer, query)
    assert caught.value.status == 400
    assert sentence.replace("\\\\", "\\") in caught.value.sentence


def test_a_question_by_query(bench: Bench) -> None:
    """Parameters of the HTTP port correspond to the arguments of the method."""
    bench.set({"user": "alice"}, producer_byte_rate=1000)
    query = {"user": "alice", "client-id": "app", "ip": "::ffff:10.0.0.1", "compare.producer_byte_rate": "5"}
    assert explanation_of_query(bench.explainer, query) == bench.explain(address="10.0.0.1", compare={PRODUCE: 5.0})
    assert explanation_of_query(bench.explainer, {})["user"] == "ANONYMOUS"
