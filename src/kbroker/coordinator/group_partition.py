"""Partition of the offsets topic, as the groups that it stores use it; the open transactions of its producers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from kbroker.common.errors import Errors
from kbroker.coordinator.internal_topic import KeyValue, TransactionalProducer, Written


class OpenTransactions:
    """Producer ids of open transactions, each with the groups whose offsets it has written.

    ``lock`` guards everything. It is held while a transactional commit or an end marker is appended, so that no commit
    comes between a marker and its effect. It is acquired under groups' locks, before the shard's and the append lock.

    Source: ``OffsetMetadataManager`` (``openTransactionsByGroup``).
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._groups: dict[int, set[str]] = {}

    def group_ids(self, producer_id: int) -> list[str]:
        """Return the groups with offsets of a producer, in the order in which they are locked."""
        return sorted(self._groups.get(producer_id, ()))

    def add(self, producer_id: int, group_id: str) -> None:
        """Note that a producer has written offsets of a group."""
        self._groups.setdefault(producer_id, set()).add(group_id)

    def end(self, producer_id: int) -> None:
        """Forget the transaction of a producer."""
        self._groups.pop(producer_id, None)


class GroupPartition(Protocol):
    """Partition that stores a group; `GroupShard` is the implementation. Threads: any."""

    transactions: OpenTransactions

    def append(self, records: Sequence[KeyValue], producer: TransactionalProducer | None = None) -> Written:
        """Append records of the group. Raises: KafkaError; then nothing was written."""

    def replace(self, old: Any, new: Any) -> None:
        """Replace a group by another; no effect if the partition no longer has ``old``."""

    def drop(self, group: Any, error: Errors) -> None:
        """Remove a group whose lock the caller holds; its delayed requests get ``error``."""
