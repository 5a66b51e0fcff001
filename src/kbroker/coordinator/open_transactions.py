"""The transactions that have written offsets to one partition of ``__consumer_offsets`` and are not at their end.

Source: ``OffsetMetadataManager`` (pendingTransactionalOffsets, openTransactionsByGroup).
"""

from __future__ import annotations

import threading


class OpenTransactions:
    """Producer ids and the groups whose offsets they have written.

    ``lock`` guards everything, and is held while a transactional commit or an end marker is appended, so that no commit
    comes between a marker and what it does. It is taken under groups' locks and before the append lock.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._groups: dict[int, set[str]] = {}

    def group_ids(self, producer_id: int) -> list[str]:
        """The groups with offsets of a producer, in the order in which they are locked."""
        return sorted(self._groups.get(producer_id, ()))

    def add(self, producer_id: int, group_id: str) -> None:
        """A producer has written offsets of a group."""
        self._groups.setdefault(producer_id, set()).add(group_id)

    def end(self, producer_id: int) -> None:
        """Its transaction is at its end."""
        self._groups.pop(producer_id, None)

    def clear(self) -> dict[int, set[str]]:
        """Forget all; return what there was."""
        groups, self._groups = self._groups, {}
        return groups

    @property
    def producer_ids(self) -> list[int]:
        """All producers."""
        return sorted(self._groups)
