"""Description of a cluster: its id, controller, brokers and features."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.client.cluster import CLIENT_SOFTWARE, FIRST_API_VERSIONS, Cluster, Node, check
from kbroker.client.connection import API_VERSIONS

FIRST_WITH_FEATURES = 3  # of ApiVersions


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature with its finalized level (0: none), and the levels that the brokers support."""

    name: str
    finalized_level: int
    min_supported_level: int
    max_supported_level: int


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster; ``cluster_id`` is None from brokers before Metadata v2, ``controller_id`` is -1 without a controller.

    ``brokers`` by ascending node id, ``features`` by name, empty from brokers before Kafka 2.7.
    """

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Node, ...]
    features: tuple[Feature, ...]


def describe_cluster(cluster: Cluster) -> ClusterDescription:
    """Request the description from any broker. Raises: KafkaError, BrokerConnectionError after the retries."""

    def attempt() -> tuple[Feature, ...]:
        cluster.fetch_metadata([])
        return _features(cluster)

    features = cluster.retry(attempt)
    brokers = tuple(cluster.nodes[node_id] for node_id in sorted(cluster.nodes))
    return ClusterDescription(cluster.cluster_id, cluster.controller_id, brokers, features)


def _features(cluster: Cluster) -> tuple[Feature, ...]:
    if cluster.version(cluster.connection_to(None), API_VERSIONS, FIRST_API_VERSIONS) < FIRST_WITH_FEATURES:
        return ()
    response = cluster.request(API_VERSIONS, CLIENT_SOFTWARE, max_version=FIRST_API_VERSIONS)
    check(response["ErrorCode"], "features")
    levels = {f["Name"]: f["MaxVersionLevel"] for f in response["FinalizedFeatures"]}
    found = [
        Feature(f["Name"], levels.get(f["Name"], 0), f["MinVersion"], f["MaxVersion"])
        for f in response["SupportedFeatures"]
    ]
    return tuple(sorted(found, key=lambda feature: feature.name))
