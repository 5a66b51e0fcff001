"""Description of a cluster: its id, controllers, brokers with their replicas, and features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kbroker.client.cluster import CLIENT_SOFTWARE, FIRST_API_VERSIONS, Cluster, Node, TopicMetadata, shared_version
from kbroker.client.connection import API_VERSIONS
from kbroker.client.quorum_description import QuorumDescription, describe_quorum
from kbroker.common.errors import KafkaError

DESCRIBE_CLUSTER = 60
FIRST_WITH_FENCED = 2  # version of DescribeCluster
FIRST_WITH_FEATURES = 3  # version of ApiVersions


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature with its finalized level (0: none), and the levels that the brokers support."""

    name: str
    finalized_level: int
    min_supported_level: int
    max_supported_level: int


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker, and the numbers of partitions that it leads, of its replicas, and of its in-sync replicas.

    ``metadata_lag``: records of the cluster's metadata that it has not fetched yet, None if unknown.
    """

    node: Node
    is_fenced: bool
    leaders: int
    replicas: int
    in_sync: int
    metadata_lag: int | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster; ``cluster_id`` is None from brokers before Metadata v2, ``controller_id`` is -1 without a controller.

    ``brokers`` by ascending node id, ``features`` by name, empty from brokers before Kafka 2.7; ``quorum``: None if the
    broker has none, or does not describe it, or it was not requested.
    """

    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerDescription, ...]
    features: tuple[Feature, ...]
    quorum: QuorumDescription | None


def describe_cluster(cluster: Cluster, has_quorum: bool = True) -> ClusterDescription:
    """Request the description from any broker, without the quorum unless ``has_quorum``.

    Raises: KafkaError, BrokerConnectionError after the retries.
    """

    def attempt() -> ClusterDescription:
        topics = cluster.fetch_metadata(None)
        quorum = describe_quorum(cluster) if has_quorum else None
        brokers = _brokers(cluster, topics, quorum)
        return ClusterDescription(cluster.cluster_id, cluster.controller_id, brokers, _features(cluster), quorum)

    return cluster.retry(attempt)


def _brokers(
    cluster: Cluster, topics: Iterable[TopicMetadata], quorum: QuorumDescription | None
) -> tuple[BrokerDescription, ...]:
    fenced = _fenced_nodes(cluster)
    nodes = {**fenced, **cluster.nodes}
    leaders, replicas, in_sync = Counter[int](), Counter[int](), Counter[int]()
    for topic in topics:
        for partition in topic.partitions:
            leaders[partition.leader] += 1
            replicas.update(partition.replicas)
            in_sync.update(partition.isr)
    known = () if quorum is None else (*quorum.voters, *quorum.observers)
    lags = {replica.node_id: replica.lag for replica in known}
    return tuple(
        BrokerDescription(nodes[key], key in fenced, leaders[key], replicas[key], in_sync[key], lags.get(key))
        for key in sorted(nodes)
    )


def _fenced_nodes(cluster: Cluster) -> dict[int, Node]:
    """Return the fenced brokers by node id; none from brokers before Kafka 4.0, which do not list them."""
    try:
        version = shared_version(cluster.connection_to(None), DESCRIBE_CLUSTER)
    except KafkaError:
        return {}
    if version < FIRST_WITH_FENCED:
        return {}
    response = cluster.ask(DESCRIBE_CLUSTER, {"IncludeFencedBrokers": True}, "cluster")
    rows = [row for row in response["Brokers"] if row["IsFenced"]]
    return {row["BrokerId"]: Node(row["BrokerId"], row["Host"], row["Port"], row["Rack"]) for row in rows}


def _features(cluster: Cluster) -> tuple[Feature, ...]:
    if shared_version(cluster.connection_to(None), API_VERSIONS, FIRST_API_VERSIONS) < FIRST_WITH_FEATURES:
        return ()
    response = cluster.ask(API_VERSIONS, CLIENT_SOFTWARE, "features", max_version=FIRST_API_VERSIONS)
    levels = {f["Name"]: f["MaxVersionLevel"] for f in response["FinalizedFeatures"]}
    found = [
        Feature(f["Name"], levels.get(f["Name"], 0), f["MinVersion"], f["MaxVersion"])
        for f in response["SupportedFeatures"]
    ]
    return tuple(sorted(found, key=lambda feature: feature.name))
