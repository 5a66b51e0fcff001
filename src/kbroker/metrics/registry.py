"""The broker's metrics by name, group and tags; the sensors themselves are in the core.

Source: ``Metrics.java``, ``MetricName.java``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, cast

from kbroker._core.clock import BaseClock
from kbroker._core.metrics.metric import Metric
from kbroker._core.metrics.metric_config import MetricConfig
from kbroker._core.metrics.sensor import EXPIRY_INTERVAL_MS, Sensor, SensorRegistry
from kbroker._core.metrics.stats import Meter, WindowedCount, WindowedSum

__all__ = ["EXPIRY_INTERVAL_MS", "Gauge", "MetricName", "Metrics"]

COUNT_GROUP = "kafka-metrics-count"


class MetricName(NamedTuple):
    """Key of a metric: name, group and tags; equality ignores the description.

    Tags are unordered: two names with the same pairs are equal. ``MetricName.of`` accepts a mapping or a flat list.
    """

    name: str
    group: str
    tags: tuple[tuple[str, str], ...] = ()
    description: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MetricName) and self[:3] == other[:3]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:3])

    @staticmethod
    def of(name: str, group: str, tags: Mapping[str, str] | Iterable[str] = (), description: str = "") -> "MetricName":
        """Return a name; ``tags`` is a mapping, or alternating keys and values.

        Raises: ValueError for an odd number of items, or a duplicate key.
        """
        if isinstance(tags, Mapping):
            pairs = dict(tags)
        else:
            flat = list(tags)
            if len(flat) % 2:
                raise ValueError(f"tags need a value for every key, got {len(flat)} items")
            pairs = dict(zip(flat[::2], flat[1::2], strict=True))
            if len(pairs) * 2 != len(flat):
                raise ValueError(f"a tag is given twice in {flat}")
        return MetricName(name, group, tuple(sorted(pairs.items())), description)

    @property
    def tag_map(self) -> dict[str, str]:
        """Tags as a new dictionary."""
        return dict(self.tags)

    def __str__(self) -> str:
        tags = ", ".join(f"{key}={value}" for key, value in self.tags)
        return f"{self.group}:{self.name}{{{tags}}}"


class Gauge(NamedTuple):
    """A number that is read on demand rather than recorded: a queue's length, a pool's free bytes."""

    name: MetricName
    function: Callable[[], float]

    def measure(self, time_ms: int | None = None) -> float:
        """Return the current number; the time is ignored."""
        return float(self.function())


class Metrics:
    """All metrics of a broker: sensors with their metrics, and gauges.

    Initially there is one gauge, ``count`` in the group ``kafka-metrics-count``: the number of metrics, itself
    included.

    Args:
        config: default of the sensors; its tags are merged into every name made by ``metric_name``.
        clock: source of time; None is the process's system clock.
        expires: whether ``expire_inactive`` removes idle sensors; the owner calls it every EXPIRY_INTERVAL_MS.
    Threads: any.
    """

    def __init__(
        self, config: MetricConfig | None = None, clock: BaseClock | None = None, *, expires: bool = False
    ) -> None:
        self._registry = SensorRegistry(config, clock, expires=expires)
        self._gauges: dict[MetricName, Gauge] = {}
        self._sources: list[Callable[[], None]] = []
        self.add_gauge(self.metric_name("count", COUNT_GROUP, description="number of registered metrics"), self.__len__)

    @property
    def config(self) -> MetricConfig:
        """Default config of sensors."""
        return self._registry.config

    def metric_name(
        self, name: str, group: str, tags: Mapping[str, str] | Iterable[str] = (), description: str = ""
    ) -> MetricName:
        """Return a MetricName with the registry's default tags merged in; a tag given here takes precedence.

        Raises: ValueError for tags that are not pairs.
        """
        own = MetricName.of(name, group, tags, description)
        return MetricName.of(name, group, {**self.config.tags, **own.tag_map}, description)

    def sensor(
        self,
        name: str,
        config: MetricConfig | None = None,
        *,
        parents: Iterable[Sensor] = (),
        inactive_expiration_ms: int | None = None,
        record_level: Literal["INFO", "DEBUG", "TRACE"] = "INFO",
    ) -> Sensor:
        """Return the sensor of this name, created from the other arguments if it does not exist.

        Its metrics are named by MetricName: ``sensor.add(metrics.metric_name(...), Rate())``.
        Raises: ValueError for parents that are not registered here or reach one sensor twice.
        """
        return self._registry.sensor(
            name,
            config,
            parents=parents,
            inactive_expiration_ms=inactive_expiration_ms,
            record_level=record_level,
        )

    def meter(
        self,
        sensor_name: str,
        name: str,
        group: str,
        text: str,
        tags: Mapping[str, str] | Iterable[str] = (),
        *,
        since: str = "the start",
        counted: WindowedSum | WindowedCount | None = None,
    ) -> Sensor:
        """Return a sensor with the metrics ``name``-rate, per second, and ``name``-count.

        Args: ``text``: name of the counted things, in descriptions; ``since``: the beginning of the count, likewise;
        ``counted``: statistic of the rate, None for the sum of the recorded values.
        """
        sensor = self.sensor(sensor_name)
        rate = self.metric_name(f"{name}-rate", group, tags, f"{text} per second")
        count = self.metric_name(f"{name}-count", group, tags, f"{text} since {since}")
        sensor.add(None, Meter(rate, count, counted))
        return sensor

    def add_source(self, refresh: Callable[[], None]) -> None:
        """Call ``refresh`` before each look-up; it may ``adopt`` sensors made by native code.

        ``refresh`` must be cheap when there are no new sensors, and must not look up metrics itself.
        """
        self._sources.append(refresh)

    def adopt(self, sensor: Sensor) -> None:
        """Register a sensor made elsewhere, with its metrics; it replaces a removed sensor of the same name.

        Raises: ValueError if another sensor has its name or one of the metric names, or the sensor belongs to another
        registry.
        """
        self._registry.adopt(sensor)

    def _refresh(self) -> None:
        for refresh in self._sources:
            refresh()

    def get_sensor(self, name: str) -> Sensor | None:
        """Return the sensor of this name, or None."""
        self._refresh()
        return self._registry.get_sensor(name)

    def remove_sensor(self, name: str) -> bool:
        """Remove a sensor with its metrics and its child sensors; False if there is no such sensor."""
        self._refresh()
        return self._registry.remove_sensor(name)

    def discard(self, sensor: Sensor) -> None:
        """Remove a sensor, unless another sensor has its name now."""
        if self._registry.get_sensor(sensor.name) is sensor:
            self._registry.remove_sensor(sensor.name)

    def discard_removed(self, name: str) -> None:
        """Remove the sensor of this name if it is marked removed; the sources of ``add_source`` are not called."""
        found = self._registry.get_sensor(name)
        if found is not None and found.is_removed:
            self._registry.remove_sensor(name)

    def expire_inactive(self, time_ms: int | None = None) -> list[str]:
        """Remove the sensors that were idle for too long; return their names."""
        return self._registry.expire_inactive(time_ms)

    def add_gauge(self, name: MetricName, function: Callable[[], float]) -> Gauge:
        """Register a gauge, whose value ``function`` returns.

        Raises: ValueError if the name is taken.
        """
        if self.get(name) is not None:
            raise ValueError(f"a metric named {name} exists already")
        gauge = self._gauges[name] = Gauge(name, function)
        return gauge

    def get(self, name: MetricName) -> Metric | Gauge | None:
        """Return a metric or gauge, or None."""
        self._refresh()
        return self._registry.get_metric(name) or self._gauges.get(name)

    def find(self, name: str, group: str) -> list[Metric | Gauge]:
        """Return every metric of a name and group, with any tags."""
        return [metric for found, metric in self.items() if found.name == name and found.group == group]

    def items(self) -> Iterator[tuple[MetricName, Metric | Gauge]]:
        """Yield the metrics registered at the time of the call, gauges first."""
        self._refresh()
        gauges: list[tuple[MetricName, Metric | Gauge]] = list(self._gauges.copy().items())
        metrics = self._registry.metrics.copy()  # a dict() of it would look up each name, which may be removed by then
        yield from gauges
        for name, metric in metrics.items():
            yield cast(MetricName, name), metric

    def __len__(self) -> int:
        self._refresh()
        return len(self._gauges) + len(self._registry.metrics)

    def __contains__(self, name: MetricName) -> bool:
        return self.get(name) is not None
