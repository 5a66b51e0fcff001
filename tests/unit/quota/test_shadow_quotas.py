"""Shadow quotas on a virtual clock: rules, levels, counters, metrics, persistence, and rates of addresses."""

import math
import random
from pathlib import Path
from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.quotas import CLIENT_ID, IP, USER, QuotaEntity
from kbroker.network.connections._connection_quotas import ConnectionQuotas
from kbroker.quota._client_quotas import VERDICT_TYPES
from kbroker.quota._entities import DEFAULT_ENTITY
from kbroker.quota.entity_rules import Alteration, QuotaOp
from kbroker.quota.entity_store import QuotaEntityStore
from kbroker.quota.verdict import Verdict
from tests.native import connection_admission as admission
from tests.support.errors import raising
from tests.support.fixtures import fixture_of
from tests.support.metadata import LoggedController, following
from tests.support.quotas import KEYS, Bench

SHADOWS = tuple(f"shadow.{key}" for key in KEYS)
NO_LIMIT = float(2**63 - 1)
bench = fixture_of(Bench)


# ---------------------------------------------------------------- separate from enforced quotas


@pytest.mark.parametrize("kind", range(4))
def test_one_changes_nothing_of_the_other(bench: Bench, kind: int) -> None:
    """A quota and its shadow share neither limits, nor counters, nor the maximum of a window."""
    enforced, shadow = bench.managers.enforced[kind], bench.managers.shadows[kind]
    assert (enforced.name, enforced.is_shadow, shadow.name, shadow.is_shadow) == (
        shadow.name,
        False,
        enforced.name,
        True,
    )
    bench.update("u", None, SHADOWS[kind], 7.0)
    assert (enforced.is_enabled, shadow.is_enabled) == (False, True)
    assert (enforced.resolve("u", "c").limit, shadow.resolve("u", "c").limit) == (NO_LIMIT, 7.0)
    assert enforced.max_value_in_window("u", "c") == bench.managers.enforced[0].max_value_in_window("x", "y")
    assert enforced.record_and_get_throttle("u", "c", 1e6) == 0
    assert shadow.record_and_get_throttle("u", "c", 0) == 0  # the counter is empty
    bench.update("u", None, SHADOWS[kind], None)
    bench.update("u", None, KEYS[kind], 9.0)
    assert (enforced.is_enabled, shadow.is_enabled) == (True, False)
    assert bench.managers.charges_time is (kind == 2)


def test_the_eight_levels_are_looked_through_apart(bench: Bench) -> None:
    """The shadow of the most specific level applies, regardless of the enforced quotas."""
    levels: list[tuple[Any, Any]] = [
        ("u", "c"), ("u", DEFAULT_ENTITY), ("u", None), (DEFAULT_ENTITY, "c"), (DEFAULT_ENTITY, DEFAULT_ENTITY),
        (DEFAULT_ENTITY, None), (None, "c"), (None, DEFAULT_ENTITY),
    ]  # fmt: skip
    enforced, shadow = bench.managers.enforced[0], bench.managers.shadows[0]
    for level, (user, client_id) in enumerate(levels, 1):
        bench.update(user, client_id, KEYS[0], 100.0 + level)
        bench.update(user, client_id, SHADOWS[0], 200.0 + level)
    for level, (user, client_id) in enumerate(levels, 1):
        assert enforced.resolve("u", "c")[:2] == (101.0, 1)
        assert shadow.resolve("u", "c")[:2] == (200.0 + level, level)
        bench.update(user, client_id, SHADOWS[0], None)
    assert shadow.resolve("u", "c")[:2] == (NO_LIMIT, 0)
    for level, (user, client_id) in enumerate(levels[:-1], 1):
        bench.update(user, client_id, KEYS[0], None)
        assert enforced.resolve("u", "c")[:2] == (101.0 + level, level + 1)


@pytest.mark.parametrize("kind", range(4))
def test_equal_traffic_gets_equal_delays(kind: int) -> None:
    """A random trace of records, credits and pauses gives the same delays, to the millisecond."""
    bench, draw = Bench(), random.Random(kind)
    limit = 50.0 if kind == 3 else 600.0
    bench.update(None, "e", KEYS[kind], limit)
    bench.update(None, "s", SHADOWS[kind], limit)
    sides = ((bench.managers.enforced[kind], "e"), (bench.managers.shadows[kind], "s"))
    seen: list[int] = []
    for _ in range(3000):
        bench.clock.advance_ms(draw.choice((0, 1, 40, 700)))
        value = draw.choice((1.0, 3.5, 60.0, 400.0)) / (10 if kind == 3 else 1)
        delays = {manager.record_and_get_throttle("u", client_id, value) for manager, client_id in sides}
        assert len(delays) == 1
        seen += delays
        if draw.random() < 0.1:
            for manager, client_id in sides:
                manager.unrecord("u", client_id, value)
    assert 100 < sum(delay > 0 for delay in seen) < 2900


def test_a_changed_limit_finds_what_the_counter_holds(bench: Bench) -> None:
    """A changed limit applies from the next record on, as for an enforced quota."""
    shadow = bench.managers.shadows[0]
    bench.update(None, "c", SHADOWS[0], 1000.0)
    assert shadow.record_and_get_throttle("u", "c", 12_000) == 2000
    bench.update(None, "c", SHADOWS[0], 500.0)
    assert shadow.record_and_get_throttle("u", "c", 0) == 14_000
    bench.update(None, "c", SHADOWS[0], 5000.0)
    assert shadow.record_and_get_throttle("u", "c", 0) == 0


def test_counters_of_made_up_client_ids_are_bounded_apart() -> None:
    """Shadow counters do not evict counters of enforced quotas."""
    bench = Bench(max_counters=2)
    bench.update(None, DEFAULT_ENTITY, KEYS[0], 1e9)
    bench.update(None, DEFAULT_ENTITY, SHADOWS[0], 1e9)
    for number in range(10):
        bench.clock.advance_ms(10)
        bench.managers.shadows[0].record_and_get_throttle("u", f"s{number}", 1)
        if number < 2:
            bench.managers.enforced[0].record_and_get_throttle("u", f"e{number}", 1)
    bench.managers.publish_to_registry()
    names = {name.tags[0][1] or name.tags[1][1] for name, _ in bench.registry.items() if name.name == "byte-rate"}
    assert names == {"e0", "e1", "s8", "s9"}


def test_their_metrics_have_their_own_names(bench: Bench) -> None:
    """Metrics of shadow quotas have names that differ from Kafka's, and also expire after an hour."""
    for kind in range(4):
        bench.update("ü", None, SHADOWS[kind], 10.0)
        bench.managers.shadows[kind].record_and_get_throttle("ü", "c", 20.0)
    bench.managers.publish_to_registry()
    assert {(n.group, n.name) for n, _ in bench.registry.items() if ("user", "%C3%BC") in n.tags} == {
        ("kbroker:shadow-produce", "byte-rate"), ("kbroker:shadow-produce", "throttle-time"),
        ("kbroker:shadow-fetch", "byte-rate"), ("kbroker:shadow-fetch", "throttle-time"),
        ("kbroker:shadow-request", "request-time"), ("kbroker:shadow-request", "throttle-time"),
        ("kbroker:shadow-controller-mutation", "mutation-rate"), ("kbroker:shadow-controller-mutation", "tokens"),
        ("kbroker:shadow-controller-mutation", "throttle-time"),
    }  # fmt: skip
    assert bench.metric("byte-rate", "kbroker:shadow-produce", user="%C3%BC", client_id="").measure() == 2.0
    bench.clock.advance_ms(3_600_001)
    assert sorted(bench.managers.expire_inactive()) == sorted(
        f"Shadow{kind}{of}-%C3%BC:" for kind in VERDICT_TYPES[:4] for of in ("", "ThrottleTime")
    )
    assert not [name for name, _ in bench.registry.items() if "shadow" in name.group]


def test_no_shadow_throttles(bench: Bench) -> None:
    """An unknown shadow key and a limit of 0 are refused, and a shadow manager throttles no channel."""
    with pytest.raises(ValueError, match="key must be one of"):
        bench.update("u", None, "shadow.speed", 1.0)
    with pytest.raises(ValueError, match="above 0"):
        bench.update("u", None, SHADOWS[0], 0.0)
    assert bench.managers.shadows[0].queue_size == 0
    assert repr(bench.managers.shadows[0]) == "<ClientQuotaManager shadow Produce>"


# ---------------------------------------------------------------- addresses


def connect(quotas: ConnectionQuotas, address: str) -> bool:
    """Return whether a connection is accepted; close it again."""
    admission.begin(quotas, "L")
    try:
        admission.admit(quotas, "L", address)
    except admission.ConnectionThrottledError:
        return False
    admission.dec(quotas, "L", address)
    return True


@pytest.mark.parametrize("default", [True, False])
def test_the_shadow_of_a_connection_rate_refuses_nobody(bench: Bench, default: bool) -> None:
    """A shadow rate gives each connection the verdict of an enforced rate, and refuses none."""
    quotas, draw = ConnectionQuotas(clock=bench.clock), random.Random(5)
    quotas.update_listener("L")
    bench.managers.observe_connections(quotas)
    quotas.update_ip_rate("10.0.0.1", 3)
    quotas.update_ip_rate(None if default else "10.0.0.2", 3, shadow=True)
    let_in = 0
    found: list[Verdict] = []
    for _ in range(2000):
        bench.clock.advance_ms(draw.choice((1, 20, 900)))
        let_in += connect(quotas, "10.0.0.1")
        assert connect(quotas, "10.0.0.2")
        found += bench.managers.verdicts(take=True)
    sides = [
        [one._replace(address="", is_shadow=False) for one in found if (one.address, one.is_shadow) == side]
        for side in (("10.0.0.1", False), ("10.0.0.2", True))
    ]
    assert sides[0] == sides[1]
    assert all(one.refused for one in found)
    totals = [bench.managers.verdict_totals(shadow)["ConnectionRate"] for shadow in (False, True)]
    assert totals[0] == (0, 2000 - let_in)
    assert totals[1][1] >= totals[0][1] > 100
    assert quotas.throttled == 2000 - let_in


def test_an_address_has_both(bench: Bench) -> None:
    """The shadow also judges connections that the enforced rate refuses. Rates of an address precede the default."""
    quotas = ConnectionQuotas(clock=bench.clock)
    quotas.update_listener("L")
    bench.managers.observe_connections(quotas)
    quotas.update_ip_rate(None, 1, shadow=True)
    quotas.update_ip_rate("10.0.0.1", 2, shadow=True)
    quotas.update_ip_rate("10.0.0.1", 1)
    admitted = [connect(quotas, "10.0.0.1") for _ in range(30)]
    assert admitted == [True] * 10 + [False] * 20
    found = bench.managers.verdicts(take=True)
    assert [(one.is_shadow, one.limit) for one in found].count((True, 2.0)) == 10  # connections after the first twenty
    assert [(one.is_shadow, one.limit) for one in found].count((False, 1.0)) == 20
    quotas.update_ip_rate("10.0.0.1", None)
    quotas.update_ip_rate("10.0.0.1", None, shadow=True)  # the default shadow applies, already exceeded
    assert connect(quotas, "10.0.0.1")
    assert [(one.is_shadow, one.limit) for one in bench.managers.verdicts(take=True)] == [(True, 1.0)]
    quotas.update_ip_rate(None, None, shadow=True)
    assert connect(quotas, "10.0.0.1")
    assert bench.managers.verdicts() == []
    bench.clock.advance_ms(3_700_000)
    connect(quotas, "10.0.0.3")
    assert quotas.ip_rates() == {}


# ---------------------------------------------------------------- rules and persistence


class Store:
    """Quota entities over a metadata log; ``changes`` lists the calls of their hooks."""

    def __init__(self, folder: Path) -> None:
        self.controller = LoggedController(folder)
        self.hosts = {"host": "10.2.2.2"}
        self.entities = QuotaEntityStore(self.controller, lambda host: self.hosts.get(host))
        following(self.controller, self.entities)
        self.changes: list[tuple[str, str, float | None]] = []
        self.entities.on_change(lambda entity, key, value: self.changes.append((str(entity), key, value)))
        self.entities.load()

    def alter(self, entity: QuotaEntity, *ops: tuple[str, float | None]) -> str | None:
        (refusal,) = self.entities.alter([Alteration(entity, [QuotaOp(*op) for op in ops])]).values()
        return None if refusal is None else refusal.message


ALICE, PAIR = QuotaEntity.of({USER: "alice"}), QuotaEntity.of({USER: None, CLIENT_ID: "c"})
ADDRESS, HOST = QuotaEntity.of({IP: "10.1.1.1"}), QuotaEntity.of({IP: "host"})
OR_SHADOW = ', and each with "shadow." before it'


@pytest.mark.parametrize(
    ("entity", "key", "value", "text"),
    [
        (ALICE, "shadow.producer_byte_rate", 0.0, "Quota shadow.producer_byte_rate must be greater than 0"),
        (ALICE, "shadow.request_percentage", -1.0, "Quota shadow.request_percentage must be greater than 0"),
        (PAIR, "shadow.request_percentage", math.nan,
         "Quota shadow.request_percentage must be a number greater than 0, not NaN"),
        (ALICE, "shadow.consumer_byte_rate", 1.5, "shadow.consumer_byte_rate cannot be a fractional value."),
        (ALICE, "shadow.consumer_byte_rate", 1e300,
         "Proposed value for shadow.consumer_byte_rate is too large for a LONG."),
        (ALICE, "shadow.speed", 1.0, "Invalid configuration key shadow.speed; this entity can have consumer_byte_rate, "
         f"controller_mutation_rate, producer_byte_rate and request_percentage{OR_SHADOW}"),
        (ALICE, "shadow.shadow.producer_byte_rate", 1.0, "Invalid configuration key shadow.shadow.producer_byte_rate; "
         "this entity can have consumer_byte_rate, controller_mutation_rate, producer_byte_rate and "
         f"request_percentage{OR_SHADOW}"),
        (ALICE, "shadow.connection_creation_rate", 1.0, "Invalid configuration key shadow.connection_creation_rate; "
         "this entity can have consumer_byte_rate, controller_mutation_rate, producer_byte_rate and "
         f"request_percentage{OR_SHADOW}"),
        (ADDRESS, "shadow.producer_byte_rate", 1.0, "Invalid configuration key shadow.producer_byte_rate; this entity "
         f"can have connection_creation_rate{OR_SHADOW}"),
        (ADDRESS, "shadow.connection_creation_rate", 0.5,
         "shadow.connection_creation_rate cannot be a fractional value."),
        (QuotaEntity.of({IP: "10.1.1.1", USER: "u"}), "shadow.producer_byte_rate", 1.0,
         "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_whole(
    tmp_path: Path, entity: QuotaEntity, key: str, value: float, text: str
) -> None:
    """An invalid key is refused by its enforced counterpart's rules, together with the valid key of the request."""
    store = Store(tmp_path)
    good = "connection_creation_rate" if IP in entity.names else "producer_byte_rate"
    assert store.alter(entity, (good, 5.0), (key, value)) == text
    assert (store.controller.image.client_quotas, store.changes) == ({}, [])
    store.controller.close()


def test_a_restart_keeps_both(tmp_path: Path) -> None:
    """Enforced and shadow values of an entity are restored and published; promotion of a shadow is one change."""
    store = Store(tmp_path)
    assert store.alter(ALICE, ("producer_byte_rate", 5.0), ("shadow.producer_byte_rate", 3.0)) is None
    assert store.alter(PAIR, ("shadow.request_percentage", 0.5)) is None
    assert store.alter(ADDRESS, ("shadow.connection_creation_rate", 7.0)) is None
    assert len(store.changes) == 4
    store.controller.close()
    again = Store(tmp_path)
    assert sorted(again.changes) == [
        ("ip 10.1.1.1", "shadow.connection_creation_rate", 7.0),
        ("user <default>, client-id c", "shadow.request_percentage", 0.5),
        ("user alice", "producer_byte_rate", 5.0),
        ("user alice", "shadow.producer_byte_rate", 3.0),
    ]
    again.changes.clear()
    assert again.alter(ALICE, ("producer_byte_rate", 3.0), ("shadow.producer_byte_rate", None)) is None
    assert again.changes == [
        ("user alice", "producer_byte_rate", 3.0), ("user alice", "shadow.producer_byte_rate", None),
    ]  # fmt: skip
    assert again.entities.find({USER: "alice"}, (), True) == [(ALICE, {"producer_byte_rate": 3.0})]
    again.controller.close()


def test_promoting_is_stored_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A promotion is one batch: if it is refused, the former values are in force, even after a restart."""
    store = Store(tmp_path)
    promote = ("producer_byte_rate", 3.0), ("shadow.producer_byte_rate", None)
    assert store.alter(ALICE, ("producer_byte_rate", 5.0), ("shadow.producer_byte_rate", 3.0)) is None
    store.changes.clear()
    full = raising(KafkaError(Errors.KAFKA_STORAGE_ERROR, "the disk is full"))
    monkeypatch.setattr(store.controller.log, "append", full)
    assert store.alter(ALICE, *promote) == "the disk is full"
    both = {"producer_byte_rate": 5.0, "shadow.producer_byte_rate": 3.0}
    assert (store.entities.of(ALICE), store.changes) == (both, [])
    store.controller.close()
    again = Store(tmp_path)
    assert again.entities.of(ALICE) == both
    assert again.alter(ALICE, *promote) is None
    assert again.entities.of(ALICE) == {"producer_byte_rate": 3.0}
    again.controller.close()


def test_both_quotas_of_a_host_name_follow_their_own_addresses(tmp_path: Path) -> None:
    """Each quota applies to the address that the host name had when the quota was set, until its removal."""
    store = Store(tmp_path)
    key = "connection_creation_rate"
    assert store.alter(HOST, (key, 5.0)) is None
    store.hosts["host"] = "10.3.3.3"
    assert store.alter(HOST, (f"shadow.{key}", 4.0)) is None
    assert store.alter(HOST, (key, None)) is None
    assert store.alter(HOST, (f"shadow.{key}", None)) is None
    assert store.changes == [
        ("ip 10.2.2.2", key, 5.0),
        ("ip 10.3.3.3", f"shadow.{key}", 4.0),
        ("ip 10.2.2.2", key, None),
        ("ip 10.3.3.3", f"shadow.{key}", None),
    ]
    store.controller.close()
