"""Sensors of share partitions, by Kafka's names.

Source: ``ShareGroupMetrics``, ``SharePartitionMetrics``.
"""

from __future__ import annotations

from kbroker._core.metrics.stats import Avg, Max
from kbroker.metrics.registry import Metrics
from kbroker.share.in_flight import AcknowledgeType

GROUP = "share-group-metrics"
_TYPES = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT, AcknowledgeType.RENEW)


class ShareSensors:
    """Rates and totals of all share groups. Threads: any."""

    def __init__(self, metrics: Metrics) -> None:
        self._acknowledgements = {
            int(type_): metrics.meter(
                f"RecordAcknowledgements-{type_.name}",
                "record-acknowledgement",
                GROUP,
                "records that members acknowledged",
                {"ackType": type_.name.capitalize()},
            )
            for type_ in _TYPES
        }
        self._timeouts = metrics.meter(
            "AcquisitionLockTimeout", "acquisition-lock-timeout", GROUP, "records whose acquisition locks expired"
        )
        self._batches = metrics.sensor("InFlightBatchMessageCount")
        name = "in-flight-batch-message-count"
        self._batches.add(metrics.metric_name(f"{name}-avg", GROUP, description="records of a batch in flight"), Avg())
        self._batches.add(metrics.metric_name(f"{name}-max", GROUP, description="records of a batch in flight"), Max())

    def acknowledged(self, type_: int, records: int) -> None:
        """Count acknowledged records."""
        sensor = self._acknowledgements.get(type_)
        if sensor is not None:
            sensor.record(records)

    def lock_timeout(self, records: int) -> None:
        """Count records whose lock expired."""
        self._timeouts.record(records)

    def in_flight_batch(self, records: int) -> None:
        """Note the size of a new batch in flight."""
        self._batches.record(records)
