"""Groups of all brokers of a cluster that changes meanwhile."""

from kbroker.client.cluster import Cluster
from kbroker.client.coordinators import FIND_COORDINATOR
from kbroker.client.group_lag import lags_of
from kbroker.client.groups import CLASSIC, OFFSET_FETCH, Groups
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


def test_a_group_that_cannot_be_read_is_left_out_with_brokers_before_kafka_3(broker: FakeBroker) -> None:
    """Such brokers get a request for each group; its error is treated like the error of a row of newer brokers."""
    broker.ranges |= {FIND_COORDINATOR: (1, 3), OFFSET_FETCH: (1, 7)}

    def find(version: int, body: Body) -> Body:
        return {"ErrorCode": 15 if body["Key"] == "moving" else 0, "NodeId": 7}

    broker.handlers[FIND_COORDINATOR] = find
    broker.handlers[OFFSET_FETCH] = lambda version, body: {"ErrorCode": 30 if body["GroupId"] == "secret" else 0}
    with Cluster(broker.bootstrap, retry_timeout_s=0) as cluster:
        assert lags_of(Groups(cluster), dict.fromkeys(["a", "moving", "secret"], CLASSIC)) == {"a": []}
