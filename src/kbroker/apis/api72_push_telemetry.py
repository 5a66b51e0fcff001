"""PushTelemetry: metrics of a client, in OTLP."""

from __future__ import annotations

from kbroker.apis.telemetry_requests import client_of
from kbroker.requests.context import ApiContext, Body, RequestContext


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Accept the metrics of a client. Raises: KafkaError."""
    ctx.telemetry.manager.push(
        body["ClientInstanceId"],
        body["SubscriptionId"],
        body["Terminating"],
        body["CompressionType"],
        bytes(body["Metrics"]),
        client_of(request),
    )
    return {"ErrorCode": 0}
