"""Coordinators of the nodes in this process, for the calls between brokers: markers, verification, share states.

With one node each call is to its own coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import OFFSETS_TOPIC, TopicPartition
from kbroker.requests.cluster import current_leader

if TYPE_CHECKING:
    from kbroker.coordinator.group_coordinator import GroupCoordinator
    from kbroker.coordinator.runtime import CoordinatorRuntime
    from kbroker.coordinator.share.persister import ShareState, StateBatch
    from kbroker.coordinator.share.share_coordinator import ShareCoordinator
    from kbroker.coordinator.share.share_records import SharePartitionKey
    from kbroker.coordinator.transaction.add_partitions_to_txn import Answers
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
    """Return the coordinator of a share partition. Raises: KafkaError."""
    own = ctx.share
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


class ClusterTransactions:
    """Partitions of transactions, added and verified at the coordinator of each transactional id. Threads: any."""

    def __init__(self, ctx: ApiContext) -> None:
        self._ctx = ctx

    def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, places: Collection[TopicPartition]
    ) -> Answers:
        """Let partitions join the transaction; return an error for each."""
        coordinator = transactions_of(self._ctx, transactional_id)
        return coordinator.add_partitions(transactional_id, producer_id, producer_epoch, places)

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, places: Collection[TopicPartition]
    ) -> Answers:
        """Return NONE for each partition in the transaction, else the error."""
        coordinator = transactions_of(self._ctx, transactional_id)
        return coordinator.verify_partitions(transactional_id, producer_id, producer_epoch, places)


class ClusterShareStates:
    """States of share partitions, at the coordinator of each: see ``ShareCoordinator``. Threads: any."""

    def __init__(self, ctx: ApiContext) -> None:
        self._ctx = ctx

    def prepare(self) -> None:
        """Create ``__share_group_state`` unless it exists. Raises: KafkaError."""
        self._ctx.share.prepare()

    def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state; a higher leader epoch is stored and fences the requests of earlier leaders."""
        return share_of(self._ctx, key).read(key, leader_epoch)

    def summary(self, key: SharePartitionKey) -> ShareState:
        """Return the state without its batches; start offset -1 if the share partition is not initialized."""
        return share_of(self._ctx, key).summary(key)

    def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        """Change the state."""
        coordinator = share_of(self._ctx, key)
        coordinator.write(key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches)

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Create the state, or replace it."""
        share_of(self._ctx, key).initialize(key, state_epoch, start_offset)

    def delete(self, key: SharePartitionKey) -> None:
        """Delete the state; no effect if there is none."""
        share_of(self._ctx, key).delete(key)
