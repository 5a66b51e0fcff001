"""Reads of several partitions at once, which keep only complete batches."""

from collections.abc import Mapping
from typing import Any

import pytest

from kbroker.client.consumer import FetchedPartition
from kbroker.console import wire_partition
from kbroker.console.wire_partition import WirePartition, read_ahead
from kbroker.protocol.records import Record, build_batch

BATCH = build_batch([Record(None, b"v", 0, [])])


class Fetches:
    """Consumer whose fetches return a complete batch of the first partition and truncated batches of the others."""

    made: list[Mapping[tuple[str, int], int]] = []  # noqa: RUF012

    def __init__(self, cluster: Any, positions: Mapping[tuple[str, int], int], **settings: Any) -> None:
        self.positions = positions
        self.made.append(positions)

    def fetch(self) -> list[FetchedPartition]:
        return [
            FetchedPartition(topic, p, offset, 9, 9, 0, (), memoryview(BATCH if number == 0 else BATCH[:-1]))
            for number, ((topic, p), offset) in enumerate(self.positions.items())
        ]


def test_a_part_of_a_batch_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other brokers truncate a batch at the end of a response; a fetch of its partition alone returns it complete."""
    monkeypatch.setattr(wire_partition, "Consumer", Fetches)
    cluster: Any = None
    partitions = {p: WirePartition(cluster, "t", p, 0, 9) for p in (0, 1)}
    read_ahead(cluster, "t", partitions, {0: 0, 1: 0})
    Fetches.made.clear()
    assert [partitions[p].until(1).read(0, 1, min_one=True).records for p in (0, 1)] == [BATCH, BATCH]
    assert Fetches.made == [{("t", 1): 0}]
    read_ahead(cluster, "t", partitions, {0: 0})
    assert len(Fetches.made) == 1
