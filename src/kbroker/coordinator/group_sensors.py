"""Sensors of the group coordinator: commits, deleted and expired offsets, rebalances; by Kafka's names.

Source: ``GroupCoordinatorMetrics``.
"""

from __future__ import annotations

from kbroker._core.metrics.sensor import Sensor
from kbroker.metrics.registry import Metrics

GROUP = "group-coordinator-metrics"


class GroupSensors:
    """Sensors with a rate per second and a total each. Threads: any. Args: ``metrics``: the registry for them."""

    def __init__(self, metrics: Metrics) -> None:
        def meter(sensor_name: str, name: str, text: str) -> Sensor:
            return metrics.meter(sensor_name, name, GROUP, text)

        self.offset_commits = meter("OffsetCommits", "offset-commit", "committed offsets")
        self.offset_expirations = meter("OffsetExpired", "offset-expiration", "expired offsets")
        self.offset_deletions = meter("OffsetDeletions", "offset-deletion", "offsets that administrators have deleted")
        self.classic_rebalances = meter(
            "CompletedRebalances", "group-completed-rebalance", "completed rebalances of classic groups"
        )
        self.consumer_rebalances = meter(
            "ConsumerGroupRebalances", "consumer-group-rebalance", "rebalances of consumer groups that began"
        )
        self.streams_rebalances = meter(
            "StreamsGroupRebalances", "streams-group-rebalance", "rebalances of streams groups that began"
        )
        self.share_rebalances = meter(
            "ShareGroupRebalances", "share-group-rebalance", "rebalances of share groups that began"
        )
