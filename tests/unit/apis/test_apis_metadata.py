"""Metadata, ApiVersions and DescribeCluster."""

from __future__ import annotations

import struct
import uuid

import pytest

from kbroker.apis import api18_api_versions as api_versions
from kbroker.handlers.api_table import KafkaApis, encode_response
from kbroker.metadata.features import SUPPORTED, FinalizedFeatures
from kbroker.protocol import codec
from kbroker.requests.context import Body, RequestContext
from tests.support.server import make_bench

NOT_ASKED = -(2**31)
UNKNOWN_ID = uuid.UUID(int=0x1234)


def named(*names: str, create: bool = False) -> Body:
    return {"Topics": [{"Name": name} for name in names], "AllowAutoTopicCreation": create}


def codes(response: Body) -> dict[str, int]:
    return {row["Name"]: row["ErrorCode"] for row in response["Topics"]}


@pytest.mark.parametrize("version", range(14))
def test_a_topic_in_every_version(version: int) -> None:
    """Broker, controller and partitions are there in each version; ids from v10 (quirks 6, 7, 15)."""
    bench = make_bench()
    view = bench.create("t", 3)
    body = named("t", create=True)
    if version < 4:
        del body["AllowAutoTopicCreation"]
    response = bench.ask("Metadata", version, body)
    assert [(b["NodeId"], b["Host"], b["Port"]) for b in response["Brokers"]] == [(1, "here", 9092)]
    assert response["ControllerId"] == (1 if version else -1)
    assert response["ClusterId"] == (bench.ctx.cluster_id if version >= 2 else None)
    (topic,) = response["Topics"]
    assert (topic["ErrorCode"], topic["Name"], topic["IsInternal"]) == (0, "t", False)
    assert topic["TopicId"] == (view.topic_id if version >= 10 else uuid.UUID(int=0))
    rows = [(p["PartitionIndex"], p["LeaderId"], p["ReplicaNodes"], p["IsrNodes"]) for p in topic["Partitions"]]
    assert rows == [(index, 1, [1], [1]) for index in range(3)]
    assert {p["LeaderEpoch"] for p in topic["Partitions"]} == {0 if version >= 7 else -1}


@pytest.mark.parametrize(
    ("version", "topics", "count"), [(0, [], 2), (1, None, 2), (1, [], 0), (13, None, 2), (13, [], 0)]
)
def test_null_is_all_and_empty_is_none(version: int, topics: list[Body] | None, count: int) -> None:
    """But in v0 an empty list is all: old clients begin with it (quirk 22)."""
    bench = make_bench()
    bench.create("a")
    bench.create("b")
    assert len(bench.ask("Metadata", version, {"Topics": topics})["Topics"]) == count


def test_operations_only_when_asked_for() -> None:
    """INT32_MIN otherwise; filled, no bit above 14 is set, or kafka-python fails (quirk 9)."""
    bench = make_bench()
    bench.create("t")
    response = bench.ask("Metadata", 8, named("t"))
    assert (response["Topics"][0]["TopicAuthorizedOperations"], response["ClusterAuthorizedOperations"]) == (
        NOT_ASKED,
    ) * 2
    asked = {"IncludeTopicAuthorizedOperations": True, "IncludeClusterAuthorizedOperations": True}
    response = bench.ask("Metadata", 8, {**named("t"), **asked})
    assert (response["Topics"][0]["TopicAuthorizedOperations"], response["ClusterAuthorizedOperations"]) == (3576, 8096)
    assert not (3576 | 8096) & ~0b111111111111000


@pytest.mark.parametrize("version", range(14))
def test_a_topic_that_is_created_on_the_way_is_in_the_response(version: int) -> None:
    """In its place among the others; Kafka says 3 for a while, which leaves clients between two states."""
    bench = make_bench(num_partitions=2)
    bench.create("there")
    body: dict[str, object] = {"Topics": [{"Name": name} for name in ("new", "there", "..", "newer")]}
    if version >= 4:
        body["AllowAutoTopicCreation"] = True
    response = bench.ask("Metadata", version, body)
    found = [(row["Name"], row["ErrorCode"], len(row["Partitions"])) for row in response["Topics"]]
    assert found == [("new", 0, 2), ("there", 0, 1), ("..", 17, 0), ("newer", 0, 2)]
    assert bench.ask("Metadata", version, body)["Topics"] == response["Topics"]


def test_the_offsets_topic_is_there_when_asked_for() -> None:
    """Its coordinator would have made it: internal, with 50 partitions, at once."""
    bench = make_bench()
    assert codes(bench.ask("Metadata", 12, named("__consumer_offsets"))) == {"__consumer_offsets": 3}
    (topic,) = bench.ask("Metadata", 12, named("__consumer_offsets", create=True))["Topics"]
    assert (topic["ErrorCode"], topic["IsInternal"], len(topic["Partitions"])) == (0, True, 50)


def test_names_that_are_no_utf8() -> None:
    """Refused like any bad name, with replacement characters (Java's way)."""
    bench = make_bench()
    body = codec.decode_request(3, 4, struct.pack(">ih", 1, 2) + b"\xff\xfe\0")
    entry = KafkaApis().find(3, 4)
    response = codec.encode_response(3, 4, entry.handle(bench.ctx, body, RequestContext(3, 4)))  # type: ignore[arg-type, misc]
    assert codes(codec.decode_response(3, 4, response)) == {"\ufffd\ufffd": 17}


@pytest.mark.parametrize(("create", "enabled"), [(False, True), (True, False)])
def test_nothing_is_created_unasked(create: bool, enabled: bool) -> None:
    """Neither when the client forbids it, nor when the broker does."""
    bench = make_bench(auto_create_topics_enable=enabled)
    for _ in range(2):
        assert codes(bench.ask("Metadata", 12, named("new", create=create))) == {"new": 3}


def test_bad_and_colliding_names() -> None:
    """Impossible names are 17, a collision is 3 and is not created, a name twice is once in the response."""
    bench = make_bench()
    bench.create("a.b")
    for _ in range(2):
        response = bench.ask("Metadata", 12, named("", "..", "white space", "a_b", "a.b", "a.b", create=True))
        assert codes(response) == {"": 17, "..": 17, "white space": 17, "a_b": 3, "a.b": 0}
        assert len(response["Topics"]) == 5


def test_by_id() -> None:
    """From v12: found ids have their name, unknown ones are 100 without (quirk 22); names beside ids do not count."""
    bench = make_bench()
    view = bench.create("t")
    bench.create("other")
    rows = [{"Name": None, "TopicId": view.topic_id}, {"Name": None, "TopicId": UNKNOWN_ID}, {"Name": "other"}]
    response = bench.ask("Metadata", 12, {"Topics": rows})
    found = {(row["Name"], row["TopicId"], row["ErrorCode"]) for row in response["Topics"]}
    assert found == {("t", view.topic_id, 0), (None, UNKNOWN_ID, 100)}


@pytest.mark.parametrize(
    "row", [{"Name": "t", "TopicId": UNKNOWN_ID}, {"Name": None, "TopicId": UNKNOWN_ID}, {"Name": None}]
)
@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_refused_before_v12(version: int, row: Body) -> None:
    """The whole response is an error, without brokers; names are never null there."""
    response = make_bench().ask("Metadata", version, {"Topics": [row]})
    assert (response["Brokers"], response["ControllerId"], response["Topics"][0]["ErrorCode"]) == ([], -1, 42)
    assert response["Topics"][0]["Name"] == (row["Name"] or "")


def test_neither_name_nor_id() -> None:
    """4.3.1 fails on it: -1 for all, at the top too from v13."""
    response = make_bench().ask("Metadata", 13, {"Topics": [{"Name": None}]})
    assert (response["ErrorCode"], response["Topics"][0]["ErrorCode"], response["Topics"][0]["Name"]) == (-1, -1, "")


# ---------------------------------------------------------------- ApiVersions

FLOORS = {0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
          13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
          22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3),
          31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2),
          40: (1, 2), 41: (1, 3),
          42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0),
          51: (0, 0), 55: (0, 2), 57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1),
          69: (0, 1), 74: (0, 1), 75: (0, 0), 80: (0, 1), 81: (0, 0)}  # fmt: skip

FRESH = FinalizedFeatures({name: high for name, (_, high) in SUPPORTED.items()}, 0)


def test_advertised_versions_are_the_table() -> None:
    """Old librdkafka turns features off if a floor moves (quirk 1); nothing else is advertised (quirk 19)."""
    assert dict(KafkaApis().ranges()) == FLOORS


@pytest.mark.parametrize("version", range(5))
def test_api_versions_bodies(version: int) -> None:
    """Every version carries the whole table (quirk 2)."""
    bodies, _ = api_versions.encode_bodies(FLOORS, FRESH)
    response = codec.decode_response(18, version, bodies[version].data)
    assert {row["ApiKey"]: (row["MinVersion"], row["MaxVersion"]) for row in response["ApiKeys"]} == FLOORS
    assert response["ErrorCode"] == 0
    assert response == make_bench().ask("ApiVersions", version, software("a", "1") if version >= 3 else {})


@pytest.mark.parametrize("version", range(5))
def test_features_are_what_is_built(version: int) -> None:
    """Metadata, groups and transactions as of Kafka 4.3 are in force, but no share or streams groups (quirk 4).

    Clients of version 3 read no range that begins at 0 (quirk 3); before there were no features.
    """
    bodies, _ = api_versions.encode_bodies(FLOORS, FRESH)
    response = codec.decode_response(18, version, bodies[version].data)
    supported = {row["Name"]: (row["MinVersion"], row["MaxVersion"]) for row in response["SupportedFeatures"]}
    in_force = [(row["Name"], row["MinVersionLevel"], row["MaxVersionLevel"]) for row in response["FinalizedFeatures"]]
    if version < 3:
        assert (supported, in_force) == ({}, [])
        return
    expected = [("group.version", 1, 1), ("metadata.version", 30, 30), ("transaction.version", 2, 2)]
    assert (in_force, response["FinalizedFeaturesEpoch"]) == (expected, 0)
    metadata = {"metadata.version": (7, 30)}
    not_built = ("share", "streams", "kraft", "eligible.leader.replicas")
    zeros = {f"{name}.version": (0, 0) for name in not_built}
    built = {"group.version": (0, 1), "transaction.version": (0, 2)}
    assert supported == (metadata if version == 3 else metadata | zeros | built)


def software(name: str, version: str) -> dict[str, str]:
    return {"ClientSoftwareName": name, "ClientSoftwareVersion": version}


@pytest.mark.parametrize(
    ("name", "number", "code"),
    [
        ("", "1", 42),
        ("a", "", 42),
        ("a b", "1", 42),
        ("-x", "1", 42),
        ("x.y-z", "1.0-rc.1", 0),
        ("ü", "1", 42),
        ("a\n", "1", 42),
    ],
)
@pytest.mark.parametrize("version", [3, 4])
def test_software_names(version: int, name: str, number: str, code: int) -> None:
    """A strange name is 42 with no ranges; librdkafka then tries v0."""
    bench = make_bench()
    response = bench.ask("ApiVersions", version, software(name, number))
    assert (response["ErrorCode"], bool(response["ApiKeys"])) == (code, code == 0)
    if code:
        assert (
            codec.decode_response(18, version, api_versions.encode_bodies(FLOORS, FRESH)[1][version].data) == response
        )


def test_unknown_version_of_api_versions() -> None:
    """The response is v0 with 35 and the range of key 18 alone (quirk 2)."""
    response = codec.decode_response(18, 0, api_versions.unsupported(FLOORS))
    rows = [{"ApiKey": 18, "MinVersion": 0, "MaxVersion": 4}]
    assert (response["ErrorCode"], response["ApiKeys"]) == (35, rows)


def test_api_versions_has_response_header_0() -> None:
    """Whatever its version, although the body is flexible; others get a tagged section."""
    apis, bench = KafkaApis(), make_bench()
    entry = apis.find(18, 4)
    assert entry is not None
    assert entry.handle is not None
    body = entry.handle(bench.ctx, software("a", "1"), RequestContext(18, 4))
    assert body is not None
    data = encode_response(entry, RequestContext(18, 4, 7), body)
    assert struct.unpack_from(">ih", data) == (7, 0)
    entry = apis.find(60, 0)
    data = encode_response(entry, RequestContext(60, 0, 7), {"ClusterId": "c"})  # type: ignore[arg-type]
    assert data[:5] == b"\0\0\0\x07\0"


@pytest.mark.parametrize(
    ("key", "version"), [(0, 2), (0, 14), (1, 3), (3, -1), (3, 14), (19, 1), (4, 0), (999, 0), (8, 1)]
)
def test_what_is_not_served(key: int, version: int) -> None:
    """No entry: the connection is closed (quirk 20). Produce 0-2 are advertised and yet not served."""
    assert KafkaApis().find(key, version) is None


# ---------------------------------------------------------------- DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(version: int) -> None:
    """The one broker is the controller (quirk 7); operations only when asked for."""
    bench = make_bench()
    response = bench.ask("DescribeCluster", version, {})
    assert (response["ErrorCode"], response["ControllerId"], response["ClusterId"]) == (0, 1, bench.ctx.cluster_id)
    assert [(b["BrokerId"], b["Host"], b["Port"]) for b in response["Brokers"]] == [(1, "here", 9092)]
    assert response["ClusterAuthorizedOperations"] == NOT_ASKED
    response = bench.ask("DescribeCluster", version, {"IncludeClusterAuthorizedOperations": True})
    assert response["ClusterAuthorizedOperations"] == 8096


@pytest.mark.parametrize(("kind", "code"), [(0, 115), (2, 114), (3, 115)])
def test_describe_cluster_for_others(kind: int, code: int) -> None:
    """Controllers are not found at a broker's listener."""
    response = make_bench().ask("DescribeCluster", 1, {"EndpointType": kind})
    assert (response["ErrorCode"], response["ClusterId"], response["ControllerId"], response["Brokers"]) == (
        code,
        "",
        -1,
        [],
    )
