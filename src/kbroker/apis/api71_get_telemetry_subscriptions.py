"""GetTelemetrySubscriptions: the metrics that a client is to push, how often, and under which id."""

from __future__ import annotations

from kbroker.apis.telemetry_requests import client_of
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.telemetry.manager import ACCEPTED_COMPRESSION


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return the subscription of a client. Raises: KafkaError THROTTLING_QUOTA_EXCEEDED."""
    manager = ctx.telemetry.manager
    granted = manager.get_subscription(body["ClientInstanceId"], client_of(request))
    return {
        "ErrorCode": 0,
        "ClientInstanceId": granted.client_instance_id,
        "SubscriptionId": granted.subscription_id,
        "AcceptedCompressionTypes": [int(one) for one in ACCEPTED_COMPRESSION],
        "PushIntervalMs": granted.requested.interval_ms,
        "TelemetryMaxBytes": manager.max_bytes,
        "DeltaTemporality": True,
        "RequestedMetrics": granted.requested.metrics,
    }
