"""Kafka's tools for replicas and leaders with an embedded cluster: the results are the same as with Apache Kafka."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.testing import EmbeddedCluster
from tests.support import need
from tests.support.kafka.tools import TOOLS, Tools

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    need.kafka_tools()
    with EmbeddedCluster(3) as cluster:
        yield cluster


def described(tools: Tools) -> list[str]:
    """Return the line of each partition of the topic, without the empty fields at its end."""
    said = tools(TOOLS + "TopicCommand", "--describe", "--topic", "moved")
    lines = [line.strip() for line in said.splitlines() if "Partition:" in line]
    return [" ".join(line.split()).partition(" Elr:")[0] for line in lines]


def test_topics_reassignments_and_elections(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """kafka-topics, kafka-reassign-partitions and kafka-leader-election work through two moves and a stopped node."""
    tools = Tools(cluster.bootstrap)
    topics = TOOLS + "TopicCommand"
    tools(topics, "--create", "--topic", "moved", "--replica-assignment", "1:2,2:3")
    assert described(tools) == [
        "Topic: moved Partition: 0 Leader: 1 Replicas: 1,2 Isr: 1,2",
        "Topic: moved Partition: 1 Leader: 2 Replicas: 2,3 Isr: 2,3",
    ]
    said = tools(topics, "--create", "--topic", "wide", "--replication-factor", "4", "--partitions", "1", status=1)
    assert "Unable to replicate the partition 4 time(s)" in said
    plan = tmp_path / "plan.json"
    rows = [{"topic": "moved", "partition": 0, "replicas": [3, 1]}, {"topic": "moved", "partition": 1, "replicas": [1]}]
    plan.write_text(json.dumps({"version": 1, "partitions": rows}))
    reassign = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    said = tools(reassign, "--reassignment-json-file", plan, "--execute")
    assert "Successfully started partition reassignments for moved-0,moved-1" in said
    said = tools(reassign, "--reassignment-json-file", plan, "--verify")
    assert "Reassignment of partition moved-0 is completed." in said
    assert "Reassignment of partition moved-1 is completed." in said
    assert "No partition reassignments found." in tools(reassign, "--list")
    assert described(tools) == [
        "Topic: moved Partition: 0 Leader: 1 Replicas: 3,1 Isr: 1,3",
        "Topic: moved Partition: 1 Leader: 1 Replicas: 1 Isr: 1",
    ]
    elect = (TOOLS + "LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    assert "Successfully completed leader election (PREFERRED) for partitions moved-0" in tools(*elect)
    cluster.stop_node(3)
    assert described(Tools(cluster.bootstrap))[0] == "Topic: moved Partition: 0 Leader: 1 Replicas: 3,1 Isr: 1"
    said = Tools(cluster.bootstrap)(topics, "--describe", "--unavailable-partitions")
    assert said.strip() == ""
    assert "Partition: 0" in Tools(cluster.bootstrap)(topics, "--describe", "--under-replicated-partitions")
    cluster.start_node(3)


def test_tools_over_all_nodes(cluster: EmbeddedCluster) -> None:
    """kafka-log-dirs, kafka-metadata-quorum and others work with all nodes, and with the nodes that are left."""
    tools = Tools(cluster.bootstrap)
    cluster.create_topic("hosted", replicas=[[1, 2], [3, 1]], configs={"min.insync.replicas": "2"})
    said = tools(TOOLS + "LogDirsCommand", "--describe", "--topic-list", "hosted")
    found = json.loads(said.splitlines()[-1])
    hosts = {
        row["broker"]: [one["partition"] for folder in row["logDirs"] for one in folder["partitions"]]
        for row in found["brokers"]
    }
    assert hosts == {1: ["hosted-0", "hosted-1"], 2: ["hosted-0"], 3: ["hosted-1"]}
    quorum = TOOLS + "MetadataQuorumCommand"
    said = tools(quorum, "describe", "--status")
    assert "LeaderId:" in said
    assert all(f'"id": {node}' in said for node in cluster.nodes)
    said = tools(quorum, "describe", "--replication")
    assert [line.split()[-1] for line in said.splitlines()[1:]] == ["Leader", "Follower", "Follower"]
    said = tools(TOOLS + "BrokerApiVersionsCommand")
    assert all(f"{address} (id: {node} rack: null" in said for node, address in cluster.addresses.items())
    assert "hosted" in tools(TOOLS + "GetOffsetShell", "--topic", "hosted")
    cluster.stop_node(2)
    tools = Tools(cluster.bootstrap)
    assert "hosted" in tools(TOOLS + "TopicCommand", "--describe", "--under-min-isr-partitions")
    assert "LeaderId:" in tools(quorum, "describe", "--status")
    assert '"broker":3' in tools(TOOLS + "LogDirsCommand", "--describe")
    cluster.start_node(2)
