"""Metrics of client telemetry: its parts, and the latest values that clients have pushed.

Kafka has none of these; the sensors of ``ClientMetricsManager`` are in the registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.metrics.families import Family, Kind, Sample, label_name
from kbroker.observe.metric_table import Row
from kbroker.telemetry.otlp import MAX_NAME

if TYPE_CHECKING:
    from kbroker.requests.context import ApiContext
    from kbroker.telemetry.forwarder import ForwarderFigures
    from kbroker.telemetry.instances import ClientInstance
    from kbroker.telemetry.series import SeriesFigures

GROUP, CLIENT_GROUP = "kbroker:telemetry", "kbroker:client"
MAX_FAMILIES = 1000
_CLIENT_LABELS = ("client_id", "client_instance_id")


def _series(ctx: ApiContext) -> SeriesFigures | None:
    service = ctx.telemetry_service.started
    return None if service is None else service.series.figures


def _forwarder(ctx: ApiContext) -> ForwarderFigures | None:
    service = ctx.telemetry_service.started
    return None if service is None or service.forwarder is None else service.forwarder.figures


def _logged(ctx: ApiContext, name: str) -> float:
    service = ctx.telemetry_service.started
    return 0 if service is None or service.log is None else getattr(service.log, name)


def _of(figures: SeriesFigures | ForwarderFigures | None, name: str) -> float:
    return 0 if figures is None else getattr(figures, name)


ROWS: tuple[Row[ApiContext], ...] = (
    Row(GROUP, "series", "series of the latest values of clients", lambda ctx: _of(_series(ctx), "series")),
    Row(GROUP, "series-bytes", "bytes of these series", lambda ctx: _of(_series(ctx), "size_bytes")),
    Row(GROUP, "omitted-values-total", "values of clients left out because a limit of the series was reached",
        lambda ctx: _of(_series(ctx), "omitted"), (), "counter"),
    Row(GROUP, "forwarded-total", "pushes that the OTLP endpoint accepted",
        lambda ctx: _of(_forwarder(ctx), "sent"), (), "counter"),
    Row(GROUP, "forward-failures-total", "attempts to send a push to the OTLP endpoint that failed",
        lambda ctx: _of(_forwarder(ctx), "failed"), (), "counter"),
    Row(GROUP, "forward-dropped-total", "pushes that were not forwarded: the queue was full, or they were refused",
        lambda ctx: _of(_forwarder(ctx), "dropped"), (), "counter"),
    Row(GROUP, "forward-queue-bytes", "bytes of pushes that wait for the OTLP endpoint",
        lambda ctx: _of(_forwarder(ctx), "queued_bytes")),
    Row(GROUP, "logged-total", "pushes in the log of client metrics", lambda ctx: _logged(ctx, "written"), (),
        "counter"),
    Row(GROUP, "log-dropped-total", "pushes that the log lacks because the disk refused them",
        lambda ctx: _logged(ctx, "dropped"), (), "counter"),
)  # fmt: skip


def client_families(ctx: ApiContext, limit: int) -> Iterator[tuple[Family, list[Sample]]]:
    """Yield the latest values of the clients: a family for each metric and set of labels, the client's and the value's.

    Clients choose all names and texts: of each family at most ``limit`` series are shown, those of the clients that
    were active last, and at most ``MAX_FAMILIES`` families.
    """
    service = ctx.telemetry_service.started
    if service is None:
        return
    kinds: dict[str, Kind] = {}
    counts: dict[str, int] = {}
    found: dict[tuple[str, tuple[str, ...]], tuple[Family, dict[tuple[str, ...], Sample]]] = {}
    for client in reversed(service.manager.instances):
        for (name, attributes), value in service.series.of(client.uuid).items():
            labels = _labels(client, attributes)
            family = Family(
                CLIENT_GROUP, name, "counter" if value.counts else "gauge", tuple(labels), "pushed by clients"
            )
            shown = family.prometheus_name
            base = shown.removesuffix("_total")  # in OpenMetrics the gauge x and the counter x_total are one name
            if base not in kinds and len(kinds) < MAX_FAMILIES:
                kinds[base] = family.kind
            if kinds.get(base) != family.kind or counts.get(shown, 0) >= limit:
                continue
            texts = tuple(labels.values())
            _, samples = found.setdefault((shown, family.labels), (family, {}))
            if texts not in samples:
                samples[texts] = Sample(texts, value.value)
                counts[shown] = counts.get(shown, 0) + 1
    for family, samples in found.values():
        yield family, list(samples.values())


def _labels(client: ClientInstance, attributes: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the labels of a value, by name; an attribute that would hide one of the client is left out."""
    found = {name: (client.facts.get(name) or "")[:MAX_NAME] for name in _CLIENT_LABELS}  # each value repeats them
    for key, text in attributes:
        name = label_name(key)
        if name and not name[0].isdigit():
            found.setdefault(name, text)
    return dict(sorted(found.items()))  # attributes in another order are not another series
