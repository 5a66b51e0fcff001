"""Recorded responses about config values, compared with Apache Kafka and with kbroker over a socket."""

import pytest

from kbroker.broker import Broker
from kbroker.client.cluster import Cluster
from tests.support import config_values, need
from tests.support.config_values import Prober
from tests.support.kafka import ApacheKafka

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RESOURCES = ("group", "client-metrics")  # recording the other types of resources takes minutes


def check_recording(bootstrap: str, resource: str) -> None:
    """Check that a broker responds to each value of the configs of a resource as recorded."""
    with Cluster(bootstrap) as cluster:
        prober = Prober(lambda key, body: cluster.request(key, body), settle_s=1)
        prober.prepare()
        assert prober.record(resource) == config_values.read()[resource]


def test_the_recording_of_client_metrics_is_true(kafka: str) -> None:
    check_recording(kafka, "client-metrics")


@pytest.mark.soak
def test_the_recording_of_groups_is_true() -> None:
    """The broker runs without settings, since settings of groups would be synonyms of the groups' configs."""
    need.program("java", "mvn")
    with ApacheKafka() as broker:
        check_recording(broker.bootstrap, "group")


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
