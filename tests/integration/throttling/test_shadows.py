"""Shadow quotas over the wire: the same verdicts as enforced quotas on the same traffic, without any effect."""

import random
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.metrics.families import Buckets
from kbroker.quota.verdict import Verdict
from kbroker.testing import EmbeddedBroker, VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.support import wire
from tests.support.client import Client, new_topics
from tests.support.throttling import (
    FETCH,
    MUTATION,
    PRODUCE,
    REQUEST,
    SETTINGS,
    USER,
    assert_muted_for,
    fill,
    metric,
    pass_by,
)

ENFORCED, SHADOWED = "enforced", "shadowed"  # of equal length, so that the requests are equally long
LIMITS = {PRODUCE: 500.0, FETCH: 2000.0, REQUEST: 1.0, MUTATION: 1.0}

KINDS = ("produce", "acks=0", "fetch", "fetch", "fetch", "list", "cold", "create", "old", "metadata", "time")


def shadow(key: str) -> str:
    return f"shadow.{key}"


def told_of(verdicts: list[Verdict], client_id: str) -> list[tuple[Any, ...]]:
    """Return the verdicts on a client without the fields in which an enforced and a shadow verdict differ."""
    return [
        (v.time_ms, v.api_key, v.quota_type, v.level, v.observed, v.limit, v.window_ms, v.delay_asked_ms,
         v.delay_served_ms, v.refused)
        for v in verdicts
        if v.client_id == client_id
    ]  # fmt: skip


class Trace:
    """Requests of two clients at the same virtual moments, each request on a new connection."""

    def __init__(self, broker: VirtualBroker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.topics = 0
        self.without_acks = 0
        self.unlike: list[tuple[str, Any]] = []  # responses to the shadowed client that a throttle has changed

    def step(self) -> None:
        self.broker.advance_ms(self.random.choice((0, 0, 7, 300, 1500)))
        kind = self.random.choice(KINDS)
        size, offset = self.random.choice((10, 700, 6000)), self.random.randrange(3)
        self.topics += 1
        for client_id in (ENFORCED, SHADOWED):
            if kind == "time":
                manager = self.broker.context.quotas.enforced if client_id == ENFORCED else self.shadows
                manager[2].record_no_throttle(USER, client_id, 7.0)
                continue
            with Client(self.broker.bootstrap_servers, client_id) as client:
                self._request(client, kind, size, offset)

    @property
    def shadows(self) -> tuple[Any, ...]:
        return self.broker.context.quotas.shadows

    def _request(self, client: Client, kind: str, size: int, offset: int) -> None:
        if kind == "acks=0":
            self.without_acks += 1
            client.produce("u", size, acks=0)
            wait_until(lambda: wire.end_offset(self.broker.bootstrap_servers, "u") == self.without_acks)
            pass_by(self.broker)
            return
        name = f"{client.client_id}-{self.topics}"
        if kind == "produce":
            client.produce("u1", size)
        elif kind == "fetch":
            client.fetch("t", offset=offset, max_bytes=15_000)
        elif kind == "list":
            client.begin("ApiVersions", 2, {})
        elif kind == "cold":
            client.begin("DescribeConfigs", 1, {"Resources": []})
        elif kind == "metadata":
            client.begin("Metadata", 8, {"Topics": [{"Name": name}], "AllowAutoTopicCreation": True})
        else:
            client.begin("CreateTopics", 6 if kind == "create" else 5, new_topics(name, partitions=4))
        response = client.end()
        if client.client_id == SHADOWED:
            topics = response.get("Topics") or [{"ErrorCode": 0}]
            is_plain = response["ThrottleTimeMs"] == 0 and topics[0]["ErrorCode"] == 0
            if not is_plain or (kind == "fetch" and not response["Responses"]):
                self.unlike.append((kind, response))


@pytest.mark.parametrize("seed", range(3))
def test_a_shadow_says_what_an_enforced_quota_says_about_the_same_traffic(seed: int) -> None:
    """Shadow verdicts equal enforced verdicts on the same traffic, for every quota type; the client sees no effect."""
    with VirtualBroker({**SETTINGS, "auto.create.topics.enable": "true"}) as broker:
        with wire.Connection(broker.bootstrap_servers) as admin:
            for name in ("t", "u", "u1"):
                admin.ask(wire.create_topic(name, 1))
        for _ in range(3):
            fill(broker, 4000)
        quotas = broker.context.quotas
        for key, limit in LIMITS.items():
            quotas.update(None, ENFORCED, key, limit)
            quotas.update(None, SHADOWED, shadow(key), limit)
        trace = Trace(broker, seed)
        for _ in range(250):
            trace.step()
        verdicts = broker.verdicts
        enforced, shadowed = told_of(verdicts, ENFORCED), told_of(verdicts, SHADOWED)
        assert enforced == shadowed
        assert {v.is_shadow for v in verdicts if v.client_id == SHADOWED} == {True}
        assert {v.is_shadow for v in verdicts if v.client_id == ENFORCED} == {False}
        assert {v[2] for v in enforced} == {"Produce", "Fetch", "Request", "ControllerMutation"}
        assert {v[-1] for v in enforced} == {True, False}
        assert any(v[-2] == 0 < v[-3] for v in enforced)  # the shorter of two throttle times
        assert trace.unlike == []
        totals = [quotas.verdict_totals(), quotas.verdict_totals(shadow=True)]
        assert totals[0] == totals[1]
        assert sum(map(sum, totals[0].values())) == len(enforced)


def test_time_that_a_mutation_has_waited_is_deducted(broker: VirtualBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time between the charge and the response is deducted from the throttle time, for enforced and shadow quotas."""
    quotas, topics = broker.context.quotas, broker.context.topics
    quotas.update(None, ENFORCED, MUTATION, 1.0)
    quotas.update(None, SHADOWED, shadow(MUTATION), 1.0)
    create_all = topics.create_all

    clock = broker.clock
    assert isinstance(clock, VirtualClock)

    def slow(*args: Any) -> Any:
        made = create_all(*args)
        clock.advance_ms(300)
        return made

    monkeypatch.setattr(topics, "create_all", slow)
    for client_id in (ENFORCED, SHADOWED):
        with Client(broker.bootstrap_servers, client_id) as client:
            client.call("CreateTopics", 5, new_topics(client_id, partitions=40))
    (enforced,), (shadowed,) = (
        [(v.delay_asked_ms, v.delay_served_ms) for v in broker.verdicts if v.client_id == client_id]
        for client_id in (ENFORCED, SHADOWED)
    )
    assert shadowed == enforced == (enforced[0], enforced[0] - 300)


def test_a_shadow_caps_no_fetch_and_gives_nothing_back(broker: VirtualBroker, client: Client) -> None:
    """A shadow fetch quota neither limits a response nor unrecords its bytes."""
    quotas = broker.context.quotas
    for _ in range(5):
        fill(broker, 5000)
    quotas.update(None, "client", FETCH, 1e9)
    quotas.update(None, "client", shadow(FETCH), 100)  # a window of 1,000 bytes
    for _ in range(2):
        client.fetch("t")
        response = client.end()
        assert response["ThrottleTimeMs"] == 0
        size = len(client.response)
        assert size > 25_000
    assert metric(broker, "byte-rate", "Fetch", user="", client_id="client") == 2 * size / 10
    # an enforced quota would have unrecorded the bytes
    assert metric(broker, "byte-rate", "kbroker:shadow-fetch", user="", client_id="client") == 0
    assert [(v.quota_type, v.is_shadow, v.limit) for v in broker.take_verdicts()] == [("Fetch", True, 100.0)] * 2


def test_both_of_one_client_judge_apart(broker: VirtualBroker, client: Client) -> None:
    """An enforced and a shadow quota of different levels are charged separately; only the enforced one throttles."""
    quotas = broker.context.quotas
    quotas.update(USER, None, PRODUCE, 1000)  # level 3
    quotas.update(None, "client", shadow(PRODUCE), 100)  # level 7
    size = client.produce("t", 12_000)
    delay_ms = round((size / 10 - 1000) / 1000 * 10_000)
    assert client.end()["ThrottleTimeMs"] == delay_ms
    found = {v.is_shadow: v for v in broker.take_verdicts()}
    assert (found[False].level, found[False].user, found[False].client_tag) == (3, USER, "")
    assert (found[True].level, found[True].user, found[True].client_tag) == (7, "", "client")
    assert found[False].delay_served_ms == delay_ms
    assert found[True].delay_served_ms == round((size / 10 - 100) / 100 * 10_000)
    assert metric(broker, "throttle-time", "kbroker:shadow-produce", user="", client_id="client") == (
        found[True].delay_served_ms
    )
    assert_muted_for(broker, client, delay_ms)


@pytest.mark.parametrize("key", [PRODUCE, REQUEST])
def test_a_shadow_mutes_no_connection(broker: VirtualBroker, client: Client, key: str) -> None:
    """A shadow quota does not mute the connection: the next request is read without a move of the clock."""
    broker.context.quotas.update(None, "client", shadow(key), 1)
    if key == REQUEST:
        broker.context.quotas.shadows[2].record_no_throttle(USER, "client", 1000)
    for _ in range(3):
        client.produce("t", 5000)
        assert client.end()["ThrottleTimeMs"] == 0
    assert len(broker.take_verdicts()) == 3
    assert [one.queue_size for one in broker.context.quotas.enforced] == [0, 0, 0, 0]
    (throttled,) = [samples for family, samples in broker.exposition.collect() if family.name == "ThrottleTimeMs"]
    assert {sample.value.sum for sample in throttled if isinstance(sample.value, Buckets)} == {0}, (
        "metric ThrottleTimeMs"
    )


def test_the_time_of_network_threads_counts_too() -> None:
    """Enforced and shadow sensors are charged alike with the time of handlers and network threads, on the system's
    clock.
    """
    with EmbeddedBroker(SETTINGS) as broker, Client(broker.bootstrap_servers) as client:
        broker.context.quotas.update(None, "client", shadow(REQUEST), 1e6)
        broker.context.quotas.update(None, "client", REQUEST, 1e6)
        for _ in range(50):
            client.call("ApiVersions", 2, {})
        rates = [
            metric(broker, "request-time", group, user="", client_id="client")
            for group in ("Request", "kbroker:shadow-request")
        ]
    assert rates[0] > 0
    assert rates[1] == pytest.approx(rates[0], rel=0.05)  # the latest response may be charged between the two reads


def test_a_removed_shadow_judges_no_more(broker: VirtualBroker, client: Client) -> None:
    """A shadow quota is in force, changed and removed as soon as the call returns."""
    quotas = broker.context.quotas
    quotas.update(None, "client", shadow(PRODUCE), 1)
    client.produce("t", 1000)
    client.end()
    assert len(broker.take_verdicts()) == 1
    quotas.update(None, "client", shadow(PRODUCE), 1e9)
    client.produce("t", 1000)
    client.end()
    quotas.update(None, "client", shadow(PRODUCE), None)
    assert not any(one.is_enabled for one in (*quotas.enforced, *quotas.shadows))
    client.produce("t", 1000)
    client.end()
    assert broker.take_verdicts() == []
