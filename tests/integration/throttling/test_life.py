"""Lifetime of throttles: many at once, closed clients, a stop; sharing and expiry of sensors."""

from contextlib import ExitStack

import pytest

from kbroker.quota._entities import DEFAULT_ENTITY
from kbroker.testing import VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.support.client import Client
from tests.support.throttling import PRODUCE, SETTINGS, USER, assert_muted_for, pass_by
from tests.support.wire import API_VERSIONS, Connection, create_topic, header


def test_idle_counters_are_forgotten_after_an_hour(broker: VirtualBroker, client: Client) -> None:
    """The scheduler removes sensors every 30 s."""
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


def test_a_changed_quota_does_not_end_a_throttle(broker: VirtualBroker, client: Client) -> None:
    """A quota that is removed meanwhile does not shorten the throttle of a response that was sent."""
    broker.context.quotas.update(USER, None, PRODUCE, 1000)
    client.produce("t", 20_000)
    throttle_ms = client.end()["ThrottleTimeMs"]
    broker.context.quotas.update(USER, None, PRODUCE, None)
    assert_muted_for(broker, client, throttle_ms)


def test_a_client_that_leaves_while_muted_is_let_go(broker: VirtualBroker) -> None:
    """The throttle of a client that disconnected ends at its time."""
    quotas = broker.context.quotas
    quotas.update(USER, None, PRODUCE, 1000)
    with Client(broker.bootstrap_servers) as client:
        client.produce("t", 20_000)
        throttle_ms = client.end()["ThrottleTimeMs"]
    pass_by(broker)
    assert quotas.produce.queue_size == 1
    broker.advance_ms(throttle_ms)
    assert quotas.produce.queue_size == 0


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_a_throttled_connection_keeps_its_place(broker: VirtualBroker, leave: str) -> None:
    """A closed or reset connection is counted until its throttle ends.

    Otherwise a client could evade the limit of its address with an RST. In Kafka 4.3.1, both FIN and RST are noticed at
    the end of a throttle of 10,113 ms: a new connection was accepted after 10.18 s.
    """
    quotas = broker.context.quotas
    connections = broker.context.connection_quotas
    quotas.update(USER, None, PRODUCE, 1000)
    client = Client(broker.bootstrap_servers)
    client.produce("t", 20_000)
    throttle_ms = client.end()["ThrottleTimeMs"]
    before = connections.count()
    getattr(client, leave)()
    # until then the broker has processed the end of the first connection
    with Connection(broker.bootstrap_servers) as other:
        for _ in range(20):
            other.ask(header(API_VERSIONS, 0))
        assert connections.count() == before + 1
    broker.advance_ms(throttle_ms - 1)
    wait_until(lambda: connections.count() == before)
    broker.advance_ms(1)
    wait_until(lambda: connections.count() == before - 1)


def test_a_broker_stops_with_throttled_channels() -> None:
    """A stop does not wait for throttles."""
    with VirtualBroker(SETTINGS) as broker, ExitStack() as stack:
        with Connection(broker.bootstrap_servers) as admin:
            admin.ask(create_topic("t", 1))
        broker.context.quotas.update(USER, None, PRODUCE, 1)
        for _ in range(20):
            client = stack.enter_context(Client(broker.bootstrap_servers))
            client.produce("t", 1000)
            assert client.end()["ThrottleTimeMs"] > 0
        assert broker.context.quotas.produce.queue_size == 20


@pytest.mark.slow
def test_thousands_of_throttled_channels_end_in_their_millisecond(broker: VirtualBroker) -> None:
    """None of 3,000 muted connections is read a millisecond early, and all are read in time."""
    count = 3000
    quotas = broker.context.quotas
    quotas.update(None, DEFAULT_ENTITY, PRODUCE, 100)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(broker.bootstrap_servers, f"c{n}", 60)) for n in range(count)]
        for client in clients:
            client.produce("t", 2000)
        delays = {client.end()["ThrottleTimeMs"] for client in clients}
        assert quotas.produce.queue_size == count
        for client in clients:
            client.begin("ApiVersions", 0, {})
        broker.advance_ms(min(delays) - 1, 60)
        pass_by(broker)
        assert not any(client.has_response for client in clients)
        broker.advance_ms(max(delays) - min(delays) + 1, 60)
        assert all(client.end()["ErrorCode"] == 0 for client in clients)
        assert quotas.produce.queue_size == 0


def test_clients_share_the_counter_that_their_quota_names(broker: VirtualBroker) -> None:
    """A user quota counts all its client ids together; a default client-id quota counts each id separately."""
    quotas = broker.context.quotas
    with Client(broker.bootstrap_servers, "a") as a, Client(broker.bootstrap_servers, "b") as b:
        quotas.update(USER, None, PRODUCE, 1000)
        a.produce("t", 8000)
        assert a.end()["ThrottleTimeMs"] == 0
        b.produce("t", 8000)
        assert b.end()["ThrottleTimeMs"] > 0
    quotas.update(USER, None, PRODUCE, None)
    quotas.update(None, DEFAULT_ENTITY, PRODUCE, 1000)
    with Client(broker.bootstrap_servers, "c") as c, Client(broker.bootstrap_servers, "d" * 200) as d:
        for client in (c, d):
            client.produce("t", 8000)
            assert client.end()["ThrottleTimeMs"] == 0
        assert quotas.produce.resolve(USER, "c").client_id_tag == "c"
    with Client(broker.bootstrap_servers, None) as nameless:
        nameless.produce("t", 100_000)
        assert nameless.end()["ThrottleTimeMs"] == 0
