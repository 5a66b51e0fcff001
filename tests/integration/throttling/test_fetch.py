"""Fetch over its quota: empty responses, unrecorded bytes, and sessions that continue."""

import pytest

from kbroker.protocol import codec
from kbroker.testing import VirtualBroker
from tests.support.client import Client, fetch_body
from tests.support.throttling import FETCH, USER, assert_muted_for, exceed_request_quota, fill, metric

FETCH_VERSIONS = (4, 7, 11, 12)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_throttled_fetch_is_empty_and_gives_its_bytes_back(
    broker: VirtualBroker, client: Client, version: int
) -> None:
    """A throttled fetch returns the throttle time without data, and the bytes that were not sent are unrecorded."""
    quotas = broker.context.quotas
    fill(broker, 5000)
    quotas.update(None, "other", FETCH, 1)
    client.fetch("t", version=version)
    response = client.end()
    size = len(client.response) - (version >= 12)  # Kafka counts the header as four bytes in every version
    assert response["Responses"][0]["Partitions"][0]["Records"] is not None
    assert metric(broker, "byte-rate", "Fetch", user="", client_id="client") == size / 10
    quotas.fetch.unrecord(USER, "client", size)
    quotas.update(None, "client", FETCH, 501)  # a limit of 5010 bytes in the window: the response is a little longer
    client.fetch("t", version=version)
    response = client.end()
    assert response["ThrottleTimeMs"] == round((size / 10 - 501) / 501 * 10_000)
    assert response["Responses"] == []
    assert metric(broker, "byte-rate", "Fetch", user="", client_id="client") == 0
    assert_muted_for(broker, client, response["ThrottleTimeMs"])


def test_bytes_are_given_back_even_where_time_decided(broker: VirtualBroker, client: Client) -> None:
    """A fetch that the request quota throttles is empty too, and unrecords its bytes even without a fetch quota."""
    quotas = broker.context.quotas
    fill(broker, 5000)
    exceed_request_quota(broker)
    client.fetch("t")
    response = client.end()
    assert (response["ThrottleTimeMs"], response["Responses"]) == (1000, [])
    assert quotas.request.queue_size == 1
    assert metric(broker, "byte-rate", "Fetch", user="", client_id="client") < -500


def test_a_throttled_full_fetch_opens_no_session(broker: VirtualBroker, client: Client) -> None:
    """A throttled full fetch returns session id 0, and the next full fetch opens a session."""
    fill(broker, 5000)
    broker.context.quotas.update(None, "client", FETCH, 501)
    client.fetch("t", session=(0, 0))
    response = client.end()
    assert (response["ThrottleTimeMs"] > 0, response["SessionId"], response["ErrorCode"]) == (True, 0, 0)
    assert broker.context.quotas.fetch.queue_size == 1
    broker.context.quotas.update(None, "client", FETCH, None)
    broker.advance_ms(response["ThrottleTimeMs"])
    client.fetch("t", session=(0, 0))
    response = client.end()
    assert response["SessionId"] != 0
    assert response["Responses"][0]["Partitions"][0]["Records"] is not None


@pytest.mark.parametrize("version", [7, 11, 12])
def test_a_throttled_incremental_fetch_moves_the_epoch_only(
    broker: VirtualBroker, client: Client, version: int
) -> None:
    """A throttled incremental fetch returns no partitions and increments the epoch; the next fetch returns the data."""
    quotas = broker.context.quotas
    quotas.update(None, "other", FETCH, 1)
    client.fetch("t", session=(0, 0), version=version)
    session_id = client.end()["SessionId"]
    assert session_id != 0
    fill(broker, 5000)
    quotas.update(None, "client", FETCH, 501)
    client.fetch("t", session=(session_id, 1), version=version)
    response = client.end()
    assert response["ThrottleTimeMs"] > 0
    assert (response["SessionId"], response["ErrorCode"], response["Responses"]) == (session_id, 0, [])
    quotas.update(None, "client", FETCH, 10_000)
    broker.advance_ms(response["ThrottleTimeMs"])
    client.fetch("t", session=(session_id, 2), version=version)
    response = client.end()
    assert (response["ThrottleTimeMs"], response["SessionId"]) == (0, session_id)
    assert len(response["Responses"][0]["Partitions"][0]["Records"]) > 5000
    client.fetch("t", session=(session_id, 3), version=version)
    assert client.end()["ErrorCode"] == 0


@pytest.mark.parametrize(("session", "error"), [((123, 5), 70), ((None, 9), 71)])
def test_refused_sessions_are_reported_only_where_nothing_throttles(
    broker: VirtualBroker, client: Client, session: tuple[int | None, int], error: int
) -> None:
    """An unknown session or a wrong epoch is an error, but a throttled response has error code 0 and session id 0."""
    client.fetch("t", session=(0, 0))
    opened = client.end()["SessionId"]
    asked = (opened if session[0] is None else session[0], session[1])
    client.fetch("t", session=asked)
    assert (client.end()["ErrorCode"]) == error
    exceed_request_quota(broker)
    client.fetch("t", session=asked)
    response = client.end()
    assert (response["ThrottleTimeMs"], response["ErrorCode"], response["SessionId"], response["Responses"]) == (
        1000,
        0,
        0,
        [],
    )


def test_no_more_is_fetched_at_once_than_fits_the_window(broker: VirtualBroker, client: Client) -> None:
    """The bytes that the quota's window allows limit `max_bytes`, so that one of two batches is read."""
    fill(broker, 49_900)
    fill(broker, 49_900)
    quotas = broker.context.quotas
    quotas.update(None, "client", FETCH, 5000)
    client.fetch("t")
    response = client.end()
    assert response["Responses"] == []
    throttle_ms = response["ThrottleTimeMs"]
    assert 0 < throttle_ms < 50  # throttled for the overhead only, as one batch was read and not both
    broker.advance_ms(throttle_ms + 100)
    client.fetch("t")
    response = client.end()
    assert response["ThrottleTimeMs"] == 0
    assert 49_900 < len(response["Responses"][0]["Partitions"][0]["Records"]) < 50_100


def test_min_bytes_is_capped_too(broker: VirtualBroker, client: Client) -> None:
    """The bytes that the quota's window allows limit `min_bytes`, so that the fetch does not wait for more."""
    fill(broker, 2000)
    broker.context.quotas.update(None, "client", FETCH, 150)
    client.fetch("t", max_wait_ms=30_000, min_bytes=1 << 19)
    assert client.end()["ThrottleTimeMs"] > 0  # 1500 bytes suffice, and more are available
    assert broker.waiting_fetches == 0


def test_a_delayed_fetch_is_judged_when_it_completes(broker: VirtualBroker, client: Client) -> None:
    """The thread that completes a delayed fetch charges and throttles it."""
    quotas = broker.context.quotas
    quotas.update(None, "client", FETCH, 100)
    client.fetch("t", max_wait_ms=30_000, min_bytes=500)
    broker.wait_for_fetches()
    fill(broker, 5000)
    response = client.end()
    assert response["ThrottleTimeMs"] > 0
    assert response["Responses"] == []
    assert_muted_for(broker, client, response["ThrottleTimeMs"])
    quotas.update(None, "client", FETCH, 10_000)
    client.fetch("t", max_wait_ms=20, offset=1)
    broker.wait_for_fetches()
    broker.advance_ms(20)
    assert client.end()["ThrottleTimeMs"] == 0


def test_request_bodies_are_what_the_codec_says() -> None:
    """The helper's full fetch contains one partition, and its incremental fetch none."""
    assert codec.encode_request(1, 11, fetch_body("t", 0, (0, -1))) != codec.encode_request(
        1, 11, fetch_body("t", 0, (1, 1))
    )
