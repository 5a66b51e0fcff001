"""A cluster for tests in this process: n nodes with their own addresses over one copy of the data.

    with EmbeddedCluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=6)
        cluster.move_leader("orders", 0, node=2)
        cluster.stop_node(3)

Each node is a whole broker with its own listeners, threads, coordinators, fetch sessions, faults and clock. The nodes
share the logs and the metadata, so nothing is replicated and nothing can be lost or diverge; leaders, ISR and epochs
are those that a Kafka cluster would have.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from kbroker._core.clock import BaseClock, SystemClock, VirtualClock
from kbroker.broker import StartCancelled
from kbroker.broker.storage import BrokerStorage
from kbroker.common.configs.config import BrokerConfig, checked_settings
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.listeners import Listener
from kbroker.common.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.coordinator.internal_topic import partition_of
from kbroker.metadata.image.partition_registration import PartitionRegistration
from kbroker.metadata.partition_changes import PartitionChanges
from kbroker.metadata.topic_rules import NewTopic
from kbroker.protocol.records import Record
from kbroker.testing.embedded import TEST_DEFAULTS, EmbeddedBroker, VirtualBroker
from kbroker.testing.waiting import wait_until

#: Internal topic of each kind of key.
COORDINATORS = {"group": OFFSETS_TOPIC, "transaction": TRANSACTION_STATE_TOPIC, "share": SHARE_STATE_TOPIC}
FACTORS = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
)
#: Default replication factor; the number of nodes if that is lower.
DEFAULT_FACTOR = 3
#: Ports that only the first node opens, unless the system chooses them.
FIXED_PORTS = ("kbroker.metrics.listener",)


class EmbeddedCluster:
    """A cluster of brokers in this process, in memory.

    Args:
        brokers: number of nodes; their ids are 1 to n (from ``node.id`` of the settings on).
        settings: values by Kafka's names, for each node; they override the defaults. A listener with port 0 gets a free
            port on each node, another port P gets P, P + 1 and so on.
        racks: ``broker.rack`` of each node, in the order of their ids.
        virtual_clock: whether each node has a clock that only a test advances; see ``advance_ms``.
        defaults: instead of TEST_DEFAULTS.
    Raises: ConfigError for a bad value; ValueError for a wrong number of nodes or racks.
    Threads: start, stop and changes of nodes from one thread at a time; the rest from any.
    """

    def __init__(
        self,
        brokers: int = 3,
        settings: Mapping[str, object] | None = None,
        *,
        racks: Sequence[str] = (),
        virtual_clock: bool = False,
        defaults: Mapping[str, object] = TEST_DEFAULTS,
    ) -> None:
        if not isinstance(brokers, int):
            raise TypeError(f"expected a number of brokers, got {brokers!r}; settings are the second argument")
        if brokers < 1:
            raise ValueError(f"expected at least 1 broker, got {brokers}")
        if racks and len(racks) != brokers:
            raise ValueError(f"expected a rack for each of {brokers} brokers, got {len(racks)} racks")
        self.failure = ""  # the reason why the cluster stops on its own
        #: Called instead of `stop` when the cluster must stop on its own.
        self.on_failure: Callable[[], None] = self.stop
        self._is_cancelled = self._is_starting = self._was_stopped = False
        self._storage: BrokerStorage | None = None
        self._held: list[socket.socket] = []
        self._free_ports: list[tuple[str, int]] = []  # chosen by the system, one for each listener with port 0
        factor = min(DEFAULT_FACTOR, brokers)
        base: dict[str, object] = {
            **defaults,
            **dict.fromkeys(FACTORS, factor),
            **checked_settings(settings),
            "kbroker.brokers": brokers,
        }
        config = BrokerConfig(base)
        first = config.node_id
        start_epoch_ms = SystemClock().wall_ms()
        #: Clock of the logs, and of the nodes unless the clocks are virtual: each node then has another one.
        self.clock: BaseClock = VirtualClock(start_epoch_ms) if virtual_clock else SystemClock()
        self._nodes: dict[int, EmbeddedBroker] = {}
        try:
            for number in range(brokers):
                own = {**self._addresses(config, number), "node.id": first + number, "broker.id": first + number}
                if racks:
                    own["broker.rack"] = racks[number]
                values = {**base, **own}
                if number:
                    values = {key: one for key, one in values.items() if key not in FIXED_PORTS or _is_free(one)}
                if virtual_clock:
                    self._nodes[first + number] = VirtualBroker(values, start_epoch_ms=start_epoch_ms, defaults={})
                else:
                    self._nodes[first + number] = EmbeddedBroker(values, clock=self.clock, defaults={})
        except BaseException:
            self.stop()  # releases the held ports
            raise

    # ------------------------------------------------------------ life

    def __enter__(self) -> EmbeddedCluster:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all nodes; they serve clients when this returns.

        Raises: BrokerStartError; StartCancelled after `cancel_start` or a `stop` during the start; RuntimeError if the
        cluster runs.
        """
        if self._storage is not None:
            raise RuntimeError("this cluster runs already")
        self._is_starting, self._was_stopped = True, False
        try:
            self._start()
            self._is_starting = False
            if self._was_stopped:
                raise StartCancelled("the cluster was stopped during its start")
        except BaseException:
            self._is_starting = False
            self.stop()
            raise

    def _start(self) -> None:
        config = next(iter(self._nodes.values())).config
        storage = self._storage = BrokerStorage(
            config, self.clock, self._fail, lambda: self._is_cancelled or self._was_stopped
        )
        if not self._held:  # after a stop: bind the ports again
            with contextlib.suppress(OSError):  # the node to which the port belongs reports it
                for address in self._free_ports:
                    self._hold(*address)
        storage.load()
        for node in self._nodes.values():
            if not self._was_stopped:
                node.join(storage)
                node.start()

    def stop(self) -> None:
        """Stop all nodes, and delete the data; a node's failure is raised after the others have stopped. Idempotent.

        In a signal handler during `start`, that start is cancelled.
        """
        self._was_stopped = True
        if self._is_starting:
            return
        storage, self._storage = self._storage, None
        held, self._held = self._held, []
        with contextlib.ExitStack() as steps:  # closes the last entry first
            for one in held:
                steps.callback(one.close)
            if storage is not None:
                steps.callback(storage.close)
            for node in self._nodes.values():
                steps.callback(node.stop)

    def cancel_start(self) -> None:
        """Make a current or later `start` raise StartCancelled. Threads: any; also from a signal handler."""
        self._is_cancelled = True
        for node in self._nodes.values():
            node.cancel_start()

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self.on_failure()

    # ------------------------------------------------------------ nodes

    @property
    def nodes(self) -> Mapping[int, EmbeddedBroker]:
        """All nodes by id, including stopped ones."""
        return MappingProxyType(self._nodes)

    def node(self, node: int) -> EmbeddedBroker:
        """Return a node: its ``faults``, verdicts, metrics, and ``advance_ms`` with a virtual clock.

        Raises: ValueError for an unknown id.
        """
        found = self._nodes.get(node)
        if found is None:
            raise ValueError(f"expected a node id from {', '.join(map(str, self._nodes))}, got {node}")
        return found

    @property
    def live(self) -> list[int]:
        """Ids of the nodes that serve clients."""
        return [node_id for node_id, node in self._nodes.items() if node.is_running]

    @property
    def addresses(self) -> dict[int, str]:
        """Address host:port of the first listener of each running node, by id."""
        return {node_id: self._nodes[node_id].bootstrap_servers for node_id in self.live}

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all running nodes, separated by commas."""
        return ",".join(self.addresses.values())

    @property
    def bootstrap(self) -> str:
        """Same as ``bootstrap_servers``."""
        return self.bootstrap_servers

    def stop_node(self, node: int) -> None:
        """Stop a node in order, as by a controlled shutdown: others lead its partitions, then its connections close.

        It leaves the ISR of its partitions. A partition without another replica has no leader until the node starts.
        """
        self.node(node).stop()

    def drop_node(self, node: int) -> None:
        """Stop a node as by a crash: its connections are cut at once, with requests in flight that get no response.

        Then others lead its partitions, as when the controllers have fenced it.
        """
        found = self.node(node)
        if found.is_running:
            found.cut_connections()
        found.stop()

    def start_node(self, node: int) -> None:
        """Start a stopped node at its former address; it joins the ISR of its partitions. No effect if it runs."""
        found = self.node(node)
        if not found.is_running:
            found.join(self._running())
            found.start()

    @property
    def cluster_id(self) -> str:
        """Id of the cluster."""
        return self._running().controller.cluster_id

    @property
    def controller_id(self) -> int:
        """Node that Metadata names as the controller; as in Kafka, any node accepts administrative requests."""
        return self._running().controller.node_id

    def move_controller(self, node: int) -> None:
        """Make another running node the controller that Metadata and DescribeCluster name.

        Raises: KafkaError for a node that does not run.
        """
        if not self.node(node).is_running:
            raise KafkaError(Errors.BROKER_NOT_AVAILABLE, f"node {node} does not run")
        self._running().controller.node_id = node

    def describe(self) -> str:
        """Describe the nodes and the cluster in one line."""
        nodes = ", ".join(f"node {node_id} at {address}" for node_id, address in self.addresses.items())
        return f"{nodes}, cluster {self.cluster_id}, in memory, nothing is replicated"

    # ------------------------------------------------------------ topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int = -1,
        replicas: Sequence[Sequence[int]] = (),
    ) -> str:
        """Create a topic and return its name; it can be used when this returns.

        Args: ``replicas``: those of each partition, the preferred leader first, instead of the two numbers.
        Raises: KafkaError as a client would get it.
        """
        assigned = list(enumerate(replicas))
        count = -1 if assigned else partitions
        topic = NewTopic(name, count, replication_factor, assigned, dict(configs or {}))
        self._running().topics.create(topic)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records. Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        self._running().topics.delete(name)

    @property
    def topics(self) -> dict[str, int]:
        """Partitions by topic."""
        return {view.name: len(view.partitions) for view in self._running().topics.all()}

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Return the records that the logs have now: see ``EmbeddedBroker.records``."""
        return self._any.records(topic, partition)

    def committed_records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Return the records that a read_committed consumer reads now: see ``EmbeddedBroker.committed_records``."""
        return self._any.committed_records(topic, partition)

    def partition(self, topic: str, partition: int) -> PartitionRegistration:
        """Return ``leader``, ``replicas``, ``isr``, ``leader_epoch`` ... of a partition.

        Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION.
        """
        found = self._running().controller.image.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{partition} does not exist")
        return found.partitions[partition]

    # ------------------------------------------------------------ leaders and coordinators

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Make a running node the leader of a partition. If it is not a replica, it replaces the current leader.

        Raises: KafkaError for an unknown partition, or a node that does not run.
        """
        self.node(node)
        self._changes.move_leader(topic, partition, node)

    def coordinator(self, key: str, kind: str = "group") -> int:
        """Return the node that coordinates a group, or a transactional id (kind "transaction"); -1 for none.

        Kind "share": the key is that of a share partition, GROUP:TOPIC-ID:PARTITION. Raises: KafkaError if there is no
        such topic.
        """
        return self.partition(*self._coordinator_partition(key, kind)).leader

    def move_coordinator(self, key: str, node: int, kind: str = "group") -> None:
        """Make a running node the coordinator of a group, or of a transactional id (kind "transaction").

        See ``coordinator``. All keys in the same partition of the internal topic move: one partition unless settings
        change that.
        """
        self.move_leader(*self._coordinator_partition(key, kind), node)

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Assign a partition to other replicas, the preferred leader first. Raises: KafkaError."""
        self._changes.reassign(topic, partition, replicas, may_change_factor=True)

    def elect_preferred_leaders(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Make the first replica of each partition (None: of all) its leader, where it is in the ISR."""
        self._changes.elect(partitions, is_unclean=False)

    def _coordinator_partition(self, key: str, kind: str) -> tuple[str, int]:
        topic = COORDINATORS.get(kind)
        if topic is None:
            raise ValueError(f"expected a kind from {', '.join(COORDINATORS)}, got {kind!r}")
        if topic not in self.topics:
            self._running().topics.auto_create([topic])
        count = self.topics.get(topic)
        if count is None:
            raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE, f"topic {topic} cannot be created now")
        return topic, partition_of(key, count)

    # ------------------------------------------------------------ time

    @property
    def is_idle(self) -> bool:
        """Return whether each running node ``is_idle``."""
        return all(self._nodes[node_id].is_idle for node_id in self.live)

    def wait_until_quiet(self, timeout_s: float = 10.0) -> None:
        """Wait until the cluster ``is_idle``. Raises: TimeoutError after ``timeout_s`` real seconds."""
        wait_until(lambda: self.is_idle, timeout_s, "a quiet cluster")

    def advance_ms(self, delta_ms: int, timeout_s: float = 10.0) -> None:
        """Move the time of all nodes and of the logs; return when everything that became due is done.

        ``node(n).advance_ms`` moves the time of one node only: its sessions, delayed requests and idle connections.
        Raises: RuntimeError without virtual clocks; TimeoutError after ``timeout_s`` real seconds.
        """
        if not isinstance(self.clock, VirtualClock):
            raise RuntimeError("advance_ms needs virtual time: EmbeddedCluster(virtual_clock=True)")
        self.clock.advance_ms(delta_ms)
        for node in self._nodes.values():
            assert isinstance(node, VirtualBroker)
            node.advance_ms(delta_ms, timeout_s)
        self.wait_until_quiet(timeout_s)

    # ------------------------------------------------------------ parts

    def _running(self) -> BrokerStorage:
        if self._storage is None:
            raise RuntimeError("this cluster does not run")
        return self._storage

    @property
    def _any(self) -> EmbeddedBroker:
        for node_id in self.live:
            return self._nodes[node_id]
        raise RuntimeError("no node of this cluster runs")

    @property
    def _changes(self) -> PartitionChanges:
        storage = self._running()
        return PartitionChanges(storage.controller, storage.controller.node_id)

    def _addresses(self, config: BrokerConfig, number: int) -> dict[str, object]:
        """Return the settings with the ports of a node."""
        found: dict[str, object] = {"listeners": ",".join(str(self._bound(one, number)) for one in config.listeners)}
        advertised = [one._replace(port=one.port and one.port + number) for one in config.advertised_listeners]
        if advertised:
            found["advertised.listeners"] = ",".join(map(str, advertised))
        return found

    def _bound(self, listener: Listener, number: int) -> Listener:
        """Return the listener with the port of a node. A free port is held, also while its node is stopped."""
        if listener.port:
            return listener._replace(port=listener.port + number)
        port = self._hold(listener.host, 0)
        self._free_ports.append((listener.host, port))
        return listener._replace(port=port)

    def _hold(self, host: str, port: int) -> int:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        held = socket.socket(family, socket.SOCK_STREAM)
        self._held.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # this socket never listens, so the node can
        held.bind((host, port))
        bound: int = held.getsockname()[1]
        return bound


def _is_free(address: object) -> bool:
    """Return whether the system chooses the port of an address."""
    return str(address).rpartition(":")[2] == "0"
