"""AlterConfigs, IncrementalAlterConfigs and ListConfigResources: their effects, and refusals without a recording."""

import logging
from typing import Any

import pytest

from kbroker.common.configs.config import BrokerConfig
from kbroker.coordinator.group_service import configs_of_groups
from tests.support.server import Bench, make_bench
from tests.unit.apis.test_apis_configs import chain, describe

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def step(
    bench: Bench,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None] | tuple[str, str | None],
    validate: bool = False,
    version: int = 1,
) -> tuple[int, str | None]:
    """Return (code, message) of one resource of IncrementalAlterConfigs."""
    rows = [{"Name": key, "ConfigOperation": operation, "Value": value} for key, operation, value in changes]  # type: ignore[misc]
    body = {"Resources": [{"ResourceType": kind, "ResourceName": name, "Configs": rows}], "ValidateOnly": validate}
    (response,) = bench.ask("IncrementalAlterConfigs", version, body)["Responses"]
    assert (response["ResourceType"], response["ResourceName"]) == (kind, name)
    return response["ErrorCode"], response["ErrorMessage"]


def alter(
    bench: Bench, kind: int, name: str, configs: list[Any | tuple[str, str]], validate: bool = False, version: int = 2
) -> tuple[int, str | None]:
    """Return (code, message) of one resource of AlterConfigs."""
    rows = [{"Name": key, "Value": value} for key, value in configs]
    body = {"Resources": [{"ResourceType": kind, "ResourceName": name, "Configs": rows}], "ValidateOnly": validate}
    (response,) = bench.ask("AlterConfigs", version, body)["Responses"]
    return response["ErrorCode"], response["ErrorMessage"]


def configs_of(bench: Bench, name: str) -> dict[str, str]:
    return dict(bench.ctx.topics.get(name).configs)


def test_a_topic_changes_at_once_and_for_good(bench: Bench) -> None:
    """The view, the open logs, the metadata and the published table have the new values when the response is sent."""
    bench.create("t", 2, segment_bytes="2000000")
    published = len(bench.published)
    assert step(bench, TOPIC, "t", ("retention.ms", SET, "5000"), ("segment.bytes", DELETE, None)) == (0, None)
    assert configs_of(bench, "t") == {"retention.ms": "5000"}
    assert [bench.logs.partition("t", index).configs["retention.ms"] for index in (0, 1)] == [5000, 5000]
    assert bench.logs.partition("t", 0).configs["segment.bytes"] == 1_073_741_824
    assert [topic.configs for topic in bench.stored] == [{"retention.ms": "5000"}]
    assert len(bench.published) == published + 1
    _, _, rows = describe(bench, TOPIC, "t", ["retention.ms"], synonyms=True)
    assert chain(rows["retention.ms"]) == [("retention.ms", "5000", 1)]


def test_validate_only_changes_nothing(bench: Bench) -> None:
    """A request with ValidateOnly gets the same checks and changes nothing."""
    bench.create("t", retention_ms="7")
    assert step(bench, TOPIC, "t", ("retention.ms", SET, "5000"), validate=True) == (0, None)
    assert alter(bench, TOPIC, "t", [("retention.ms", "5000")], validate=True) == (0, None)
    assert step(bench, BROKER, "1", ("log.retention.ms", SET, "5000"), validate=True) == (0, None)
    assert step(bench, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"), validate=True) == (0, None)
    assert configs_of(bench, "t") == {"retention.ms": "7"}
    assert bench.configs(BROKER, "1") == bench.configs(GROUP, "g") == {}
    assert step(bench, TOPIC, "t", ("retention.ms", SET, "never"), validate=True)[0] == 40


def test_a_resource_twice(bench: Bench) -> None:
    """Both entries of the duplicate resource get INVALID_REQUEST and change nothing; the other resource is changed."""
    bench.create("t")
    bench.create("u")
    rows = [{"Name": "retention.ms", "ConfigOperation": SET, "Value": "1"}]
    resources = [{"ResourceType": TOPIC, "ResourceName": name, "Configs": rows} for name in ("t", "u", "t")]
    responses = bench.ask("IncrementalAlterConfigs", 0, {"Resources": resources, "ValidateOnly": False})["Responses"]
    assert [response["ErrorCode"] for response in responses] == [42, 0, 42]
    assert (configs_of(bench, "t"), configs_of(bench, "u")) == ({}, {"retention.ms": "1"})


def test_lists_grow_and_shrink(bench: Bench) -> None:
    """Append starts from the default and adds each word once; subtract may leave an empty list."""
    bench.create("t")
    key = "leader.replication.throttled.replicas"
    for operation, value, after in (
        (APPEND, "0:1", "0:1"),
        (APPEND, "0:1,1:1,1:1", "0:1,1:1"),
        (SUBTRACT, "0:1,7:7", "1:1"),
        (SUBTRACT, "1:1", ""),
        (APPEND, "2:1", "2:1"),
    ):
        assert step(bench, TOPIC, "t", (key, operation, value)) == (0, None)
        assert configs_of(bench, "t") == {key: after}
    assert step(bench, TOPIC, "t", ("cleanup.policy", APPEND, "delete")) == (0, None)
    assert configs_of(bench, "t")["cleanup.policy"] == "delete"


def test_lists_are_split_as_java_splits(bench: Bench) -> None:
    """Empty words at the end of a text are left out, but an empty text is one word; spaces belong to a word."""
    bench.create("t")
    key = "cleanup.policy"
    assert step(bench, TOPIC, "t", (key, APPEND, ",")) == (0, None)
    assert configs_of(bench, "t") == {key: "delete"}
    assert step(bench, TOPIC, "t", (key, APPEND, ""))[0] == 40
    assert step(bench, TOPIC, "t", (key, APPEND, ",compact"))[0] == 40
    assert step(bench, TOPIC, "t", (key, APPEND, " compact,,")) == (0, None)
    assert configs_of(bench, "t") == {key: "delete, compact"}
    assert step(bench, TOPIC, "t", (key, SUBTRACT, "compact")) == (0, None)
    assert configs_of(bench, "t") == {key: "delete, compact"}
    assert step(bench, TOPIC, "t", (key, SUBTRACT, " compact")) == (0, None)
    assert configs_of(bench, "t") == {key: "delete"}


def test_a_list_grows_no_longer_than_a_response_can_describe(bench: Bench) -> None:
    """An append beyond 32,767 bytes is rejected, since an old DescribeConfigs response could not hold the value."""
    bench.create("t")
    key = "leader.replication.throttled.replicas"
    first, second = (",".join(f"{number}:1" for number in part) for part in (range(4000), range(4000, 5000)))
    rest = ",".join(f"{number}:1" for number in [*range(4000, 4838), 483_800_000])
    assert len(f"{first},{rest}") == 32_767
    assert step(bench, TOPIC, "t", (key, APPEND, first)) == (0, None)
    refused = (
        40,
        f"Expected a value of {key} of at most 32767 bytes, got 33889 with the appended values. "
        "Subtract values, or set others.",
    )
    assert step(bench, TOPIC, "t", (key, APPEND, second), ("retention.ms", SET, "5")) == refused
    assert configs_of(bench, "t") == {key: first}
    assert step(bench, TOPIC, "t", (key, APPEND, rest)) == (0, None)
    body = {"Resources": [{"ResourceType": TOPIC, "ResourceName": "t", "ConfigurationKeys": [key]}]}
    (described,) = bench.ask("DescribeConfigs", 1, {**body, "IncludeSynonyms": False})["Results"]
    assert described["Configs"][0]["Value"] == f"{first},{rest}"


def test_broker_configs_win_in_order_and_reach_the_topics() -> None:
    """Broker configs override cluster defaults, which override the file; topics without an override follow at once."""
    bench = make_bench(message_max_bytes="900")
    bench.create("t")
    bench.create("own", max_message_bytes="5")

    def in_force() -> tuple[int, int]:
        return tuple(bench.logs.partition(name, 0).configs["max.message.bytes"] for name in ("t", "own"))

    assert in_force() == (900, 5)
    assert step(bench, BROKER, "", ("message.max.bytes", SET, "800")) == (0, None)
    assert in_force() == (800, 5)
    assert step(bench, BROKER, "1", ("message.max.bytes", SET, "700")) == (0, None)
    assert in_force() == (700, 5)
    _, _, rows = describe(bench, TOPIC, "own", ["max.message.bytes"], synonyms=True)
    assert chain(rows["max.message.bytes"]) == [
        ("max.message.bytes", "5", 1),
        ("message.max.bytes", "700", 2),
        ("message.max.bytes", "800", 3),
        ("message.max.bytes", "900", 4),
        ("message.max.bytes", "1048588", 5),
    ]
    assert bench.configs(BROKER, "1") == {"message.max.bytes": "700"}
    assert step(bench, BROKER, "1", ("message.max.bytes", DELETE, None)) == (0, None)
    assert alter(bench, BROKER, "", [("min.insync.replicas", "1")]) == (0, None)
    assert in_force() == (900, 5)


@pytest.mark.parametrize(
    ("name", "key", "value", "code", "message"),
    [
        ("", "num.network.threads", "1000", 42, "Dynamic thread count update validation failed for "
         "num.network.threads=1000, value should not be greater than double the current value 3"),
        ("1", "num.io.threads", "3", 42, "Dynamic thread count update validation failed for num.io.threads=3, "
         "value should be at least half the current value 8"),
        ("", "num.io.threads", "17", 42, "Dynamic thread count update validation failed for num.io.threads=17, "
         "value should not be greater than double the current value 8"),
        ("1", "no.such.key", "1", 0, None),
    ],
)  # fmt: skip
def test_refused_broker_configs(name: str, key: str, value: str, code: int, message: str | None) -> None:
    """The code and message are Kafka's; an unknown key is accepted, as in Kafka, and changes nothing."""
    bench = make_bench(num_network_threads=3)
    changes: list[frozenset[str]] = []
    bench.ctx.on_broker_change(changes.append)
    before = dict(BrokerConfig().topic_configs({}))
    assert step(bench, BROKER, name, (key, SET, value)) == (code, message)
    assert dict(bench.ctx.config.topic_configs({})) == before
    assert changes == ([] if code else [frozenset()])


def test_append_to_a_broker_config_that_is_no_list(bench: Bench) -> None:
    """The error is INVALID_CONFIG with Kafka's message for brokers."""
    assert step(bench, BROKER, "1", ("message.max.bytes", APPEND, "1")) == (
        40,
        "Config value append is not allowed for config key: message.max.bytes",
    )
    assert step(bench, BROKER, "1", ("no.such.key", SUBTRACT, "1")) == (40, "Unknown config name: no.such.key")


@pytest.mark.parametrize("number", [-1, 4])
def test_an_unknown_operation_on_a_broker(bench: Bench, number: int) -> None:
    """In Kafka the broker refuses it; other resources go to the controller, which returns UNKNOWN_SERVER_ERROR."""
    for name in ("", "1"):
        assert step(bench, BROKER, name, ("no.such", number, "1")) == (42, f"Unknown operations type {number}")
    assert step(bench, GROUP, "g", ("no.such", number, "1")) == (-1, None)


def test_hooks_hear_what_changed(bench: Bench) -> None:
    """Listeners receive the names whose effective value has changed."""
    changes: list[frozenset[str]] = []
    bench.ctx.on_broker_change(changes.append)
    step(bench, BROKER, "1", ("max.connections", SET, "10"), ("log.retention.ms", SET, "5"))
    step(bench, BROKER, "1", ("max.connections", SET, "10"))
    step(bench, BROKER, "", ("max.connections", SET, "11"))
    assert changes == [frozenset({"max.connections", "log.retention.ms"}), frozenset()]
    assert bench.ctx.config.integer("max.connections") == 10


def test_a_group_config_has_an_upper_bound() -> None:
    key = "consumer.session.timeout.ms"
    text = f"{key} must be less than or equal to group.consumer.max.session.timeout.ms"
    assert step(make_bench(), GROUP, "g", (key, SET, "60001")) == (40, text)


def test_groups_have_the_brokers_settings_for_what_they_do_not_set() -> None:
    """Broker settings are defaults and bounds of groups; the check of session against heartbeat interval uses them."""
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    settings = {f"group.{session}": 50_000, "group.consumer.max.heartbeat.interval.ms": 60_000}
    bench = make_bench(**settings)
    _, _, rows = describe(bench, GROUP, "g", synonyms=True)
    assert chain(rows[session]) == [(f"group.{session}", "50000", 4), (f"group.{session}", "45000", 5)]
    text = f"{session} must be greater than {heartbeat}"
    assert step(bench, GROUP, "g", (heartbeat, SET, "50000")) == (40, text)
    assert step(bench, GROUP, "g", (heartbeat, SET, "49999")) == (0, None)
    assert step(bench, GROUP, "g", (session, SET, "45000")) == (40, text)


def test_a_change_of_a_groups_configs_counts_at_once(bench: Bench) -> None:
    known = configs_of_groups(bench.ctx.controller)
    assert known("g") == {}
    step(bench, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
    assert known("g") == {"consumer.session.timeout.ms": "50000"}


def test_client_metrics_configs(bench: Bench) -> None:
    """A subscription is stored and described with source 7."""
    assert step(bench, CLIENT_METRICS, "m", ("metrics", SET, "a,b"), ("interval.ms", SET, "100")) == (0, None)
    _, _, rows = describe(bench, CLIENT_METRICS, "m")
    assert [(rows[key]["Value"], rows[key]["ConfigSource"]) for key in ("metrics", "interval.ms", "match")] == [
        ("a,b", 7), ("100", 7), ("", 5)
    ]  # fmt: skip
    assert step(bench, CLIENT_METRICS, "m", ("interval.ms", SET, "99"))[0] == 42
    assert step(bench, CLIENT_METRICS, "m", ("match", SET, "nonsense"))[0] == 40
    assert step(bench, CLIENT_METRICS, "m", ("match", SET, "nonsense"), ("interval.ms", SET, "99"))[0] == 42
    assert step(bench, CLIENT_METRICS, "m", ("match", SET, "nonsense"), ("unknown", SET, "1"))[0] == 42


@pytest.mark.parametrize("name", ["", "m"])
def test_no_list_of_client_metrics_or_groups_grows(bench: Bench, name: str) -> None:
    """Kafka's controller has list configs only of topics and brokers; it refuses others before it reads the name."""
    for kind, key in ((CLIENT_METRICS, "metrics"), (CLIENT_METRICS, "match"), (GROUP, "share.isolation.level")):
        for operation, word in ((APPEND, "APPEND"), (SUBTRACT, "SUBTRACT")):
            text = f"Can't {word} to key {key} because its type is not LIST."
            assert step(bench, kind, name, (key, operation, "a")) == (40, text)


def test_loggers(bench: Bench) -> None:
    """Logger levels change at run time; unknown names and levels are rejected and leave every level unchanged."""
    logger = logging.getLogger("kbroker.metadata.configs.dynamic_configs")
    try:
        assert step(bench, LOGGER, "1", (logger.name, SET, "ERROR")) == (0, None)
        assert logger.level == logging.ERROR
        assert describe(bench, LOGGER, "1", [logger.name])[2][logger.name]["Value"] == "ERROR"
        code, message = step(bench, LOGGER, "1", (logger.name, SET, "DEBUG"), ("kbroker.unknown", SET, "INFO"))
        assert (code, message, logger.level) == (40, "Logger kbroker.unknown does not exist!", logging.ERROR)
        assert step(bench, LOGGER, "1", (logger.name, SET, "LOUD"))[0] == 40
        assert step(bench, LOGGER, "1", ("root", DELETE, None))[0] == 42
        assert step(bench, LOGGER, "1", (logger.name, APPEND, "INFO"))[0] == 42
        assert step(bench, LOGGER, "9", (logger.name, SET, "INFO"))[0] == 42
        assert alter(bench, LOGGER, "1", [(logger.name, "INFO")]) == (42, "Unknown resource type 8")
        assert step(bench, LOGGER, "1", (logger.name, DELETE, None)) == (0, None)
        assert logger.level == logging.NOTSET
    finally:
        logger.setLevel(logging.NOTSET)


def test_list_config_resources(bench: Bench) -> None:
    """v0 lists subscriptions, v1 the requested types or all types if none is requested; an unknown type is error 35."""
    bench.create("t")
    step(bench, GROUP, "g", ("share.isolation.level", SET, "read_committed"))
    step(bench, CLIENT_METRICS, "m", ("metrics", SET, "a"))

    def listed(version: int, *kinds: int) -> tuple[int, list[tuple[int, str]]]:
        response = bench.ask("ListConfigResources", version, {"ResourceTypes": list(kinds)} if version else {})
        found = sorted((row.get("ResourceType", 16), row["ResourceName"]) for row in response["ConfigResources"])
        return response["ErrorCode"], found

    assert listed(0) == (0, [(CLIENT_METRICS, "m")])
    assert listed(1) == (0, [(TOPIC, "t"), (BROKER, "1"), (LOGGER, "1"), (CLIENT_METRICS, "m"), (GROUP, "g")])
    assert listed(1, TOPIC, GROUP) == (0, [(TOPIC, "t"), (GROUP, "g")])
    assert listed(1, TOPIC, 3) == (35, [])


@pytest.mark.parametrize(("kind", "key"), [(GROUP, "consumer.session.timeout.ms"), (CLIENT_METRICS, "interval.ms")])
def test_names_that_are_no_utf_8(bench: Bench, kind: int, key: str) -> None:
    """Invalid UTF-8 is stored as Java would read it and found again by the same bytes, without a server error."""
    name = b"g\xff".decode("utf-8", "surrogateescape")
    rows = [{"Name": key, "ConfigOperation": SET, "Value": "45000"}]
    body = {"Resources": [{"ResourceType": kind, "ResourceName": name, "Configs": rows}], "ValidateOnly": False}
    (response,) = bench.ask("IncrementalAlterConfigs", 1, body)["Responses"]
    assert (response["ErrorCode"], response["ResourceName"]) == (0, "g\ufffd")
    asked = [{"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": [key]}]
    body = {"Resources": asked, "IncludeSynonyms": False, "IncludeDocumentation": False}
    (result,) = bench.ask("DescribeConfigs", 4, body)["Results"]
    assert [(row["Name"], row["Value"]) for row in result["Configs"]] == [(key, "45000")]
    assert step(bench, kind, "g", ("x" + name, SET, name))[0] == (40 if kind == GROUP else 42)
    assert step(bench, BROKER, "1", ("x" + name, SET, "v" + name))[0] != -1


def test_unknown_broker_configs_are_kept_and_hidden(bench: Bench) -> None:
    """Unknown configs are shown as sensitive, untyped and without a value, as in Kafka; values are not stored."""
    for name, source in (("1", 2), ("", 3)):
        assert step(bench, BROKER, name, ("nosuch.password", SET, "hunter2")) == (0, None)
        assert bench.configs(BROKER, name)["nosuch.password"] == ""
        row = describe(bench, BROKER, name, synonyms=True)[2]["nosuch.password"]
        assert (row["Value"], row["ReadOnly"], row["IsSensitive"], row["ConfigType"]) == (None, True, True, 0)
        assert chain(row)[0] == ("nosuch.password", None, source)
    row = describe(make_bench(custom_plugin_key="x"), BROKER, "1", synonyms=True)[2]["custom.plugin.key"]
    assert (row["Value"], row["IsSensitive"], chain(row)) == (None, True, [("custom.plugin.key", None, 4)])


@pytest.mark.parametrize(
    "name",
    ["ssl.keystore.password", "listener.name.plaintext.ssl.keystore.password", "sasl.jaas.config", "metric.reporters",
     "listener.name.sasl_ssl.plain.sasl.jaas.config", "listener.name.nosuch.ssl.key.password", "authorizer.class.name",
     "listener.name.plaintext.ssl.keystore.location", "delegation.token.secret.key"],
)  # fmt: skip
def test_no_secret_and_nothing_without_effect_is_stored(bench: Bench, name: str) -> None:
    """A config that applies only at start is rejected, so that the metadata log never stores a password."""
    code, message = step(bench, BROKER, "1", (name, SET, "hunter2"))
    assert (code, message) == (42, f"Cannot update these configs dynamically: [{name}]")
    assert bench.configs(BROKER, "1") == {}
    assert step(bench, BROKER, "1", (name, DELETE, None)) == (0, None)


def test_rates_of_replication_are_numbers(bench: Bench) -> None:
    """Replication rates have no effect with one broker, but are validated, and shown once they are set."""
    name = "follower.replication.throttled.rate"
    text = f"Invalid value abc for configuration {name}: Not a number of type LONG"
    assert step(bench, BROKER, "1", (name, SET, "abc")) == (42, text)
    assert name not in describe(bench, BROKER, "1")[2]
    assert step(bench, BROKER, "1", (name, SET, "7")) == (0, None)
    row = describe(bench, BROKER, "1", synonyms=True)[2][name]
    assert (row["Value"], row["ReadOnly"], row["ConfigType"], chain(row)) == ("7", False, 5, [(name, "7", 2)])


def test_default_configs_stand_alone() -> None:
    """The cluster defaults are shown as they were typed, without the values that they override."""
    bench = make_bench(message_max_bytes=99)
    assert step(bench, BROKER, "", ("message.max.bytes", SET, " +5 ")) == (0, None)
    row = describe(bench, BROKER, "", synonyms=True)[2]["message.max.bytes"]
    assert (row["Value"], chain(row)) == (" +5 ", [("message.max.bytes", " +5 ", 3)])
    row = describe(bench, BROKER, "1", synonyms=True)[2]["message.max.bytes"]
    assert (row["Value"], chain(row)[0], chain(row)[1][1]) == ("5", ("message.max.bytes", " +5 ", 3), "99")


@pytest.mark.parametrize("name", ["", "1"])
@pytest.mark.parametrize("key", ["super.users", "allow.everyone.if.no.acl.found"])
def test_what_the_authorizer_follows_is_taken_without_effect(
    key: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Kafka, any value is accepted: a warning is logged, nothing is stored, and the effective value is shown."""
    bench = make_bench(super_users="User:root")
    for value in ("User:eve", "nonsense", ""):
        assert step(bench, BROKER, name, (key, SET, value), validate=True) == (0, None)
        assert caplog.records == []
        assert step(bench, BROKER, name, (key, SET, value), ("log.retention.ms", SET, "5000")) == (0, None)
        assert "has no effect" in caplog.records[0].getMessage()
        assert alter(bench, BROKER, name, [(key, value)]) == (0, None)
        caplog.clear()
    assert step(bench, BROKER, name, (key, DELETE, None)) == (0, None)
    assert step(bench, BROKER, name, (key, APPEND, "User:eve"))[0] == 40
    _, _, rows = describe(bench, BROKER, "1", ["super.users"], synonyms=True)
    assert chain(rows["super.users"]) == [("super.users", "User:root", 4)]
    assert bench.configs(BROKER, name) == {}
