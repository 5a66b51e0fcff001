"""Quotas over sockets, on a clock that stands still: who is throttled, what it is told, and until when it is muted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kbroker._core.metric import Metric
from kbroker.metrics.registry import MetricName
from kbroker.protocol import codec
from kbroker.server.quota._client_quotas import DEFAULT_ENTITY
from kbroker.testing import VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.support import wire
from tests.support.quota_client import QuotaClient, fetch_body
from tests.support.wire import Connection, create_topic

USER = "ANONYMOUS"
PRODUCE, FETCH, REQUEST, MUTATION = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
SETTINGS = {"num.network.threads": "1", "log.flush.interval.messages": "9223372036854775807"}
FETCH_VERSIONS = (4, 7, 11, 12)


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker(SETTINGS) as running:
        with Connection(running.bootstrap_servers) as admin:
            admin.ask(create_topic("t", 2))
        yield running


@pytest.fixture
def client(broker: VirtualBroker) -> Iterator[QuotaClient]:
    with QuotaClient(broker.bootstrap_servers) as connection:
        yield connection


def pass_by(broker: VirtualBroker) -> None:
    """Return when the network thread has been around: whoever may be read has been."""
    for _ in range(2):
        assert wire.answers(broker.bootstrap_servers, within=10)


def metric(broker: VirtualBroker, name: str, group: str, **tags: str) -> float:
    found = broker.context.metrics.get(MetricName.of(name, group, {k.replace("_", "-"): v for k, v in tags.items()}))
    assert isinstance(found, Metric), (name, group, tags)
    return found.measure()


def assert_muted_for(broker: VirtualBroker, client: QuotaClient, throttle_ms: int) -> None:
    """The next request is not read one millisecond early, and is at its time."""
    client.begin("ApiVersions", 0, {})
    broker.advance_ms(throttle_ms - 1)
    pass_by(broker)
    assert not client.has_answer
    broker.advance_ms(1)
    assert client.end()["ErrorCode"] == 0


def charge_time(broker: VirtualBroker, percent: float, client_id: str = "client") -> None:
    """Let a client have used so much time: on this clock handlers take none."""
    broker.context.quotas.request.record_no_throttle(USER, client_id, percent)


# ---------------------------------------------------------------- produce


def test_produce_is_answered_at_once_and_muted_to_the_millisecond(broker: VirtualBroker, client: QuotaClient) -> None:
    """KIP-219: the answer with its delay comes without time passing, then the connection is not read for that long."""
    quotas = broker.context.quotas
    quotas.update(USER, None, PRODUCE, 1000)
    size = client.produce("t", 20_000)
    answer = client.end()
    expected = round((size / 10 - 1000) / 1000 * 10_000)
    assert answer["ThrottleTimeMs"] == expected
    assert answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0
    assert quotas.produce.queue_size == 1
    assert metric(broker, "throttle-time", "Produce", user=USER, client_id="") == expected
    assert_muted_for(broker, client, expected)
    assert quotas.produce.queue_size == 0


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce_tells_the_delay(broker: VirtualBroker, client: QuotaClient, version: int) -> None:
    """throttle_time_ms stands where each version has it."""
    broker.context.quotas.update(None, "client", PRODUCE, 100)
    size = client.produce("t", 500 * version, version=version)
    assert client.end()["ThrottleTimeMs"] == round((size / 10 - 100) / 100 * 10_000)


def test_the_whole_request_is_charged_even_where_it_failed(broker: VirtualBroker, client: QuotaClient) -> None:
    """Header and body count, without the length before them, whatever became of the partitions."""
    broker.context.quotas.update(USER, None, PRODUCE, 10_000_000)
    size = client.produce("no-such-topic", 700)
    assert client.end()["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 3
    assert metric(broker, "byte-rate", "Produce", user=USER, client_id="") == size / 10


def test_pipelined_requests_wait_for_the_end_each(broker: VirtualBroker, client: QuotaClient) -> None:
    """A throttle ends a run: what was sent behind it is served when the time is over, with a throttle of its own."""
    broker.context.quotas.update(USER, None, PRODUCE, 1000)
    for _ in range(3):
        client.produce("t", 20_000)
    first = client.end(0)["ThrottleTimeMs"]
    pass_by(broker)
    assert not client.has_answer
    broker.advance_ms(first - 1)
    pass_by(broker)
    assert not client.has_answer
    broker.advance_ms(1)
    assert client.end(1)["ThrottleTimeMs"] > 0
    pass_by(broker)
    assert not client.has_answer


def test_without_acks_only_bytes_are_judged(broker: VirtualBroker, client: QuotaClient) -> None:
    """acks=0: no answer, handler time is exempt, and bytes still mute the connection."""
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
    broker: VirtualBroker, client: QuotaClient, rate: int, percent: float, by_bytes: bool
) -> None:
    """Of bytes and time the larger delay is told and served, by its manager; they do not add up."""
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


def test_produce_that_waited_for_the_disk_is_judged_when_it_is_answered() -> None:
    """acks=all with a flush per message: the thread that completes it judges and answers, large frames too."""
    settings = {**SETTINGS, "log.flush.interval.messages": "1"}
    with VirtualBroker(settings) as broker, QuotaClient(broker.bootstrap_servers, "durable") as client:
        client.send(create_topic("t", 1))
        client.receive()
        broker.context.quotas.update(None, "durable", PRODUCE, 1000)
        size = client.produce("t", 300_000, acks=-1, version=9)
        throttle_ms = client.end()["ThrottleTimeMs"]
        assert throttle_ms == round((size / 10 - 1000) / 1000 * 10_000)
        assert_muted_for(broker, client, throttle_ms)


# ---------------------------------------------------------------- fetch


def fill(broker: VirtualBroker, value_bytes: int) -> None:
    with QuotaClient(broker.bootstrap_servers, "filler") as filler:
        filler.produce("t", value_bytes)
        assert filler.end()["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_throttled_fetch_is_empty_and_gives_its_bytes_back(
    broker: VirtualBroker, client: QuotaClient, version: int
) -> None:
    """The delay without any data; the bytes that were not sent do not count."""
    quotas = broker.context.quotas
    fill(broker, 5000)
    quotas.update(None, "other", FETCH, 1)
    client.fetch("t", version=version)
    answer = client.end()
    size = len(client.answer) - (version >= 12)  # Kafka counts the header as four bytes in every version
    assert answer["Responses"][0]["Partitions"][0]["Records"] is not None
    assert metric(broker, "byte-rate", "Fetch", user="", client_id="client") == size / 10
    quotas.fetch.unrecord(USER, "client", size)
    quotas.update(None, "client", FETCH, 501)  # room for 5010 bytes, and the answer is a little longer
    client.fetch("t", version=version)
    answer = client.end()
    assert answer["ThrottleTimeMs"] == round((size / 10 - 501) / 501 * 10_000)
    assert answer["Responses"] == []
    assert metric(broker, "byte-rate", "Fetch", user="", client_id="client") == 0
    assert_muted_for(broker, client, answer["ThrottleTimeMs"])


def test_bytes_are_given_back_even_where_time_decided(broker: VirtualBroker, client: QuotaClient) -> None:
    """The answer is empty whichever manager throttles: the bytes go back, and are credit without a fetch quota."""
    quotas = broker.context.quotas
    fill(broker, 5000)
    quotas.update(None, "client", REQUEST, 1)
    charge_time(broker, 1000)
    client.fetch("t")
    answer = client.end()
    assert (answer["ThrottleTimeMs"], answer["Responses"]) == (1000, [])
    assert quotas.request.queue_size == 1
    assert metric(broker, "byte-rate", "Fetch", user="", client_id="client") < -500


def test_a_throttled_full_fetch_opens_no_session(broker: VirtualBroker, client: QuotaClient) -> None:
    """Session id 0; the client's next full fetch opens one."""
    fill(broker, 5000)
    broker.context.quotas.update(None, "client", FETCH, 501)
    client.fetch("t", session=(0, 0))
    answer = client.end()
    assert (answer["ThrottleTimeMs"] > 0, answer["SessionId"], answer["ErrorCode"]) == (True, 0, 0)
    assert broker.context.quotas.fetch.queue_size == 1
    broker.context.quotas.update(None, "client", FETCH, None)
    broker.advance_ms(answer["ThrottleTimeMs"])
    client.fetch("t", session=(0, 0))
    answer = client.end()
    assert answer["SessionId"] != 0
    assert answer["Responses"][0]["Partitions"][0]["Records"] is not None


@pytest.mark.parametrize("version", [7, 11, 12])
def test_a_throttled_incremental_fetch_moves_the_epoch_only(
    broker: VirtualBroker, client: QuotaClient, version: int
) -> None:
    """Same session, no partitions; the next epoch follows, and the dropped data comes then."""
    quotas = broker.context.quotas
    quotas.update(None, "other", FETCH, 1)
    client.fetch("t", session=(0, 0), version=version)
    session_id = client.end()["SessionId"]
    assert session_id != 0
    fill(broker, 5000)
    quotas.update(None, "client", FETCH, 501)
    client.fetch("t", session=(session_id, 1), version=version)
    answer = client.end()
    assert answer["ThrottleTimeMs"] > 0
    assert (answer["SessionId"], answer["ErrorCode"], answer["Responses"]) == (session_id, 0, [])
    quotas.update(None, "client", FETCH, 10_000)
    broker.advance_ms(answer["ThrottleTimeMs"])
    client.fetch("t", session=(session_id, 2), version=version)
    answer = client.end()
    assert (answer["ThrottleTimeMs"], answer["SessionId"]) == (0, session_id)
    assert len(answer["Responses"][0]["Partitions"][0]["Records"]) > 5000
    client.fetch("t", session=(session_id, 3), version=version)
    assert client.end()["ErrorCode"] == 0


@pytest.mark.parametrize(("session", "error"), [((123, 5), 70), ((None, 9), 71)])
def test_refused_sessions_are_told_only_where_nothing_throttles(
    broker: VirtualBroker, client: QuotaClient, session: tuple[int | None, int], error: int
) -> None:
    """An unknown session or a wrong epoch: 70 and 71, but throttled error 0 and session 0."""
    quotas = broker.context.quotas
    client.fetch("t", session=(0, 0))
    opened = client.end()["SessionId"]
    asked = (opened if session[0] is None else session[0], session[1])
    client.fetch("t", session=asked)
    assert (client.end()["ErrorCode"]) == error
    quotas.update(None, "client", REQUEST, 1)
    charge_time(broker, 1000)
    client.fetch("t", session=asked)
    answer = client.end()
    assert (answer["ThrottleTimeMs"], answer["ErrorCode"], answer["SessionId"], answer["Responses"]) == (1000, 0, 0, [])


def test_no_more_is_fetched_at_once_than_fits_the_window(broker: VirtualBroker, client: QuotaClient) -> None:
    """max_bytes is capped by the quota's window: from an idle counter first an empty answer, then the data."""
    fill(broker, 49_900)
    fill(broker, 49_900)
    quotas = broker.context.quotas
    quotas.update(None, "client", FETCH, 5000)
    client.fetch("t")
    answer = client.end()
    assert answer["Responses"] == []
    throttle_ms = answer["ThrottleTimeMs"]
    assert 0 < throttle_ms < 50  # of the overhead only: one batch was read, not both
    broker.advance_ms(throttle_ms + 100)
    client.fetch("t")
    answer = client.end()
    assert answer["ThrottleTimeMs"] == 0
    assert 49_900 < len(answer["Responses"][0]["Partitions"][0]["Records"]) < 50_100


def test_min_bytes_is_capped_too(broker: VirtualBroker, client: QuotaClient) -> None:
    """A fetch never waits for more than it may be handed."""
    fill(broker, 2000)
    broker.context.quotas.update(None, "client", FETCH, 150)
    client.fetch("t", max_wait_ms=30_000, min_bytes=1 << 19)
    assert client.end()["ThrottleTimeMs"] > 0  # 1500 bytes would do, and more than that is there
    assert broker.waiting_fetches == 0


def test_a_fetch_that_waited_is_judged_when_it_is_answered(broker: VirtualBroker, client: QuotaClient) -> None:
    """The thread that completes a waiting fetch charges it, and throttles it."""
    quotas = broker.context.quotas
    quotas.update(None, "client", FETCH, 100)
    client.fetch("t", max_wait_ms=30_000, min_bytes=500)
    broker.wait_for_fetches()
    fill(broker, 5000)
    answer = client.end()
    assert answer["ThrottleTimeMs"] > 0
    assert answer["Responses"] == []
    assert_muted_for(broker, client, answer["ThrottleTimeMs"])
    quotas.update(None, "client", FETCH, 10_000)
    client.fetch("t", max_wait_ms=20, offset=1)
    broker.wait_for_fetches()
    broker.advance_ms(20)
    assert client.end()["ThrottleTimeMs"] == 0


# ---------------------------------------------------------------- other requests


@pytest.mark.parametrize("version", range(5))
def test_api_versions_tells_its_delay(broker: VirtualBroker, client: QuotaClient, version: int) -> None:
    """Natively served requests without bytes of their own are judged by time; version 0 is muted without a word."""
    broker.context.quotas.update(None, "client", REQUEST, 1)
    charge_time(broker, 1000)
    body = {"ClientSoftwareName": "a", "ClientSoftwareVersion": "b"} if version >= 3 else {}
    answer = client.call("ApiVersions", version, body)
    assert len(answer["ApiKeys"]) > 20
    assert answer.get("ThrottleTimeMs", 0) == (1000 if version else 0)
    broker.context.quotas.update(None, "client", REQUEST, None)
    assert_muted_for(broker, client, 1000)


@pytest.mark.parametrize("version", [1, 2, 3, 8, 12])
def test_cold_requests_are_judged_by_time(broker: VirtualBroker, client: QuotaClient, version: int) -> None:
    """What Python serves is muted in every version, and told where the version has the field."""
    broker.context.quotas.update(None, "client", REQUEST, 1)
    charge_time(broker, 1000)
    answer = client.call("Metadata", version, {"Topics": [], "AllowAutoTopicCreation": True})
    assert answer.get("ThrottleTimeMs", 0) == (1000 if version >= 3 else 0)
    broker.context.quotas.update(None, "client", REQUEST, None)
    assert_muted_for(broker, client, 1000)


def test_a_handshake_outside_of_authentication_is_throttled(broker: VirtualBroker, client: QuotaClient) -> None:
    """P7: SaslHandshake is charged and mutes like any request, though its answer has no field to tell it."""
    broker.context.quotas.update(None, "client", REQUEST, 1)
    charge_time(broker, 1000)
    assert client.call("SaslHandshake", 1, {"Mechanism": "PLAIN"})["ErrorCode"] != 0
    assert broker.context.quotas.request.queue_size == 1
    broker.context.quotas.update(None, "client", REQUEST, None)
    assert_muted_for(broker, client, 1000)


def test_mutations_throttle_by_their_own_manager_iff_they_ask_for_more(
    broker: VirtualBroker, client: QuotaClient
) -> None:
    """Of the controller's delay and the request's the larger one is told; a tie is the request's."""
    quotas = broker.context.quotas
    topic = {"NumPartitions": 1, "ReplicationFactor": 1}
    quotas.update(None, "client", MUTATION, 1)
    quotas.controller_mutation.record_and_get_throttle(USER, "client", 21)  # burst 11: 10 below zero
    answer = client.call("CreateTopics", 6, {"Topics": [{**topic, "Name": "late"}], "timeoutMs": 1000})
    assert (answer["ThrottleTimeMs"], answer["Topics"][0]["ErrorCode"]) == (10_000, 89)
    assert (quotas.controller_mutation.queue_size, quotas.request.queue_size) == (1, 0)
    assert metric(broker, "throttle-time", "ControllerMutation", user="", client_id="client") == 10_000
    assert_muted_for(broker, client, 10_000)
    quotas.update(None, "client", REQUEST, 1)
    charge_time(broker, 1000)
    quotas.controller_mutation.record_and_get_throttle(USER, "client", 1)  # 1 below zero: 1,000 ms for both
    answer = client.call("CreateTopics", 6, {"Topics": [{**topic, "Name": "late"}], "timeoutMs": 1000})
    assert (answer["ThrottleTimeMs"], answer["Topics"][0]["ErrorCode"]) == (1000, 89)
    assert (quotas.controller_mutation.queue_size, quotas.request.queue_size) == (0, 1)


def test_an_old_client_is_muted_for_its_mutations(broker: VirtualBroker, client: QuotaClient) -> None:
    """Permissive: CreateTopics 5 makes the topic, and pays for it afterwards."""
    broker.context.quotas.update(None, "client", MUTATION, 1)
    topic = {"Name": "many", "NumPartitions": 20, "ReplicationFactor": 1}
    answer = client.call("CreateTopics", 5, {"Topics": [topic], "timeoutMs": 1000})
    assert (answer["ThrottleTimeMs"], answer["Topics"][0]["ErrorCode"]) == (9000, 0)
    assert_muted_for(broker, client, 9000)


def test_an_error_is_throttled_like_any_answer(broker: VirtualBroker, client: QuotaClient) -> None:
    """A refused request costs its time as well."""
    broker.context.quotas.update(None, "client", REQUEST, 1)
    charge_time(broker, 1000)
    answer = client.call("DescribeConfigs", 1, {"Resources": [{"ResourceType": 99, "ResourceName": "x"}]})
    assert answer["ThrottleTimeMs"] == 1000
    broker.context.quotas.update(None, "client", REQUEST, None)
    assert_muted_for(broker, client, 1000)


@pytest.mark.parametrize(("version", "told"), [(1, 0), (3, 0), (4, 1000)])
def test_find_coordinator_hides_its_delay_while_there_is_none(
    broker: VirtualBroker, client: QuotaClient, version: int, told: int
) -> None:
    """Below version 4 COORDINATOR_NOT_AVAILABLE says 0, and the connection is muted all the same."""
    broker.context.coordinators.clear()
    broker.context.quotas.update(None, "client", REQUEST, 1)
    charge_time(broker, 1000)
    body = {"KeyType": 0, "CoordinatorKeys": ["g"]} if version >= 4 else {"KeyType": 0, "Key": "g"}
    answer = client.call("FindCoordinator", version, body)
    assert answer["ThrottleTimeMs"] == told
    broker.context.quotas.update(None, "client", REQUEST, None)
    assert_muted_for(broker, client, 1000)


def test_a_join_that_waits_is_not_charged_for_waiting() -> None:
    """An answer that comes later counts its handler's time, not the three seconds it was waiting for others."""
    settings = {**SETTINGS, "group.initial.rebalance.delay.ms": "3000"}
    with VirtualBroker(settings) as broker, QuotaClient(broker.bootstrap_servers) as client:
        join_and_wait(broker, client)


def join_and_wait(broker: VirtualBroker, client: QuotaClient) -> None:
    quotas = broker.context.quotas
    client.begin("FindCoordinator", 1, {"KeyType": 0, "Key": "g"})
    while client.end()["ErrorCode"] != 0:
        broker.advance_ms(100)
        client.begin("FindCoordinator", 1, {"KeyType": 0, "Key": "g"})
    quotas.update(None, "client", REQUEST, 1)
    client.begin(
        "JoinGroup",
        2,
        {
            "GroupId": "g",
            "SessionTimeoutMs": 30_000,
            "RebalanceTimeoutMs": 30_000,
            "MemberId": "",
            "ProtocolType": "consumer",
            "Protocols": [{"Name": "range", "Metadata": b""}],
        },
    )
    # The clock moves only when the handler is done with it: what it moved meanwhile would be the handler's time.
    wait_until(lambda: bool(broker.context.groups.list_groups()) and broker.is_quiet)
    waited_ms = 0
    while not client.has_answer:
        broker.advance_ms(500)
        waited_ms += 500
        pass_by(broker)
    answer = client.end()
    assert waited_ms >= 3000
    assert (answer["ErrorCode"], answer["ThrottleTimeMs"]) == (0, 0)
    assert metric(broker, "request-time", "Request", user="", client_id="client") == 0


# ---------------------------------------------------------------- many, long, and at the end


def test_idle_counters_are_forgotten_after_an_hour(broker: VirtualBroker, client: QuotaClient) -> None:
    """The scheduler removes them every 30 s."""
    broker.context.quotas.update(USER, None, PRODUCE, 1_000_000)
    client.produce("t", 10)
    client.end()
    assert broker.context.metrics.get_sensor(f"Produce-{USER}:") is not None
    client.close()
    for _ in range(12):
        broker.advance_ms(300_000)
    broker.advance_ms(1)
    assert broker.context.metrics.get_sensor(f"Produce-{USER}:") is not None
    broker.advance_ms(30_000)
    assert broker.context.metrics.get_sensor(f"Produce-{USER}:") is None


def test_a_changed_quota_does_not_end_a_throttle(broker: VirtualBroker, client: QuotaClient) -> None:
    """Removed meanwhile: the time that was told is still served."""
    broker.context.quotas.update(USER, None, PRODUCE, 1000)
    client.produce("t", 20_000)
    throttle_ms = client.end()["ThrottleTimeMs"]
    broker.context.quotas.update(USER, None, PRODUCE, None)
    assert_muted_for(broker, client, throttle_ms)


def test_a_client_that_leaves_while_muted_is_let_go(broker: VirtualBroker) -> None:
    """Its throttle ends by itself; nothing is left over, and the counter still holds what it held."""
    quotas = broker.context.quotas
    quotas.update(USER, None, PRODUCE, 1000)
    with QuotaClient(broker.bootstrap_servers) as client:
        client.produce("t", 20_000)
        throttle_ms = client.end()["ThrottleTimeMs"]
    pass_by(broker)
    assert quotas.produce.queue_size == 1
    broker.advance_ms(throttle_ms)
    assert quotas.produce.queue_size == 0


def test_a_broker_stops_with_throttled_channels() -> None:
    """A stop does not wait for throttles."""
    with VirtualBroker(SETTINGS) as broker, ExitStack() as stack:
        with Connection(broker.bootstrap_servers) as admin:
            admin.ask(create_topic("t", 1))
        broker.context.quotas.update(USER, None, PRODUCE, 1)
        for _ in range(20):
            client = stack.enter_context(QuotaClient(broker.bootstrap_servers))
            client.produce("t", 1000)
            assert client.end()["ThrottleTimeMs"] > 0
        assert broker.context.quotas.produce.queue_size == 20


@pytest.mark.slow
def test_thousands_of_throttled_channels_end_in_their_millisecond(broker: VirtualBroker) -> None:
    """3,000 connections muted at once: none is read a millisecond early, and all are at their time."""
    count = 3000
    quotas = broker.context.quotas
    quotas.update(None, DEFAULT_ENTITY, PRODUCE, 100)
    with ExitStack() as stack:
        clients = [stack.enter_context(QuotaClient(broker.bootstrap_servers, f"c{n}", 60)) for n in range(count)]
        for client in clients:
            client.produce("t", 2000)
        delays = {client.end()["ThrottleTimeMs"] for client in clients}
        assert quotas.produce.queue_size == count
        for client in clients:
            client.begin("ApiVersions", 0, {})
        broker.advance_ms(min(delays) - 1, 60)
        pass_by(broker)
        assert not any(client.has_answer for client in clients)
        broker.advance_ms(max(delays) - min(delays) + 1, 60)
        assert all(client.end()["ErrorCode"] == 0 for client in clients)
        assert quotas.produce.queue_size == 0


def test_clients_share_the_counter_that_their_quota_names(broker: VirtualBroker) -> None:
    """One user's client ids draw on one counter; a default client-id quota gives each id its own."""
    quotas = broker.context.quotas
    with QuotaClient(broker.bootstrap_servers, "a") as a, QuotaClient(broker.bootstrap_servers, "b") as b:
        quotas.update(USER, None, PRODUCE, 1000)
        a.produce("t", 8000)
        assert a.end()["ThrottleTimeMs"] == 0
        b.produce("t", 8000)
        assert b.end()["ThrottleTimeMs"] > 0
    quotas.update(USER, None, PRODUCE, None)
    quotas.update(None, DEFAULT_ENTITY, PRODUCE, 1000)
    with QuotaClient(broker.bootstrap_servers, "c") as c, QuotaClient(broker.bootstrap_servers, "d" * 200) as d:
        for client in (c, d):
            client.produce("t", 8000)
            assert client.end()["ThrottleTimeMs"] == 0
        assert quotas.produce.resolve(USER, "c").client_id_tag == "c"
    with QuotaClient(broker.bootstrap_servers, None) as nameless:
        nameless.produce("t", 100_000)
        assert nameless.end()["ThrottleTimeMs"] == 0


def test_request_bodies_are_what_the_codec_says() -> None:
    """The helper's fetch asks for one partition, and an incremental one for none."""
    assert codec.encode_request(1, 11, fetch_body("t", 0, (0, -1))) != codec.encode_request(
        1, 11, fetch_body("t", 0, (1, 1))
    )
