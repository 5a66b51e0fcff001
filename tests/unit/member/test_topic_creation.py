"""Topics that a member creates by the controller: for clients in envelopes, for itself without."""

import logging

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, KafkaError
from kbroker.member.client import Client
from kbroker.member.forwarding import ENVELOPE, ForwardingManager
from kbroker.member.topic_creation import CREATE_TOPICS, TopicCreation
from kbroker.protocol import codec
from kbroker.protocol.codec import Body
from tests.support.member import FakeChannel

ALICE = Client("User:alice", "10.0.0.1")


def make(**settings: object) -> tuple[TopicCreation, FakeChannel]:
    channel, clock = FakeChannel({CREATE_TOPICS: (2, 6)}), VirtualClock()
    config = BrokerConfig({name.replace("_", "."): value for name, value in settings.items()})
    return TopicCreation(config, channel, ForwardingManager(channel, clock), clock), channel  # type: ignore[arg-type]


def inner(body: Body) -> tuple[codec.RequestHeader, Body]:
    header, end = codec.decode_request_header(body["RequestData"])
    return header, codec.decode_request(header.api_key, header.api_version, body["RequestData"], end)


def test_a_topic_of_a_client_is_created_as_that_client() -> None:
    """The envelope has the client's header in the controller's version, and default numbers."""
    creation, channel = make()
    creation.create(["a", "b"], ALICE, "me", 5)
    creation.create(["b"], ALICE, "me", 6)
    ((key, body, _),) = channel.sent
    header, request = inner(body)
    assert (key, header) == (ENVELOPE, (CREATE_TOPICS, 6, 5, "me"))
    assert [(row["Name"], row["NumPartitions"], row["ReplicationFactor"]) for row in request["Topics"]] == [
        ("a", -1, -1), ("b", -1, -1),
    ]  # fmt: skip


def test_numbers_that_are_set_are_those_of_the_topic() -> None:
    creation, channel = make(num_partitions=7)
    creation.create(["a"], ALICE, "me", 5)
    assert [row["NumPartitions"] for row in inner(channel.sent[0][1])[1]["Topics"]] == [7]


def test_an_internal_topic_has_the_principal_of_the_broker() -> None:
    """An internal topic has the configs and replicas of its coordinator, and is requested once."""
    creation, channel = make(offsets_topic_num_partitions=5)
    creation.create_for_broker("__consumer_offsets")
    creation.create_for_broker("__consumer_offsets")
    ((key, body, _),) = channel.sent
    (row,) = body["Topics"]
    assert (key, row["NumPartitions"], row["ReplicationFactor"]) == (CREATE_TOPICS, 5, 3)
    assert {"Name": "cleanup.policy", "Value": "compact"} in row["Configs"]
    assert codec.encode_request(CREATE_TOPICS, 6, body)


def test_a_failed_topic_is_logged_and_may_be_requested_again(caplog: pytest.LogCaptureFixture) -> None:
    creation, channel = make()
    with caplog.at_level(logging.WARNING):
        creation.create(["a"], ALICE, "me", 5)
        failed = {"Topics": [{"Name": "a", "ErrorCode": 38, "ErrorMessage": "three replicas, two brokers"}]}
        data = codec.encode_response_frame(CREATE_TOPICS, 6, 5, failed)[4:]
        channel.respond({"ErrorCode": 0, "ResponseData": data})
        creation.create(["a"], ALICE, "me", 5)
        channel.fail(Errors.REQUEST_TIMED_OUT)
        creation.create_for_broker("__consumer_offsets")
        channel.fail(Errors.UNSUPPORTED_VERSION)
    texts = [record.getMessage() for record in caplog.records]
    assert "three replicas, two brokers" in texts[0]
    assert "error 7" in texts[1]
    assert "__consumer_offsets cannot be created" in texts[2]
    creation.create(["a"], ALICE, "me", 5)
    assert len(channel.sent) == 1


def test_a_topic_that_fails_for_many_clients_has_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Clients request their topics several times a second; a failed topic has one line, and another topic its own."""
    creation, channel = make()
    for name in ["a"] * 50 + ["b"]:
        creation.create([name], ALICE, "me", 5)
        failed = {"Topics": [{"Name": name, "ErrorCode": 38, "ErrorMessage": "three replicas, two brokers"}]}
        data = codec.encode_response_frame(CREATE_TOPICS, 6, 5, failed)[4:]
        channel.respond({"ErrorCode": 0, "ResponseData": data})
    assert [line.split()[1] for line in caplog.messages] == ["a", "b"]


@pytest.mark.parametrize(
    ("client", "client_id"), [(ALICE, "\ufffd" * 11_000), (Client("User:alice", "no address"), "me")]
)
def test_a_request_that_cannot_be_sent_keeps_no_topic(client: Client, client_id: str) -> None:
    """A client id of many invalid bytes exceeds a header in UTF-8; other clients can create the topic."""
    creation, channel = make()
    with pytest.raises((KafkaError, ValueError)):
        creation.create(["a"], client, client_id, 5)
    creation.create(["a"], ALICE, "me", 6)
    assert len(channel.sent) == 1
