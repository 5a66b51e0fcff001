"""Metrics in Prometheus's format: families, and the sensors and gauges of the registry, with bounded series.

The library ``prometheus_client`` writes the text; it is imported at the first scrape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kbroker.metrics.families import Buckets, Family, Kind, Sample, bounded, label_name
from kbroker.metrics.registry import MetricName, Metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

#: Maximum number of series of one name with a label that clients choose.
ENTITY_SERIES = 100


#: Yields families with their series; its argument is the maximum number of series of one family.
Source: TypeAlias = Callable[[int], Iterable[tuple[Family, list[Sample]]]]


class MissingLibraryError(RuntimeError):
    """Absence of the package ``prometheus_client``; the message names the remedy."""

    def __init__(self) -> None:
        super().__init__("metrics in Prometheus's format need prometheus_client: pip install 'kbroker[metrics]'")


class Exposition:
    """Metric families of one broker.

    Args: ``metrics``: the registry of its sensors and gauges. ``entity_series``: maximum number of series of one name
    that have a label chosen by clients; the largest are shown, the rest together as "other".
    Threads: any.
    """

    def __init__(self, metrics: Metrics, entity_series: int = ENTITY_SERIES) -> None:
        self._metrics = metrics
        self._entity_series = entity_series
        self._lock = threading.Lock()
        self._families: dict[str, Family] = {}
        self._sources: list[Source] = []

    def add(self, family: Family) -> None:
        """Add a family. Raises: ValueError if its name is taken."""
        with self._lock:
            if family.prometheus_name in self._families:
                raise ValueError(f"a family named {family.prometheus_name} exists already")
            self._families[family.prometheus_name] = family

    def add_source(self, source: Source) -> None:
        """Add families whose names are not known in advance; ``source`` yields a bounded number at each scrape."""
        with self._lock:
            self._sources.append(source)

    @property
    def families(self) -> list[Family]:
        """The added families, sorted by name."""
        with self._lock:
            return [self._families[name] for name in sorted(self._families)]

    def collect(self) -> Iterator[tuple[Family, list[Sample]]]:
        """Yield each family with its series: added ones, by name, then the registry's, by name, then the sources'."""
        with self._lock:
            sources = list(self._sources)
        registered: dict[str, list[tuple[Family, dict[str, str], float]]] = {}
        for name, metric in self._metrics.items():
            family = family_of(name)
            registered.setdefault(family.prometheus_name, []).append((family, name.tag_map, metric.measure()))
        for family in self.families:
            labels = tuple(map(label_name, family.labels))
            samples = [Sample(values, number) for values, number in family.collect()]
            for _, tags, value in registered.pop(family.prometheus_name, []):
                samples.append(Sample(tuple(tags.get(label, "") for label in family.labels), value))
            yield family, bounded(labels, samples, self._entity_series, family.combine)
        for _, series in sorted(registered.items()):
            # one name may have series with different tags: connection-accept-rate of a listener, and of an address
            by_tags: dict[tuple[str, ...], list[Sample]] = {}
            for _, tags, value in series:
                by_tags.setdefault(tuple(tags), []).append(Sample(tuple(tags.values()), value))
            for tag_names, found in by_tags.items():
                family = series[0][0]._replace(labels=tag_names)
                yield family, bounded(tuple(map(label_name, tag_names)), found, self._entity_series, family.combine)
        for source in sources:
            yield from source(self._entity_series)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Return all families in the format that ``accept`` (an HTTP header) prefers, and that format's content type.

        Raises: MissingLibraryError.
        """
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector
            from prometheus_client.exposition import choose_encoder
        except ImportError:
            raise MissingLibraryError from None
        registry: CollectorRegistry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self))
        ProcessCollector(registry=registry)
        try:
            encoder, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # an invalid version: use the format for a scraper without preference
            encoder, content_type = choose_encoder("")
        return encoder(registry), content_type


def family_of(name: MetricName) -> Family:
    """Return the family of a metric of the registry."""
    kind: Kind = "counter" if name.name.endswith(("-total", "Total")) else "gauge"
    combine: Literal["sum", "max"] = "max" if name.name.endswith(("-time", "-avg", "-max")) else "sum"
    return Family(name.group, name.name, kind, tuple(tag for tag, _ in name.tags), name.description, combine=combine)


class _Collector:
    """Source of all families, which prometheus_client reads at each scrape."""

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    def collect(self) -> Iterable[Metric]:
        from prometheus_client import Metric

        shown: dict[str, Metric] = {}
        for family, samples in self._exposition.collect():
            name = family.prometheus_name
            base = name.removesuffix("_total") if family.kind == "counter" else name
            metric = shown.get(name)
            if metric is None:
                metric = shown[name] = Metric(base, family.help or family.kafka_name, family.kind)
            labels = [label_name(label) for label in family.labels]
            for sample in samples:
                _add(metric, family, dict(zip(labels, map(_utf_8, sample.labels), strict=True)), sample.value)
        return shown.values()


def _utf_8(text: str) -> str:
    """Return the value of a label with its invalid UTF-8 (a group's name may have any bytes) as \\udcff."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _add(metric: Metric, family: Family, labels: Mapping[str, str], value: float | Buckets) -> None:
    own: dict[str, Any] = dict(labels)
    name = family.prometheus_name
    if not isinstance(value, Buckets):
        metric.add_sample(name, own, float(value))
        return
    total = 0
    for bound, count in zip((*family.bounds, float("inf")), value.counts, strict=True):
        total += count
        metric.add_sample(f"{name}_bucket", {**own, "le": "+Inf" if bound == float("inf") else f"{bound:g}"}, total)
    metric.add_sample(f"{name}_count", own, total)
    metric.add_sample(f"{name}_sum", own, value.sum)
