"""Requests without a byte quota: throttled by request time, mutations also by their own quota."""

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.testing import VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.support.client import Client, join_body, new_topics
from tests.support.errors import raising
from tests.support.throttling import (
    MUTATION,
    REQUEST,
    SETTINGS,
    USER,
    assert_muted_after_quota,
    assert_muted_for,
    exceed_request_quota,
    metric,
    pass_by,
)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_reports_its_delay(broker: VirtualBroker, client: Client, version: int) -> None:
    """ApiVersions is throttled by request time; version 0 mutes the connection without reporting it."""
    exceed_request_quota(broker)
    body = {"ClientSoftwareName": "a", "ClientSoftwareVersion": "b"} if version >= 3 else {}
    response = client.call("ApiVersions", version, body)
    assert len(response["ApiKeys"]) > 20
    assert response.get("ThrottleTimeMs", 0) == (1000 if version else 0)
    assert_muted_after_quota(broker, client)


@pytest.mark.parametrize("version", [1, 2, 3, 8, 12])
def test_cold_requests_are_judged_by_time(broker: VirtualBroker, client: Client, version: int) -> None:
    """Requests that Python serves mute the connection in every version; versions with the field report the throttle
    time.
    """
    exceed_request_quota(broker)
    response = client.call("Metadata", version, {"Topics": [], "AllowAutoTopicCreation": True})
    assert response.get("ThrottleTimeMs", 0) == (1000 if version >= 3 else 0)
    assert_muted_after_quota(broker, client)


def test_a_handshake_outside_of_authentication_is_throttled(broker: VirtualBroker, client: Client) -> None:
    """SaslHandshake is charged and muted like other requests, although its response has no throttle time (P7)."""
    exceed_request_quota(broker)
    assert client.call("SaslHandshake", 1, {"Mechanism": "PLAIN"})["ErrorCode"] != 0
    assert broker.context.quotas.request.queue_size == 1
    assert_muted_after_quota(broker, client)


def test_mutations_throttle_by_their_own_manager_iff_they_ask_for_more(broker: VirtualBroker, client: Client) -> None:
    """The larger of the mutation and the request throttle time is reported; with equal times, the request quota
    throttles.
    """
    quotas = broker.context.quotas
    quotas.update(None, "client", MUTATION, 1)
    quotas.controller_mutation.record_and_get_throttle(USER, "client", 21)  # burst 11, so 10 below zero
    response = client.call("CreateTopics", 6, new_topics("late"))
    assert (response["ThrottleTimeMs"], response["Topics"][0]["ErrorCode"]) == (10_000, 89)
    assert (quotas.controller_mutation.queue_size, quotas.request.queue_size) == (1, 0)
    assert metric(broker, "throttle-time", "ControllerMutation", user="", client_id="client") == 10_000
    assert_muted_for(broker, client, 10_000)
    exceed_request_quota(broker)
    quotas.controller_mutation.record_and_get_throttle(USER, "client", 1)  # 1 below zero: 1,000 ms for both
    response = client.call("CreateTopics", 6, new_topics("late"))
    assert (response["ThrottleTimeMs"], response["Topics"][0]["ErrorCode"]) == (1000, 89)
    assert (quotas.controller_mutation.queue_size, quotas.request.queue_size) == (0, 1)


def test_an_old_client_is_muted_for_its_mutations(broker: VirtualBroker, client: Client) -> None:
    """The quota is permissive for CreateTopics 5: the topic is created, and the connection is throttled afterwards."""
    broker.context.quotas.update(None, "client", MUTATION, 1)
    response = client.call("CreateTopics", 5, new_topics("many", partitions=20))
    assert (response["ThrottleTimeMs"], response["Topics"][0]["ErrorCode"]) == (9000, 0)
    assert_muted_for(broker, client, 9000)


def test_an_error_is_throttled_like_any_response(broker: VirtualBroker, client: Client) -> None:
    """The time of a request with an error response is charged too."""
    exceed_request_quota(broker)
    response = client.call("DescribeConfigs", 1, {"Resources": [{"ResourceType": 99, "ResourceName": "x"}]})
    assert response["ThrottleTimeMs"] == 1000
    assert_muted_after_quota(broker, client)


@pytest.mark.parametrize(("version", "reported"), [(1, 0), (3, 0), (4, 1000)])
def test_find_coordinator_hides_its_delay_while_there_is_none(
    broker: VirtualBroker, client: Client, version: int, reported: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below version 4, COORDINATOR_NOT_AVAILABLE has throttle time 0, but the connection is muted."""
    monkeypatch.setattr(broker.context.groups.runtime, "prepare", raising(KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)))
    exceed_request_quota(broker)
    body = {"KeyType": 0, "CoordinatorKeys": ["g"]} if version >= 4 else {"KeyType": 0, "Key": "g"}
    response = client.call("FindCoordinator", version, body)
    assert response["ThrottleTimeMs"] == reported
    assert_muted_after_quota(broker, client)


def test_a_join_that_waits_is_not_charged_for_waiting() -> None:
    """A delayed JoinGroup is charged with its handler's time, not with the 3 s that it waited for other members."""
    settings = {**SETTINGS, "group.initial.rebalance.delay.ms": "3000"}
    with VirtualBroker(settings) as broker, Client(broker.bootstrap_servers) as client:
        join_and_wait(broker, client)


def join_and_wait(broker: VirtualBroker, client: Client) -> None:
    quotas = broker.context.quotas
    client.begin("FindCoordinator", 1, {"KeyType": 0, "Key": "g"})
    while client.end()["ErrorCode"] != 0:
        broker.advance_ms(100)
        client.begin("FindCoordinator", 1, {"KeyType": 0, "Key": "g"})
    quotas.update(None, "client", REQUEST, 1)
    client.begin("JoinGroup", 2, join_body("g", 30_000))
    # A clock that moves while the handler runs would add to the handler's time.
    wait_until(lambda: bool(broker.context.groups.list_groups()) and broker.is_idle)
    waited_ms = 0
    while not client.has_response:
        broker.advance_ms(500)
        waited_ms += 500
        pass_by(broker)
    response = client.end()
    assert waited_ms >= 3000
    assert (response["ErrorCode"], response["ThrottleTimeMs"]) == (0, 0)
    assert metric(broker, "request-time", "Request", user="", client_id="client") == 0
