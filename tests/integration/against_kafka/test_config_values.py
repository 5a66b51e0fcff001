"""Recorded responses about config values, compared with Apache Kafka and with kbroker over a socket."""

import pytest

from kbroker.broker import Broker
from kbroker.client.cluster import Cluster
from tests.support import config_values
from tests.support.config_values import Prober

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RESOURCES = ("group", "client-metrics")  # recording the other types of resources takes minutes


@pytest.mark.parametrize("resource", [pytest.param("group", marks=pytest.mark.soak), "client-metrics"])
def test_the_recording_is_true(kafka: str, resource: str) -> None:
    """Apache Kafka responds to each value of the configs of groups and client metrics as recorded."""
    recorded = config_values.read()
    with Cluster(kafka) as cluster:
        prober = Prober(lambda key, body: cluster.request(key, body), settle_s=1)
        prober.prepare()
        assert prober.record(resource) == recorded[resource]


def test_a_running_broker_responds_as_recorded() -> None:
    """A running kbroker responds to each value as Apache Kafka did when it was recorded."""
    recorded = config_values.read()
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "kbroker.in.memory": True, "node.id": 1}
    with Broker(settings) as broker, Cluster(broker.bootstrap_servers) as cluster:
        prober = Prober(lambda key, body: cluster.request(key, body))
        prober.prepare()
        for resource in RESOURCES:
            for name, kafka in recorded[resource].items():
                ours = prober.outcomes(resource, name, list(kafka["values"]))
                assert (name, ours["values"]) == (name, kafka["values"])
