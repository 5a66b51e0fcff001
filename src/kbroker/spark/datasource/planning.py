"""Plan the offsets of a batch and its tasks, as the official connector does.

Source: ``KafkaMicroBatchStream.rateLimit``, ``KafkaOffsetRangeCalculator``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from kbroker.common.topic_names import TopicPartition

FIRST_STEP_MS = 1 << 16
LAST_MS = 1 << 43  # a time in the year 2248


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of one partition from ``from_offset`` up to but not including ``until_offset``: the input of a task."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    topic_id: UUID | None = None

    @property
    def size(self) -> int:
        return self.until_offset - self.from_offset


def limited(
    limit: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return ends for about ``limit`` offsets in total, in proportion to those of each partition, at least one each."""
    sizes = {tp: end - begins[tp] for tp, end in ends.items() if end > begins[tp]}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    found = dict(ends)
    for tp, size in sizes.items():
        share = limit * size / total
        found[tp] = min(ends[tp], begins[tp] + (math.ceil(share) if share < 1 else math.floor(share)))
    return found


def limited_by_time(
    limit: int,
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    ends_at: Callable[[int], Mapping[TopicPartition, int]],
    since_ms: int,
) -> tuple[dict[TopicPartition, int], int]:
    """Return ends for at most ``limit`` offsets in total that are at the same time in each partition, and this time.

    Records of one millisecond stay together, even beyond the limit. Timestamps are assumed to ascend in a partition.

    Args: ``ends_at``: returns the ends at a time, within ``begins`` and ``ends``. ``since_ms``: a time no later
    than that of any record from ``begins`` on.
    """
    found, time_ms = dict(begins), since_ms
    above = None
    step_ms = FIRST_STEP_MS
    while time_ms < LAST_MS and step_ms:
        cut = dict(ends_at(min(time_ms + step_ms, LAST_MS)))
        size = sum(end - begins[tp] for tp, end in cut.items())
        if size <= limit:
            found, time_ms = cut, min(time_ms + step_ms, LAST_MS)
            if 2 * size >= limit:
                break
            step_ms = step_ms * 2 if above is None else step_ms // 2
        else:
            above, step_ms = (cut, time_ms + step_ms), step_ms // 2
    if found == begins:  # more records of one millisecond than the limit, or timestamps from LAST_MS on
        return above or (limited(limit, begins, ends), since_ms)
    return found, time_ms


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Return the ranges of tasks: empty ranges are left out, and large ranges are split.

    Args:
        ranges: one per partition.
        min_partitions: the approximate minimum number of ranges; small ranges stay whole.
        max_records: the maximum size of a range.
    """
    found = [one for one in ranges if one.size > 0]
    if max_records is not None:
        found = [part for one in found for part in _cut(one, math.ceil(one.size / max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(one.size for one in found)
    whole = [one for one in found if _count(one.size, total, min_partitions) == 1]
    left_size = total - sum(one.size for one in whole)
    left_count = max(min_partitions - len(whole), 1)
    kept = set(whole)
    return [
        part for one in found for part in ([one] if one in kept else _cut(one, _count(one.size, left_size, left_count)))
    ]


def _count(size: int, total: int, partitions: int) -> int:
    return max(1, math.floor(size / total * partitions + 0.5)) if total else 1


def _cut(one: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(max(count, 1), one.size)
    edges = [one.from_offset + one.size * i // count for i in range(count + 1)]
    return [replace(one, from_offset=a, until_offset=b) for a, b in itertools.pairwise(edges)]
