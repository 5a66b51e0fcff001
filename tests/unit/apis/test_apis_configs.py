"""DescribeConfigs in cases without a recorded response of Kafka."""

import pytest

from kbroker.apis import api32_describe_configs
from kbroker.common.configs.config import BROKER_TABLE, TOPIC_TABLE
from kbroker.metadata.configs import config_entries
from kbroker.requests.context import Body
from kbroker.requests.rows import MALFORMED
from tests.support.server import Bench, make_bench

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def describe(
    bench: Bench,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> tuple[int, str, dict[str, Body]]:
    """Return (code, message, rows by name) of one resource."""
    body = {
        "Resources": [{"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": keys}],
        "IncludeSynonyms": synonyms,
        "IncludeDocumentation": documentation,
    }
    (result,) = bench.ask("DescribeConfigs", version, body)["Results"]
    assert (result["ResourceType"], result["ResourceName"]) == (kind, name)
    assert len({row["Name"] for row in result["Configs"]}) == len(result["Configs"])
    return result["ErrorCode"], result["ErrorMessage"], {row["Name"]: row for row in result["Configs"]}


def test_one_unknown_type_refuses_them_all(bench: Bench) -> None:
    """Kafka cannot read such a request: every resource gets the same error and no configs."""
    bench.create("t")
    rows = [{"ResourceType": kind, "ResourceName": "t", "ConfigurationKeys": None} for kind in (TOPIC, 99, 0)]
    body = {"Resources": rows, "IncludeSynonyms": True, "IncludeDocumentation": False}
    results = bench.ask("DescribeConfigs", 4, body)["Results"]
    assert [(one["ResourceType"], one["ErrorCode"], one["Configs"]) for one in results] == [
        (kind, 42, []) for kind in (TOPIC, 99, 0)
    ]
    assert {one["ErrorMessage"] for one in results} == {MALFORMED}


def chain(row: Body) -> list[tuple[str, str | None, int]]:
    return [(one["Name"], one["Value"], one["Source"]) for one in row["Synonyms"]]


def test_synonyms_of_a_topic() -> None:
    """The topic's value precedes the broker's, and synonyms that Kafka omits are omitted."""
    bench = make_bench(message_max_bytes=99, log_retention_hours=1)
    bench.create("t", retention_ms="5", max_message_bytes="7")
    _, _, rows = describe(bench, TOPIC, "t", synonyms=True)
    assert chain(rows["retention.ms"]) == [("retention.ms", "5", 1)]
    assert chain(rows["segment.ms"]) == []
    assert chain(rows["max.message.bytes"]) == [
        ("max.message.bytes", "7", 1),
        ("message.max.bytes", "99", 4),
        ("message.max.bytes", "1048588", 5),
    ]
    assert chain(rows["min.insync.replicas"]) == [("min.insync.replicas", "1", 3), ("min.insync.replicas", "1", 5)]
    assert chain(rows["remote.storage.enable"]) == []


def test_a_topic_follows_the_brokers_coarser_unit() -> None:
    """The effective value follows log.retention.hours although no synonym lists it."""
    bench = make_bench(log_retention_hours=1)
    bench.create("t")
    row = describe(bench, TOPIC, "t", ["retention.ms"])[2]["retention.ms"]
    assert (row["Value"], row["ConfigSource"]) == ("3600000", 5)


def test_documentation_when_asked_for(bench: Bench) -> None:
    """From v3 every key has a documentation text."""
    bench.create("t")
    assert all(row["Documentation"] for row in describe(bench, TOPIC, "t", documentation=True)[2].values())
    assert all(row["Documentation"] for row in describe(bench, BROKER, "1", documentation=True)[2].values())


def test_broker() -> None:
    """All keys are described: static keys are read-only, and a value from the command line has source 4."""
    bench = make_bench(num_partitions=3)
    _, _, rows = describe(bench, BROKER, "1", synonyms=True)
    assert set(rows) == set(BROKER_TABLE)
    facts = {name: (rows[name]["Value"], rows[name]["ReadOnly"], rows[name]["ConfigSource"]) for name in (
        "num.partitions", "message.max.bytes", "min.insync.replicas", "log.retention.ms")}  # fmt: skip
    assert facts == {
        "num.partitions": ("3", True, 4),
        "message.max.bytes": ("1048588", False, 5),
        "min.insync.replicas": ("1", False, 3),
        "log.retention.ms": (None, False, 5),
    }
    assert chain(rows["log.retention.ms"]) == []
    assert chain(rows["log.retention.hours"]) == [("log.retention.hours", "168", 5)]


def test_default_broker() -> None:
    """The default broker has only the configs that are set for all brokers."""
    _, _, rows = describe(make_bench(), BROKER, "", synonyms=True)
    assert {name: (row["Value"], row["ConfigSource"]) for name, row in rows.items()} == {
        "min.insync.replicas": ("1", 3)
    }
    assert describe(make_bench(), BROKER, "", ["message.max.bytes"])[2] == {}


def test_loggers_of_this_broker() -> None:
    root = describe(make_bench(), LOGGER, "1")[2]["root"]
    assert (root["ConfigSource"], root["ConfigType"]) == (6, 0)  # without a type, as in Kafka


def mention(kind: int, names: list[str], keys: list[str] | None = None) -> Body:
    return {"Resources": [{"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": keys} for name in names]}


def test_one_resource_named_often(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated resource has a row per mention but one lookup; mentions beyond the limit of configs are rejected."""
    bench.create("t")
    looked_up = []
    find = api32_describe_configs.topic_entries  # type: ignore[attr-defined]
    monkeypatch.setattr(api32_describe_configs, "topic_entries", lambda *args: looked_up.append(args) or find(*args))  # type: ignore[func-returns-value]
    results = bench.ask("DescribeConfigs", 4, mention(TOPIC, ["t"] * 20_000))["Results"]
    assert (len(results), len(looked_up)) == (20_000, 1)
    full = [row for row in results if row["ErrorCode"] == 0]
    assert len(full) == 1 + -(-10_000 // len(TOPIC_TABLE))
    assert all(row["Configs"] == results[0]["Configs"] for row in full)
    refused = results[len(full)]
    assert (refused["ErrorCode"], refused["Configs"], refused["ResourceName"]) == (42, [], "t")


@pytest.mark.parametrize(
    ("kind", "name", "keys"),
    [
        (TOPIC, "t", ["retention.ms", "segment.ms", "unknown"]),
        (BROKER, "1", ["my.own", "num.partitions"]),
        (BROKER, "", ["min.insync.replicas"]),
        (GROUP, "g", ["consumer.session.timeout.ms"]),
        (CLIENT_METRICS, "s", ["interval.ms"]),
        (LOGGER, "1", ["root"]),
    ],
)
def test_named_keys(kind: int, name: str, keys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the named keys get entries, which equal those in a description of all keys."""
    bench = make_bench(my_own="5", num_partitions=3)
    bench.create("t", retention_ms="5")
    whole = describe(bench, kind, name, synonyms=True)[2]
    made = []
    make = config_entries._entry
    monkeypatch.setattr(config_entries, "_entry", lambda key, *args: made.append(key.name) or make(key, *args))  # type: ignore[func-returns-value]
    found = describe(bench, kind, name, keys, synonyms=True)[2]
    assert found == {key: row for key, row in whole.items() if key in keys}
    assert [*found]
    assert made == ([] if kind == LOGGER else [*found])


def test_one_resource_named_with_other_keys(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resource is looked up at most twice: for the keys of its first mention, and as a whole for the others."""
    bench.create("t")
    looked_up = []
    find = api32_describe_configs.topic_entries  # type: ignore[attr-defined]
    monkeypatch.setattr(api32_describe_configs, "topic_entries", lambda *args: looked_up.append(args) or find(*args))  # type: ignore[func-returns-value]
    wanted = [["retention.ms"], ["retention.ms"], ["segment.ms", "retention.ms"], ["segment.ms"], None, ["unknown"]]
    rows = [{"ResourceType": TOPIC, "ResourceName": "t", "ConfigurationKeys": keys} for keys in wanted]
    results = bench.ask("DescribeConfigs", 4, {"Resources": rows})["Results"]
    names = [{row["Name"] for row in one["Configs"]} for one in results]
    assert names == [
        {"retention.ms"}, {"retention.ms"}, {"segment.ms", "retention.ms"}, {"segment.ms"}, {*TOPIC_TABLE}, set(),
    ]  # fmt: skip
    assert len(looked_up) == 2


def test_groups_that_exist_by_being_named(bench: Bench) -> None:
    """Every group name has configs, whether the group exists or not, so a request gets a limited number of rows."""
    results = bench.ask("DescribeConfigs", 4, mention(32, [f"g{i}" for i in range(10_000)]))["Results"]
    assert len(results) == 10_000
    assert 9_900 <= sum(len(one["Configs"]) for one in results) <= 10_000 + 100
    assert results[-1]["ErrorCode"] == 42


def test_distinct_topics_are_all_described(bench: Bench) -> None:
    """All topics that exist are described, without a limit on their number."""
    names = [f"t{i}" for i in range(400)]
    bench.ctx.topics.auto_create(names)
    results = bench.ask("DescribeConfigs", 4, mention(TOPIC, names))["Results"]
    assert [len(one["Configs"]) for one in results] == [len(TOPIC_TABLE)] * 400


def test_no_static_secret_is_shown() -> None:
    """Secrets of listeners, of mechanisms and of unknown names have no value, neither as configs nor as synonyms."""
    secrets = {
        "ssl.key.password": "hunter2",
        "listener.name.tls.ssl.key.password": "hunter2",
        "listener.name.tls.plain.sasl.jaas.config": "hunter2",
        "listener.name.tls.oauthbearer.sasl.jaas.config": "hunter2",
        "my.plugin.password": "hunter2",
        "kbroker.control.token": "hunter2",
    }
    bench = make_bench(**{name.replace(".", "_"): value for name, value in secrets.items()})
    _, _, rows = describe(bench, BROKER, "1", synonyms=True, documentation=True)
    assert {name for name in secrets if rows[name]["IsSensitive"]} == set(secrets)
    assert "hunter2" not in str(rows)
