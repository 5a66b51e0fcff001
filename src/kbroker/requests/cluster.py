"""The cluster in the responses of a node: its nodes, and the leader, replicas and ISR of partitions.

All of it is from the image. The node as which a request is served is ``ApiContext.node_id``.
Source: ``KRaftMetadataCache``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.common.errors import Errors
from kbroker.metadata.image.partition_registration import NO_LEADER

if TYPE_CHECKING:
    from kbroker.metadata.topics import TopicView
    from kbroker.requests.context import ApiContext


class Node(NamedTuple):
    """A node that serves clients, with its address at the listener of a request."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


class PartitionState(NamedTuple):
    """State of a partition for clients.

    ``leader``: -1 if no node that serves clients at the listener leads it; ``error``: LISTENER_NOT_FOUND if the leader
    lacks the listener, LEADER_NOT_AVAILABLE otherwise.
    """

    error: Errors
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]
    elr: list[int]
    last_known_elr: list[int]


def registered_nodes(ctx: ApiContext, listener: str) -> dict[int, Node]:
    """Return the registered nodes that have a listener of this name, by id."""
    brokers, nodes = ctx.image.brokers, {}
    for node_id, broker in brokers.items():
        at = broker.listeners.get(listener)
        if at is not None:
            nodes[node_id] = Node(node_id, at.host, at.port, broker.rack, broker.is_fenced)
    is_fenced = ctx.node_id in brokers and brokers[ctx.node_id].is_fenced
    nodes[ctx.node_id] = Node(ctx.node_id, *ctx.endpoint(listener), ctx.config.text("broker.rack") or None, is_fenced)
    return dict(sorted(nodes.items()))


def live_nodes(ctx: ApiContext, listener: str) -> dict[int, Node]:
    """Return the registered, unfenced nodes that have a listener of this name, by id."""
    return {one.node_id: one for one in registered_nodes(ctx, listener).values() if not one.is_fenced}


def controller_id(ctx: ApiContext, live: Collection[int]) -> int:
    """Return the node to which clients send changes; any node accepts them. -1 if no node serves clients."""
    return ctx.controller.node_id if ctx.controller.node_id in live else next(iter(live), -1)


def partition_state(ctx: ApiContext, view: TopicView, index: int, live: Collection[int]) -> PartitionState:
    """Return the state of a partition, without a leader if this node leads it but could not read its log."""
    node_id = ctx.node_id
    found = view.registrations[index]
    is_unread = found.leader == node_id and view.partitions[index] is None
    offline = [one for one in found.replicas if one not in live or (is_unread and one == node_id)]
    leader = NO_LEADER if found.leader in offline else found.leader
    error = Errors.NONE
    if leader == NO_LEADER:
        lacks_listener = found.leader != node_id and found.leader in ctx.image.brokers
        error = Errors.LISTENER_NOT_FOUND if lacks_listener else Errors.LEADER_NOT_AVAILABLE
    return PartitionState(
        error,
        leader,
        found.leader_epoch,
        list(found.replicas),
        list(found.isr),
        offline,
        list(found.elr),
        list(found.last_known_elr),
    )


def current_leader(ctx: ApiContext, name: str, index: int) -> tuple[int, int]:
    """Return the leader of a partition and its epoch, as in the image; -1 and -1 for an unknown partition."""
    topic = ctx.image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return NO_LEADER, -1
    return topic.partitions[index].leader, topic.partitions[index].leader_epoch


def led_partition(ctx: ApiContext, name: str, index: int, epoch: int = -1) -> tuple[Any, Errors]:
    """Return the log of a partition that this node leads, or None and the error for the client.

    Args: ``epoch``: the leader epoch in the request, -1 if it has none.
    """
    view = ctx.topics.get(name)
    if view is None or not 0 <= index < len(view.partitions):
        return None, Errors.UNKNOWN_TOPIC_OR_PARTITION
    if view.registrations[index].leader != ctx.node_id:
        return None, Errors.NOT_LEADER_OR_FOLLOWER
    log = view.partitions[index]
    if log is None:
        return None, Errors.KAFKA_STORAGE_ERROR
    if log.is_closed:
        return None, Errors.UNKNOWN_TOPIC_OR_PARTITION
    if epoch not in (-1, log.leader_epoch):
        is_newer = epoch > log.leader_epoch
        return None, Errors.UNKNOWN_LEADER_EPOCH if is_newer else Errors.FENCED_LEADER_EPOCH
    return log, Errors.NONE


def is_replica(ctx: ApiContext, name: str, index: int) -> bool:
    """Return whether this node has a replica of a partition, or the partition is not in the metadata."""
    view = ctx.topics.get(name)
    if view is None or not 0 <= index < len(view.registrations):
        return True
    return ctx.node_id in view.registrations[index].replicas


def endpoint_rows(nodes: Mapping[int, Node], wanted: Collection[int]) -> list[dict[str, Any]]:
    """Return the NodeEndpoints of a response: the addresses of leaders that a client had not expected (KIP-951)."""
    return [
        {"NodeId": one.node_id, "Host": one.host, "Port": one.port, "Rack": one.rack}
        for one in nodes.values()
        if one.node_id in wanted
    ]
