"""Transactional ids and client ids of requests in the request log."""

import socket

import pytest

from kbroker.protocol import codec
from kbroker.testing import VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.integration.test_request_log import LOG, of_client
from tests.support import wire
from tests.support.client import Body, Client
from tests.support.fixtures import fixture_of

SETTINGS = {"num.network.threads": "1", "kbroker.request.log.topic": LOG}
NAME = "billing-1"
TRANSACTIONAL = 0x10
DESCRIBE_CONFIGS = 32
broker = fixture_of(VirtualBroker, SETTINGS, topics={"t": 1})


def produce(name: str | None, producer: tuple[int, int], sequence: int, value: bytes = b"v") -> Body:
    batch = wire.batch(
        [value],
        attributes=TRANSACTIONAL if name else 0,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
    )
    row = {"Index": 0, "Records": batch}
    return {
        "TransactionalId": name,
        "Acks": -1,
        "TimeoutMs": 1000,
        "TopicData": [{"Name": "t", "PartitionData": [row]}],
    }


def test_each_request_of_a_transaction_names_it(broker: VirtualBroker) -> None:
    """The transactional id is logged for each version's form, and for Produce with and without verification."""
    row = {"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": ""}
    with Client(broker.bootstrap_servers, "app") as client:
        assert client.call("FindCoordinator", 3, {"KeyType": 1, "Key": NAME})["ErrorCode"] == 0
        client.call("FindCoordinator", 4, {"KeyType": 1, "CoordinatorKeys": [NAME, "other"]})
        who = client.call("InitProducerId", 4, {"TransactionalId": NAME, "TransactionTimeoutMs": 60_000})
        producer = (who["ProducerId"], who["ProducerEpoch"])
        ids = {"TransactionalId": NAME, "ProducerId": producer[0], "ProducerEpoch": producer[1]}
        partitions: list[Body] = [{"Name": "t", "Partitions": [0]}]
        old = {f"V3AndBelow{key}": value for key, value in ids.items()} | {"V3AndBelowTopics": partitions}
        client.call("AddPartitionsToTxn", 3, old)
        verified = {**ids, "VerifyOnly": True, "Topics": partitions}
        client.call("AddPartitionsToTxn", 5, {"Transactions": [verified]})
        for sequence in range(2):
            response = client.call("Produce", 9, produce(NAME, producer, sequence))
            assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0
        client.call("AddOffsetsToTxn", 3, {**ids, "GroupId": "g"})
        commit = {**ids, "GroupId": "g", "GenerationIdOrMemberEpoch": -1, "MemberId": "", "GroupInstanceId": None}
        client.call("TxnOffsetCommit", 3, {**commit, "Topics": [{"Name": "t", "Partitions": [row]}]})
        assert client.call("EndTxn", 3, {**ids, "Committed": True})["ErrorCode"] == 0
        found = [
            (one["requestHeader"]["requestApiKeyName"], one.get("request")) for one in of_client(broker, "app", 10)
        ]
    assert found == [
        (name, {"transactionalId": NAME})
        for name in (
            "FIND_COORDINATOR", "FIND_COORDINATOR", "INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN",
            "ADD_PARTITIONS_TO_TXN", "PRODUCE", "PRODUCE", "ADD_OFFSETS_TO_TXN", "TXN_OFFSET_COMMIT", "END_TXN",
        )
    ]  # fmt: skip


def test_requests_without_a_transaction_name_none(broker: VirtualBroker) -> None:
    """Requests without a transactional id have none in the log, even with APIs that may have one."""
    with Client(broker.bootstrap_servers, "app") as client:
        client.call("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": ["group"]})
        who = client.call("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 60_000})
        client.call("Produce", 9, produce(None, (who["ProducerId"], 0), 0))
        client.call("AddPartitionsToTxn", 5, {"Transactions": []})
        client.call("Metadata", 9, {"Topics": []})
        found = of_client(broker, "app", 5)
    assert ["request" in one for one in found] == [False] * 5


@pytest.mark.parametrize("value_bytes", [10, 300_000])
def test_a_large_produce_keeps_its_transactional_id(broker: VirtualBroker, value_bytes: int) -> None:
    """A large Produce is logged with its transactional id, although its frame is freed before; long ids are cut."""
    name = "x" * 5000
    with Client(broker.bootstrap_servers, "app") as client:
        who = client.call("InitProducerId", 4, {"TransactionalId": name, "TransactionTimeoutMs": 60_000})
        producer = (who["ProducerId"], who["ProducerEpoch"])
        response = client.call("Produce", 12, produce(name, producer, 0, b"v" * value_bytes))
        assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0
        found = of_client(broker, "app", 2)
    assert [one["request"]["transactionalId"] for one in found] == ["x" * 1024] * 2


def test_a_large_request_keeps_its_client_id() -> None:
    """A large request is logged with its client id, although its frame is freed before the response is sent."""
    settings = {**SETTINGS, "kbroker.python.threads": "1", "socket.send.buffer.bytes": "4096"}
    name = "a-client-that-reads-late"
    resource = {"ResourceType": 2, "ResourceName": "t", "ConfigurationKeys": None}
    with VirtualBroker(settings) as broker, Client(broker.bootstrap_servers, "other") as other:
        broker.create_topic("t")
        with Client(broker.bootstrap_servers, name) as late:
            late.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
            padding = {"ResourceType": 2, "ResourceName": "x" * 30_000, "ConfigurationKeys": None}
            resources = [resource] * 100 + [padding] * 3
            body = {"Resources": resources, "IncludeSynonyms": True, "IncludeDocumentation": True}
            frame = codec.encode_request_frame(DESCRIBE_CONFIGS, 3, 7, name, body)
            late.send_raw(frame)
            wait_until(lambda: late.has_response)
            other.call("ListGroups", 0, {})
            assert of_client(broker, name, 0) == []
            response = late.receive()
            assert len(response) > 400_000, "so large that the response waits in the broker"
            (record,) = of_client(broker, name, 1)
    assert record["requestHeader"]["requestApiKeyName"] == "DESCRIBE_CONFIGS"
