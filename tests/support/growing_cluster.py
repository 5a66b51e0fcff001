"""Cluster of Apache Kafka that grows from one folder: the first node is the node that kbroker served before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.support import wire
from tests.support.broker import wait_for
from tests.support.client import Client
from tests.support.either_broker import EitherBroker, KafkaNode
from tests.support.kafka.tools import TOOLS, Tools, run_tool
from tests.support.ports import free_run

QUORUM = f"{TOOLS}MetadataQuorumCommand"
REASSIGN = f"{TOOLS}reassign.ReassignPartitionsCommand"


class GrowingCluster:
    """Further nodes of the cluster of a first node, and Kafka's tools for all nodes.

    Args:
        first: node 1 while kbroker serves it; its client ports are in use only then.
        count: number of further nodes.
    """

    def __init__(self, folder: Path, first: EitherBroker, count: int = 2) -> None:
        self.first = first
        self._folder = folder
        start = free_run(3 * count)
        self.ports = {1: first.port} | {number + 2: start + 3 * number for number in range(count)}
        self.nodes: dict[int, KafkaNode] = {}
        controllers = ",".join(f"127.0.0.1:{port + 1}" for port in self.ports.values())
        first.write_properties(controller_quorum_bootstrap_servers=controllers)

    def __enter__(self) -> GrowingCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.stop()

    def bootstrap(self, node_id: int) -> str:
        """Return the address of a node's listener without security."""
        return f"127.0.0.1:{self.ports[node_id]}"

    def sasl_bootstrap(self, node_id: int) -> str:
        """Return the address of a node's listener with SCRAM."""
        return f"127.0.0.1:{self.ports[node_id] + 2}"

    def add(self, node_id: int, *, joins_itself: bool) -> None:
        """Format and start a node, which becomes a controller on its own or by means of Kafka's tool."""
        folder, port = self._folder / f"node-{node_id}", self.ports[node_id]
        folder.mkdir()
        listeners = self.first.settings["listeners"]
        for offset in range(3):
            listeners = listeners.replace(f":{self.ports[1] + offset}", f":{port + offset}")
        changes = {"node.id": str(node_id), "listeners": listeners, "log.dirs": str(folder / "data")}
        if joins_itself:
            changes["controller.quorum.auto.join.enable"] = "true"
        properties = folder / "server.properties"
        lines = (f"{name}={value}\n" for name, value in {**self.first.settings, **changes}.items())
        properties.write_text("".join(lines), encoding="utf-8")
        cluster_id = self._meta("cluster.id", self.first.log_dirs[0])
        options = ("--cluster-id", cluster_id, "--config", properties, "--no-initial-controllers")
        done = run_tool("kafka.tools.StorageTool", "format", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        self.nodes[node_id] = node = KafkaNode(folder, port, properties)
        node.start()
        wait_for(f"node {node_id} responds", lambda: wire.responses(node.bootstrap), 60)
        if not joins_itself:
            wait_for(f"node {node_id} follows the quorum", lambda: node_id in self.quorum(1), 60, 0.5)
            Tools(self.bootstrap(1), properties)(QUORUM, "add-controller")
        wait_for(f"controller {node_id}", lambda: self.quorum(1).get(node_id) == "Follower", 60, 0.5)

    def quorum(self, node_id: int) -> dict[int, str]:
        """Return the status of each node in the quorum, as a node describes it."""
        text = Tools(self.bootstrap(node_id))(QUORUM, "describe", "--replication")
        rows = [line.split() for line in text.splitlines()[1:] if line.strip()]
        return {int(row[0]): row[-1] for row in rows}

    def reassign(self, node_id: int, nodes: Sequence[int], *, rotates: bool, throttle: int) -> None:
        """Move the replicas of all partitions to these nodes, by requests to ``node_id``; wait for the end.

        Args: ``rotates``: the preferred leaders are spread over the nodes; ``throttle``: bytes a second between
        brokers.
        """
        with Client(self.bootstrap(node_id)) as client:
            topics = client.call("Metadata", 13, {"Topics": None, "AllowAutoTopicCreation": False})["Topics"]
        rows = [
            {"topic": topic["Name"], "partition": row["PartitionIndex"], "replicas": list(nodes)}
            for topic in topics
            for row in topic["Partitions"]
        ]
        if rotates:
            for row in rows:
                at = row["partition"] % len(nodes)
                row["replicas"] = [*nodes[at:], *nodes[:at]]
        plan = self._folder / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": rows}), encoding="utf-8")
        tools = Tools(self.bootstrap(node_id))
        tools(REASSIGN, "--reassignment-json-file", plan, "--execute", "--throttle", throttle)

        def is_done() -> bool:
            text = tools(REASSIGN, "--reassignment-json-file", plan, "--verify")
            assert "There is no active reassignment" not in text, text
            return "still in progress" not in text

        wait_for(f"replicas on nodes {nodes}", is_done, 300, 1)
        tools(f"{TOOLS}LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")

    def retire_first(self, other: int) -> None:
        """Remove the first node, which has no replicas any more, from the cluster by requests to another node."""
        directory = self._meta("directory.id", self.first.log_dirs[0])
        tools = Tools(self.bootstrap(other))
        tools(QUORUM, "remove-controller", "--controller-id", 1, "--controller-directory-id", directory)
        self.first.stop()
        wait_for("the other controllers", lambda: self._controllers(other) == set(self.nodes), 60, 0.5)
        tools(f"{TOOLS}ClusterTool unregister", "--id", 1)

    def _controllers(self, node_id: int) -> set[int]:
        return {at for at, status in self.quorum(node_id).items() if status in ("Leader", "Follower")}

    @staticmethod
    def _meta(name: str, folder: Path) -> str:
        lines = (folder / "meta.properties").read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)[name]
