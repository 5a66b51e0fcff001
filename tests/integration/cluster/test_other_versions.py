"""Clusters of other versions of Apache Kafka, and feature levels that change while kbroker is a member."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.handlers.api_table import KafkaApis
from tests.integration.cluster.test_moving_controller import CREATE_TOPICS, error_of
from tests.support import need
from tests.support.broker import wait_for
from tests.support.client import Client, new_topics
from tests.support.kafka import KafkaCluster
from tests.support.kafka.tools import TOOLS, Tools
from tests.support.member_node import MemberNode

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

FEATURES = f"{TOOLS}FeatureCommand"


@pytest.mark.parametrize(("version", "level"), [("4.0.0", 25), ("4.1.1", 27), ("4.2.0", 29)])
def test_controllers_that_cannot_exclude_the_node(version: str, level: int, tmp_path: Path) -> None:
    """kbroker stays fenced where controllers would place replicas on it; it forwards changes nevertheless."""
    need.kafka_tools()
    with KafkaCluster(1, controllers=1, version=version) as kafka, MemberNode(tmp_path / "member", kafka) as member:
        check_fenced(kafka, member, level)
        with Client(member.bootstrap) as client:
            assert error_of(client.call(CREATE_TOPICS, 7, new_topics("through-kbroker"))) == 0
        mine, theirs = (versions(one) for one in (member.bootstrap, kafka.bootstrap))
        forwarded = [entry.key for entry in KafkaApis(forwards=True).entries.values() if entry.is_forwarded]
        assert {key: mine.get(key) for key in forwarded} == {key: theirs.get(key) for key in forwarded}


def check_fenced(kafka: KafkaCluster, member: MemberNode, level: int) -> None:
    assert f"metadata.version of the cluster is {level} " in member.tail(), member.tail()
    with Client(kafka.brokers[0].bootstrap) as client:
        brokers = client.call("DescribeCluster", 1, {"EndpointType": 1})["Brokers"]
    assert [row["BrokerId"] for row in brokers] == [1]


def versions(bootstrap: str) -> dict[int, tuple[int, int]]:
    """Return the supported version range of each API key."""
    with Client(bootstrap) as client:
        rows = client.call("ApiVersions", 4, {"ClientSoftwareName": "test", "ClientSoftwareVersion": "1"})["ApiKeys"]
    return {row["ApiKey"]: (row["MinVersion"], row["MaxVersion"]) for row in rows}


def finalized(bootstrap: str) -> Mapping[str, int]:
    with Client(bootstrap) as client:
        response = client.call("ApiVersions", 4, {"ClientSoftwareName": "test", "ClientSoftwareVersion": "1"})
    return {row["Name"]: row["MaxVersionLevel"] for row in response["FinalizedFeatures"]}


def test_features_of_the_cluster_change(tmp_path: Path) -> None:
    """The upgrade of a cluster from the features of 4.2 unfences kbroker; its clients see later changes of features."""
    need.kafka_tools()
    with KafkaCluster(1, controllers=1, release="4.2") as kafka, MemberNode(tmp_path / "member", kafka) as member:
        check_fenced(kafka, member, 29)
        theirs, mine = Tools(kafka.bootstrap), Tools(member.front)
        theirs(FEATURES, "upgrade", "--release-version", "4.3")
        with Client(kafka.bootstrap) as client:
            wait_for("two brokers", lambda: len(client.call("Metadata", 13, {"Topics": []})["Brokers"]) == 2)
        for command, level in (("downgrade", 0), ("upgrade", 1)):
            mine(FEATURES, command, "--feature", f"streams.version={level}")
            wait_for(
                "the feature in ApiVersions",
                lambda level=level: finalized(member.bootstrap).get("streams.version", 0) == level,  # type: ignore[misc]
            )
            wait_for("Kafka's view", lambda: finalized(kafka.bootstrap) == finalized(member.bootstrap))
            described = [tools(FEATURES, "describe").partition("Epoch")[0] for tools in (theirs, mine)]
            assert described[0] == described[1]
