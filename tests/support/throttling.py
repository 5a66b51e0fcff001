"""Steps of the throttling tests: a client over its quota, and the time at which its connection is read again."""

from kbroker._core.metrics.metric import Metric
from kbroker.metrics.registry import MetricName
from kbroker.testing import EmbeddedBroker, VirtualBroker
from tests.support import wire
from tests.support.client import Client
from tests.support.quotas import KEYS

USER = "ANONYMOUS"
PRODUCE, FETCH, REQUEST, MUTATION = KEYS
SETTINGS = {
    "num.network.threads": "1",
    "log.flush.interval.messages": "9223372036854775807",
    "socket.listen.backlog.size": "1024",  # beyond Kafka's 50 the operating system delays a client for a second
}


def pass_by(broker: VirtualBroker) -> None:
    """Wait until the network thread has polled every channel that may be read."""
    for _ in range(2):
        assert wire.responses(broker.bootstrap_servers, within=10)


def metric(broker: EmbeddedBroker, name: str, group: str, **tags: str) -> float:
    found = broker.context.metrics.get(MetricName.of(name, group, {k.replace("_", "-"): v for k, v in tags.items()}))
    assert isinstance(found, Metric), (name, group, tags)
    return found.measure()


def assert_muted_for(broker: VirtualBroker, client: Client, throttle_ms: int) -> None:
    """Check that the next request is read when the throttle time has passed, and not a millisecond earlier."""
    client.begin("ApiVersions", 0, {})
    broker.advance_ms(throttle_ms - 1)
    pass_by(broker)
    assert not client.has_response
    broker.advance_ms(1)
    assert client.end()["ErrorCode"] == 0


def charge_time(broker: VirtualBroker, percent: float, client_id: str = "client") -> None:
    """Record request time of a client: on this clock handlers take no time."""
    broker.context.quotas.request.record_no_throttle(USER, client_id, percent)


def exceed_request_quota(broker: VirtualBroker) -> None:
    """Set a request quota, and record so much time of the client that its next request is throttled for a second."""
    broker.context.quotas.update(None, "client", REQUEST, 1)
    charge_time(broker, 1000)


def assert_muted_after_quota(broker: VirtualBroker, client: Client) -> None:
    """Remove the request quota that was exceeded, and check that the client is muted for its second nevertheless."""
    broker.context.quotas.update(None, "client", REQUEST, None)
    assert_muted_for(broker, client, 1000)


def fill(broker: VirtualBroker, value_bytes: int) -> None:
    with Client(broker.bootstrap_servers, "filler") as filler:
        filler.produce("t", value_bytes)
        assert filler.end()["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0
