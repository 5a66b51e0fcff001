"""kbroker as a broker of a cluster of Apache Kafka, in a separate process."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.broker import ConfiguredBroker, run_to_end
from tests.support.kafka import KafkaCluster
from tests.support.ports import free_run

NODE_ID = 9
TOKEN = "token-of-the-http-port"


class MemberNode(ConfiguredBroker):
    """Node 9 of a cluster, formatted before its first start.

    The node has a listener without security, and a listener with SCRAM if the brokers of the cluster have one. No other
    broker has the listener FRONT: clients that connect there send all requests to this node.

    Args:
        folder: of properties and data.
        settings: override the settings of a broker of the cluster.
    """

    def __init__(
        self, folder: Path, cluster: KafkaCluster, settings: Mapping[str, str] | None = None, node_id: int = NODE_ID
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        first = free_run(3)
        super().__init__(folder, first, folder / "server.properties")
        self.node_id = node_id
        self._cluster_id = cluster.cluster_id
        listeners = f"PLAINTEXT://127.0.0.1:{first},FRONT://127.0.0.1:{first + 2}"
        if cluster.protocol:
            listeners += f",{cluster.protocol}://127.0.0.1:{first + 1}"
        theirs = cluster.brokers[0].properties()
        self.values = {
            **theirs,
            "node.id": str(node_id),
            "listeners": listeners,
            "listener.security.protocol.map": f"{theirs['listener.security.protocol.map']},FRONT:PLAINTEXT",
            "log.dirs": str(folder / "data"),
            "kbroker.metrics.listener": "127.0.0.1:0",
            "kbroker.console.token": TOKEN,
            **(settings or {}),
        }

    @property
    def secured(self) -> str:
        """Address of the listener with SCRAM."""
        return f"127.0.0.1:{self.port + 1}"

    @property
    def front(self) -> str:
        """Address of the listener that no other broker of the cluster has."""
        return f"127.0.0.1:{self.port + 2}"

    @property
    def http(self) -> str:
        """URL of the HTTP port."""
        (url,) = re.findall(r"metrics at (http://\S+)/metrics", self.tail())[-1:]
        return str(url)

    def start(self, seconds: float = 30.0) -> float:
        """Format the folder unless it is formatted, start the node and wait for the ready line."""
        lines = (f"{name}={value}\n" for name, value in self.values.items())
        self.properties.write_text("".join(lines), encoding="utf-8")
        if not (self.folder / "data" / "meta.properties").exists():
            words = ["storage", "format", "--cluster-id", self._cluster_id, "--config", str(self.properties)]
            run_to_end([sys.executable, "-c", "from kbroker.__main__ import main; main()", *words])
        return super().start(seconds)
