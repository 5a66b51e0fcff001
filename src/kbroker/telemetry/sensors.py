"""Sensors of client telemetry by Kafka's names: of each client instance, and of requests with an unknown subscription.

Source: ``ClientMetricsManager.ClientMetricsStats``.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker._core.metrics.sensor import Sensor
from kbroker._core.metrics.stats import Avg, Max, WindowedCount
from kbroker.metrics.registry import Metrics

GROUP = "client-metrics"
INSTANCE_LABEL = "client_instance_id"

_THROTTLE, _EXPORT, _ERROR = "throttle", "plugin-export", "plugin-error"
_HELP = {
    "unknown-subscription-request": "pushes with an unknown subscription id",
    _THROTTLE: "requests of a client before its push interval has passed",
    _EXPORT: "pushes that were decoded",
    _ERROR: "pushes that could not be decoded",
}


class TelemetrySensors:
    """The sensors; those of an instance exist from ``add`` to ``remove``. Threads: any.

    Args: ``count`` returns the number of client instances.
    """

    def __init__(self, metrics: Metrics, count: Callable[[], int]) -> None:
        self._metrics = metrics
        metrics.add_gauge(metrics.metric_name("instance-count", GROUP, description="client instances"), count)
        self._unknown = self._meter("unknown-subscription-request", "unknown-subscription-request", {})

    def add(self, instance: str) -> None:
        """Register the sensors of an instance unless they exist."""
        if self._metrics.get_sensor(f"{_EXPORT}-{instance}") is not None:
            return
        tags = {INSTANCE_LABEL: instance}
        for name in (_THROTTLE, _EXPORT, _ERROR):
            sensor = self._meter(f"{name}-{instance}", name, tags)
            if name == _EXPORT:
                for stat, suffix in ((Avg(), "avg"), (Max(), "max")):
                    text = f"milliseconds to decode a push: {suffix}"
                    sensor.add(self._metrics.metric_name(f"{_EXPORT}-time-{suffix}", GROUP, tags, text), stat)

    def remove(self, instance: str) -> None:
        """Remove the sensors of an instance."""
        for name in (_THROTTLE, _EXPORT, _ERROR):
            self._metrics.remove_sensor(f"{name}-{instance}")

    def unknown_subscription(self) -> None:
        """Count a push with an unknown subscription id."""
        self._unknown.record()

    def throttled(self, instance: str) -> None:
        """Count a request that arrived before the push interval had passed."""
        self._record(_THROTTLE, instance, 1)

    def exported(self, instance: str, time_ms: float) -> None:
        """Count a decoded push."""
        self._record(_EXPORT, instance, time_ms)

    def failed(self, instance: str) -> None:
        """Count a push that could not be decoded."""
        self._record(_ERROR, instance, 1)

    def _record(self, name: str, instance: str, value: float) -> None:
        sensor = self._metrics.get_sensor(f"{name}-{instance}")
        if sensor is not None:
            sensor.record(value)

    def _meter(self, sensor_name: str, name: str, tags: dict[str, str]) -> Sensor:
        return self._metrics.meter(
            sensor_name, name, GROUP, _HELP[name], tags, since="the first request", counted=WindowedCount()
        )
