"""Cluster in the test process: requests to a wrong node, moves of leaders and coordinators, stops, time, faults."""

import json
import random
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import Mock

import confluent_kafka as ck
import pytest

from kbroker.client.connection import Connection, parse_bootstrap
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.listeners import Listener
from kbroker.coordinator.runtime import PartitionState
from kbroker.metadata.topics import ZERO_ID
from kbroker.protocol import codec
from kbroker.testing import EmbeddedCluster, wait_until
from kbroker.testing.cluster import COORDINATORS
from tests.native import slow_hook
from tests.support import wire
from tests.support.client import fetch_body, produce_body, set_configs
from tests.support.fixtures import fixture_of

Body = dict[str, Any]
PARTITIONS = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}
cluster = fixture_of(lambda: EmbeddedCluster(3, PARTITIONS, racks=["a", "b", "c"]), scope="module")


@pytest.fixture(autouse=True)
def all_nodes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start the nodes that a test leaves stopped."""
    yield
    if "cluster" in request.fixturenames:
        cluster = request.getfixturevalue("cluster")
        for node in cluster.nodes:
            cluster.start_node(node)


def test_a_cluster_that_is_not_made_holds_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the second node cannot be created, the ports that were reserved are closed."""
    held: list[socket.socket] = []
    bound = EmbeddedCluster._bound

    def noted(cluster: EmbeddedCluster, listener: Listener, number: int) -> Listener:
        held.extend(one for one in cluster._held if one not in held)
        return bound(cluster, listener, number)

    monkeypatch.setattr(EmbeddedCluster, "_bound", noted)
    monkeypatch.setattr(
        "kbroker.testing.cluster.EmbeddedBroker", Mock(side_effect=[Mock(), ValueError("no second node")])
    )
    with pytest.raises(ValueError, match="no second node"):
        EmbeddedCluster(2)
    assert [one.fileno() for one in held] == [-1]


def test_a_cluster_that_starts_again_holds_its_ports() -> None:
    """The port of a stopped node stays reserved for the node's next start."""
    cluster = EmbeddedCluster(2)
    for _ in range(2):
        with cluster, socket.socket() as other:
            host, _, port = cluster.addresses[2].partition(":")
            cluster.stop_node(2)
            with pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))
            cluster.start_node(2)


def ask(cluster: EmbeddedCluster, node: int, name: str, version: int, body: Body) -> Body:
    """Return a node's response."""
    (address,) = parse_bootstrap(cluster.addresses[node])
    with closing(Connection(address)) as connection:
        return connection.request(codec.api_by_name(name).key, version, body, timeout_s=10)


def produce_to(topic: str, index: int, acks: int = -1) -> Body:
    return produce_body(topic, acks=acks, partition=index)


def fetch_from(topic: str, index: int, epoch: int = -1, wait_ms: int = 0) -> Body:
    body = fetch_body(topic, max_wait_ms=wait_ms)
    body["Topics"][0]["Partitions"][0] |= {"Partition": index, "CurrentLeaderEpoch": epoch}
    return body


def others(cluster: EmbeddedCluster, node: int) -> list[int]:
    return [one for one in cluster.nodes if one != node]


def test_each_node_describes_the_same_cluster(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("described", 3)
    found = [
        ask(cluster, node, "Metadata", 12, {"Topics": [{"TopicId": ZERO_ID, "Name": "described"}]} | ALL)
        for node in cluster.nodes
    ]
    assert found[0] == found[1] == found[2]
    brokers = [(row["NodeId"], f"{row['Host']}:{row['Port']}", row["Rack"]) for row in found[0]["Brokers"]]
    assert brokers == [(node, cluster.addresses[node], rack) for node, rack in zip((1, 2, 3), "abc", strict=True)]
    (topic,) = found[0]["Topics"]
    leaders = [row["LeaderId"] for row in sorted(topic["Partitions"], key=lambda row: row["PartitionIndex"])]
    assert sorted(leaders) == [1, 2, 3]
    assert all(sorted(row["ReplicaNodes"]) == sorted(row["IsrNodes"]) == [1, 2, 3] for row in topic["Partitions"])
    assert found[0]["ControllerId"] == cluster.controller_id == 1


def test_nodes_stay_registered(cluster: EmbeddedCluster) -> None:
    """UnregisterBroker refuses every node of the cluster, and an unknown node with BROKER_ID_NOT_REGISTERED."""
    refused = [ask(cluster, 1, "UnregisterBroker", 0, {"BrokerId": node}) for node in (1, 3, 4)]
    codes = [Errors.INVALID_REQUEST, Errors.INVALID_REQUEST, Errors.BROKER_ID_NOT_REGISTERED]
    assert [row["ErrorCode"] for row in refused] == codes
    assert refused[1]["ErrorMessage"] == "Broker 3 is a node of this embedded cluster and stays registered"


def test_another_node_is_named_as_the_controller(cluster: EmbeddedCluster) -> None:
    cluster.move_controller(3)
    try:
        for node in cluster.nodes:
            assert (
                ask(cluster, node, "Metadata", 12, {"Topics": []} | ALL)["ControllerId"] == cluster.controller_id == 3
            )
            assert ask(cluster, node, "DescribeCluster", 1, {})["ControllerId"] == 3
    finally:
        cluster.move_controller(1)


ALL: Body = {"AllowAutoTopicCreation": False, "IncludeTopicAuthorizedOperations": False}


def test_requests_to_a_wrong_node(cluster: EmbeddedCluster) -> None:
    """A request for a partition of another leader is refused, from KIP-951 on with the leader and its address."""
    cluster.create_topic("led", replicas=[[1, 2, 3]])
    cluster.move_leader("led", 0, 2)
    leader = cluster.partition("led", 0)
    refused = int(Errors.NOT_LEADER_OR_FOLLOWER)
    produced = ask(cluster, 1, "Produce", 12, produce_to("led", 0))
    (row,) = produced["Responses"][0]["PartitionResponses"]
    assert (row["ErrorCode"], row["CurrentLeader"]) == (refused, {"LeaderId": 2, "LeaderEpoch": leader.leader_epoch})
    address = {node["NodeId"]: f"{node['Host']}:{node['Port']}" for node in produced["NodeEndpoints"]}
    assert address[2] == cluster.addresses[2]
    (row,) = ask(cluster, 1, "Produce", 3, produce_to("led", 0))["Responses"][0]["PartitionResponses"]
    assert row["ErrorCode"] == refused
    (row,) = ask(cluster, 2, "Produce", 12, produce_to("led", 0))["Responses"][0]["PartitionResponses"]
    assert (row["ErrorCode"], row["BaseOffset"]) == (0, 0)

    (row,) = ask(cluster, 3, "Fetch", 10, fetch_from("led", 0))["Responses"][0]["Partitions"]
    assert row["ErrorCode"] == refused
    (row,) = ask(cluster, 3, "Fetch", 11, fetch_from("led", 0))["Responses"][0]["Partitions"]
    assert (row["ErrorCode"], bool(row["Records"])) == (0, True), "a follower in the ISR serves consumers (KIP-392)"
    (row,) = ask(cluster, 3, "Fetch", 11, fetch_from("led", 0, epoch=0))["Responses"][0]["Partitions"]
    assert row["ErrorCode"] == int(Errors.FENCED_LEADER_EPOCH)

    listed = {"PartitionIndex": 0, "CurrentLeaderEpoch": -1, "Timestamp": -1}
    body = {"ReplicaId": -1, "IsolationLevel": 0, "Topics": [{"Name": "led", "Partitions": [listed]}]}
    assert ask(cluster, 3, "ListOffsets", 5, body)["Topics"][0]["Partitions"][0]["ErrorCode"] == refused
    assert ask(cluster, 2, "ListOffsets", 5, body)["Topics"][0]["Partitions"][0]["Offset"] == 1
    body = {"Topics": [{"Name": "led", "Partitions": [{"PartitionIndex": 0, "Offset": 0}]}], "TimeoutMs": 1000}
    assert ask(cluster, 1, "DeleteRecords", 2, body)["Topics"][0]["Partitions"][0]["ErrorCode"] == refused
    body = {"Topics": [{"Name": "led", "PartitionIndexes": [0]}]}
    assert ask(cluster, 1, "DescribeProducers", 0, body)["Topics"][0]["Partitions"][0]["ErrorCode"] == refused


def test_no_leader_is_named_for_a_partition_without_one(cluster: EmbeddedCluster) -> None:
    """A partition without a leader has no leader -1 in the response, as librdkafka would read uninitialized memory."""
    cluster.create_topic("unled", replicas=[[1], [2]])
    cluster.stop_node(1)
    rows = [fetch_from("unled", index)["Topics"][0]["Partitions"][0] for index in (0, 1)]
    topic = ask(cluster, 3, "Metadata", 12, {"Topics": [{"TopicId": ZERO_ID, "Name": "unled"}]} | ALL)["Topics"][0]
    fetch = fetch_from("unled", 0) | {"Topics": [{"TopicId": topic["TopicId"], "Partitions": rows}]}
    produce = produce_to("unled", 0)
    produce["TopicData"][0]["PartitionData"] += produce_to("unled", 1)["TopicData"][0]["PartitionData"]
    with wire.Connection(cluster.addresses[3]) as connection:
        for key, version, body in ((0, 12, produce), (1, 17, fetch)):
            request = codec.encode_request_header(key, version, 1) + codec.encode_request(key, version, body)
            response = connection.ask(request)
            _, found = codec.decode_response_frame(key, version, response)
            unled, led = found["Responses"][0]["PartitionResponses" if key == 0 else "Partitions"]
            assert unled["ErrorCode"] == led["ErrorCode"] == int(Errors.NOT_LEADER_OR_FOLLOWER)
            assert unled["CurrentLeader"] == {"LeaderId": -1, "LeaderEpoch": -1}
            assert led["CurrentLeader"]["LeaderId"] == 2
            assert 2 in [node["NodeId"] for node in found["NodeEndpoints"]]
            # the encoder omits a tagged field that has its default
            assert len(response) == len(codec.encode_response_frame(key, version, 1, found)) - 4


def test_no_coordinator_without_nodes() -> None:
    """The topic of a coordinator cannot be created while no node runs."""
    with EmbeddedCluster(1) as cluster:
        cluster.stop_node(1)
        for call in (partial(cluster.coordinator, "g"), partial(cluster.move_coordinator, "g", 1)):
            with pytest.raises(KafkaError, match="topic __consumer_offsets cannot be created now"):
                call()
        cluster.start_node(1)
        assert cluster.coordinator("g") == 1


def test_requests_to_a_wrong_coordinator(cluster: EmbeddedCluster) -> None:
    cluster.move_coordinator("wrong", 3)
    cluster.move_coordinator("wrong", 2, "transaction")
    for node in cluster.nodes:
        found = ask(cluster, node, "FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": ["wrong"]})
        (row,) = found["Coordinators"]
        assert (row["NodeId"], f"{row['Host']}:{row['Port']}") == (3, cluster.addresses[3])
        found = ask(cluster, node, "FindCoordinator", 4, {"KeyType": 1, "CoordinatorKeys": ["wrong"]})
        assert found["Coordinators"][0]["NodeId"] == 2
    beat = {"GroupId": "wrong", "GenerationId": 1, "MemberId": "m", "GroupInstanceId": None}
    errors = [ask(cluster, node, "Heartbeat", 3, beat)["ErrorCode"] for node in cluster.nodes]
    assert errors == [int(Errors.NOT_COORDINATOR), int(Errors.NOT_COORDINATOR), int(Errors.UNKNOWN_MEMBER_ID)]
    init = {"TransactionalId": "wrong", "TransactionTimeoutMs": 1000, "ProducerId": -1, "ProducerEpoch": -1}
    errors = [ask(cluster, node, "InitProducerId", 4, init)["ErrorCode"] for node in cluster.nodes]
    assert errors == [int(Errors.NOT_COORDINATOR), 0, int(Errors.NOT_COORDINATOR)]


def test_a_fetch_that_waits_at_a_former_leader_ends(cluster: EmbeddedCluster) -> None:
    """A fetch that waits at a follower is completed by an append at the leader, and by an election."""
    cluster.create_topic("waits", replicas=[[1, 2, 3]])
    found: list[Body] = []

    def wait_at(node: int) -> threading.Thread:
        before = cluster.node(node).waiting_fetches
        body = fetch_from("waits", 0, wait_ms=60_000)
        thread = threading.Thread(target=lambda: found.append(ask(cluster, node, "Fetch", 11, body)))
        thread.start()
        wait_until(lambda: cluster.node(node).waiting_fetches > before, 10, "a waiting fetch")
        return thread

    for node in (1, 2):
        thread = wait_at(node)
        cluster.move_leader("waits", 0, 3 if node == 1 else 1)
        thread.join(10)
    errors = [one["Responses"][0]["Partitions"][0]["ErrorCode"] for one in found]
    assert errors == [int(Errors.NOT_LEADER_OR_FOLLOWER)] * 2
    thread = wait_at(2)
    ask(cluster, 1, "Produce", 7, produce_to("waits", 0))
    thread.join(10)
    assert found[-1]["Responses"][0]["Partitions"][0]["Records"]


@pytest.mark.parametrize("leader", [1, 2, 3])
def test_a_fetch_that_waits_ends_when_its_topic_is_deleted(cluster: EmbeddedCluster, leader: int) -> None:
    cluster.create_topic("deleted", replicas=[[leader]])
    found: list[Body] = []
    body = fetch_from("deleted", 0, wait_ms=60_000)
    thread = threading.Thread(target=lambda: found.append(ask(cluster, leader, "Fetch", 11, body)))
    thread.start()
    wait_until(lambda: cluster.node(leader).waiting_fetches == 1, 10, "a waiting fetch")
    cluster.delete_topic("deleted")
    thread.join(10)
    errors = [one["Responses"][0]["Partitions"][0]["ErrorCode"] for one in found]
    assert errors == [int(Errors.UNKNOWN_TOPIC_OR_PARTITION)]


def test_stop_drop_and_start(cluster: EmbeddedCluster) -> None:
    """Each move increments the epoch, a stopped node leaves the ISR, and its address stays reserved."""
    cluster.create_topic("stops", replicas=[[1, 2], [2, 3]])
    address = cluster.addresses[2]
    cluster.stop_node(2)
    first, second = (cluster.partition("stops", index) for index in range(2))
    assert (first.leader, first.isr, first.leader_epoch) == (1, (1,), 0)
    assert (second.leader, second.isr, second.leader_epoch) == (3, (3,), 1)
    assert cluster.live == [1, 3]
    metadata = ask(cluster, 1, "Metadata", 9, {"Topics": [{"Name": "stops"}], **ALL, **NO_CLUSTER})
    assert [row["NodeId"] for row in metadata["Brokers"]] == [1, 3]
    assert {row["PartitionIndex"]: row["OfflineReplicas"] for row in metadata["Topics"][0]["Partitions"]} == {
        0: [2],
        1: [2],
    }
    (oldest,) = ask(cluster, 1, "Metadata", 0, {"Topics": [{"Name": "stops"}]})["Topics"]
    shown = [(row["ErrorCode"], row["LeaderId"], row["ReplicaNodes"], row["IsrNodes"]) for row in oldest["Partitions"]]
    incomplete = int(Errors.REPLICA_NOT_AVAILABLE)  # in version 0, which names only nodes that serve
    assert shown == [(incomplete, 1, [1], [1]), (incomplete, 3, [3], [3])]
    with pytest.raises(OSError), closing(socket.create_connection(parse_bootstrap(address)[0], 5)):
        pass
    cluster.drop_node(3)
    assert cluster.partition("stops", 1).leader == -1
    metadata = ask(cluster, 1, "Metadata", 9, {"Topics": [{"Name": "stops"}], **ALL, **NO_CLUSTER})
    errors = {row["PartitionIndex"]: row["ErrorCode"] for row in metadata["Topics"][0]["Partitions"]}
    assert errors == {0: 0, 1: int(Errors.LEADER_NOT_AVAILABLE)}
    cluster.start_node(2)
    assert cluster.addresses[2] == address
    assert cluster.partition("stops", 1).leader == -1, "no unclean election"
    cluster.start_node(3)
    second = cluster.partition("stops", 1)
    assert (second.leader, set(second.isr)) == (3, {2, 3})
    cluster.elect_preferred_leaders()
    assert [cluster.partition("stops", index).leader for index in range(2)] == [1, 2]
    assert cluster.partition("stops", 1).leader_epoch == second.leader_epoch + 1


NO_CLUSTER: Body = {"IncludeClusterAuthorizedOperations": False}


def test_acks_all_needs_replicas_in_sync(cluster: EmbeddedCluster) -> None:
    """Below `min.insync.replicas`, acks=all is refused, and other records stay invisible until a replica returns."""
    cluster.create_topic("safe", configs={"min.insync.replicas": "2"}, replicas=[[1, 2, 3], [1, 2, 3]])
    cluster.reassign("safe", 1, [1])

    def produced(index: int = 0, acks: int = -1) -> tuple[int, int, int]:
        (row,) = ask(cluster, 1, "Produce", 7, produce_to("safe", index, acks))["Responses"][0]["PartitionResponses"]
        return row["ErrorCode"], row["BaseOffset"], row["LogStartOffset"]

    def visible(isolation: int = 0) -> int:
        body = {"ReplicaId": -1, "IsolationLevel": isolation, "Topics": [{"Name": "safe", "Partitions": [END]}]}
        found: int = ask(cluster, 1, "ListOffsets", 5, body)["Topics"][0]["Partitions"][0]["Offset"]
        return found

    cluster.stop_node(2)
    assert produced() == (0, 0, 0)
    cluster.drop_node(3)
    refused = (int(Errors.NOT_ENOUGH_REPLICAS), -1, 0)
    assert produced() == refused
    frames = [wire.produce("safe", 0, wire.batch([b"x"]), acks=acks) for acks in (-1, 1, -1)]
    with wire.Connection(cluster.addresses[1]) as connection:  # read together, the frames are appended by one write
        connection.send_raw(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        rows = [wire.produced(connection.receive()) for _ in frames]
    assert [(row.error_code, row.base_offset) for row in rows] == [refused[:2], (0, 1), refused[:2]]
    assert (visible(), visible(1)) == (1, 1)
    assert produced(index=1) == (0, 0, 0), "at most as many as there are"
    found: list[Body] = []
    body = fetch_from("safe", 0, wait_ms=60_000)
    body["Topics"][0]["Partitions"][0]["FetchOffset"] = 1
    thread = threading.Thread(target=lambda: found.append(ask(cluster, 1, "Fetch", 11, body)))
    thread.start()
    wait_until(lambda: cluster.node(1).waiting_fetches == 1, 10, "a waiting fetch")
    cluster.start_node(3)
    thread.join(10)
    assert found[0]["Responses"][0]["Partitions"][0]["Records"]
    assert produced() == (0, 2, 0)
    cluster.stop_node(3)
    assert produced() == refused
    body = set_configs(2, "safe", {"min.insync.replicas": "1"})
    assert ask(cluster, 1, "IncrementalAlterConfigs", 1, body)["Responses"][0]["ErrorCode"] == 0
    assert produced() == (0, 3, 0)


END: Body = {"PartitionIndex": 0, "CurrentLeaderEpoch": -1, "Timestamp": -1}


def test_coordinators_need_replicas_in_sync() -> None:
    """InitProducerId is refused while the coordinator's partition has too few replicas in sync."""
    settings = {"transaction.state.log.min.isr": 2, "transaction.state.log.replication.factor": 2}
    with EmbeddedCluster(2, settings) as cluster:
        init = {"TransactionalId": "t", "TransactionTimeoutMs": 60_000, "ProducerId": -1, "ProducerEpoch": -1}
        node = cluster.coordinator("t", "transaction")
        cluster.stop_node(3 - node)
        assert ask(cluster, node, "InitProducerId", 4, init)["ErrorCode"] == int(Errors.COORDINATOR_NOT_AVAILABLE)
        cluster.start_node(3 - node)
        assert ask(cluster, node, "InitProducerId", 4, init)["ErrorCode"] == 0


def test_requests_about_the_replicas_of_a_node(cluster: EmbeddedCluster) -> None:
    """DescribeLogDirs, AlterReplicaLogDirs and DescribeQuorum consider the replicas of the node only."""
    cluster.create_topic("hosted", replicas=[[1, 2], [3, 1]])
    body: Body = {"Topics": [{"Topic": "hosted", "Partitions": [0, 1]}]}
    hosts = {}
    for node in cluster.nodes:
        (folder,) = ask(cluster, node, "DescribeLogDirs", 4, body)["Results"]
        hosts[node] = [row["PartitionIndex"] for topic in folder["Topics"] for row in topic["Partitions"]]
    assert hosts == {1: [0, 1], 2: [0], 3: [1]}
    move = {"Path": folder["LogDir"], "Topics": [{"Name": "hosted", "Partitions": [0, 1]}]}
    (topic,) = ask(cluster, 2, "AlterReplicaLogDirs", 2, {"Dirs": [move]})["Results"]
    errors = {row["PartitionIndex"]: row["ErrorCode"] for row in topic["Partitions"]}
    assert errors == {0: 0, 1: int(Errors.NOT_LEADER_OR_FOLLOWER)}

    cluster.stop_node(2)
    quorum = {"Topics": [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]}
    one, other = (ask(cluster, node, "DescribeQuorum", 2, quorum) for node in (1, 3))
    (row,) = one["Topics"][0]["Partitions"]
    assert (row["LeaderId"], other["Topics"][0]["Partitions"][0]["LeaderId"]) == (1, 1)
    ends = {voter["ReplicaId"]: voter["LogEndOffset"] for voter in row["CurrentVoters"]}
    assert ends == {1: row["HighWatermark"], 2: -1, 3: row["HighWatermark"]}
    named = {node["NodeId"]: f"{node['Listeners'][0]['Host']}:{node['Listeners'][0]['Port']}" for node in one["Nodes"]}
    assert named == cluster.addresses


def test_layouts_are_checked(cluster: EmbeddedCluster) -> None:
    """Invalid assignments are refused with Kafka's messages; a reassignment waits for its stopped replica."""
    with pytest.raises(KafkaError, match="cannot be reached because only 3 broker"):
        cluster.create_topic("layout", replication_factor=4)
    with pytest.raises(KafkaError, match="includes broker 4, but no such broker is registered"):
        cluster.create_topic("layout", replicas=[[1, 4]])
    with pytest.raises(KafkaError, match="not consistent with previous partitions, which have 2 replica"):
        cluster.create_topic("layout", replicas=[[1, 2], [1]])
    cluster.stop_node(2)
    cluster.create_topic("layout", replicas=[[1, 2]])
    with pytest.raises(KafkaError, match="node 2 does not serve"):
        cluster.move_leader("layout", 0, 2)
    assert (cluster.partition("layout", 0).leader, cluster.partition("layout", 0).isr) == (1, (1,))
    cluster.reassign("layout", 0, [2, 3])
    moving = cluster.partition("layout", 0)
    assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == ((2, 3, 1), (3,), (1,))
    cluster.start_node(2)
    done = cluster.partition("layout", 0)
    assert (done.replicas, done.leader, set(done.isr)) == ((2, 3), 3, {2, 3})


def test_consumers_are_directed_to_their_rack() -> None:
    """With `replica.selector.class`, a leader names a follower in the client's rack instead of sending records."""
    settings = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with EmbeddedCluster(3, settings, racks=["a", "b", "c"]) as cluster:
        cluster.create_topic("t", replicas=[[1, 2]])
        ask(cluster, 1, "Produce", 7, produce_to("t", 0))

        def found(node: int, rack: str) -> tuple[int, bool]:
            body = {**fetch_from("t", 0, wait_ms=100), "RackId": rack}
            (row,) = ask(cluster, node, "Fetch", 11, body)["Responses"][0]["Partitions"]
            assert (row["ErrorCode"], row["HighWatermark"]) == (0, 1)
            return row["PreferredReadReplica"], bool(row["Records"])

        assert found(1, "b") == (2, False)
        assert found(2, "b") == (-1, True)
        assert [found(1, rack) for rack in ("a", "c", "")] == [(-1, True)] * 3
        cluster.stop_node(2)
        assert found(1, "b") == (-1, True)


def served(cluster: EmbeddedCluster, kind: str) -> dict[int, list[int]]:
    """Return the nodes whose coordinator serves each partition of an internal topic."""
    found: dict[int, list[int]] = {}
    for node in cluster.live:
        ctx = cluster.node(node).context
        service = getattr(ctx, f"{kind}_service").started
        runtime = None if service is None else service.coordinator.runtime
        for index, one in runtime._partitions.items() if runtime is not None else ():
            if one.state is PartitionState.ACTIVE:
                found.setdefault(index, []).append(node)
    return found


def test_two_coordinators_never_serve_one_key(cluster: EmbeddedCluster) -> None:
    """After random moves and stops, only its leader serves each partition of an internal topic."""
    rng = random.Random(7)
    for kind in ("group", "transaction", "share"):
        cluster.coordinator("key", kind)
    for _ in range(60):
        node = rng.choice(list(cluster.nodes))
        kind = rng.choice(list(COORDINATORS))
        if rng.random() < 0.7 and node in cluster.live:
            cluster.move_leader(COORDINATORS[kind], rng.randrange(cluster.topics[COORDINATORS[kind]]), node)
        elif node in cluster.live and len(cluster.live) > 1:
            rng.choice((cluster.stop_node, cluster.drop_node))(node)
        else:
            cluster.start_node(node)
        for one, topic in COORDINATORS.items():
            for index, nodes in served(cluster, one).items():
                assert nodes == [cluster.partition(topic, index).leader], (one, index)


def test_clients_follow_moves(cluster: EmbeddedCluster) -> None:
    """While leaders and coordinators move and nodes stop, librdkafka neither loses nor duplicates a record."""
    rng = random.Random(3)
    cluster.create_topic("moves", 3)
    stop = threading.Event()
    sent: list[tuple[int, int]] = []
    failed: list[object] = []
    client = {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}

    def produce() -> None:
        producer = ck.Producer({**client, "enable.idempotence": True, "retry.backoff.ms": 20})
        number = 0

        def done(error: object, message: ck.Message) -> None:
            if error is not None:
                failed.append(error)
            else:
                sent.append((message.partition() or 0, int(message.value() or b"")))

        while not stop.is_set():
            producer.produce("moves", str(number).encode(), partition=number % 3, on_delivery=done)
            number += 1
            producer.poll(0.002)
        assert producer.flush(30) == 0

    def moved() -> None:
        for _ in range(25):
            choice = rng.random()
            if choice < 0.6:
                cluster.move_leader("moves", rng.randrange(3), rng.choice(cluster.live))
            elif choice < 0.8:
                cluster.move_coordinator("moves", rng.choice(cluster.live))
            elif len(cluster.live) == 3:
                rng.choice((cluster.stop_node, cluster.drop_node))(rng.choice(cluster.live))
            else:
                for node in cluster.nodes:
                    cluster.start_node(node)
            stop.wait(0.05)

    read: list[tuple[int, int]] = []
    consumer = ck.Consumer(
        {**client, "group.id": "moves", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe(["moves"])
    threads = [threading.Thread(target=produce), threading.Thread(target=moved)]
    for thread in threads:
        thread.start()
    try:
        threads[1].join(60)
        stop.set()
        threads[0].join(60)
        assert failed == []
        log = [(index, int(one.value or b"")) for index in range(3) for one in cluster.records("moves", index)]
        assert sorted(sent) == log, "a record is lost, doubled or out of order"

        def poll() -> bool:
            found = consumer.consume(1000, 0.1)  # a slow machine may have produced thousands of records
            read.extend((one.partition() or 0, int(one.value() or b"")) for one in found if one.error() is None)
            return len(read) >= len(log)

        wait_until(poll, 60, "all records")
        assert sorted(read) == sorted(log)
    finally:
        stop.set()
        consumer.close()


def test_faults_and_time_of_one_node() -> None:
    """A fault applies to its node, and time advances for one node or for all nodes."""
    wanted = {"Topics": [{"Name": "t"}], **ALL, **NO_CLUSTER}
    with EmbeddedCluster(2, {"connections.max.idle.ms": 60_000}, virtual_clock=True) as cluster:
        cluster.create_topic("t", replicas=[[1, 2]])
        with cluster.node(1).faults.add("Metadata", error="UNKNOWN_SERVER_ERROR", count=-1) as fault:
            bodies = [ask(cluster, node, "Metadata", 9, wanted) for node in (1, 2)]
        assert fault.hits == 1
        assert [len(body["Brokers"]) for body in bodies] == [0, 2]
        first, second = (socket.create_connection(parse_bootstrap(cluster.addresses[node])[0], 5) for node in (1, 2))
        with first, second:
            for node in (1, 2):
                wait_until(partial(has_connection, cluster, node), 10, "an open connection")
            cluster.node(2).advance_ms(70_000)  # type: ignore[attr-defined]
            assert second.recv(1) == b""
            assert has_connection(cluster, 1)
            cluster.advance_ms(70_000)
            assert first.recv(1) == b""


def has_connection(cluster: EmbeddedCluster, node: int) -> bool:
    return bool(cluster.node(node).xray()["connections"])


def test_several_brokers_from_the_command_line() -> None:
    """The ready line has the address of each node; folders on a disk and a wrong number of racks are refused."""
    command = [sys.executable, "-m", "kbroker", "serve", "--brokers", "3", "--listener", "127.0.0.1:0"]
    options = ["--in-memory", "--racks", "a,b,c", "--set", "kbroker.control.listener=127.0.0.1:0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        words = process.stdout.readline().split()
        request = urllib.request.Request(words[2] + "/", headers={"Authorization": f"Bearer {words[4]}"})
        with urllib.request.urlopen(request, timeout=10) as response:
            nodes = json.load(response)["nodes"]
        process.terminate()
        assert process.wait(20) == 0
    assert [one["rack"] for one in nodes] == ["a", "b", "c"]
    assert all(f"node {one['node_id']} at {one['address']}" in line for one in nodes), line
    assert "nothing is replicated" in line
    for wrong, reason in (
        ([], "Several brokers are possible in memory only"),
        (["--in-memory", "--racks", "a"], "1 rack"),
        (["--in-memory", "--brokers", "1", "--racks", "a"], "set its broker.rack"),
    ):
        done = subprocess.run([*command, *wrong], capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr


def test_a_node_stops_after_the_last_call_of_its_hook(cluster: EmbeddedCluster) -> None:
    """A stop of a node waits until another node's thread has returned from the hook of a partition."""
    cluster.create_topic("hooked", replicas=[[2]])
    topic = cluster.nodes[2].context.topics.get("hooked")
    log = topic and topic.partitions[0]
    assert log is not None
    slow_hook.hold(log)
    calling = threading.Thread(target=slow_hook.call, args=(log,))
    stopping = threading.Thread(target=cluster.stop_node, args=(2,))
    try:
        calling.start()
        wait_until(slow_hook.is_waiting, 10, "the hook")
        stopping.start()
        stopping.join(1)
        assert stopping.is_alive()
    finally:
        slow_hook.release()
        calling.join(10)
    stopping.join(10)
    assert not stopping.is_alive()
