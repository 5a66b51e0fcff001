"""Metrics of a push: OTLP decoded by the opentelemetry-proto package, which is imported at the first push.

Sums with delta temporality, which the broker requests, are added up; other values replace the previous ones. For a
histogram or summary, the number of values and their sum are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

MAX_POINTS = 10_000  # of one push
MAX_RESOURCES = 10_000  # of a push; Java sends one for each metric, and attributes are added to each
MAX_NAME = 256  # characters of a name or of a text of an attribute; longer ones are cut
MAX_ATTRIBUTES = 16  # of a point


NO_VALUE = 1  # flag of a point: nothing was measured
_SCALARS = ("string_value", "bool_value", "int_value", "double_value")

Attributes = tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """One value. ``adds``: whether it is the change since the previous push; ``counts``: whether it never falls."""

    name: str
    attributes: Attributes
    value: float
    adds: bool
    counts: bool


def parse(data: bytes) -> MetricsData:
    """Return the message of a push. Raises: ValueError."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    message = MetricsData()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"expected metrics in OTLP, found other data: {error}") from error
    if len(message.resource_metrics) > MAX_RESOURCES:
        raise ValueError(f"expected at most {MAX_RESOURCES} resources in a push, found {len(message.resource_metrics)}")
    return message


def points(message: MetricsData) -> Iterator[Point]:
    """Return the values of a push, at most ``MAX_POINTS``; values that are not finite are left out."""
    return islice((point for point in _all_points(message) if math.isfinite(point.value)), MAX_POINTS)


def _all_points(message: MetricsData) -> Iterator[Point]:
    for resource in message.resource_metrics:
        common = _merged((), resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield from _points_of(metric, common)


def _points_of(metric: Any, common: Attributes) -> Iterator[Point]:
    name = metric.name[:MAX_NAME]
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    data = getattr(metric, kind)
    # AggregationTemporality: 1 is delta
    adds = kind not in ("gauge", "summary") and data.aggregation_temporality == 1
    counts = kind == "sum" and data.is_monotonic
    for one in data.data_points:
        attributes = common if not one.attributes else _merged(common, one.attributes)
        if kind in ("gauge", "sum"):
            if not one.flags & NO_VALUE:
                # only one of the two is set; WhichOneof takes three times as long
                yield Point(name, attributes, float(one.as_double or one.as_int), adds, counts)
        else:
            yield Point(f"{name}.count", attributes, float(one.count), adds, True)
            yield Point(f"{name}.sum", attributes, float(one.sum), adds, False)


def _merged(common: Attributes, own: Iterable[Any]) -> Attributes:
    """Return the attributes of a value with those of its resource, by name."""
    found = dict(common)
    for one in own:
        text = one.value.string_value or _text_of(one.value)
        if text is not None:
            found[one.key[:MAX_NAME]] = text[:MAX_NAME]
    return tuple(sorted(found.items())[:MAX_ATTRIBUTES])


def _text_of(value: Any) -> str | None:
    """Return the text of a value; None for a nested one."""
    kind = value.WhichOneof("value")
    return str(getattr(value, kind)) if kind in _SCALARS else None


def add_attributes(message: MetricsData, attributes: Mapping[str, str | None]) -> None:
    """Add attributes to the resources of a push; the client's own attributes of the same names are replaced.

    Args: ``attributes``: a text of None only removes the client's own attribute.
    """
    for resource in message.resource_metrics:
        kept = [one for one in resource.resource.attributes if one.key not in attributes]
        if len(kept) < len(resource.resource.attributes):
            kept = [type(one).FromString(one.SerializeToString()) for one in kept]
            del resource.resource.attributes[:]
            resource.resource.attributes.extend(kept)
        for name, text in attributes.items():
            if text is not None:
                resource.resource.attributes.add(key=name).value.string_value = text
