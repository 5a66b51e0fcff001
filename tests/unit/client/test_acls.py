"""ACLs against a scripted broker."""

from kbroker.client.acls import BROKER, DESCRIBE_CONFIGS, Acls
from kbroker.client.cluster import Cluster
from tests.support.fake_broker import FakeBroker


def test_settings_of_an_authorizer_are_the_first_request(broker: FakeBroker, cluster: Cluster) -> None:
    """The settings are those of a broker that the cluster lists, also before any other request."""
    row = {"Name": "super.users", "Value": "User:a", "ReadOnly": True, "ConfigSource": 4, "IsSensitive": False}
    result = {"ErrorCode": 0, "ErrorMessage": None, "ResourceType": BROKER, "ResourceName": "1", "Configs": [row]}
    broker.handlers[DESCRIBE_CONFIGS] = lambda version, body: {"Results": [result]}
    assert Acls(cluster).settings() == {"super.users": "User:a"}
    ((_, body),) = broker.asked(DESCRIBE_CONFIGS)
    assert [one["ResourceName"] for one in body["Resources"]] == [str(min(cluster.nodes))]
