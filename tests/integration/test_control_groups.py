"""Consumer groups over the control port: list and fence members, rebalance groups."""

from collections.abc import Iterator

import pytest

from kbroker.testing import ControlServer, VirtualBroker
from tests.integration.test_control_transactions import Json, Port
from tests.support.client import Client


@pytest.fixture
def port() -> Iterator[Port]:
    with (
        VirtualBroker(settings={"group.consumer.assignment.interval.ms": "0"}) as broker,
        ControlServer(broker) as control,
    ):
        broker.create_topic("t", 2)
        yield Port(broker, control)


def beat(client: Client, epoch: int) -> Json:
    body: Json = {"GroupId": "a group", "MemberId": "m", "MemberEpoch": epoch, "RebalanceTimeoutMs": -1}
    if epoch == 0:
        body |= {"RebalanceTimeoutMs": 5000, "SubscribedTopicNames": ["t"], "TopicPartitions": []}
    return client.call("ConsumerGroupHeartbeat", 1, body)


def test_members_are_seen_and_fenced(port: Port) -> None:
    with Client(port.broker.bootstrap_servers) as client:
        epoch = beat(client, 0)["MemberEpoch"]
        places = [{"topic": "t", "partition": index} for index in range(2)]
        assert port("GET", "groups/a%20group/members") == {"members": [{"member_id": "m", "partitions": places}]}
        assert port("POST", "groups/a%20group/rebalance") == {}
        assert beat(client, epoch)["MemberEpoch"] == epoch + 1
        assert port("POST", "groups/a%20group/fence", {"member_id": "m"}) == {}
        assert beat(client, epoch + 1)["ErrorCode"] == 25
        assert port("GET", "groups/a%20group/members") == {"members": []}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("GET", "groups/no/members", None, 409, "GROUP_ID_NOT_FOUND: Group no not found."),
        ("POST", "groups/no/rebalance", None, 409, "GROUP_ID_NOT_FOUND: Group no not found."),
        ("POST", "groups/no/fence", {"member_id": "m"}, 409, "GROUP_ID_NOT_FOUND: Group no not found."),
        ("POST", "groups/no/fence", {}, 400, "member_id is missing"),
        ("POST", "groups/no/fence", {"member_id": 7}, 400, "member_id must be a text, got 7"),
        ("POST", "groups/no/rebalance", {"now": True}, 400, "unknown field 'now'"),
        ("GET", "groups/no/fence", None, 405, "groups/no/fence takes POST"),
        ("GET", "groups", None, 404, "no such path"),
    ],
)
def test_wrong_requests(port: Port, method: str, path: str, body: Json | None, status: int, error: str) -> None:
    assert error in port(method, path, body, status)["error"]
