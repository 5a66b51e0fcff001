"""Clusters of other versions of Apache Kafka, and features that change while kbroker is a member."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import need
from tests.support.broker import wait_for
from tests.support.client import Client
from tests.support.kafka import KafkaCluster
from tests.support.kafka.tools import TOOLS, Tools
from tests.support.member_node import MemberNode

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

FEATURES = f"{TOOLS}FeatureCommand"


@pytest.mark.parametrize(("version", "level"), [("4.0.0", "25"), ("4.1.1", "27"), ("4.2.0", "29")])
def test_controllers_that_cannot_exclude_the_node(version: str, level: str, tmp_path: Path) -> None:
    """They would place replicas on it: the start ends with the reason, and nothing is registered."""
    need.kafka_tools()
    with KafkaCluster(1, controllers=1, version=version) as kafka:
        check_refused(kafka, MemberNode(tmp_path / "member", kafka), level)


def check_refused(kafka: KafkaCluster, member: MemberNode, level: str) -> None:
    with pytest.raises(AssertionError, match=rf"metadata\.version {level} .*expected 30 .*kafka-features"):
        member.start()
    with Client(kafka.brokers[0].bootstrap) as client:
        brokers = client.call("DescribeCluster", 1, {"EndpointType": 1})["Brokers"]
    assert [row["BrokerId"] for row in brokers] == [1]


def finalized(bootstrap: str) -> Mapping[str, int]:
    with Client(bootstrap) as client:
        response = client.call("ApiVersions", 4, {"ClientSoftwareName": "test", "ClientSoftwareVersion": "1"})
    return {row["Name"]: row["MaxVersionLevel"] for row in response["FinalizedFeatures"]}


def test_features_of_the_cluster_change(tmp_path: Path) -> None:
    """A cluster with the features of 4.2 is upgraded, kbroker joins; further changes are those of its clients."""
    need.kafka_tools()
    with KafkaCluster(1, controllers=1, release="4.2") as kafka:
        check_refused(kafka, MemberNode(tmp_path / "early", kafka), "29")
        Tools(kafka.bootstrap)(FEATURES, "upgrade", "--release-version", "4.3")
        with MemberNode(tmp_path / "member", kafka) as member:
            theirs, mine = Tools(kafka.bootstrap), Tools(member.front)
            for command, level in (("downgrade", 0), ("upgrade", 1)):
                mine(FEATURES, command, "--feature", f"streams.version={level}")
                wait_for(
                    "the feature in ApiVersions",
                    lambda level=level: finalized(member.bootstrap).get("streams.version", 0) == level,  # type: ignore[misc]
                )
                wait_for("Kafka's view", lambda: finalized(kafka.bootstrap) == finalized(member.bootstrap))
                described = [tools(FEATURES, "describe").partition("Epoch")[0] for tools in (theirs, mine)]
                assert described[0] == described[1]
