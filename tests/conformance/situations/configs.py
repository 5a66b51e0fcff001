"""Configs described and changed: of topics, brokers, groups and unknown resources."""

from tests.conformance.bodies import group
from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.talk import Talk

DESCRIBE, REPLACE, CHANGE = "1-4", "0-2", "0-1"
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
RETENTION, POLICY, BACKOFF = "retention.ms", "cleanup.policy", "log.cleaner.backoff.ms"
# Settings of a broker that do not depend on the way in which it was started.
OF_A_BROKER = [
    *("log.retention.hours", "log.retention.ms", "message.max.bytes", "num.partitions", "auto.create.topics.enable"),
    *("log.cleanup.policy", "min.insync.replicas", "compression.type", "offsets.topic.num.partitions"),
    *("socket.request.max.bytes", "background.threads", "delete.topic.enable", "fetch.max.bytes"),
    *("offset.metadata.max.bytes", "transaction.max.timeout.ms", "group.max.size"),
]


def describe(*rows: tuple[int, str, list[str] | None], synonyms: bool = False, documentation: bool = False) -> Body:
    resources = [{"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": keys} for kind, name, keys in rows]
    return {"Resources": resources, "IncludeSynonyms": synonyms, "IncludeDocumentation": documentation}


def replace(kind: int, name: str, configs: dict[str, str | None], *, only_validate: bool = False) -> Body:
    rows = [{"Name": key, "Value": value} for key, value in configs.items()]
    resources = [{"ResourceType": kind, "ResourceName": name, "Configs": rows}]
    return {"Resources": resources, "ValidateOnly": only_validate}


def change(kind: int, name: str, *rows: tuple[str, int, str | None], only_validate: bool = False) -> Body:
    configs = [{"Name": key, "ConfigOperation": operation, "Value": value} for key, operation, value in rows]
    resources = [{"ResourceType": kind, "ResourceName": name, "Configs": configs}]
    return {"Resources": resources, "ValidateOnly": only_validate}


def await_value(talk: Talk, kind: int, name: str, key: str, value: str) -> None:
    def is_there() -> bool:
        response = talk.quietly("DescribeConfigs", 4, describe((kind, name, [key])))
        return [row["Value"] for row in response["Results"][0]["Configs"]] == [value]

    talk.until(f"{key}={value}", is_there)


# ---- DescribeConfigs


@situation("DescribeConfigs", DESCRIBE)
def of_a_topic(talk: Talk) -> None:
    """Describe all configs of a topic, with synonyms, and some with documentation."""
    name = talk.topic(retention_ms="86400000", cleanup_policy="compact,delete").name
    await_value(talk, TOPIC, name, RETENTION, "86400000")
    talk.ask(describe((TOPIC, name, None)), "all")
    talk.ask(describe((TOPIC, name, None), synonyms=True), "synonyms")
    talk.ask(describe((TOPIC, name, [RETENTION, "segment.bytes"]), synonyms=True, documentation=True), "documentation")


@situation("DescribeConfigs", DESCRIBE)
def some_keys(talk: Talk) -> None:
    """Describe an unknown config and a known one, no configs, and a config twice."""
    name = talk.topic().name
    for keys in (["segment.bytes", "no.such.key"], [], [RETENTION, RETENTION]):
        talk.ask(describe((TOPIC, name, keys)), ", ".join(keys))


@situation("DescribeConfigs", DESCRIBE)
def topics_that_are_not_there(talk: Talk) -> None:
    """Describe configs of unknown topics, each with its own error, of a topic twice and of no topic."""
    name = talk.topic().name
    absent = [(TOPIC, each, None) for each in (talk.name("absent"), "with space", "")]
    talk.ask(describe(*absent, (TOPIC, name, [RETENTION])), "beside one")
    talk.ask(describe((TOPIC, name, [RETENTION]), (TOPIC, name, ["segment.ms"])), "twice")
    talk.ask(describe(), "none")


@situation("DescribeConfigs", DESCRIBE, over=("0", "1", "3", "64", "-1"))
def types_nobody_has(talk: Talk, kind: str) -> None:
    """Describe configs of unknown resource types."""
    talk.ask(describe((int(kind), "x", None)))


@situation("DescribeConfigs", DESCRIBE, alone=True)
def of_a_broker(talk: Talk) -> None:
    """Describe settings of a broker with synonyms and, from version 3 on, with type and documentation."""
    talk.ask(describe((BROKER, str(talk.broker.node_id), OF_A_BROKER), synonyms=True, documentation=True))


@situation("DescribeConfigs", DESCRIBE, alone=True)
def names_of_brokers(talk: Talk) -> None:
    """Describe the default of brokers, an unknown broker, and a name that is not a number."""
    talk.ask(describe((BROKER, "", ["message.max.bytes"])), "default")
    for name in ("99", "one"):
        talk.ask(describe((BROKER, name, None)), name)


@situation("DescribeConfigs", DESCRIBE)
def of_a_group(talk: Talk) -> None:
    """Describe configs of a group with synonyms, and of a group without a name."""
    talk.ask(describe((GROUP, group(talk), None), synonyms=True), "a group")
    talk.ask(describe((GROUP, "", None)), "no name")


@situation("DescribeConfigs", DESCRIBE)
def of_client_metrics(talk: Talk) -> None:
    """Describe an unknown subscription and one without a name."""
    for name in (talk.name("subscription"), ""):
        talk.ask(describe((CLIENT_METRICS, name, None)), "absent" if name else "no name")


@situation("DescribeConfigs", DESCRIBE)
def of_loggers(talk: Talk) -> None:
    """Describe loggers of an unknown broker and of no broker."""
    for name in ("99", ""):
        talk.ask(describe((LOGGER, name, None)), name or "no name")


# ---- AlterConfigs


@situation("AlterConfigs", REPLACE)
def replaced(talk: Talk) -> None:
    """Replace configs: keys that are not named are deleted; first validated only, then applied."""
    name = talk.topic(retention_ms="1000", segment_bytes="2000000").name
    talk.ask(replace(TOPIC, name, {"max.message.bytes": "5000"}, only_validate=True), "validated")
    talk.ask(replace(TOPIC, name, {"max.message.bytes": "5000"}), "done")
    await_value(talk, TOPIC, name, "max.message.bytes", "5000")
    keys = ["max.message.bytes", RETENTION, "segment.bytes"]
    talk.also("DescribeConfigs", 3, describe((TOPIC, name, keys), synonyms=True))
    talk.ask(replace(TOPIC, name, {}), "all gone")
    await_value(talk, TOPIC, name, "max.message.bytes", "1048588")


@situation("AlterConfigs", REPLACE)
def bad_replacements(talk: Talk) -> None:
    """Replace configs of bad resources or with bad values. (Kafka never responds to a duplicate resource.)"""
    name = talk.topic().name
    for other in (talk.name("absent"), "with space", ""):
        talk.ask(replace(TOPIC, other, {RETENTION: "1"}), f"topic {talk.names.text(other)}")
    rows = (("no.such.key", "1"), (RETENTION, "soon"), (POLICY, "shred"), (RETENTION, None), ("segment.bytes", "1"))
    for key, value in rows:
        talk.ask(replace(TOPIC, name, {key: value}), f"{key}={value}")
    for kind in (0, 3, 64):
        talk.ask(replace(kind, "x", {RETENTION: "1"}), f"type {kind}")
    talk.ask(replace(BROKER, "99", {"log.cleaner.threads": "1"}), "unknown broker")
    talk.ask(replace(LOGGER, str(talk.broker.node_id), {"x": "INFO"}), "logger")


# ---- IncrementalAlterConfigs


@situation("IncrementalAlterConfigs", CHANGE)
def set_and_deleted(talk: Talk) -> None:
    """Set and delete a config: other configs stay, and deleting an unset config is not an error."""
    name = talk.topic(segment_bytes="2000000").name
    look = describe((TOPIC, name, [RETENTION, "segment.bytes"]), synonyms=True)
    talk.ask(change(TOPIC, name, (RETENTION, SET, "5000")), "set")
    await_value(talk, TOPIC, name, RETENTION, "5000")
    talk.also("DescribeConfigs", 2, look, "set")
    talk.ask(change(TOPIC, name, (RETENTION, DELETE, None)), "deleted")
    await_value(talk, TOPIC, name, RETENTION, "604800000")
    talk.ask(change(TOPIC, name, (RETENTION, DELETE, None)), "deleted again")
    talk.also("DescribeConfigs", 2, look, "deleted")


@situation("IncrementalAlterConfigs", CHANGE)
def lists(talk: Talk) -> None:
    """Append to and subtract from a list, even to an empty list, and from a number."""
    name = talk.topic().name
    story = (
        ("append to the default", APPEND, "compact", "delete,compact"),
        ("append what is there", APPEND, "compact", None),
        ("subtract", SUBTRACT, "delete", "compact"),
        ("subtract what is not there", SUBTRACT, "delete", None),
        ("subtract the last", SUBTRACT, "compact", ""),
    )
    for note, operation, value, then in story:
        talk.ask(change(TOPIC, name, (POLICY, operation, value)), note)
        if then is not None:
            await_value(talk, TOPIC, name, POLICY, then)
    talk.also("DescribeConfigs", 2, describe((TOPIC, name, [POLICY])))
    for note, operation in (("append", APPEND), ("subtract", SUBTRACT)):
        talk.ask(change(TOPIC, name, (RETENTION, operation, "1")), f"{note}, a number")


@situation("IncrementalAlterConfigs", CHANGE)
def only_validated(talk: Talk) -> None:
    """Validate a good and a bad value without changing the config."""
    name = talk.topic().name
    for value in ("5000", "never"):
        talk.ask(change(TOPIC, name, (RETENTION, SET, value), only_validate=True), value)
    talk.also("DescribeConfigs", 2, describe((TOPIC, name, [RETENTION])))


@situation("IncrementalAlterConfigs", CHANGE)
def bad_changes(talk: Talk) -> None:
    """Change configs with bad keys, values and operations, with good and bad configs together, and a resource twice."""
    name = talk.topic().name
    rows: dict[str, list[tuple[str, int, str | None]]] = {
        "unknown key": [("no.such.key", SET, "1")],
        "bad value": [(RETENTION, SET, "soon")],
        "null": [(RETENTION, SET, None)],
        "empty value": [(RETENTION, SET, "")],
        "empty key": [("", SET, "1")],
        "unknown operation": [(RETENTION, 9, "1")],
        "key twice": [(RETENTION, SET, "1"), (RETENTION, DELETE, None)],
        "good and bad": [(RETENTION, SET, "1"), ("segment.bytes", SET, "x")],
        "nothing": [],
    }
    for note, operations in rows.items():
        talk.ask(change(TOPIC, name, *operations), note)
    body = change(TOPIC, name, (RETENTION, SET, "1"))
    talk.ask({**body, "Resources": body["Resources"] * 2}, "resource twice")
    talk.also("DescribeConfigs", 2, describe((TOPIC, name, [RETENTION])))


@situation("IncrementalAlterConfigs", CHANGE)
def resources_that_are_not_there(talk: Talk) -> None:
    """Change configs of unknown topics, types and brokers, alone and besides a known topic."""
    absent = talk.name("absent")
    rows = (
        (TOPIC, absent),
        (TOPIC, "with space"),
        (TOPIC, ""),
        (0, "x"),
        (3, "x"),
        (64, "x"),
        (BROKER, "99"),
        (BROKER, "one"),
    )
    for kind, name in rows:
        talk.ask(change(kind, name, (RETENTION, SET, "1")), f"{kind} {talk.names.text(name)}")
    good = talk.topic().name
    resources = [change(TOPIC, name, (RETENTION, SET, "7000"))["Resources"][0] for name in (good, absent)]
    talk.ask({"Resources": resources}, "beside a good one")
    await_value(talk, TOPIC, good, RETENTION, "7000")


@situation("IncrementalAlterConfigs", CHANGE)
def names_of_odd_resources(talk: Talk) -> None:
    """Change configs of a subscription, a group and a topic without names, and loggers of other brokers."""
    for kind in (CLIENT_METRICS, GROUP, TOPIC):
        talk.ask(change(kind, "", ("no.such.key", SET, "1")), f"no name, {kind}")
    for name in ("", "99", "-1", "-0", "one", "1.0", " 1"):
        talk.ask(change(LOGGER, name, ("root", SET, "INFO"), only_validate=True), f"loggers of {name!r}")


@situation("IncrementalAlterConfigs", CHANGE, alone=True)
def dynamic_setting_of_a_broker(talk: Talk) -> None:
    """Change a config of all brokers, of this one, of both, and a fixed one."""
    node = str(talk.broker.node_id)
    look = describe((BROKER, node, [BACKOFF]), synonyms=True)

    def reset() -> None:
        for name in (node, ""):
            talk.quietly("IncrementalAlterConfigs", 0, change(BROKER, name, (BACKOFF, DELETE, None)))
        await_value(talk, BROKER, node, BACKOFF, "15000")

    talk.at_end(reset)
    talk.also("DescribeConfigs", 3, look, "before")
    for note, name, value in (("all brokers", "", "14000"), ("this one", node, "13000")):
        talk.ask(change(BROKER, name, (BACKOFF, SET, value)), note)
        await_value(talk, BROKER, node, BACKOFF, value)
        talk.also("DescribeConfigs", 3, look, note)
    rows = ((BACKOFF, "-1"), (BACKOFF, "x"), ("node.id", "5"), ("num.partitions", "3"), ("no.such.key", "1"))
    for key, value in rows:
        talk.ask(change(BROKER, node, (key, SET, value), only_validate=True), f"{key}={value}")


@situation("IncrementalAlterConfigs", CHANGE)
def setting_of_a_group(talk: Talk) -> None:
    """Set a config of a group, an invalid value, an unknown key, and a config of a group without a name."""
    name, key = group(talk), "consumer.session.timeout.ms"
    talk.ask(change(GROUP, name, (key, SET, "50000")), "set")
    await_value(talk, GROUP, name, key, "50000")
    talk.also("DescribeConfigs", 3, describe((GROUP, name, [key]), synonyms=True))
    rows = (("too small", name, key, "1"), ("unknown key", name, "no.such.key", "1"), ("no name", "", key, "50000"))
    for note, other, changed, value in rows:
        talk.ask(change(GROUP, other, (changed, SET, value)), note)


@situation("ListConfigResources", "0-1", alone=True)
def resources_listed(talk: Talk) -> None:
    """List resources: version 0 lists client metrics only, version 1 has types."""
    talk.topic(retention_ms="1000")
    own = {"ConfigResources": talk.is_own("ResourceName")}
    talk.ask({}, only=own)
    if talk.version >= 1:
        talk.ask({"ResourceTypes": [TOPIC]}, "topics", only=own)
        talk.ask({"ResourceTypes": [3]}, "no such type")
