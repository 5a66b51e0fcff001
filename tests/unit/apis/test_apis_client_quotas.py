"""DescribeClientQuotas and AlterClientQuotas through the codec, in cases without a recorded response of Kafka."""

import math
from collections.abc import Mapping, Sequence

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.apis import api48_describe_client_quotas, api49_alter_client_quotas
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors
from kbroker.common.quotas import QuotaEntity
from kbroker.quota.entity_store import QuotaEntityStore
from kbroker.quota.service import QuotaService
from kbroker.requests.context import Body, RequestContext
from tests.support.server import Bench, make_bench

EXACT, DEFAULT, ANY = 0, 1, 2
versions = pytest.mark.parametrize("version", [0, 1])


def entity(**names: str | None) -> list[dict[str, str | None]]:
    return [{"EntityType": kind.replace("_", "-"), "EntityName": name} for kind, name in names.items()]


def entry(parts: Sequence[Mapping[str, str | None]], *ops: tuple[str, float | None]) -> Body:
    """Return an entry of AlterClientQuotas; an op whose value is None removes its key."""
    rows = [{"Key": key, "Value": value or 0.0, "Remove": value is None} for key, value in ops]
    return {"Entity": parts, "Ops": rows}


def alter(
    bench: Bench, version: int, *entries: Body, validate: bool = False
) -> list[tuple[int, str | None, list[Body]]]:
    response = bench.ask("AlterClientQuotas", version, {"Entries": list(entries), "ValidateOnly": validate})
    assert response["ThrottleTimeMs"] == 0
    return [(row["ErrorCode"], row["ErrorMessage"], row["Entity"]) for row in response["Entries"]]


def describe(bench: Bench, version: int, *components: tuple[str, int, str | None], strict: bool = False) -> Body:
    rows = [{"EntityType": kind, "MatchType": how, "Match": name} for kind, how, name in components]
    return bench.ask("DescribeClientQuotas", version, {"Components": rows, "Strict": strict})


def found(bench: Bench, version: int, *components: tuple[str, int, str | None], strict: bool = False) -> list[int]:
    """Return the first value of each entity that matches: the number of its row in EIGHT."""
    response = describe(bench, version, *components, strict=strict)
    assert (response["ErrorCode"], response["ErrorMessage"]) == (0, "")
    return sorted(int(row["Values"][0]["Value"]) for row in response["Entries"])


CONSUMER, MUTATIONS, PRODUCER, REQUEST = (
    "consumer_byte_rate", "controller_mutation_rate", "producer_byte_rate", "request_percentage"
)  # fmt: skip


@pytest.mark.parametrize(
    ("requests", "described"),
    [
        ([[PRODUCER], [CONSUMER]], [CONSUMER, PRODUCER]),
        ([[REQUEST], [PRODUCER]], [REQUEST, PRODUCER]),
        ([[PRODUCER], [REQUEST]], [PRODUCER, REQUEST]),
        ([[PRODUCER, REQUEST]], [REQUEST, PRODUCER]),
        ([[REQUEST], [PRODUCER], [MUTATIONS]], [MUTATIONS, REQUEST, PRODUCER]),
        ([[PRODUCER], [REQUEST], [CONSUMER]], [CONSUMER, PRODUCER, REQUEST]),
        ([[REQUEST, PRODUCER, MUTATIONS, CONSUMER]], [PRODUCER, CONSUMER, MUTATIONS, REQUEST]),
        ([["shadow.consumer_byte_rate"], [REQUEST], ["shadow.request_percentage"], [PRODUCER]],
         [REQUEST, PRODUCER, "shadow.consumer_byte_rate", "shadow.request_percentage"]),
    ],
)  # fmt: skip
def test_keys_come_in_the_order_of_kafkas_hash_map(requests: list[list[str]], described: list[str]) -> None:
    """The order of keys is that of ``ClientQuotasImage`` 4.3.1 after the same changes; shadow quotas follow."""
    bench = make_bench()
    alice = entity(user="alice")
    for keys in requests:
        alter(bench, 1, entry(alice, *((key, 1.0) for key in keys)))
    (row,) = describe(bench, 1, ("user", EXACT, "alice"))["Entries"]
    assert [value["Key"] for value in row["Values"]] == described
    if len(described) == 4 and described[0] == PRODUCER:  # the two remaining keys keep the order of the larger table
        alter(bench, 1, entry(alice, (CONSUMER, None), (MUTATIONS, None)))
        (row,) = describe(bench, 1, ("user", EXACT, "alice"))["Entries"]
        assert [value["Key"] for value in row["Values"]] == [PRODUCER, REQUEST]


def test_entities_come_in_the_order_of_kafkas_hash_map(bench: Bench) -> None:
    """The order is that of ``ClientQuotasImage`` 4.3.1 after the same changes; a filter keeps it."""
    names: list[dict[str, str | None]] = [
        {"user": "alice", "client_id": "app"}, {"user": "alice", "client_id": None}, {"user": "alice"},
        {"user": None, "client_id": "app"}, {"user": None, "client_id": None}, {"user": None}, {"client_id": "app"},
    ]  # fmt: skip

    entities = [dict(_pairs(entity(**one))) for one in names]

    def order(*components: tuple[str, int, str | None]) -> list[int]:
        rows = describe(bench, 1, *components)["Entries"]
        return [entities.index(dict(_pairs(row["Entity"]))) for row in rows]

    for number, one in enumerate(names):
        alter(bench, 1, entry(entity(**one), (PRODUCER, 1.0)))
        if number == 3:
            assert order() == [0, 3, 2, 1]
    assert order() == [3, 2, 1, 0, 6, 5, 4]
    for number in range(8):
        alter(bench, 1, entry(entity(user=f"user{number}"), (PRODUCER, 1.0)))
    assert order(("client-id", ANY, None)) == [1, 3, 0, 6, 4]


def _pairs(parts: Sequence[Mapping[str, str | None]]) -> list[tuple[str | None, str | None]]:
    return [(part["EntityType"], part["EntityName"]) for part in parts]


EIGHT: tuple[dict[str, str | None], ...] = (
    {"user": "u", "client_id": "c"}, {"user": "u", "client_id": None}, {"user": "u"},
    {"user": None, "client_id": "c"}, {"user": None, "client_id": None}, {"user": None}, {"client_id": "c"},
    {"client_id": None},
)  # fmt: skip


@versions
def test_every_entity_through_every_match(bench: Bench, version: int) -> None:
    """A component matches one name, the default or any name; a strict filter excludes entities with other parts."""
    rows = [entry(entity(**names), ("request_percentage", float(n))) for n, names in enumerate(EIGHT, 1)]
    rows.append(entry(entity(ip="127.0.0.1"), ("connection_creation_rate", 9.0)))
    assert [code for code, _, _ in alter(bench, version, *rows)] == [0] * 9

    def ask(*components: tuple[str, int, str | None], strict: bool = False) -> list[int]:
        return found(bench, version, *components, strict=strict)

    assert ask(("client-id", DEFAULT, None), strict=True) == [8]
    assert ask(("client-id", ANY, None)) == [1, 2, 4, 5, 7, 8]
    assert ask(("user", EXACT, "u"), ("client-id", DEFAULT, None), strict=True) == [2]
    assert ask(("user", EXACT, "u"), ("client-id", ANY, None)) == [1, 2]
    assert ask(("ip", ANY, None)) == [9]
    assert ask(("ip", DEFAULT, None)) == []
    assert ask(("user", EXACT, "")) == []


@versions
def test_a_client_stands_before_its_user(bench: Bench, version: int) -> None:
    """The parts of an entity are in the order of Kafka's responses, independent of the request's order."""
    entity = [{"EntityType": "user", "EntityName": "u"}, {"EntityType": "client-id", "EntityName": None}]
    ops = [{"Key": "producer_byte_rate", "Value": 5.0, "Remove": False}]
    body = {"Entries": [{"Entity": entity, "Ops": ops}], "ValidateOnly": False}
    (altered,) = bench.ask("AlterClientQuotas", version, body)["Entries"]
    (shown,) = bench.ask("DescribeClientQuotas", version, {"Components": [], "Strict": False})["Entries"]
    assert altered["Entity"] == shown["Entity"] == entity[::-1]


@versions
@pytest.mark.parametrize("components", [[("user", ANY, None)], [("client-id", ANY, None), ("ip", EXACT, "10.0.0.1")]])
def test_a_refused_filter_has_no_entries(version: int, components: list[tuple[str, int, str | None]]) -> None:
    response = describe(make_bench(), version, ("user", EXACT, "b"), *components)
    assert (response["ErrorCode"], response["Entries"]) == (42, None)


@versions
def test_a_quota_that_is_no_number(bench: Bench, version: int) -> None:
    ((code, _, _),) = alter(bench, version, entry(entity(user="u"), ("request_percentage", math.nan)))
    assert code == 42
    assert found(bench, version) == []


def test_names_that_need_escaping(bench: Bench) -> None:
    """Any text is a valid name; bytes that are not UTF-8 are stored as Java reads them."""
    for name in ("*", "a b", "%41", "a:b", "<default>", "CN=a,O=b", "漢🙂"):
        assert alter(bench, 1, entry(entity(user=name), ("producer_byte_rate", 1.0)))[0][0] == 0
        (row,) = describe(bench, 1, ("user", EXACT, name), strict=True)["Entries"]
        assert row["Entity"] == entity(user=name)
    assert describe(bench, 1, ("user", DEFAULT, None))["Entries"] == []
    assert alter(bench, 1, entry(entity(user="x\udcff"), ("producer_byte_rate", 1.0))) == [
        (0, None, entity(user="x\ufffd"))
    ]


def test_failures_have_the_form_of_responses() -> None:
    """A failed alteration has its error code in each entry, a failed description has no entries, as in Kafka."""
    request = RequestContext(49, 1)
    row = entry(entity(user="u"), ("producer_byte_rate", 1.0))
    response = api49_alter_client_quotas.failure({"Entries": [row, row]}, Errors.UNKNOWN_SERVER_ERROR, request)
    assert [(one["ErrorCode"], one["Entity"]) for one in response["Entries"]] == [(-1, entity(user="u"))] * 2
    failed = api48_describe_client_quotas.failure({}, Errors.UNKNOWN_SERVER_ERROR, request)
    assert (failed["ErrorCode"], failed["Entries"]) == (-1, None)


# ---------------------------------------------------------------- in effect


def test_every_kind_of_entity_reaches_its_manager(bench: Bench) -> None:
    """The manager resolves each of the eight levels once it is set, and the next level once it is removed."""
    service = QuotaService(bench.ctx.config, VirtualClock())
    managers = service.managers
    bench.ctx.quota_entities.on_change(service.on_quota_change)
    for number, names in enumerate(EIGHT, 1):
        for key in ("producer_byte_rate", "request_percentage"):
            assert alter(bench, 1, entry(entity(**names), (key, number * 100.0)))[0][0] == 0
    for number, names in enumerate(EIGHT, 1):
        for manager in (managers.produce, managers.request):
            assert manager.resolve("u", "c")[:2] == (number * 100.0, number)
        assert not managers.fetch.is_enabled
        alter(bench, 1, entry(entity(**names), ("producer_byte_rate", None), ("request_percentage", None)))
    assert not managers.produce.is_enabled


def test_shadows_reach_their_own_managers(bench: Bench) -> None:
    service = QuotaService(bench.ctx.config, VirtualClock())
    bench.ctx.quota_entities.on_change(service.on_quota_change)
    assert alter(bench, 1, entry(entity(user="u"), ("shadow.producer_byte_rate", 7.0)))[0][0] == 0
    assert service.managers.shadows[0].resolve("u", "c").limit == 7
    assert not service.managers.produce.is_enabled


def test_names_reach_the_managers_as_they_are(bench: Bench) -> None:
    """A user whose name needs escaping is limited under its real name, and an entity of an address limits no client."""
    service = QuotaService(bench.ctx.config, VirtualClock())
    managers = service.managers
    bench.ctx.quota_entities.on_change(service.on_quota_change)
    for name in ("*", "a b", "%41", "a:b", "<default>", "漢🙂"):
        alter(bench, 1, entry(entity(user=name), ("consumer_byte_rate", 7.0)))
        assert managers.fetch.resolve(name, "any").limit == 7
    assert managers.fetch.resolve("other", "any").level == 0
    alter(bench, 1, entry(entity(ip="127.0.0.1"), ("connection_creation_rate", 9.0)))


def test_quotas_of_the_wrong_kind_are_ignored() -> None:
    """Metadata of another writer may contain a byte rate of an address and a connection rate of a user."""
    service = QuotaService(BrokerConfig(), VirtualClock())
    service.on_quota_change(QuotaEntity.of({"ip": "127.0.0.1"}), "producer_byte_rate", 7.0)
    service.on_quota_change(QuotaEntity.of({"user": "u"}), "connection_creation_rate", 7.0)
    assert not any(one.is_enabled for one in service.managers.enforced)


def test_a_restart_puts_everything_in_force_again(bench: Bench) -> None:
    """Stored quotas take effect in managers that are created later."""
    alter(bench, 1, entry(entity(user="u", client_id=None), ("controller_mutation_rate", 0.5)))
    service = QuotaService(bench.ctx.config, VirtualClock())
    again = QuotaEntityStore(bench.ctx.controller)
    again.on_change(service.on_quota_change)
    again.load()
    assert service.managers.controller_mutation.resolve("u", "c")[:2] == (0.5, 2)
