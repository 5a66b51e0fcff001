"""Metrics of share groups: sessions, records in flight, and share fetches that wait. Sensors record the rest.

Source: ``ShareSessionCache``, ``SharePartitionMetrics``, ``DelayedOperationPurgatory``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.observe.metric_table import Row, Series

if TYPE_CHECKING:
    from kbroker.requests.context import ApiContext
    from kbroker.share.share_partition import SharePartition
    from kbroker.share.share_partition_manager import SharePartitionManager

SESSIONS, PARTITIONS = "kafka.server:ShareSessionCache", "kafka.server:SharePartitionMetrics"
MAX_PARTITIONS = 1000
_LABELS = ("group", "topic", "partition")


def _of(read: Callable[[SharePartitionManager], float]) -> Callable[[ApiContext], float]:
    def value(ctx: ApiContext) -> float:
        service = ctx.share_partition_service.started
        return 0 if service is None else read(service.manager)

    return value


def _each(read: Callable[[SharePartition], float]) -> Callable[[ApiContext], Series]:
    """Return the series of at most MAX_PARTITIONS share partitions, those with the most records in flight."""

    def series(ctx: ApiContext) -> Series:
        service = ctx.share_partition_service.started
        known = [] if service is None else service.manager.partitions()
        known.sort(key=lambda share: share.window.record_count, reverse=True)
        return [
            ((share.key.group_id, share.key.topic, str(share.key.partition)), read(share))
            for share in known[:MAX_PARTITIONS]
        ]

    return series


ROWS: tuple[Row[ApiContext], ...] = (
    Row(SESSIONS, "ShareSessionsCount", "share sessions", _of(lambda manager: len(manager.sessions))),
    Row(SESSIONS, "SharePartitionsCount", "partitions of the share sessions",
        _of(lambda manager: manager.sessions.partition_count)),
    Row(SESSIONS, "ShareSessionEvictionsPerSec", "share sessions that ended because their connection was closed",
        _of(lambda manager: manager.sessions.evictions), (), "counter"),
    Row(PARTITIONS, "InFlightMessageCount", "records in flight of a share partition",
        _each(lambda share: share.window.record_count), _LABELS),
    Row(PARTITIONS, "InFlightBatchCount", "batches in flight of a share partition",
        _each(lambda share: len(share.window.batches)), _LABELS),
    Row("kafka.server:DelayedShareFetch", "NumDelayedOperations", "share fetches that wait",
        _of(lambda manager: manager.purgatory.delayed)),
)  # fmt: skip
