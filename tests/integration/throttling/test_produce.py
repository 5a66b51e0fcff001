"""Produce over its quota: the throttle time in the response, and the end of the muting."""

import pytest

from kbroker.testing import VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.support.client import Client
from tests.support.throttling import PRODUCE, REQUEST, SETTINGS, USER, assert_muted_for, charge_time, metric, pass_by
from tests.support.wire import create_topic


def test_produce_responds_at_once_and_is_muted_to_the_millisecond(broker: VirtualBroker, client: Client) -> None:
    """The response with the throttle time is sent at once; then the connection is not read for that time (KIP-219)."""
    quotas = broker.context.quotas
    quotas.update(USER, None, PRODUCE, 1000)
    size = client.produce("t", 20_000)
    response = client.end()
    expected = round((size / 10 - 1000) / 1000 * 10_000)
    assert response["ThrottleTimeMs"] == expected
    assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0
    assert quotas.produce.queue_size == 1
    assert metric(broker, "throttle-time", "Produce", user=USER, client_id="") == expected
    assert_muted_for(broker, client, expected)
    assert quotas.produce.queue_size == 0


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce_reports_the_delay(broker: VirtualBroker, client: Client, version: int) -> None:
    """The field `throttle_time_ms` has its place in every version."""
    broker.context.quotas.update(None, "client", PRODUCE, 100)
    size = client.produce("t", 500 * version, version=version)
    assert client.end()["ThrottleTimeMs"] == round((size / 10 - 100) / 100 * 10_000)


def test_the_whole_request_is_charged_even_where_it_failed(broker: VirtualBroker, client: Client) -> None:
    """The request's header and body are charged without the length prefix, even if the partition has an error."""
    broker.context.quotas.update(USER, None, PRODUCE, 10_000_000)
    size = client.produce("no-such-topic", 700)
    assert client.end()["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 3
    assert metric(broker, "byte-rate", "Produce", user=USER, client_id="") == size / 10


def test_pipelined_requests_wait_for_the_end_each(broker: VirtualBroker, client: Client) -> None:
    """Requests after a throttled one are served when the throttle ends, and are throttled themselves."""
    broker.context.quotas.update(USER, None, PRODUCE, 1000)
    for _ in range(3):
        client.produce("t", 20_000)
    first = client.end()["ThrottleTimeMs"]
    pass_by(broker)
    assert not client.has_response
    broker.advance_ms(first - 1)
    pass_by(broker)
    assert not client.has_response
    broker.advance_ms(1)
    assert client.end()["ThrottleTimeMs"] > 0
    pass_by(broker)
    assert not client.has_response


def test_without_acks_only_bytes_are_judged(broker: VirtualBroker, client: Client) -> None:
    """With acks=0 there is no response, handler time is exempt, and the bytes still mute the connection."""
    quotas = broker.context.quotas
    quotas.update(USER, None, PRODUCE, 1000)
    quotas.update(USER, None, REQUEST, 1)
    charge_time(broker, 1000)
    size = client.produce("t", 20_000, acks=0)
    wait_until(lambda: quotas.produce.queue_size == 1)
    assert quotas.request.queue_size == 0
    assert_muted_for(broker, client, round((size / 10 - 1000) / 1000 * 10_000))


@pytest.mark.parametrize(
    ("rate", "percent", "by_bytes"), [(1000, 10, True), (5_000_000, 10, False), (1800, 1000, True)]
)
def test_the_larger_delay_counts_once(
    broker: VirtualBroker, client: Client, rate: int, percent: float, by_bytes: bool
) -> None:
    """The larger of the produce and the request throttle time is reported and applied by its manager; they are not
    added.
    """
    quotas = broker.context.quotas
    quotas.update(USER, None, PRODUCE, rate)
    quotas.update(USER, None, REQUEST, 1)
    charge_time(broker, percent * 10)
    size = client.produce("t", 20_000)
    bytes_ms = max(0, round((size / 10 - rate) / rate * 10_000))
    time_ms = min(1000, round((percent - 1) / 1 * 10_000))
    assert client.end()["ThrottleTimeMs"] == max(bytes_ms, time_ms)
    assert (quotas.produce.queue_size, quotas.request.queue_size) == (by_bytes, not by_bytes)
    assert_muted_for(broker, client, max(bytes_ms, time_ms))


def test_of_equal_delays_that_of_the_time_is_served(broker: VirtualBroker, client: Client) -> None:
    """With equal throttle times, the request quota throttles, as in Kafka."""
    quotas = broker.context.quotas
    size = client.produce("t", 20_000)
    assert client.end()["ThrottleTimeMs"] == 0
    quotas.update(USER, None, PRODUCE, size / 11)
    quotas.update(USER, None, REQUEST, 1)
    charge_time(broker, 100)
    assert client.produce("t", 20_000) == size
    assert client.end()["ThrottleTimeMs"] == 1000
    assert (quotas.produce.queue_size, quotas.request.queue_size) == (0, 1)
    assert_muted_for(broker, client, 1000)


def test_produce_that_waited_for_the_disk_is_judged_when_it_completes() -> None:
    """The thread that completes a delayed Produce request throttles it and sends the response, for large frames too."""
    settings = {**SETTINGS, "log.flush.interval.messages": "1"}
    with VirtualBroker(settings) as broker, Client(broker.bootstrap_servers, "durable") as client:
        client.send(create_topic("t", 1))
        client.receive()
        broker.context.quotas.update(None, "durable", PRODUCE, 1000)
        size = client.produce("t", 300_000, acks=-1, version=9)
        throttle_ms = client.end()["ThrottleTimeMs"]
        assert throttle_ms == round((size / 10 - 1000) / 1000 * 10_000)
        assert_muted_for(broker, client, throttle_ms)
