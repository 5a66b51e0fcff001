"""Groups of all brokers of a cluster that changes meanwhile."""

from kbroker.client.cluster import Cluster
from kbroker.client.groups import Groups
from tests.support.fake_broker import METADATA, Body, FakeBroker

LIST_GROUPS = 16


def test_a_node_that_leaves_is_not_awaited(broker: FakeBroker, cluster: Cluster) -> None:
    """The groups of a node that leaves have moved, so the groups of all nodes are listed again."""
    gone: Body = {"NodeId": 8, "Host": "127.0.0.1", "Port": 1}

    def metadata(version: int, body: Body) -> Body:
        response = broker.metadata(version, body)
        response["Brokers"] += [gone] * (not broker.asked(LIST_GROUPS))
        return response

    row: Body = {"ProtocolType": "consumer", "GroupState": "Empty", "GroupType": "classic"}
    broker.handlers[METADATA] = metadata
    broker.handlers[LIST_GROUPS] = lambda version, body: {
        "ErrorCode": 0,
        "Groups": [{"GroupId": f"g{n}", **row} for n in range(len(broker.asked(LIST_GROUPS)))],
    }
    assert [group.group_id for group in Groups(cluster).list_groups()] == ["g0", "g1"]
