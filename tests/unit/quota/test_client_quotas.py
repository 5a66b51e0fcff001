"""Client quota managers on a virtual clock: Kafka's test vectors to the millisecond."""

import sys

import pytest

from kbroker._core.metrics.metric_config import Quota
from kbroker.quota._client_quotas import ClientQuotaManagers, Resolution
from kbroker.quota._entities import DEFAULT_ENTITY, sanitize
from tests.support.fixtures import fixture_of
from tests.support.quotas import FETCH, KEYS, MUTATION, PRODUCE, REQUEST, Bench

NO_LIMIT = float(2**63 - 1)
bench = fixture_of(Bench)


def percent(milliseconds: float) -> float:
    """Return handler time as the unit of the request quota: percent of one thread."""
    return milliseconds * 1e6 * 100 / 1e9


# ---------------------------------------------------------------- Kafka's vectors


def test_client_id_quota_parsing(bench: Bench) -> None:
    """Added, changed and removed overrides of client ids apply to existing counters (CQ-1 to CQ-6)."""
    assert bench.produce.resolve("ANONYMOUS", "p1").limit == NO_LIMIT
    bench.update(None, "p1", PRODUCE, 2000)
    bench.update(None, "p2", PRODUCE, 4000)
    assert bench.produce.resolve("ANONYMOUS", "p1").limit == 2000
    assert bench.produce.resolve("ANONYMOUS", "p2").limit == 4000
    assert bench.produce.record_and_get_throttle("ANONYMOUS", "p1", 2500 * 11) == 3750
    bench.update(None, "p1", PRODUCE, 3000)
    assert bench.produce.resolve("ANONYMOUS", "p1").limit == 3000
    assert bench.produce.record_and_get_throttle("ANONYMOUS", "p1", 0) == 0
    bench.update(None, "p1", PRODUCE, 500)
    assert bench.produce.record_and_get_throttle("ANONYMOUS", "p1", 0) == 45_000
    bench.update(None, "p1", PRODUCE, None)
    bench.update(None, DEFAULT_ENTITY, PRODUCE, 4000)
    assert bench.produce.resolve("ANONYMOUS", "p1").limit == 4000
    assert bench.produce.record_and_get_throttle("ANONYMOUS", "p1", 1000 * 11) == 0


def test_quota_violation(bench: Bench) -> None:
    """A rate within the quota is not delayed; a burst is delayed until its average is at the quota (CQ-7, 8 and 11)."""
    bench.update(None, DEFAULT_ENTITY, PRODUCE, 500)
    for _ in range(10):
        assert bench.produce.record_and_get_throttle("ANONYMOUS", "unknown", 400) == 0
        bench.clock.advance_ms(1000)
    assert bench.produce.queue_size == 0
    bench.clock.advance_ms(500)
    assert bench.produce.record_and_get_throttle("ANONYMOUS", "unknown", 2300) == 2100
    bench.clock.advance_ms(2100)
    for _ in range(10):
        bench.produce.record_and_get_throttle("ANONYMOUS", "unknown", 400)
        bench.clock.advance_ms(1000)
    assert bench.produce.record_and_get_throttle("ANONYMOUS", "unknown", 0) == 0


def test_max_value_in_window() -> None:
    """The maximum is limit x (samples - 1) x seconds, or unlimited without a quota (CQ-12)."""
    bench = Bench(samples=4)
    assert bench.fetch.max_value_in_window("userA", "client1") == sys.float_info.max
    bench.update(DEFAULT_ENTITY, None, FETCH, 10)
    assert bench.fetch.max_value_in_window("userA", "client1") == 30
    bench.update("userB", None, FETCH, 7)
    bench.update(DEFAULT_ENTITY, None, FETCH, None)
    assert bench.fetch.max_value_in_window("userA", "client1") == sys.float_info.max
    assert bench.fetch.max_value_in_window("userB", "client1") == 21


def test_set_and_remove_default_user_quota(bench: Bench) -> None:
    """A default user quota applies from the next record on, until it is removed (CQ-13)."""
    assert bench.produce.record_and_get_throttle("userA", "client1", 1000 * 11) == 0
    bench.update(DEFAULT_ENTITY, None, PRODUCE, 10)
    assert bench.produce.record_and_get_throttle("userA", "client1", 1000 * 11) > 0
    bench.update(DEFAULT_ENTITY, None, PRODUCE, None)
    assert bench.produce.resolve("userA", "client1").limit == NO_LIMIT
    assert bench.produce.record_and_get_throttle("userA", "client1", 1000 * 11) == 0


def test_expired_quota_sensors_come_back(bench: Bench) -> None:
    """A client whose sensors were removed gets new ones at its next record (CQ-14)."""
    bench.update(None, DEFAULT_ENTITY, PRODUCE, 500)
    names = ("Produce-:client1", "ProduceThrottleTime-:client1")
    assert bench.produce.record_and_get_throttle("ANONYMOUS", "client1", 100) == 0
    for name in names:
        assert bench.registry.remove_sensor(name)
        assert bench.registry.get_sensor(name) is None
    assert bench.produce.record_and_get_throttle("ANONYMOUS", "client1", 10_000) > 0
    for name in names:
        assert bench.registry.get_sensor(name) is not None


PRECEDENCE = [
    ("userA", "client1", 5000, 4500, False),
    ("userA", "client2", 4000, 4500, True),
    ("userA", "client3", 4000, 0, True),
    ("userA", "client1", 5000, 0, False),
    ("userB", "client1", 7000, 8000, True),
    ("userB", "client2", 8000, 7000, False),
    ("userB", "client3", 8000, 7000, False),
    ("userD", "client1", 3000, 3500, True),
    ("userD", "client2", 3000, 2500, False),
    ("userE", "client1", 3000, 2500, False),
]


def test_quota_config_precedence(bench: Bench) -> None:
    """The most specific of eight levels applies and determines the shared counter (QP-1 to QP-10)."""
    for user, client_id, limit in [
        (DEFAULT_ENTITY, None, 1000),
        (None, DEFAULT_ENTITY, 2000),
        (DEFAULT_ENTITY, DEFAULT_ENTITY, 3000),
        ("userA", None, 4000),
        ("userA", "client1", 5000),
        ("userB", None, 6000),
        ("userB", "client1", 7000),
        ("userB", DEFAULT_ENTITY, 8000),
        ("userC", None, 10_000),
        (None, "client1", 9000),
    ]:
        bench.update(user, client_id, PRODUCE, limit)
    for user, client_id, limit, value, throttled in PRECEDENCE:
        assert bench.produce.resolve(user, client_id).limit == limit
        assert bench.produce.max_value_in_window(user, client_id) == limit * 10
        assert (bench.produce.record_and_get_throttle(user, client_id, value * 11) > 0) == throttled, (user, client_id)


def test_request_percentage_quota_violation(bench: Bench) -> None:
    """The request quota is a percentage of one thread as a rate over the window (RQ-1, RQ-2, RQ-4)."""
    bench.update("ANONYMOUS", "test-client", REQUEST, 1)
    for _ in range(10):
        assert bench.request.record_and_get_throttle("ANONYMOUS", "test-client", percent(4)) == 0
        bench.clock.advance_ms(1000)
    bench.clock.advance_ms(500)
    assert bench.request.record_and_get_throttle("ANONYMOUS", "test-client", percent(67.1)) == 210
    bench.clock.advance_ms(210)
    for _ in range(11):
        bench.request.record_and_get_throttle("ANONYMOUS", "test-client", percent(4))
        bench.clock.advance_ms(1000)
    assert bench.request.record_and_get_throttle("ANONYMOUS", "test-client", 0) == 0


def test_strict_controller_mutations() -> None:
    """Mutations are accepted whole while tokens are left, then refused without a record (CM-1 to CM-4)."""
    bench = Bench(controller_samples=10)
    bench.update("me", None, MUTATION, 10)
    record = bench.mutation.record_and_get_throttle
    assert record("me", "c", 90) == 0
    tokens = bench.metric("tokens", "ControllerMutation", user="me", client_id="")
    assert tokens.measure() == 10
    assert record("me", "c", 90) == 0
    assert tokens.measure() == -80
    assert record("me", "c", 90) == 8000
    assert tokens.measure() == -80
    bench.clock.advance_ms(5000)
    assert record("me", "c", 90) == 3000
    assert bench.metric("mutation-rate", "ControllerMutation", user="me", client_id="").measure() > 0


# ---------------------------------------------------------------- worked examples of the proposals


def test_worked_example_of_kip_13(bench: Bench) -> None:
    """60 MB in a window of 10 s at 5 MB/s are throttled for 2 s (P1)."""
    bench.update("u", None, PRODUCE, 5_000_000)
    assert bench.produce.record_and_get_throttle("u", "c", 60_000_000) == 2000


def test_worked_example_of_kip_124(bench: Bench) -> None:
    """100 ms at 0.1 percent would be throttled for 90 s and are capped at one window of a second (P2)."""
    bench.update("u", None, REQUEST, 0.1)
    assert bench.request.record_and_get_throttle("u", "c", percent(100)) == 1000
    rate = bench.metric("request-time", "Request", user="u", client_id="")
    assert rate.throttle_time_ms() == 99_000 - 9000  # uncapped: (1 - 0.1) / 0.1 x 10 s


def test_worked_example_of_kip_599() -> None:
    """A burst of 560 at 5/s with a capacity of 500 leaves 60 mutations, a delay of 12 s (P4)."""
    bench = Bench(controller_samples=100)
    bench.update("u", None, MUTATION, 5)
    for _ in range(7):
        assert bench.mutation.record_and_get_throttle("u", "c", 80) == 0
    assert bench.metric("tokens", "ControllerMutation", user="u", client_id="").measure() == -60
    assert bench.mutation.record_and_get_throttle("u", "c", 80) == 12_000
    bench.clock.advance_ms(12_000)
    assert bench.mutation.record_and_get_throttle("u", "c", 80) == 0


# ---------------------------------------------------------------- enabling, tags, limits


def test_nothing_is_recorded_while_no_quota_is_set(bench: Bench) -> None:
    """Without a quota of the type there is no counter, even if another type has a quota."""
    bench.update("u", None, FETCH, 10)
    assert not bench.produce.is_enabled
    assert bench.produce.record_and_get_throttle("u", "c", 1e9) == 0
    bench.produce.record_no_throttle("u", "c", 1e9)
    assert bench.registry.get_sensor("Produce-u:") is None
    assert bench.registry.get_sensor("Produce-:c") is None


def test_unrecord_makes_a_counter_even_where_no_quota_is_set(bench: Bench) -> None:
    """A credit is recorded even without a quota, and applies to a quota that is set later."""
    bench.fetch.unrecord("u", "c", 5000)
    assert bench.registry.get_sensor("Fetch-:c") is not None
    bench.update(None, "c", FETCH, 100)
    assert bench.fetch.record_and_get_throttle("u", "c", 6000) == 0
    assert bench.fetch.record_and_get_throttle("u", "c", 1) == 10


@pytest.mark.parametrize(("is_counted", "delay_ms"), [(False, 500), (True, 5500)])
def test_counters_keep_what_they_hold(bench: Bench, is_counted: bool, delay_ms: int) -> None:
    """Bytes that are sent while a user has no quota count only if another quota of the level exists."""
    bench.update("u", None, PRODUCE, 1000)
    if is_counted:
        bench.update("other", None, PRODUCE, 1)
    assert bench.produce.record_and_get_throttle("u", "c", 10_500) == 500
    bench.update("u", None, PRODUCE, None)
    assert bench.produce.record_and_get_throttle("u", "c", 5000) == 0
    bench.update("u", None, PRODUCE, 1000)
    assert bench.produce.record_and_get_throttle("u", "c", 0) == delay_ms


def test_a_removed_override_falls_back_to_the_default(bench: Bench) -> None:
    """A live counter gets the default's limit when its own quota is removed, and no limit without the default."""
    bench.update(None, DEFAULT_ENTITY, PRODUCE, 300)
    bench.update(None, "c", PRODUCE, 700)
    bench.produce.record_and_get_throttle("u", "c", 1)
    rate = bench.metric("byte-rate", "Produce", user="", client_id="c")
    assert rate.config.quota == Quota.upper(700)
    bench.update(None, "c", PRODUCE, None)
    assert rate.config.quota == Quota.upper(300)
    bench.update(None, DEFAULT_ENTITY, PRODUCE, None)
    assert rate.config.quota == Quota.upper(NO_LIMIT)


@pytest.mark.parametrize(
    ("quotas", "client", "tags"),
    [
        ([], ("u", "c"), ("", "c")),
        ([(None, "x")], ("u", "c"), ("", "c")),
        ([("x", None)], ("u", "c"), ("u", "")),
        ([("x", "x")], ("u", "c"), ("u", "c")),
        ([("x", None), (None, "x")], ("u", "c"), ("", "c")),
        ([("u", None), (None, "c")], ("u", "c"), ("u", "")),
        ([("u", DEFAULT_ENTITY), (None, "c")], ("u", "c"), ("u", "c")),
        ([(DEFAULT_ENTITY, "c"), ("v", None)], ("u", "c"), ("u", "c")),
        ([(DEFAULT_ENTITY, DEFAULT_ENTITY), ("v", None)], ("u", "c"), ("u", "c")),
        ([(DEFAULT_ENTITY, None), (None, "x")], ("u", "c"), ("u", "")),
        ([(None, DEFAULT_ENTITY), ("v", None)], ("u", "c"), ("", "c")),
        ([(DEFAULT_ENTITY, None), (None, "c")], ("u", None), ("u", "")),
    ],
)
def test_tags_name_the_counter(
    bench: Bench, quotas: list[tuple[str | None, str | None]], client: tuple[str, str | None], tags: tuple[str, str]
) -> None:
    """The kinds of existing quotas determine the counter of a client."""
    for user, client_id in quotas:
        bench.update(user, client_id, PRODUCE, 5)
    assert bench.produce.resolve(*client)[2:] == tags
    bench.produce.unrecord(*client, 1)
    assert bench.registry.get_sensor(f"Produce-{tags[0]}:{tags[1]}") is not None


@pytest.mark.parametrize("client_id", [None, ""])
def test_clients_without_an_id_are_reached_by_users_only(bench: Bench, client_id: str | None) -> None:
    """A default client-id quota (levels 5 and 8) does not apply to clients without an id; levels 3 and 6 do."""
    bench.update(None, DEFAULT_ENTITY, PRODUCE, 1)
    assert bench.produce.resolve("u", client_id) == Resolution(NO_LIMIT, 0, "", "")
    bench.update(DEFAULT_ENTITY, DEFAULT_ENTITY, PRODUCE, 2)
    assert bench.produce.resolve("u", client_id).limit == NO_LIMIT
    bench.update(DEFAULT_ENTITY, None, PRODUCE, 3)
    assert bench.produce.resolve("u", client_id)[:2] == (3, 6)
    bench.update("u", None, PRODUCE, 4)
    assert bench.produce.resolve("u", client_id)[:2] == (4, 3)


def test_levels_are_reported(bench: Bench) -> None:
    """The eight levels apply in order of specificity."""
    entities = [
        ("u", "c"),
        ("u", DEFAULT_ENTITY),
        ("u", None),
        (DEFAULT_ENTITY, "c"),
        (DEFAULT_ENTITY, DEFAULT_ENTITY),
        (DEFAULT_ENTITY, None),
        (None, "c"),
        (None, DEFAULT_ENTITY),
    ]
    for level, (user, client_id) in enumerate(entities, 1):
        bench.update(user, client_id, PRODUCE, level * 100)  # type: ignore[arg-type]
    for level, (user, client_id) in enumerate(entities, 1):
        assert bench.produce.resolve("u", "c")[:2] == (level * 100, level)
        bench.update(user, client_id, PRODUCE, None)  # type: ignore[arg-type]
    assert bench.produce.resolve("u", "c").level == 0
    assert not bench.produce.is_enabled


def test_throttle_time_is_an_int32_of_javas(bench: Bench) -> None:
    """A delay above 2**31 - 1 ms keeps its lower 32 bits, like a cast in Java."""
    bench.update("u", None, PRODUCE, 1)
    expected = (10**8 - 1) * 10_000
    wrapped = (expected + 2**31) % 2**32 - 2**31
    assert bench.produce.record_and_get_throttle("u", "c", 1e9) == wrapped


def test_users_are_encoded_in_tags(bench: Bench) -> None:
    """User names are percent-encoded as by Kafka's Sanitizer; client ids are not encoded."""
    assert sanitize("CN=a b,O=*~é") == "CN%3Da%20b%2CO%3D%2A%7E%C3%A9"
    bench.update("a b", "c d", PRODUCE, 5)
    bench.produce.record_and_get_throttle("a b", "c d", 1)
    assert bench.registry.get_sensor("Produce-a%20b:c d") is not None


# ---------------------------------------------------------------- sensors


def test_metrics_have_kafkas_names(bench: Bench) -> None:
    """Groups, names, tags and windows of the metrics are Kafka's."""
    for key in KEYS:
        bench.update("u", "c", key, 5)
    for manager in bench.managers.enforced:
        manager.record_and_get_throttle("u", "c", 1)
        group = manager.name
        name = {"Request": "request-time", "ControllerMutation": "tokens"}.get(group, "byte-rate")
        limited = bench.metric(name, group, user="u", client_id="c").config
        assert (limited.samples, limited.window_ms, limited.quota) == (11, 1000, Quota.upper(5))
        throttle = bench.metric("throttle-time", group, user="u", client_id="c").config
        assert (throttle.samples, throttle.window_ms, throttle.quota) == (2, 30_000, None)
        assert bench.metric("queue-size", group).measure() == 0
    assert bench.metric("mutation-rate", "ControllerMutation", user="u", client_id="c").config.quota is None
    exempt = bench.metric("exempt-request-time", "Request").config
    assert (exempt.samples, exempt.window_ms, exempt.quota) == (2, 30_000, None)


def test_sensor_is_what_the_manager_records_to(bench: Bench) -> None:
    """The sensor is the counter to which the manager records, and is the same object each time."""
    bench.update("u", None, MUTATION, 10)
    sensor = bench.mutation.sensor("u", "c")
    assert sensor is bench.mutation.sensor("u", "another")
    sensor.record_strict(200)
    assert bench.mutation.record_and_get_throttle("u", "c", 1) == 9000
    assert bench.mutation.sensor("v", None) is not sensor


def test_counters_expire_after_an_hour(bench: Bench) -> None:
    """A counter without a record for more than 3600 s is removed; the next record creates a new counter."""
    bench.update("u", None, PRODUCE, 10)
    bench.produce.record_and_get_throttle("u", "c", 5)
    before = bench.metric("byte-rate", "Produce", user="u", client_id="")
    bench.clock.advance_ms(3_600_000)
    assert bench.managers.expire_inactive() == []
    bench.clock.advance_ms(1)
    assert bench.managers.expire_inactive() == ["Produce-u:", "ProduceThrottleTime-u:"]
    assert bench.registry.get_sensor("Produce-u:") is None
    assert bench.registry.find("byte-rate", "Produce") == []
    bench.produce.record_and_get_throttle("u", "c", 5)
    assert bench.metric("byte-rate", "Produce", user="u", client_id="") is not before


def test_many_clients_have_a_counter_each(bench: Bench) -> None:
    """A default client-id quota gives each of thousands of clients its own counter, and a change applies to all."""
    bench.update(None, DEFAULT_ENTITY, PRODUCE, 100)
    for number in range(3000):
        assert bench.produce.record_and_get_throttle("u", f"c{number}", 1000 + number) == number * 10
    bench.update(None, DEFAULT_ENTITY, PRODUCE, 200)
    assert bench.produce.record_and_get_throttle("u", "c1500", 0) == 2500
    for _ in range(5):
        assert len(bench.registry.find("byte-rate", "Produce")) < 3000
    assert len(bench.registry.find("byte-rate", "Produce")) == 3000


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("value", [0, -1, float("nan"), -0.0])
def test_limits_must_be_above_zero(bench: Bench, value: float) -> None:
    """Zero, negative limits and NaN are refused without a change."""
    with pytest.raises(ValueError, match="above 0"):
        bench.update("u", None, PRODUCE, value)
    assert not bench.produce.is_enabled


def test_bad_entities_are_refused(bench: Bench) -> None:
    """Missing parts, empty names, unknown keys and wrong types are refused."""
    for user, client_id, key, error in [
        (None, None, PRODUCE, ValueError),
        ("", None, PRODUCE, ValueError),
        (None, "", PRODUCE, ValueError),
        ("u", None, "producer_rate", ValueError),
        (5, None, PRODUCE, TypeError),
        ("u", b"c", PRODUCE, TypeError),
    ]:
        with pytest.raises(error):
            bench.update(user, client_id, key, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        bench.produce.record_and_get_throttle(None, "c", 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        bench.produce.record_and_get_throttle("u", "c", 1, 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        type(bench.produce)()


def test_handles_that_no_manager_made_do_no_harm(bench: Bench) -> None:
    """A manager that ClientQuotaManagers did not create, and arguments of wrong types, are refused."""
    orphan = type(bench.produce).__new__(type(bench.produce))
    for call in (
        lambda: orphan.is_enabled,
        lambda: orphan.queue_size,
        lambda: orphan.resolve("u"),
        lambda: orphan.record_and_get_throttle("u", "c", 1),
        lambda: orphan.record_no_throttle("u", "c", 1),
        lambda: orphan.unrecord("u", "c", 1),
        lambda: orphan.max_value_in_window("u", "c"),
        lambda: orphan.sensor("u"),
    ):
        with pytest.raises(ValueError, match="was not made"):
            call()
    for wrong in (
        lambda: bench.managers.charge(None),  # type: ignore[arg-type]
        lambda: bench.managers.charge_exempt(object()),  # type: ignore[arg-type]
        lambda: bench.managers.throttle(bench.produce, "request", 5),  # type: ignore[arg-type]
        lambda: bench.managers.throttle(None, None, 5),  # type: ignore[arg-type]
        lambda: ClientQuotaManagers("clock", bench.registry),  # type: ignore[arg-type]
        lambda: ClientQuotaManagers(bench.clock, bench.registry, window_seconds=1.5),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            wrong()
    for settings in ({"samples": 0}, {"window_seconds": 0}, {"controller_samples": -1}):
        with pytest.raises(ValueError):
            ClientQuotaManagers(bench.clock, bench.registry, **settings)


def test_infinite_limits_throttle_no_client(bench: Bench) -> None:
    """An infinite percentage is a limit that is never reached."""
    bench.update("u", None, REQUEST, float("inf"))
    assert bench.request.record_and_get_throttle("u", "c", 1e300) == 0


def test_an_infinite_rate_of_mutations_can_be_lowered(bench: Bench) -> None:
    """The bucket of an infinite rate keeps a number of tokens, so that a lower rate throttles."""
    bench.update("u", None, MUTATION, float("inf"))
    assert [bench.mutation.record_and_get_throttle("u", "c", 1e9) for _ in range(2)] == [0, 0]
    bench.update("u", None, MUTATION, 1)
    assert [bench.mutation.record_and_get_throttle("u", "c", 13) for _ in range(2)] == [0, 2000]
