"""Cluster of several nodes of Apache Kafka in KRaft mode on this machine."""

import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.kafka.broker import ApacheKafka, new_id
from tests.support.kafka.jars import VERSION, ClassArchive, classpath
from tests.support.ports import free_run

HEAP = "384m"
SMALL_HEAP = "160m"
PORTS = 3  # ports of a node: PLAINTEXT, CONTROLLER, one more
FIRST_CONTROLLER = 101
# A killed broker is fenced after three seconds instead of nine; few partitions of internal topics start fast, and the
# cleaner's buffer fits into a small heap.
QUICK = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "replica.lag.time.max.ms": "5000",
    "log.cleaner.dedupe.buffer.size": "2097152",
}


class KafkaCluster:
    """Brokers with node ids from 1, and controllers, started together by `with`. All data is deleted at the end.

    Without ``controllers`` brokers are controllers too: of two brokers only the first, so that the second can be
    killed; of three or more brokers all, so that any broker can be killed. With ``controllers``, the controllers are
    separate nodes with ids from 101 in a dynamic quorum.

    Args:
        count: number of brokers.
        settings: of each node; they override the settings of a cluster.
        controllers: number of nodes that are controllers only.
        protocol: of a further listener of each broker, such as SASL_SSL; "" for no further listener.
        before: jars at the beginning of the class path.
        options: of each JVM; `{folder}` is the folder of its node.
        version: of Apache Kafka; ``release``: of the features of the cluster, "" for the newest.
    """

    def __init__(
        self,
        count: int = 2,
        settings: Mapping[str, str] | None = None,
        *,
        controllers: int = 0,
        protocol: str = "",
        before: str = "",
        options: tuple[str, ...] = (),
        version: str = VERSION,
        release: str = "",
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="apache-kafka-cluster-"))
        self.cluster_id = new_id()
        self.protocol = protocol
        self._heap = SMALL_HEAP if controllers else HEAP
        self._before, self._options, self._version = before, options, version
        first = free_run(PORTS * (count + controllers))
        self._ports = [first + PORTS * index for index in range(count)]
        quorum_ports = [first + PORTS * (count + index) + 1 for index in range(controllers)]
        voters = range(0 if controllers else count if count > 2 else 1)
        shared = {
            "controller.quorum.voters": ",".join(f"{i + 1}@127.0.0.1:{self._ports[i] + 1}" for i in voters),
            "controller.quorum.bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in quorum_ports),
            "default.replication.factor": str(count),
            "offsets.topic.replication.factor": str(count),
            "transaction.state.log.replication.factor": str(count),
            "share.coordinator.state.topic.replication.factor": str(count),
            "transaction.state.log.min.isr": "1",
            **QUICK,
            **(settings or {}),
        }
        ids = range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers)
        quorum = [f"{node}@127.0.0.1:{port}:{new_id()}" for node, port in zip(ids, quorum_ports, strict=True)]
        with_release = ("--release-version", release) if release else ()
        as_voter = ("--initial-controllers", ",".join(quorum), *with_release)
        as_observer = ("--no-initial-controllers", *with_release)
        self.controllers = [
            self._node(
                node,
                port,
                {**shared, "process.roles": "controller", "listeners": f"CONTROLLER://127.0.0.1:{port}"},
                as_voter,
            )
            for node, port in zip(ids, quorum_ports, strict=True)
        ]
        self.brokers: list[ApacheKafka] = []
        for index, port in enumerate(self._ports):
            is_voter = index in voters
            listeners = [f"PLAINTEXT://127.0.0.1:{port}"]
            if is_voter:
                listeners.append(f"CONTROLLER://127.0.0.1:{port + 1}")
            if protocol:
                listeners.append(f"{protocol}://127.0.0.1:{port + 2}")
            own = {
                "process.roles": "broker,controller" if is_voter else "broker",
                "listeners": ",".join(listeners),
                "inter.broker.listener.name": "PLAINTEXT",
            }
            self.brokers.append(self._node(index + 1, port, shared | own, as_observer if controllers else ()))

    def _node(self, node_id: int, port: int, settings: Mapping[str, str], formatted: tuple[str, ...]) -> ApacheKafka:
        folder = self.folder / str(node_id)
        return ApacheKafka(
            {**settings, "node.id": str(node_id)},
            port=port,
            heap=self._heap,
            folder=folder,
            cluster_id=self.cluster_id,
            formatted=formatted,
            before=self._before,
            options=tuple(option.format(folder=folder) for option in self._options),
            version=self._version,
        )

    @property
    def bootstrap(self) -> str:
        """Addresses of all PLAINTEXT listeners."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def secured(self) -> str:
        """Addresses of all listeners of `protocol`."""
        return ",".join(f"127.0.0.1:{port + 2}" for port in self._ports)

    @property
    def quorum(self) -> str:
        """Addresses of the controllers, in the form of ``controller.quorum.bootstrap.servers``."""
        return ",".join(node.bootstrap for node in self.controllers)

    @property
    def nodes(self) -> list[ApacheKafka]:
        """All nodes, controllers first."""
        return [*self.controllers, *self.brokers]

    def __enter__(self) -> "KafkaCluster":
        try:
            classpath(self._version)
            with ThreadPoolExecutor(len(self.nodes)) as pool:  # a voter waits for the other voters
                list(pool.map(ApacheKafka.start, self.nodes))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill all nodes and delete their data."""
        running = [node for node in self.nodes if node.is_running]
        if running and not ClassArchive.of_node(self._version).exists():
            running[-1].end()  # a node that is stopped writes the archive
        for node in running:
            if node.is_running:
                node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
