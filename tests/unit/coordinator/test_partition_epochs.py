"""Orders to serve partitions come with leader epochs, and count only if they are the newest."""

from __future__ import annotations

from kbroker.coordinator.partition_epochs import PartitionEpochs


def test_the_newest_order_counts() -> None:
    """Of one epoch there is one leader: an order of the same epoch as the one before never contradicts it."""
    epochs = PartitionEpochs()
    assert epochs.begin_load(0, 0)
    assert epochs.begin_load(0, 0), "it was repaired"
    assert not epochs.begin_unload(0, 0)
    assert epochs.is_served(0, 0)
    assert epochs.begin_unload(0, 2)
    assert not epochs.is_served(0, 0)
    assert not epochs.begin_load(0, 1)
    assert not epochs.begin_load(0, 2)
    assert not epochs.begin_unload(0, 2)
    assert epochs.begin_load(0, 3)
    assert epochs.is_served(0, 3)
    assert not epochs.is_served(0, 2)


def test_partitions_have_their_own_orders() -> None:
    """An unload may come before anything else."""
    epochs = PartitionEpochs()
    assert epochs.begin_unload(0, 5)
    assert epochs.begin_load(1, 0)
    assert (epochs.is_served(0, 5), epochs.is_served(1, 0)) == (False, True)


def test_a_new_topic_begins_anew() -> None:
    """One partition is forgotten, or all are."""
    epochs = PartitionEpochs()
    for index in range(2):
        assert epochs.begin_load(index, 7)
    assert epochs.begin_unload(0, None)
    assert epochs.begin_load(0, 0)
    assert not epochs.begin_load(1, 0)
    epochs.clear()
    assert epochs.begin_load(1, 0)
