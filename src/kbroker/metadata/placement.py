"""Placement of the replicas of new partitions on nodes and racks. Source: ``StripedReplicaPlacer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.image.image import MetadataImage


def registered_nodes(image: MetadataImage, node_id: int) -> dict[int, bool]:
    """Return whether each registered node is fenced, by id; before any registration, only this node, unfenced."""
    return {one: broker.is_fenced for one, broker in sorted(image.brokers.items())} or {node_id: False}


def check_factor(factor: int, nodes: Mapping[int, bool]) -> None:
    """Refuse a replication factor that the nodes cannot reach. Raises: KafkaError with Kafka's code and text."""
    text = ""
    if all(nodes.values()):
        text = "All brokers are currently fenced."
    elif factor > len(nodes):
        text = (
            f"The target replication factor of {factor} cannot be reached because only {len(nodes)} broker(s) are "
            "registered or some brokers have all their log directories cordoned."
        )
    if text:
        text = f"Unable to replicate the partition {factor} time(s): {text}"
        raise KafkaError(Errors.INVALID_REPLICATION_FACTOR, text)


def place(
    image: MetadataImage, nodes: Mapping[int, bool], factor: int, first: int, count: int
) -> Sequence[tuple[int, ...]]:
    """Return the replicas of ``count`` partitions, the leader first; a fenced node leads none.

    Successive partitions have successive leaders, and the replicas of one partition are on as many racks as possible.

    Args: ``first``: number of the first partition, by which the leaders are shifted.
    """
    racks: dict[str, list[int]] = {}
    for node_id in nodes:
        broker = image.brokers.get(node_id)
        racks.setdefault((broker.rack if broker is not None else None) or "", []).append(node_id)
    ring = [one for row in zip_longest(*racks.values()) for one in row if one is not None]
    leaders = [one for one in ring if not nodes[one]]
    placed = []
    for number in range(first, first + count):
        leader = leaders[number % len(leaders)]
        at = ring.index(leader)
        placed.append(tuple((ring[at:] + ring[:at])[:factor]))
    return placed
