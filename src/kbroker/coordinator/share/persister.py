"""States of share partitions, as the share coordinator stores them, and changes of the states.

Source: ``Persister`` and ``DefaultStatePersister`` of Kafka; KIP-932.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

UNINITIALIZED_OFFSET = -1
UNKNOWN_COUNT = -1


class StateBatch(NamedTuple):
    """Records of a share partition with the same state, from the first to the last offset, both included.

    ``delivery_state``: 0 available, 2 acknowledged, 4 archived.
    """

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class ShareState(NamedTuple):
    """Stored state of a share partition.

    ``start_offset`` is -1 before the first write. ``delivery_complete_count``: number of records at or after the start
    offset that are acknowledged or archived, -1 if unknown. ``leader_epoch`` is the highest one stored.
    """

    state_epoch: int = 0
    start_offset: int = UNINITIALIZED_OFFSET
    delivery_complete_count: int = UNKNOWN_COUNT
    leader_epoch: int = 0
    batches: Sequence[StateBatch] = ()

    def lag(self, end_offset: int) -> int | None:
        """Return the number of records that are not delivered completely; None if it is unknown."""
        if self.start_offset == UNINITIALIZED_OFFSET or self.delivery_complete_count == UNKNOWN_COUNT:
            return None
        lag = end_offset - self.start_offset - self.delivery_complete_count
        return (lag + (1 << 63)) % (1 << 64) - (1 << 63)  # a long of Java: any start offset can be stored


class StateChange(NamedTuple):
    """Change of the state of a share partition.

    ``start_offset``: -1 keeps the stored one. ``batches``: the changed ones.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]
