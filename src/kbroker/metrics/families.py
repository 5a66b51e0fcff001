"""Metric families whose values are read at a scrape, and the conversion of Kafka's names into Prometheus's.

Source: KIP-13, KIP-72 and KIP-124 for the names; ``KafkaMetricsGroup`` for those of the JMX kind.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]

#: Labels whose values clients or users choose: their series are bounded.
ENTITY_LABELS = frozenset(
    {
        "user",
        "client_id",
        "client_instance_id",
        "ip",
        "topic",
        "partition",
        "group",
        "client_software_name",
        "client_software_version",
    }
)
OTHER = "other"


class Buckets(NamedTuple):
    """A histogram: the count of each bucket (the last one unbounded), and the sum of the values."""

    counts: Sequence[int]
    sum: float


class Sample(NamedTuple):
    """One series: the values of its labels, and its number."""

    labels: tuple[str, ...]
    value: float | Buckets


Collect = Callable[[], Iterable[tuple[tuple[str, ...], float | Buckets]]]


def _nothing() -> Iterable[tuple[tuple[str, ...], float | Buckets]]:
    return ()


class Family(NamedTuple):
    """All series of one name.

    Args: ``group`` and ``name`` are Kafka's: a group of the metrics library (``socket-server-metrics``), or domain and
    type of a JMX name (``kafka.network:RequestMetrics``); a group ``kbroker:X`` is kbroker's. ``labels`` are named as
    in Kafka. ``collect`` returns the current series. ``bounds``: upper bounds of a histogram's buckets, except the
    last. ``combine``: operation that merges the series beyond the maximum number.
    """

    group: str
    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    collect: Collect = _nothing
    bounds: tuple[float, ...] = ()
    combine: Literal["sum", "max"] = "sum"

    @property
    def kafka_name(self) -> str:
        """Name of the MBean in Kafka; empty for kbroker's own metrics."""
        return kafka_name(self.group, self.name, self.labels)

    @property
    def prometheus_name(self) -> str:
        """Name in Prometheus; counters end in ``_total``."""
        return prometheus_name(self.group, self.name, self.kind)


def kafka_name(group: str, name: str, labels: Sequence[str]) -> str:
    """Return the name in Kafka's documentation, of JMX or of the metrics library; empty for kbroker's own metrics."""
    if group.startswith("kbroker:"):
        return ""
    domain, colon, kind = group.partition(":")
    if not colon:
        tags = ",".join(f"{label}=..." for label in labels)
        return f"{group}:{name}" + (f" {{{tags}}}" if tags else "")
    tags = "".join(f",{label}=..." for label in labels)
    return f"{domain}:type={kind},name={name}{tags}"


def prometheus_name(group: str, name: str, kind: Kind) -> str:
    """Return ``kafka_<group>_<name>``: words with underscores, counters with ``_total``.

    The group loses the word ``metrics``.

    A meter's ``XPerSec`` is the counter ``x_total``. Delays without a unit in their name are in milliseconds, and the
    unit is added to the name.
    """
    domain, colon, word = group.partition(":")
    first = domain if domain.startswith(("kafka", "kbroker")) else f"kafka_{domain}"
    parts = _words(f"{first}_{word}" if colon else first)
    while parts[-1] == "metrics":
        parts.pop()
    tail = _words(name)
    if kind == "counter":
        if tail[-1:] == ["total"]:
            tail.pop()
        if tail[-2:] == ["per", "sec"]:
            del tail[-2:]
    if tail[-2:] in (["throttle", "time"], ["depleted", "time"]):
        tail.append("ms")
    if kind == "counter":
        tail.append("total")
    return "_".join(parts + tail)


def label_name(tag: str) -> str:
    """Return the label of a tag: ``client_id`` for ``client-id``, ``network_processor`` for ``networkProcessor``."""
    return "_".join(_words(tag))


def _words(text: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text)
    return [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]


def bounded(
    labels: Sequence[str], samples: Iterable[Sample], limit: int, combine: Literal["sum", "max"] = "sum"
) -> list[Sample]:
    """Return the ``limit`` largest series, and the rest merged under the label value "other".

    Only labels of ENTITY_LABELS are chosen by clients; series are merged if all their other labels are equal. Without
    such a label, and for histograms, all series are returned.
    """
    found = list(samples)
    entity = [place for place, label in enumerate(labels) if label in ENTITY_LABELS]
    if not entity or len(found) <= limit:
        return found
    numbers = [(sample, sample.value) for sample in found if not isinstance(sample.value, Buckets)]
    if len(numbers) < len(found):
        return found
    numbers.sort(key=lambda pair: (-math.inf if math.isnan(pair[1]) else pair[1], pair[0].labels), reverse=True)
    kept, small = numbers[:limit], numbers[limit:]
    # a client may have the name "other"; its series would be a duplicate
    small += [pair for pair in kept if all(pair[0].labels[place] == OTHER for place in entity)]
    rest: dict[tuple[str, ...], float] = {}
    for sample, value in small:
        key = tuple(OTHER if place in entity else text for place, text in enumerate(sample.labels))
        before = rest.get(key, math.nan)
        if math.isnan(value) or math.isnan(before):
            rest[key] = before if math.isnan(value) else value
        else:
            rest[key] = before + value if combine == "sum" else max(before, value)
    return [sample for sample, _ in kept if sample.labels not in rest] + [Sample(*pair) for pair in rest.items()]
