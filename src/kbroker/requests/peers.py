"""Coordinators of the nodes in this process, for the calls between brokers: markers, verification, share states.

With one node each call is to its own coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import OFFSETS_TOPIC
from kbroker.requests.cluster import current_leader

if TYPE_CHECKING:
    from kbroker.coordinator.group_coordinator import GroupCoordinator
    from kbroker.coordinator.runtime import CoordinatorRuntime
    from kbroker.coordinator.share.share_coordinator import ShareCoordinator
    from kbroker.coordinator.share.share_records import SharePartitionKey
    from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
    from kbroker.requests.context import ApiContext


def groups_of(ctx: ApiContext, index: int) -> GroupCoordinator:
    """Return the coordinator of the groups in a partition of ``__consumer_offsets``. Raises: KafkaError."""
    return _leading(ctx, OFFSETS_TOPIC, index).groups


def transactions_of(ctx: ApiContext, transactional_id: str) -> TransactionCoordinator:
    """Return the coordinator of a transactional id. Raises: KafkaError."""
    own = ctx.transactions
    return own if _is_mine(ctx, own.runtime, transactional_id) else _at(ctx, own.runtime, transactional_id).transactions


def share_of(ctx: ApiContext, key: SharePartitionKey) -> ShareCoordinator:
    """Return the coordinator of a share partition; ``__share_group_state`` is created first. Raises: KafkaError."""
    own = ctx.share
    own.prepare()
    return own if _is_mine(ctx, own.runtime, key.text) else _at(ctx, own.runtime, key.text).share


def _is_mine(ctx: ApiContext, runtime: CoordinatorRuntime[Any], key: str) -> bool:
    return len(ctx.peers) < 2 or not runtime.exists or runtime.is_leader(key)


def _at(ctx: ApiContext, runtime: CoordinatorRuntime[Any], key: str) -> ApiContext:
    return _leading(ctx, runtime.name, runtime.index_of(key))


def _leading(ctx: ApiContext, topic: str, index: int) -> ApiContext:
    """Return the context of the node that leads a partition. Raises: KafkaError, if no node of this process does."""
    found = ctx.peers.get(current_leader(ctx, topic, index)[0]) if len(ctx.peers) > 1 else ctx
    if found is None:
        raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE, f"{topic}-{index} has no leader")
    return found
