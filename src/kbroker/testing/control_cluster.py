"""Routes of the control port of a cluster: its topics, leaders, coordinators and nodes, and the routes of each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.testing.cluster import EmbeddedCluster
from kbroker.testing.control_routes import (
    Body,
    ControlError,
    Routes,
    RouteTable,
    end,
    numbered,
    step_ms,
    take,
    topic_settings,
)

#: First words of the routes of a node that are served below /nodes/ID.
OF_A_NODE = ("faults", "clock", "groups", "transactions", "held-markers")


class ClusterRoutes(RouteTable):
    """The actions on a cluster, and below /nodes/ID those on a node.

    Args: ``on_shutdown`` must return at once.
    Threads: any; nodes are stopped and started one at a time.
    """

    def __init__(self, cluster: EmbeddedCluster, on_shutdown: Callable[[], None]) -> None:
        super().__init__()
        self._cluster = cluster
        self._nodes = {node_id: Routes(node, on_shutdown) for node_id, node in cluster.nodes.items()}
        self.table |= {
            ("GET", ""): self._describe,
            ("GET", "topics"): self._of_any("GET", "topics"),
            ("POST", "topics"): self._create_topic,
            ("DELETE", "topics/*"): self._of_any("DELETE", "topics"),
            ("GET", "topics/*/records"): self._of_any("GET", "topics", "records"),
            ("GET", "topics/*/committed-records"): self._of_any("GET", "topics", "committed-records"),
            ("GET", "topics/*/partitions"): self._partitions,
            ("POST", "topics/*/leader"): self._move_leader,
            ("POST", "topics/*/replicas"): self._reassign,
            ("POST", "preferred-leaders"): cluster.elect_preferred_leaders,
            ("POST", "coordinator"): self._move_coordinator,
            ("POST", "controller"): self._move_controller,
            ("POST", "nodes/*/stop"): self._stopping(cluster.stop_node),
            ("POST", "nodes/*/drop"): self._stopping(cluster.drop_node),
            ("POST", "nodes/*/start"): self._start,
            ("POST", "clock/advance"): self._advance,
            ("POST", "shutdown"): on_shutdown,
        }

    def serve(self, method: str, parts: list[str], body: Body) -> Body:
        """Serve a request. Raises: ControlError."""
        if parts[:1] == ["nodes"] and len(parts) > 2 and parts[2] in OF_A_NODE:
            return self._nodes[self._id(parts[1])].serve(method, parts[2:], body)
        if parts[:1] and parts[0] in OF_A_NODE and parts != ["clock", "advance"]:
            raise ControlError(404, f"each node has its own: /nodes/ID/{'/'.join(parts)}")
        return super().serve(method, parts, body)

    def _id(self, name: str) -> int:
        missing = f"there is no node {name}; the nodes are {', '.join(map(str, self._nodes))}"
        return numbered(name, self._nodes, missing)

    def _of_any(self, method: str, first: str, *rest: str) -> Callable[..., Body]:
        """Return the action of any running node, for parts that all nodes share."""

        def act(*names: str, body: Body) -> Body:
            for node_id in self._cluster.live:
                return self._nodes[node_id].serve(method, [first, *names, *rest], body)
            raise RuntimeError("no node of this cluster runs")

        return act

    # ------------------------------------------------------------ cluster

    def _describe(self) -> Body:
        cluster = self._cluster
        return {
            "bootstrap_servers": cluster.bootstrap_servers,
            "cluster_id": cluster.cluster_id,
            "controller_id": cluster.controller_id,
            "nodes": [
                {
                    "node_id": node_id,
                    "address": cluster.addresses.get(node_id),
                    "rack": node.config.text("broker.rack") or None,
                    "now_ms": node.clock.wall_ms(),
                }
                for node_id, node in cluster.nodes.items()
            ],
            "clock": {"virtual": cluster.clock.is_virtual, "now_ms": cluster.clock.wall_ms()},
        }

    def _create_topic(self, body: Body) -> Body:
        name, partitions, configs = topic_settings(body)
        factor, replicas = take(body, "replication_factor", int, -1), take(body, "replicas", list, [])
        end(body)
        self._cluster.create_topic(name, partitions, configs, replication_factor=factor, replicas=_lists(replicas))
        return {"name": name, "partitions": self._cluster.topics.get(name, partitions)}

    def _partitions(self, name: str) -> Body:
        found = [self._cluster.partition(name, index) for index in range(max(self._cluster.topics.get(name, 0), 1))]
        return {
            "partitions": [
                {
                    "partition": index,
                    "leader": one.leader,
                    "leader_epoch": one.leader_epoch,
                    "replicas": list(one.replicas),
                    "isr": list(one.isr),
                }
                for index, one in enumerate(found)
            ]
        }

    def _move_leader(self, name: str, body: Body) -> Body:
        partition, node = take(body, "partition", int, 0), take(body, "node", int)
        end(body)
        self._cluster.move_leader(name, partition, node)
        return {"leader": self._cluster.partition(name, partition).leader}

    def _reassign(self, name: str, body: Body) -> Body:
        partition, replicas = take(body, "partition", int, 0), take(body, "replicas", list)
        end(body)
        (wanted,) = _lists([replicas])
        self._cluster.reassign(name, partition, wanted)
        return {"replicas": list(self._cluster.partition(name, partition).replicas)}

    def _move_coordinator(self, body: Body) -> Body:
        key, kind, node = take(body, "key", str), take(body, "kind", str, "group"), take(body, "node", int, None)
        end(body)
        if node is not None:
            self._cluster.move_coordinator(key, node, kind)
        return {"node": self._cluster.coordinator(key, kind)}

    def _move_controller(self, body: Body) -> Body:
        node = take(body, "node", int)
        end(body)
        self._cluster.move_controller(node)
        return {"controller_id": self._cluster.controller_id}

    # ------------------------------------------------------------ nodes and time

    def _stopping(self, stop: Callable[[int], None]) -> Callable[[str], Body]:
        def act(name: str) -> Body:
            node_id = self._id(name)
            with self.lock:
                self._nodes[node_id].forget_markers()  # a node that starts again holds none
                stop(node_id)
            return {"bootstrap_servers": self._cluster.bootstrap_servers}

        return act

    def _start(self, name: str) -> Body:
        with self.lock:
            self._cluster.start_node(self._id(name))
        return {"bootstrap_servers": self._cluster.bootstrap_servers}

    def _advance(self, body: Body) -> Body:
        self._cluster.advance_ms(step_ms(body, self._cluster.clock))
        return {"now_ms": self._cluster.clock.wall_ms()}


def _lists(replicas: Sequence[object]) -> list[list[int]]:
    """Return lists of node ids, checked. Raises: ValueError."""
    found = []
    for one in replicas:
        if not isinstance(one, list) or not all(type(node) is int for node in one):
            raise ValueError(f"replicas must be lists of node ids, got {one!r}")
        found.append(one)
    return found
