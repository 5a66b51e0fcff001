"""Description of a cluster's quorum of controllers, as its leader reports it (KIP-595)."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.client.cluster import Cluster, check
from kbroker.common.errors import Errors, ignoring
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC
from kbroker.protocol.codec import Body

DESCRIBE_QUORUM = 55


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A node that has the metadata log: its end offset, and the number of records that it lacks."""

    node_id: int
    log_end_offset: int
    lag: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum: controllers are voters, brokers observers; both by ascending node id."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


def describe_quorum(cluster: Cluster) -> QuorumDescription | None:
    """Request the description from any broker; None without a quorum, or if the user may not describe it.

    Raises: KafkaError, BrokerConnectionError.
    """
    if not cluster.supports(DESCRIBE_QUORUM):
        return None
    topics = [{"TopicName": CLUSTER_METADATA_TOPIC, "Partitions": [{"PartitionIndex": 0}]}]
    with ignoring(Errors.CLUSTER_AUTHORIZATION_FAILED, Errors.UNSUPPORTED_VERSION):
        response = cluster.ask(DESCRIBE_QUORUM, {"Topics": topics}, "quorum")
        partition = response["Topics"][0]["Partitions"][0]
        check(partition["ErrorCode"], "quorum", partition.get("ErrorMessage"))
        leader_id, voters = partition["LeaderId"], partition["CurrentVoters"]
        end = max((row["LogEndOffset"] for row in voters if row["ReplicaId"] == leader_id), default=0)
        replicas = _replicas(voters, end), _replicas(partition["Observers"], end)
        return QuorumDescription(leader_id, partition["LeaderEpoch"], partition["HighWatermark"], *replicas)
    return None


def _replicas(rows: list[Body], end: int) -> tuple[QuorumReplica, ...]:
    """Return the replicas, without nodes that have not fetched from the leader yet.

    A node whose folder was formatted anew has a row per folder for some minutes: the one that fetched last counts.
    """
    newest = sorted(rows, key=lambda row: row["LastFetchTimestamp"])
    found = {
        row["ReplicaId"]: QuorumReplica(row["ReplicaId"], row["LogEndOffset"], max(0, end - row["LogEndOffset"]))
        for row in newest
        if row["LogEndOffset"] >= 0
    }
    return tuple(found[node_id] for node_id in sorted(found))
