"""Which of two orders to serve a partition of an internal topic, or to serve it no longer, is the newer one.

They come with the partition's leader epoch, and may come late: a load that was under way, or was asked for before the
leadership moved, must not undo the unload that followed.
Source: ``CoordinatorRuntime`` (its epochs), ``TransactionStateManager`` (``TransactionPartitionAndLeaderEpoch``).
"""

from __future__ import annotations


class PartitionEpochs:
    """The newest order for each partition. No lock: the caller's lock guards it."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, bool]] = {}  # by partition: leader epoch, and whether it is to be served

    def begin_load(self, index: int, leader_epoch: int) -> bool:
        """Note that this broker leads a partition from an epoch on. False: a newer order came before; do nothing."""
        epoch, is_served = self._newest.get(index, (-1, True))
        if leader_epoch < epoch or (leader_epoch == epoch and not is_served):
            return False
        self._newest[index] = (leader_epoch, True)
        return True

    def begin_unload(self, index: int, leader_epoch: int | None) -> bool:
        """Note that another broker leads a partition from an epoch on; None: the topic was deleted, and a new one of
        its name begins at epoch 0. False: a newer order came before; do nothing.
        """
        if leader_epoch is None:
            self._newest.pop(index, None)
            return True
        epoch, _ = self._newest.get(index, (-1, True))
        if leader_epoch <= epoch:  # of one epoch there is one leader
            return False
        self._newest[index] = (leader_epoch, False)
        return True

    def is_served(self, index: int, leader_epoch: int) -> bool:
        """Whether what was loaded by this epoch's order is to be served: no newer order came meanwhile."""
        return self._newest.get(index) == (leader_epoch, True)

    def clear(self) -> None:
        """The topic was deleted."""
        self._newest.clear()
