"""Probe of client telemetry."""

import uuid

from bench.loads.probes.place import ANSWER_S, Lacking, Place, Probe, expect
from kbroker.client.admin import Admin
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation, ConfigResourceType
from kbroker.common.errors import Errors
from tests.support.client import Client

GET, PUSH = 71, 72


def pushed_metrics(place: Place) -> None:
    """A matching subscription reaches a client, its metrics are accepted, and too frequent pushes are refused."""
    name = place.topic("telemetry")
    values = {"metrics": "org.apache.kafka.", "interval.ms": "60000", "match": f"client_id={name}"}
    changes = [ConfigChange(key, ConfigOperation.SET, value) for key, value in values.items()]
    with Client(place.bootstrap, name, timeout=ANSWER_S) as client:
        offered = {row["ApiKey"] for row in client.call("ApiVersions", 0, {})["ApiKeys"]}
        if not {GET, PUSH} <= offered:
            raise Lacking("no GetTelemetrySubscriptions and PushTelemetry: it has no receiver of metrics")
        with place.cluster() as cluster:
            Admin(cluster).alter_configs(ConfigResourceType.CLIENT_METRICS, name, changes)
        granted = client.call(GET, 0, {"ClientInstanceId": uuid.UUID(int=0)})
        expect(granted["RequestedMetrics"] == ["org.apache.kafka."], f"asked for {granted['RequestedMetrics']}")
        expect(granted["PushIntervalMs"] == 60_000, f"an interval of {granted['PushIntervalMs']} ms")
        push = {key: granted[key] for key in ("ClientInstanceId", "SubscriptionId")}
        push |= {"Terminating": False, "CompressionType": 0, "Metrics": bytes([0x0A, 0])}
        codes = [client.call(PUSH, 0, push)["ErrorCode"] for _ in range(2)]
        expect(codes == [0, Errors.THROTTLING_QUOTA_EXCEEDED], f"error codes {codes}")


PROBES = [Probe("client telemetry (KIP-714): metrics that clients push", pushed_metrics, 40, short=False)]
