"""Metadata and ApiVersions in cases without a recorded response of Kafka."""

import pytest

from kbroker.apis import api18_api_versions as api_versions
from kbroker.handlers.api_table import KafkaApis
from kbroker.metadata.features import SUPPORTED, FinalizedFeatures
from kbroker.protocol import codec
from kbroker.requests.context import Body
from tests.support.server import make_bench
from tests.unit.handlers.test_advertised_apis import KAFKA


def named(*names: str, create: bool = False) -> Body:
    return {"Topics": [{"Name": name} for name in names], "AllowAutoTopicCreation": create}


def codes(response: Body) -> dict[str, int]:
    return {row["Name"]: row["ErrorCode"] for row in response["Topics"]}


@pytest.mark.parametrize("version", range(14))
def test_a_topic_that_is_created_on_the_way_is_in_the_response(version: int) -> None:
    """The response has the created topic, for which Kafka returns UNKNOWN_TOPIC_OR_PARTITION for a while."""
    bench = make_bench(num_partitions=2)
    bench.create("there")
    body: dict[str, object] = {"Topics": [{"Name": name} for name in ("new", "there", "..", "newer")]}
    if version >= 4:
        body["AllowAutoTopicCreation"] = True
    response = bench.ask("Metadata", version, body)
    found = [(row["Name"], row["ErrorCode"], len(row["Partitions"])) for row in response["Topics"]]
    assert found == [("new", 0, 2), ("there", 0, 1), ("..", 17, 0), ("newer", 0, 2)]
    assert bench.ask("Metadata", version, body)["Topics"] == response["Topics"]


@pytest.mark.parametrize(("create", "enabled"), [(False, True), (True, False)])
def test_nothing_is_created_unasked(create: bool, enabled: bool) -> None:
    """Metadata creates no topic if the client or the broker forbids it."""
    bench = make_bench(auto_create_topics_enable=enabled)
    for _ in range(2):
        assert codes(bench.ask("Metadata", 12, named("new", create=create))) == {"new": 3}


def test_a_page_has_no_more_partitions_than_the_broker_allows() -> None:
    """max.request.partition.size.limit counts even for a client that allows more; the cursor has the rest."""
    bench = make_bench(max_request_partition_size_limit=2)
    bench.create("t", 3)
    body = {"Topics": [{"Name": "t"}], "ResponsePartitionLimit": 2000, "Cursor": None}
    response = bench.ask("DescribeTopicPartitions", 0, body)
    assert [row["PartitionIndex"] for row in response["Topics"][0]["Partitions"]] == [0, 1]
    assert response["NextCursor"] == {"TopicName": "t", "PartitionIndex": 2}


# ---------------------------------------------------------------- ApiVersions

FRESH = FinalizedFeatures({name: high for name, (_, high) in SUPPORTED.items()}, 0)


def test_advertised_versions_are_the_table() -> None:
    """Old librdkafka disables features if a lowest version changes (quirk 1); no other API is advertised (quirk 19)."""
    pytest.importorskip("opentelemetry")
    assert dict(KafkaApis().ranges()) == KAFKA


@pytest.mark.parametrize("version", range(5))
def test_features_are_what_is_built(version: int) -> None:
    """Metadata, all kinds of groups and transactions of Kafka 4.3 are finalized (quirk 4).

    Version 3 omits ranges that begin at 0, which its clients cannot read (quirk 3); older versions have no features.
    """
    bodies, _ = api_versions.encode_bodies(KAFKA, FRESH)
    response = codec.decode_response(18, version, bodies[version].data)
    supported = {row["Name"]: (row["MinVersion"], row["MaxVersion"]) for row in response["SupportedFeatures"]}
    in_force = [(row["Name"], row["MinVersionLevel"], row["MaxVersionLevel"]) for row in response["FinalizedFeatures"]]
    if version < 3:
        assert (supported, in_force) == ({}, [])
        return
    expected = [
        ("group.version", 1, 1), ("kraft.version", 1, 1), ("metadata.version", 30, 30), ("share.version", 1, 1),
        ("streams.version", 1, 1), ("transaction.version", 2, 2),
    ]  # fmt: skip
    assert (in_force, response["FinalizedFeaturesEpoch"]) == (expected, 0)
    metadata = {"metadata.version": (7, 30)}
    zeros = {"eligible.leader.replicas.version": (0, 0)}
    built = {f"{name}.version": (0, 1) for name in ("group", "kraft", "share", "streams")}
    built["transaction.version"] = (0, 2)
    assert supported == (metadata if version == 3 else metadata | zeros | built)


def test_a_software_name_ends_at_its_line() -> None:
    response = make_bench().ask("ApiVersions", 4, {"ClientSoftwareName": "a\n", "ClientSoftwareVersion": "1"})
    assert (response["ErrorCode"], response["ApiKeys"]) == (42, [])
