"""Random requests for the configs of topics, brokers, groups and client metrics."""

from __future__ import annotations

from typing import Any

from tests.support.histories import administration
from tests.support.histories.draw import Draw
from tests.support.histories.steps import NODE_NAME, Body, Step, named

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
KINDS = (*[TOPIC] * 6, *[BROKER] * 3, *[GROUP] * 2, *[CLIENT_METRICS] * 2, 0, 3, 64, -1)
SET, DELETE, APPEND, SUBTRACT = range(4)
OPERATIONS = (SET, SET, SET, DELETE, DELETE, APPEND, APPEND, SUBTRACT, SUBTRACT)
ODD_OPERATIONS = (4, -1)
VALUES: dict[int, dict[str, tuple[str | None, ...]]] = {
    TOPIC: {
        "retention.ms": ("1000000000", "-1", "soon", "-2", "", None),
        "cleanup.policy": ("compact", "delete", "compact,delete", "compact,compact", "shred", "", ",", None),
        "max.message.bytes": ("3000", "-1", "2147483648", None),
        "leader.replication.throttled.replicas": ("0:1", "1:1", "*", "0:1,1:1", "none", "", None),
        "min.insync.replicas": ("1", "2", "0", None),
        "compression.type": ("gzip", "producer", "rar", None),
        "segment.ms": ("100000", "0", None),
        "message.timestamp.type": ("LogAppendTime", "now", None),
        "preallocate": ("true", "True", "1", None),
        "no.such.key": ("1", None),
        "": ("1", None),
    },
    BROKER: {
        "message.max.bytes": ("2000000", "-1", "x", "", None),
        "log.cleaner.backoff.ms": ("20000", "-1", "x", None),
        "compression.type": ("gzip", "rar", None),
        "log.cleaner.dedupe.buffer.size": ("100000000", "x", None),
        "broker.id": ("7", None),
        "log.dirs": ("/x", None),
        "no.such.key": (None,),
    },
    GROUP: {
        "consumer.session.timeout.ms": ("50000", "1", "x", "", None),
        "consumer.heartbeat.interval.ms": ("6000", "60000", "x", None),
        "share.record.lock.duration.ms": ("20000", "1", "x", None),
        "share.isolation.level": ("read_committed", "READ_COMMITTED", "none", None),
        "share.auto.offset.reset": ("earliest", "by_duration:PT1H", "by_duration:x", "never", None),
        "streams.num.standby.replicas": ("1", "9", "-1", None),
        "no.such.key": ("1", None),
    },
    CLIENT_METRICS: {
        "interval.ms": ("1000", "99", "3600001", "x", "", None),
        "metrics": ("org.apache.", "*", "a.,b.", "", None),
        "match": ("client_id=a", "client_id=a,client_software_name=b.*", "client_id=[", "nonsense", "x=y", "", None),
        "no.such.key": ("1", None),
    },
}  # fmt: skip
KEYS = {
    TOPIC: [*VALUES[TOPIC], "segment.bytes", "file.delete.delay.ms"],
    BROKER: ["message.max.bytes", "log.cleaner.backoff.ms", "compression.type", "num.partitions", "no.such.key", ""],
    GROUP: [*VALUES[GROUP], "share.session.timeout.ms"],
    CLIENT_METRICS: [*VALUES[CLIENT_METRICS]],
}
LEFT_AT_END = ("message.max.bytes", "log.cleaner.backoff.ms", "compression.type", "log.cleaner.dedupe.buffer.size")


def begin() -> Step:
    """Return the step that deletes the configs of brokers, which histories have in common."""
    rows = [{"Name": key, "ConfigOperation": DELETE, "Value": None} for key in LEFT_AT_END]
    resources = [{"ResourceType": BROKER, "ResourceName": each, "Configs": rows} for each in (NODE_NAME, "")]
    return Step("IncrementalAlterConfigs", 1, {"Resources": resources}, settled=_described(resources))


def _resource(draw: Draw, kind: int) -> Any:
    """Return the name of a resource of the type, rarely one that it cannot have."""
    if kind == TOPIC:
        return administration.name(draw)
    if kind == BROKER:
        return draw.one([NODE_NAME, NODE_NAME, "", "", "99", "x", "-1"])
    return draw.one([named("0"), named("1"), named("0"), ""])


def _values(draw: Draw, kind: int, *, is_incremental: bool) -> list[Body]:
    known = VALUES.get(kind, {"x": ("1",)})
    rows: list[Body] = []
    for _ in draw.rows(0, 1, 1, 1, 2, 2, 3):
        key = draw.one([*known])
        row: Body = {"Name": key, "Value": draw.one(known[key])}
        if is_incremental:
            row["ConfigOperation"] = draw.one(OPERATIONS)
            if row["ConfigOperation"] == DELETE and draw.happens(0.6):
                row["Value"] = None
        rows.append(row)
    return rows


def _resources(draw: Draw, *, is_incremental: bool) -> list[Body]:
    """Return resources with new configs; AlterConfigs has each one once, as Kafka does not respond to duplicates."""
    kinds = [draw.one(KINDS) for _ in draw.rows(0, 1, 1, 1, 2, 2)]
    rows = [
        {
            "ResourceType": kind,
            "ResourceName": _resource(draw, kind),
            "Configs": _values(draw, kind, is_incremental=is_incremental),
        }
        for kind in kinds
    ]
    if is_incremental:
        return rows
    known = {(row["ResourceType"] if row["ResourceType"] in KEYS else 0, str(row["ResourceName"])): row for row in rows}
    known.pop((BROKER, ""), None)  # a deliberate difference (docs/compatibility.md)
    return [*known.values()]


def _described(resources: list[Body]) -> Step:
    """Return a request for the changed configs, whose responses are equal once a broker has applied the change."""
    rows = {
        (each["ResourceType"], str(each["ResourceName"])): {
            "ResourceType": each["ResourceType"],
            "ResourceName": each["ResourceName"],
            "ConfigurationKeys": KEYS.get(each["ResourceType"], []),
        }
        for each in resources
        if each["ResourceType"] in KEYS
    }
    return Step("DescribeConfigs", 4, {"Resources": [*rows.values()], "IncludeSynonyms": True})


def change(draw: Draw) -> Step:
    resources = _resources(draw, is_incremental=True)
    if len(resources) == 1 and draw.happens(0.05):  # in Kafka, other resources have the error of an unknown operation
        del resources[0]["Configs"][1:]  # which of two wrong configs Kafka finds depends on the order of a hash map
        for row in resources[0]["Configs"]:
            row["ConfigOperation"] = draw.one(ODD_OPERATIONS)
    body = {"Resources": resources, "ValidateOnly": draw.happens(0.15)}
    return Step("IncrementalAlterConfigs", draw.random.randint(0, 1), body, settled=_described(resources))


def replace(draw: Draw) -> Step:
    resources = _resources(draw, is_incremental=False)
    body = {"Resources": resources, "ValidateOnly": draw.happens(0.15)}
    return Step("AlterConfigs", draw.random.randint(0, 2), body, settled=_described(resources))


def describe(draw: Draw) -> Step:
    version = draw.random.randint(1, 4)
    resources = []
    for _ in draw.rows(0, 1, 1, 1, 2, 3):
        kind = draw.one(KINDS)
        keys = [draw.one(KEYS.get(kind, ["x"])) for _ in draw.rows(0 if kind != BROKER else 2, 1, 2, 3)]
        is_all = kind != BROKER and draw.happens(0.4)  # no keys means all keys, which differ between the brokers
        resources.append(
            {"ResourceType": kind, "ResourceName": _resource(draw, kind), "ConfigurationKeys": None if is_all else keys}
        )
    body = {"Resources": resources, "IncludeSynonyms": draw.happens(0.6)}
    body |= {"IncludeDocumentation": version >= 3 and draw.happens(0.3)}
    return Step("DescribeConfigs", version, body)


def list_resources(draw: Draw) -> Step:
    version = draw.random.randint(0, 1)
    kinds = [draw.one([TOPIC, GROUP, CLIENT_METRICS, CLIENT_METRICS, BROKER, 0, 3, 64]) for _ in draw.rows(0, 1, 1, 2)]
    return Step("ListConfigResources", version, {"ResourceTypes": kinds} if version else {})
