"""Requests that a member of a cluster forwards: envelopes, and the responses and errors that clients get."""

import logging
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.handlers.api_table import KafkaApis
from kbroker.handlers.request_handler import RequestHandlerPool
from kbroker.member import forwarding
from kbroker.member.forwarding import ENVELOPE, ForwardingManager
from kbroker.network.connections._refused_requests import RefusedRequests
from kbroker.protocol import codec
from kbroker.requests.context import Body
from tests.support.fixtures import fixture_of
from tests.support.member import FakeChannel
from tests.support.server import make_bench
from tests.unit.handlers.test_request_handler import FakeRequest, NoQuotas, no_requests

CREATE_TOPICS, CREATE_TOKEN, ALTER_CONFIGS, RENEW_TOKEN = 19, 38, 44, 39
TOPIC = {"Name": "t", "NumPartitions": 1, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
TOPIC_CONFIGS, BROKER_CONFIGS, LOGGERS = 2, 4, 8


class Front:
    """Request handlers of a member, without threads; the test acts as the controller."""

    def __init__(self, **config: object) -> None:
        self.channel = FakeChannel()
        bench = make_bench(node_id=9, **config)
        bench.ctx.quotas = NoQuotas()  # type: ignore[assignment]
        bench.ctx.member = self  # type: ignore[assignment]
        self.forwarding = ForwardingManager(self.channel, VirtualClock())  # type: ignore[arg-type]
        self.ctx = bench.ctx
        apis = KafkaApis(forwards=True)
        self._pool = RequestHandlerPool(bench.ctx, apis, no_requests, 0, RefusedRequests())

    def serve(self, key: int, body: Body, version: int | None = None, **facts: Any) -> FakeRequest:
        version = codec.api(key).request_versions[1] if version is None else version
        request = FakeRequest(key, version, memoryview(codec.encode_request(key, version, body)), **facts)
        self._pool.serve(request)  # type: ignore[arg-type]
        return request

    def respond(self, body: Body, key: int, version: int | None = None, error: int = 0) -> None:
        """Respond to the oldest forwarded request as the controller does."""
        version = codec.api(key).request_versions[1] if version is None else version
        data = None if error else codec.encode_response_frame(key, version, 7, body)[4:]
        self.channel.respond({"ResponseData": data, "ErrorCode": error})


def decoded(request: FakeRequest) -> Body:
    (data,) = request.ended
    assert data is not None
    return codec.decode_response_frame(request.api_key, request.api_version, data)[1]


front = fixture_of(Front)


def test_the_envelope_has_the_request_its_header_and_the_client(front: Front) -> None:
    """The envelope carries the client's principal and address; the response has the client's correlation id."""
    request = front.serve(
        CREATE_TOPICS, {"Topics": [TOPIC]}, principal="User:a:b", remote_host="10.1.2.3", is_token_authenticated=True
    )
    ((key, body, _),) = front.channel.sent
    assert (key, body["RequestData"]) == (ENVELOPE, bytes(request.payload))
    assert body["RequestPrincipal"] == bytes.fromhex("0000 05") + b"User" + bytes.fromhex("04") + b"a:b" + b"\1\0"
    assert body["ClientHostAddress"] == bytes([10, 1, 2, 3])
    assert codec.encode_request(ENVELOPE, 0, body)
    assert request.ended == []
    front.respond({"ThrottleTimeMs": 0, "Topics": [{"Name": "t", "ErrorCode": 36, "ErrorMessage": "!"}]}, CREATE_TOPICS)
    assert [(row["Name"], row["ErrorCode"]) for row in decoded(request)["Topics"]] == [("t", 36)]
    assert front.forwarding.queue_length == 0


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", "7f000001"), ("::1", "00" * 15 + "01"), ("fe80::1%eth0", "fe80" + "00" * 13 + "01"),
     ("::ffff:10.0.0.1", "0a000001")],
)  # fmt: skip
def test_addresses_are_those_of_java(host: str, expected: str) -> None:
    assert forwarding.address_bytes(host).hex() == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [(Errors.REQUEST_TIMED_OUT, 7), (Errors.UNSUPPORTED_VERSION, -1), (Errors.SASL_AUTHENTICATION_FAILED, -1)],
)
def test_errors_of_the_channel(front: Front, error: Errors, expected: int) -> None:
    """A timeout is passed to the client; other errors of the channel become UNKNOWN_SERVER_ERROR."""
    request = front.serve(CREATE_TOPICS, {"Topics": [TOPIC]})
    front.channel.fail(error)
    assert [row["ErrorCode"] for row in decoded(request)["Topics"]] == [expected]


@pytest.mark.parametrize("error", [31, 97])
def test_errors_of_the_envelope_are_not_the_clients(front: Front, error: int) -> None:
    request = front.serve(CREATE_TOPICS, {"Topics": [TOPIC]})
    front.respond({}, CREATE_TOPICS, error=error)
    assert [row["ErrorCode"] for row in decoded(request)["Topics"]] == [-1]


def test_a_version_that_the_controller_lacks_closes_the_connection(front: Front) -> None:
    """An unsupported version closes the connection so that the client requests ApiVersions; a stop closes it too."""
    closed = front.serve(CREATE_TOPICS, {"Topics": [TOPIC]})
    front.respond({}, CREATE_TOPICS, error=35)
    stopped = front.serve(CREATE_TOPICS, {"Topics": [TOPIC]})
    front.channel.fail(Errors.NETWORK_EXCEPTION)
    assert closed.ended == stopped.ended == [None]


def test_a_malformed_response_is_an_error(front: Front) -> None:
    request = front.serve(CREATE_TOPICS, {"Topics": [TOPIC]})
    front.channel.respond({"ResponseData": b"\0\0\0\7\0\0", "ErrorCode": 0})
    assert [row["ErrorCode"] for row in decoded(request)["Topics"]] == [-1]


def test_waiting_requests_have_a_limit(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request above the limit is refused with REQUEST_TIMED_OUT until another request has ended."""
    first = front.serve(CREATE_TOPICS, {"Topics": [TOPIC]})
    monkeypatch.setattr(forwarding, "MAX_WAITING_BYTES", len(first.payload))
    second = front.serve(CREATE_TOPICS, {"Topics": [TOPIC]})
    assert [row["ErrorCode"] for row in decoded(second)["Topics"]] == [7]
    front.respond({"Topics": []}, CREATE_TOPICS)
    assert len(first.ended) == 1
    front.serve(CREATE_TOPICS, {"Topics": [TOPIC]})
    assert len(front.channel.sent) == 1


def test_a_token_must_not_create_tokens(front: Front) -> None:
    """This broker itself refuses a token's request for tokens: the controller lacks the authentication method."""
    create = front.serve(CREATE_TOKEN, {"Renewers": [], "MaxLifetimeMs": -1}, is_token_authenticated=True)
    renew = front.serve(RENEW_TOKEN, {"Hmac": b"h", "RenewPeriodMs": -1}, is_token_authenticated=True)
    assert decoded(create)["ErrorCode"] == decoded(renew)["ErrorCode"] == Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert front.channel.sent == []


def test_tokens_are_created_by_the_controller() -> None:
    """A member without delegation.token.secret.key forwards the request."""
    front = Front(listeners="SASL_PLAINTEXT://127.0.0.1:0", **{"sasl.enabled.mechanisms": "SCRAM-SHA-256"})
    facts: dict[str, Any] = {"principal": "User:alice", "listener": "SASL_PLAINTEXT"}
    wrong = {"PrincipalType": "Group", "PrincipalName": "g"}
    refused = front.serve(CREATE_TOKEN, {"Renewers": [wrong], "MaxLifetimeMs": -1}, **facts)
    assert decoded(refused)["ErrorCode"] == Errors.INVALID_PRINCIPAL_TYPE
    front.serve(CREATE_TOKEN, {"Renewers": [], "MaxLifetimeMs": -1}, **facts)
    assert len(front.channel.sent) == 1


def resource(kind: int, name: str, key: str, value: str | None) -> Body:
    return {
        "ResourceType": kind,
        "ResourceName": name,
        "Configs": [{"Name": key, "ConfigOperation": 0, "Value": value}],
    }


def test_configs_of_topics_go_to_the_controller_unchanged(front: Front) -> None:
    request = front.serve(ALTER_CONFIGS, {"Resources": [resource(TOPIC_CONFIGS, "t", "retention.ms", "x")]})
    assert front.channel.sent[0][1]["RequestData"] == bytes(request.payload)


def test_what_this_broker_refuses_stays_out_of_the_envelope(front: Front) -> None:
    """Loggers and configs of this broker are handled here; the responses are in the order of the request."""
    logging.getLogger("kbroker.member")  # only a logger that exists has a level
    rows = [
        resource(BROKER_CONFIGS, "9", "num.io.threads", "0"),
        resource(TOPIC_CONFIGS, "t", "retention.ms", "5"),
        resource(LOGGERS, "9", "kbroker.member", "DEBUG"),
        resource(BROKER_CONFIGS, "8", "log.cleaner.threads", "1"),
        resource(TOPIC_CONFIGS, "u", "retention.ms", None),
        resource(BROKER_CONFIGS, "", "message.max.bytes", "5"),
    ]
    request = front.serve(ALTER_CONFIGS, {"Resources": rows, "ValidateOnly": True})
    data = front.channel.sent[0][1]["RequestData"]
    header, end = codec.decode_request_header(data)
    inner = codec.decode_request(ALTER_CONFIGS, header.api_version, data, end)
    assert header == (ALTER_CONFIGS, 1, 7, "me")
    assert [(row["ResourceType"], row["ResourceName"]) for row in inner["Resources"]] == [(2, "t"), (4, "")]
    assert inner["ValidateOnly"]
    theirs = {"ErrorCode": 3, "ErrorMessage": "gone", "ResourceType": 2, "ResourceName": "t"}
    front.respond({"Responses": [theirs]}, ALTER_CONFIGS)
    found = decoded(request)["Responses"]
    assert [row["ErrorCode"] for row in found] == [42, 3, 0, 42, 42, -1]
    assert found[3]["ErrorMessage"] == "Unexpected broker id, expected 9, but received 8"
    assert found[4]["ErrorMessage"] == "Null value not supported for : retention.ms"


def test_a_name_without_utf_8_has_the_response_of_the_controller(front: Front) -> None:
    """The controller returns the name with its bytes replaced; the other resource keeps its own response."""
    rows = [resource(16, "m\udcff", "interval.ms", "5"), resource(BROKER_CONFIGS, "8", "log.cleaner.threads", "1")]
    request = front.serve(ALTER_CONFIGS, {"Resources": rows})
    theirs = {"ErrorCode": 0, "ErrorMessage": None, "ResourceType": 16, "ResourceName": "m\ufffd"}
    front.respond({"Responses": [theirs]}, ALTER_CONFIGS)
    found = decoded(request)["Responses"]
    assert [(row["ResourceName"], row["ErrorCode"]) for row in found] == [("m\ufffd", 0), ("8", 42)]


def test_configs_without_a_rest_need_no_controller(front: Front) -> None:
    request = front.serve(ALTER_CONFIGS, {"Resources": [resource(BROKER_CONFIGS, "8", "log.cleaner.threads", "1")]})
    assert [row["ErrorCode"] for row in decoded(request)["Responses"]] == [42]
    assert front.channel.sent == []


def test_advertised_versions_are_those_of_both_sides() -> None:
    """A version or a forwarded API that the controller lacks is not advertised; unknown versions hide none."""
    apis = KafkaApis(forwards=True)
    assert dict(apis.ranges()) == dict(KafkaApis().ranges())
    forwarded = [entry for entry in apis.entries.values() if entry.is_forwarded]
    everything = {entry.key: (entry.min_version, entry.max_version) for entry in forwarded}
    apis.controller_versions = lambda: {**everything, CREATE_TOPICS: (3, 6), 3: (0, 1)}
    assert apis.ranges()[CREATE_TOPICS] == (3, 6)
    assert apis.ranges()[3] == KafkaApis().ranges()[3]
    apis.controller_versions = lambda: {CREATE_TOPICS: (0, 7)}
    assert apis.ranges()[CREATE_TOPICS] == (2, 7)
    assert set(KafkaApis().ranges()) - set(apis.ranges()) == {entry.key for entry in forwarded} - {CREATE_TOPICS}
