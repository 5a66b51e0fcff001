"""Quota entities: rules for changes, the store, and the resolution of quotas."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.common.configs.removed_settings import suggest_replacement
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.quotas import CLIENT_ID, IP, USER, QuotaEntity, candidates, resolve
from kbroker.metadata.controller import Controller
from kbroker.quota.entity_rules import Alteration, QuotaOp
from kbroker.quota.entity_store import MAX_LOOKUPS, QuotaEntityStore, address_of
from tests.support.errors import raising
from tests.support.fixtures import fixture_of
from tests.support.metadata import LoggedController, MemoryController, check_same_change, following

ALICE = QuotaEntity.of({USER: "alice"})
ADDRESS = QuotaEntity.of({IP: "10.1.1.1"})
HOSTS = {"10.1.1.1": "10.1.1.1", "host": "10.2.2.2"}


class Bench:
    """Store of entities over metadata in memory; ``changes`` lists the published quotas."""

    def __init__(self, controller: Controller | None = None) -> None:
        self.controller = MemoryController() if controller is None else controller
        self.entities = following(self.controller, QuotaEntityStore(self.controller, HOSTS.get))
        self.changes: list[tuple[str, str, float | None]] = []
        self.entities.on_change(lambda entity, key, value: self.changes.append((str(entity), key, value)))

    def alter(self, entity: QuotaEntity, *ops: tuple[str, float | None], validate_only: bool = False) -> str | None:
        """Change one entity; return the error message, or None."""
        alteration = Alteration(entity, [QuotaOp(*op) for op in ops])
        (refusal,) = self.entities.alter([alteration], validate_only).values()
        assert refusal is None or refusal.error is Errors.INVALID_REQUEST
        return None if refusal is None else refusal.message

    @property
    def stored(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return self.controller.image.client_quotas

    def all(self) -> dict[str, dict[str, float]]:
        return {str(entity): dict(values) for entity, values in self.entities.find({}, (), False)}


bench = fixture_of(Bench)


def user(**names: str | None) -> QuotaEntity:
    return QuotaEntity.of({kind.replace("_", "-"): name for kind, name in names.items()})


# ---------------------------------------------------------------- rules

OR_SHADOW = ', and each with "shadow." before it'


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("producer_byte_rate", -0.0, "Quota producer_byte_rate must be greater than 0"),
        ("controller_mutation_rate", -math.inf, "Quota controller_mutation_rate must be greater than 0"),
        ("producer_byte_rate", math.nan, "Quota producer_byte_rate must be a number greater than 0, not NaN"),
        ("request_percentage", math.nan, "Quota request_percentage must be a number greater than 0, not NaN"),
        ("consumer_byte_rate", math.inf, "Proposed value for consumer_byte_rate is too large for a LONG."),
        ("consumer_byte_rate", 9.9999999, "consumer_byte_rate cannot be a fractional value."),
        ("connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate; this entity can have "
         f"consumer_byte_rate, controller_mutation_rate, producer_byte_rate and request_percentage{OR_SHADOW}"),
        ("", 1.0, "Invalid configuration key ; this entity can have consumer_byte_rate, controller_mutation_rate, "
         f"producer_byte_rate and request_percentage{OR_SHADOW}"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_with_what_is_allowed(bench: Bench, key: str, value: float, text: str) -> None:
    """Each invalid value gets Kafka's error code and text, and nothing is stored."""
    assert bench.alter(ALICE, (key, value)) == text
    assert bench.alter(ALICE, (key, value), validate_only=True) == text
    assert (bench.all(), bench.changes, bench.stored) == ({}, [], {})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("producer_byte_rate", 1.0),
        ("producer_byte_rate", 10.0000001),
        ("producer_byte_rate", 2.0**63),
        ("request_percentage", 0.001),
        ("request_percentage", math.inf),
        ("controller_mutation_rate", 0.25),
    ],
)
def test_values_that_kafka_takes(bench: Bench, key: str, value: float) -> None:
    """Kafka accepts fractions for some keys, rounding errors for whole numbers, and the maximum LONG as a double."""
    assert bench.alter(ALICE, (key, value)) is None
    assert bench.all() == {"user alice": {key: value}}
    assert bench.stored == {ALICE: {key: value}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "connection_creation_rate cannot be a fractional value."),
        (2.0**31, "Proposed value for connection_creation_rate is too large for an INT."),
        (0.0, "Quota connection_creation_rate must be greater than 0"),
        (2.0**31 - 1, None),
    ],
)
def test_connection_rates_are_whole_numbers_of_32_bits(bench: Bench, value: float, text: str | None) -> None:
    """The type of connection_creation_rate is INT."""
    assert bench.alter(ADDRESS, ("connection_creation_rate", value)) == text


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        (user(), "Invalid empty client quota entity: name a user, a client-id, both, or an ip"),
        (user(group="g"), "Unhandled client quota entity type: group; there are user, client-id and ip"),
        (user(user=""), "Empty user not supported: null stands for the default user"),
        (user(user="u", client_id=""), "Empty client-id not supported: null stands for the default client-id"),
        (user(ip=""), "Empty ip not supported: null stands for the default ip"),
        (user(ip="10.1.1.1", user="u"),
         "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"),
        (user(ip=None, client_id=None),
         "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"),
        (user(ip="no where"), "no where is not a valid IP or resolvable host."),
    ],
)  # fmt: skip
def test_bad_entities_are_refused(bench: Bench, entity: QuotaEntity, text: str) -> None:
    """An invalid entity is refused before its keys are checked."""
    assert bench.alter(entity, ("no_such_key", -1.0)) == text
    assert bench.all() == {}


def test_an_address_takes_connection_rates_only(bench: Bench) -> None:
    """A byte rate of an address is refused, and connection_creation_rate is accepted."""
    assert bench.alter(ADDRESS, ("producer_byte_rate", 1.0)) == (
        f"Invalid configuration key producer_byte_rate; this entity can have connection_creation_rate{OR_SHADOW}"
    )
    assert bench.alter(ADDRESS, ("connection_creation_rate", 100.0)) is None
    assert bench.alter(user(ip=None), ("connection_creation_rate", 7.0)) is None
    assert bench.alter(user(ip="host"), ("connection_creation_rate", 5.0)) is None
    assert bench.all() == {
        "ip 10.1.1.1": {"connection_creation_rate": 100},
        "ip <default>": {"connection_creation_rate": 7},
        "ip host": {"connection_creation_rate": 5},
    }


def test_hosts_are_looked_up() -> None:
    """An address in any notation is returned without brackets, and an unresolvable name has no address."""
    assert address_of("127.0.0.1") == "127.0.0.1"
    assert address_of("::1") == "::1"
    assert address_of("[::1]") == "::1"
    assert address_of("[127.0.0.1]") is None
    assert address_of("nowhere at all") is None
    assert address_of("a" * 300) is None


@pytest.mark.parametrize("zone", ["nowhere", "x" * 1000])
def test_an_address_with_a_zone_must_lead_somewhere(bench: Bench, zone: str) -> None:
    """An address with an unknown zone after % is refused, because its quota could never take effect."""
    store = QuotaEntityStore(bench.controller, lambda host: None)
    entity = user(ip=f"fe80::1%{zone}")
    refusal = store.alter([Alteration(entity, [QuotaOp("connection_creation_rate", 5.0)])])[entity]
    assert refusal is not None
    assert refusal.message == f"fe80::1%{zone} is not a valid IP or resolvable host."
    assert bench.all() == {}


def test_one_request_has_only_so_many_names_looked_up(bench: Bench) -> None:
    """A request with many host names is refused, because each look-up may take seconds; addresses need none."""
    asked = []
    store = QuotaEntityStore(bench.controller, lambda host: asked.append(host) or "10.3.3.3")  # type: ignore[func-returns-value]
    ops = [QuotaOp("connection_creation_rate", 5.0)]
    names = [Alteration(user(ip=f"h{number}"), ops) for number in range(MAX_LOOKUPS + 2)]
    addresses = [Alteration(user(ip=f"10.0.0.{number}"), ops) for number in range(200)]
    refusals = [refusal for refusal in store.alter([*names, *addresses]).values() if refusal is not None]
    assert (len(refusals), len(asked)) == (2, MAX_LOOKUPS)
    assert refusals[0].message == "More than 20 host names in one request: use addresses, or several requests"


# ---------------------------------------------------------------- changes


def test_all_or_nothing_per_entity(bench: Bench) -> None:
    """An invalid op refuses its whole entry but no other entry."""
    good, bad = user(user="good"), user(user="bad")
    results = bench.entities.alter(
        [
            Alteration(bad, [QuotaOp("producer_byte_rate", 5.0), QuotaOp("consumer_byte_rate", -5.0)]),
            Alteration(good, [QuotaOp("producer_byte_rate", 5.0)]),
        ]
    )
    assert {entity: refusal is None for entity, refusal in results.items()} == {bad: False, good: True}
    assert bench.all() == {"user good": {"producer_byte_rate": 5}}
    assert bench.changes == [("user good", "producer_byte_rate", 5.0)]


def test_an_entity_that_comes_twice_is_left_alone(bench: Bench) -> None:
    """A duplicate entity is in the response once, as refused, and is not changed; other entities are."""
    ops = [QuotaOp("producer_byte_rate", 5.0)]
    results = bench.entities.alter([Alteration(ALICE, ops), Alteration(ADDRESS, []), Alteration(ALICE, ops)])
    assert list(results) == [ALICE, ADDRESS]
    assert results[ALICE].message == "Ignoring duplicate entity user alice: give each once"
    assert results[ADDRESS] is None
    assert bench.all() == {}


def test_results_are_in_kafkas_order(bench: Bench) -> None:
    """The results of a request are in the order of a Java hash map."""
    rate = [QuotaOp("producer_byte_rate", 1000.0)]
    entities = [user(user=f"u{i}") for i in range(6)] + [user(client_id=f"c{i}") for i in range(4)]
    entities += [user(user="u0", client_id="c0"), user(user=None), user(client_id=None)]
    shown = bench.entities.alter([Alteration(entity, rate) for entity in entities])
    assert "; ".join(map(str, shown)) == (
        "user u1; user u3; user u2; user u4; user u0, client-id c0; client-id c3; client-id c0; client-id c2; "
        "client-id c1; user u0; user u5; user <default>; client-id <default>"
    )


def test_a_key_that_comes_twice_is_refused(bench: Bench) -> None:
    """A duplicate key is refused because its value would be undefined."""
    ops = [("producer_byte_rate", 5.0), ("producer_byte_rate", None)]
    assert bench.alter(ALICE, *ops) == "Duplicate quota key producer_byte_rate: give each once"


def test_setting_changing_removing(bench: Bench) -> None:
    """Each change is published once, a value without a change is not, and the last removal removes the entity."""
    assert bench.alter(ALICE, ("producer_byte_rate", 5.0), ("request_percentage", 50.0)) is None
    assert bench.alter(ALICE, ("producer_byte_rate", 5.0)) is None
    assert bench.alter(ALICE, ("producer_byte_rate", 6.0), ("request_percentage", None)) is None
    assert bench.all() == {"user alice": {"producer_byte_rate": 6}}
    assert bench.alter(ALICE, ("no_such_key", None), ("consumer_byte_rate", None)) is None
    assert bench.alter(ALICE) is None
    assert bench.alter(ALICE, ("producer_byte_rate", None)) is None
    assert bench.all() == {}
    assert bench.changes == [
        ("user alice", "producer_byte_rate", 5.0),
        ("user alice", "request_percentage", 50.0),
        ("user alice", "producer_byte_rate", 6.0),
        ("user alice", "request_percentage", None),
        ("user alice", "producer_byte_rate", None),
    ]


def test_validate_only_changes_nothing(bench: Bench) -> None:
    """The responses are the same, but neither the store nor the managers change."""
    assert bench.alter(ALICE, ("producer_byte_rate", 5.0), validate_only=True) is None
    assert (bench.all(), bench.changes, bench.stored) == ({}, [], {})


def test_a_refused_change_is_not_in_force() -> None:
    """A full disk refuses all valid changes of a request, and no quota changes."""
    controller = MemoryController()
    bench = Bench(controller)
    controller.storage.is_full = True
    ops = [QuotaOp("producer_byte_rate", 5.0)]
    bad = user(user="bad")
    refused = bench.entities.alter([Alteration(ALICE, ops), Alteration(bad, [QuotaOp("none", 1.0)])])
    assert [refusal.error for refusal in refused.values()] == [Errors.KAFKA_STORAGE_ERROR, Errors.INVALID_REQUEST]
    assert (bench.all(), bench.changes, bench.stored) == ({}, [], {})


def test_one_hook_that_fails_keeps_no_other_from_it(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A hook that fails is logged, and the other hooks are called."""
    store = following(bench.controller, QuotaEntityStore(bench.controller, HOSTS.get))
    changes = []
    store.on_change(raising(OSError("no such address")))
    store.on_change(lambda entity, key, value: changes.append(key))
    with caplog.at_level(logging.ERROR):
        store.alter([Alteration(ALICE, [QuotaOp("producer_byte_rate", 5.0)])])
    assert changes == ["producer_byte_rate"]
    assert "cannot put producer_byte_rate of user alice in force" in caplog.text


def test_host_names_are_looked_up_before_the_lock_is_taken(bench: Bench) -> None:
    """Host names are looked up before the lock is acquired, so that a slow name does not block other changes."""
    hosts = {"host": "10.2.2.2"}
    controller = bench.controller
    entities = QuotaEntityStore(controller, lambda host: None if controller._lock.locked() else hosts.get(host))
    following(controller, entities)
    changes = []
    entities.on_change(lambda entity, key, value: changes.append((entity.names[IP], value)))
    host, key = user(ip="host"), "connection_creation_rate"

    def alter(value: float | None) -> dict[QuotaEntity, KafkaError | None]:
        return entities.alter([Alteration(host, [QuotaOp(key, value)])])

    assert alter(5.0) == {host: None}
    hosts["host"] = "10.3.3.3"
    assert alter(6.0) == {host: None}
    hosts["host"] = "10.4.4.4"
    assert alter(None) == {host: None}
    assert changes == [("10.2.2.2", 5.0), ("10.2.2.2", None), ("10.3.3.3", 6.0), ("10.3.3.3", None)]
    assert alter(7.0) == {host: None}
    del changes[:], hosts["host"]
    controller.publishers.remove(entities)
    again = following(controller, QuotaEntityStore(controller, hosts.get))
    again.on_change(lambda entity, key, value: changes.append((entity.names[IP], value)))
    again.load()
    assert changes == []
    hosts["host"] = "10.5.5.5"
    again.load()
    again.alter([Alteration(host, [QuotaOp(key, None)])])
    assert changes == [("10.5.5.5", 7.0), ("10.5.5.5", None)]


# ---------------------------------------------------------------- former static settings


@pytest.mark.parametrize(
    ("name", "value", "command"),
    [
        ("quota.producer.default", "2M", "kbroker quotas set --client-id-default producer_byte_rate=2097152"),
        ("quota.consumer.default", "500", "kbroker quotas set --client-id-default consumer_byte_rate=500"),
        ("quota.consumer.default", "plenty", "kbroker quotas set --client-id-default consumer_byte_rate=BYTES"),
        ("quota.producer.override", "clientA:4M,clientB:10M",
         "kbroker quotas set --client-id clientA producer_byte_rate=4194304 && "
         "kbroker quotas set --client-id clientB producer_byte_rate=10485760"),
        ("quota.consumer.override", "a b=1k", "kbroker quotas set --client-id 'a b' consumer_byte_rate=1024"),
        ("quota.consumer.override", "", "kbroker quotas set --client-id NAME consumer_byte_rate=BYTES"),
    ],
)  # fmt: skip
def test_static_quotas_name_their_replacement(name: str, value: str, command: str) -> None:
    """The error for a removed static quota has the exact command that replaces it."""
    assert suggest_replacement(name, value) == f"quotas are set at run time, and kept: {command}"


def test_other_unknown_settings_have_no_replacement() -> None:
    """A name that never was a setting has no replacement."""
    assert suggest_replacement("quota.producer", "1") is None
    assert suggest_replacement("no.such.key", "1") is None


# ---------------------------------------------------------------- restart


NAMES = ["*", "a b%20:c", "<default>", "default", "null", "q\"\\'", "漢🙂", "\0\n", "x" * 5000]


def test_everything_is_in_force_again_after_a_restart(tmp_path: Path) -> None:
    """Unusual names, default entities and an infinite rate are restored and published to the managers."""
    controller = LoggedController(tmp_path)
    before = Bench(controller)
    for name in NAMES:
        assert before.alter(user(user=name, client_id=name), ("producer_byte_rate", 5.0)) is None
    assert before.alter(user(user=None), ("request_percentage", math.inf)) is None
    assert before.alter(user(user=None, client_id=None), ("controller_mutation_rate", 0.1)) is None
    assert before.alter(ALICE, ("producer_byte_rate", 5.0)) is None
    assert before.alter(ALICE, ("producer_byte_rate", None)) is None
    controller.close()

    controller = LoggedController(tmp_path)
    again = Bench(controller)
    assert again.all() == {}
    again.entities.load()
    assert again.all() == before.all()
    assert len(again.all()) == len(NAMES) + 2
    assert sorted(again.changes) == sorted(
        (entity, key, value) for entity, values in before.all().items() for key, value in values.items()
    )
    controller.close()


# ---------------------------------------------------------------- resolution


def test_the_eight_levels() -> None:
    """Levels are ordered by specificity; only user levels and default user levels apply without a client id."""
    assert [str(one.entity) for one in candidates("u", "c")] == [
        "user u, client-id c",
        "user u, client-id <default>",
        "user u",
        "user <default>, client-id c",
        "user <default>, client-id <default>",
        "user <default>",
        "client-id c",
        "client-id <default>",
    ]
    assert [(one.level, str(one.entity)) for one in candidates("u", "")] == [(3, "user u"), (6, "user <default>")]


EIGHT = [one.entity for one in candidates("u", "c")]


@pytest.mark.parametrize(
    ("levels", "winner", "tags"),
    [
        ([], None, ("", "c")),
        ([8], 8, ("", "c")),
        ([7, 8], 7, ("", "c")),
        ([3], 3, ("u", "")),
        ([6], 6, ("u", "")),
        ([1], 1, ("u", "c")),
        ([5], 5, ("u", "c")),
        ([6, 8], 6, ("u", "")),
        ([5, 6, 7], 5, ("u", "c")),
        ([4, 6], 4, ("u", "c")),
        ([7, 6], 6, ("u", "")),
        ([2, 3, 4, 5, 6, 7, 8], 2, ("u", "c")),
    ],
)
def test_the_winner_and_its_counter(levels: list[int], winner: int | None, tags: tuple[str, str]) -> None:
    """The most specific level with a quota applies, and the tags name the counter that its clients share."""
    found = resolve([EIGHT[level - 1] for level in levels], "u", "c")
    assert (None if found.winner is None else found.winner.level, found[1:]) == (winner, tags)


def test_the_counter_of_a_client_without_an_id() -> None:
    """The quota of its user's client ids determines the counter, which it does not limit."""
    assert resolve([EIGHT[1], EIGHT[7]], "u", "") == (None, "u", "")


def test_quotas_of_others() -> None:
    """If only other clients have quotas, a level that exists alone still determines the counter."""
    other = QuotaEntity.of({USER: "other"})
    pair = QuotaEntity.of({USER: "other", CLIENT_ID: "c"})
    assert resolve([other], "u", "c") == (None, "u", "")
    assert resolve([pair], "u", "c") == (None, "u", "c")
    assert resolve([other, pair], "u", "c") == (None, "", "c")
    assert resolve([pair, other], "other", "") == ((3, other), "other", "")


def test_a_value_that_another_request_has_stored_is_in_force() -> None:
    """A second request for the same value, which stores nothing, returns once the value is in force."""
    bench = Bench()
    change = Alteration(QuotaEntity.of({"user": "u"}), [QuotaOp("producer_byte_rate", 5.0)])
    check_same_change(bench.entities, lambda: bench.entities.alter([change]))
    assert bench.entities.of(change.entity) == {"producer_byte_rate": 5.0}
