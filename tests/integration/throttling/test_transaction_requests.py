"""Requests of transactions are throttled by request time (KIP-124), except those that only brokers send."""

from typing import Any

import pytest

from kbroker.testing import VirtualBroker
from tests.support import wire
from tests.support.client import Body, Client
from tests.support.throttling import assert_muted_after_quota, exceed_request_quota, pass_by

TRANSACTIONAL = 0x10


class Scene:
    """Transaction with a partition of topic t, begun by a client without a quota."""

    def __init__(self, broker: VirtualBroker) -> None:
        with Client(broker.bootstrap_servers, "other") as other:
            for kind, name in ((0, "g"), (1, "x")):
                found = other.call("FindCoordinator", 4, {"KeyType": kind, "CoordinatorKeys": [name]})
                assert found["Coordinators"][0]["ErrorCode"] == 0
            who = other.call("InitProducerId", 4, {"TransactionalId": "x", "TransactionTimeoutMs": 60_000})
            self.producer = (who["ProducerId"], who["ProducerEpoch"])
            self.ids = {"TransactionalId": "x", "ProducerId": self.producer[0], "ProducerEpoch": self.producer[1]}
            self.topics: list[Body] = [{"Name": "t", "Partitions": [0]}]
            added = other.call("AddPartitionsToTxn", 5, {"Transactions": [self.transaction()]})
            assert (
                added["ResultsByTransaction"][0]["TopicResults"][0]["ResultsByPartition"][0]["PartitionErrorCode"] == 0
            )

    def transaction(self, *, verify_only: bool = False) -> Body:
        return {**self.ids, "VerifyOnly": verify_only, "Topics": self.topics}

    def body(self, api: str, version: int) -> Body:
        row = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": ""}
        batch = wire.batch(
            [b"v"], attributes=TRANSACTIONAL, producer_id=self.producer[0], producer_epoch=self.producer[1],
            base_sequence=0,
        )  # fmt: skip
        if api == "AddPartitionsToTxn" and version < 4:
            return {f"V3AndBelow{key}": value for key, value in self.ids.items()} | {"V3AndBelowTopics": self.topics}
        bodies: dict[str, Body] = {
            "InitProducerId": {"TransactionalId": "y", "TransactionTimeoutMs": 60_000},
            "AddPartitionsToTxn": {"Transactions": [self.transaction(verify_only=version == 5)]},
            "AddOffsetsToTxn": {**self.ids, "GroupId": "g"},
            "EndTxn": {**self.ids, "Committed": True},
            "TxnOffsetCommit": {
                **self.ids, "GroupId": "g", "GenerationIdOrMemberEpoch": -1, "MemberId": "", "GroupInstanceId": None,
                "Topics": [{"Name": "t", "Partitions": [row]}],
            },
            "Produce": {
                "TransactionalId": "x", "Acks": -1, "TimeoutMs": 1000,
                "TopicData": [{"Name": "t", "PartitionData": [{"Index": 0, "Records": batch}]}],
            },
            "DescribeTransactions": {"TransactionalIds": ["x"]},
            "ListTransactions": {"StateFilters": [], "ProducerIdFilters": []},
        }  # fmt: skip
        return bodies[api]


def errors(value: Any) -> set[int]:
    """Return the error codes of a response at any depth."""
    if isinstance(value, list):
        return {code for item in value for code in errors(item)}
    if not isinstance(value, dict):
        return set()
    here = {item for key, item in value.items() if key in ("ErrorCode", "PartitionErrorCode")}
    return here.union(*(errors(item) for item in value.values()))


REQUESTS = [
    *(("InitProducerId", version) for version in (0, 5)),
    *(("AddPartitionsToTxn", version) for version in (0, 3, 4, 5)),
    *(("AddOffsetsToTxn", version) for version in (0, 4)),
    *(("EndTxn", version) for version in (0, 4, 5)),
    *(("TxnOffsetCommit", version) for version in (0, 3)),
    ("DescribeTransactions", 0),
    ("ListTransactions", 1),
]


def call_throttled(broker: VirtualBroker, client: Client, scene: Scene, api: str, version: int) -> None:
    """Send a request of a client over its time: it is executed, and its response has the throttle time."""
    exceed_request_quota(broker)
    response = client.call(api, version, scene.body(api, version))
    assert errors(response) == {0}
    assert response["ThrottleTimeMs"] == 1000


@pytest.mark.parametrize(("api", "version"), REQUESTS)
def test_a_producer_over_its_time_is_throttled(broker: VirtualBroker, client: Client, api: str, version: int) -> None:
    """The request is executed, its response has the throttle time, and the connection is muted."""
    scene = Scene(broker)
    if api == "TxnOffsetCommit":
        with Client(broker.bootstrap_servers, "other") as other:
            assert other.call("AddOffsetsToTxn", 3, scene.body("AddOffsetsToTxn", 3))["ErrorCode"] == 0
    call_throttled(broker, client, scene, api, version)
    assert broker.context.quotas.request.queue_size == 1
    assert_muted_after_quota(broker, client)


@pytest.mark.parametrize(("api", "version"), [("TxnOffsetCommit", 5), ("Produce", 9), ("Produce", 12)])
def test_a_write_that_asks_the_coordinator_is_throttled_once(
    broker: VirtualBroker, client: Client, api: str, version: int
) -> None:
    """A request that several handlers serve is throttled once, when its response is complete."""
    call_throttled(broker, client, Scene(broker), api, version)
    (verdict,) = broker.take_verdicts()
    assert (verdict.quota_type, verdict.delay_served_ms) == ("Request", 1000)
    assert_muted_after_quota(broker, client)


def test_a_response_that_comes_later_is_throttled_too(broker: VirtualBroker, client: Client) -> None:
    """A TxnOffsetCommit that waits for the end of the previous transaction is throttled by the coordinator's thread."""
    scene = Scene(broker)
    with broker.hold_markers(), Client(broker.bootstrap_servers, "other") as other:
        ended = other.call("EndTxn", 5, scene.body("EndTxn", 5))
        scene.ids["ProducerEpoch"] = ended["ProducerEpoch"]
        client.begin("TxnOffsetCommit", 5, scene.body("TxnOffsetCommit", 5))
        pass_by(broker)
        assert not client.has_response
        exceed_request_quota(broker)
        for _ in range(6):
            broker.advance_ms(20)
        response = client.end()
    assert errors(response) == {51}
    assert 0 < response["ThrottleTimeMs"] <= 1000
    (verdict,) = broker.take_verdicts()
    assert (verdict.quota_type, verdict.delay_served_ms) == ("Request", response["ThrottleTimeMs"])


@pytest.mark.parametrize("version", [1, 2])
def test_markers_are_exempt(broker: VirtualBroker, client: Client, version: int) -> None:
    """WriteTxnMarkers is exempt, as a throttled coordinator would delay the readers of other clients' records."""
    scene = Scene(broker)
    exceed_request_quota(broker)
    marker = {
        "ProducerId": scene.producer[0], "ProducerEpoch": scene.producer[1], "TransactionResult": True,
        "Topics": [{"Name": "t", "PartitionIndexes": [1]}], "CoordinatorEpoch": 0, "TransactionVersion": 0,
    }  # fmt: skip
    for _ in range(3):
        assert errors(client.call("WriteTxnMarkers", version, {"Markers": [marker]})) == {0}
    assert broker.context.quotas.request.queue_size == 0
    assert broker.take_verdicts() == []
