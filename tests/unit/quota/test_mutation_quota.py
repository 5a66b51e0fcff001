"""Controller mutation quotas (KIP-599): the quota objects, and the cost of creating, growing and deleting topics."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.metric_config import MetricConfig, Quota
from kbroker._core.metrics.sensor import Sensor
from kbroker._core.metrics.stats import Rate, TokenBucket
from kbroker.common.errors import Errors
from kbroker.handlers.api_table import KafkaApis
from kbroker.handlers.request_handler import PendingResponse
from kbroker.metrics.registry import Metrics
from kbroker.protocol import codec
from kbroker.quota._client_quotas import ClientQuotaManagers
from kbroker.quota.mutation_quota import UNBOUNDED, ChargedMutationQuota, ThrottlingQuotaExceededError, new_quota
from kbroker.requests.context import Body
from tests.support.server import Bench, make_bench

WALL = 1_700_000_000_000


class Time:
    """Wall clock in milliseconds that a test moves, with a count of its readings."""

    def __init__(self) -> None:
        self.now = WALL
        self.readings = 0

    def __call__(self) -> int:
        self.readings += 1
        return self.now


def sensor(rate: float, samples: int = 10) -> Sensor:
    """Return a sensor like the manager's: first the rate, which has no limit, then the bucket."""
    made = Sensor("ControllerMutation-:c", MetricConfig())
    made.add("mutation-rate", Rate())
    made.add("tokens", TokenBucket(), MetricConfig(samples, 1000, quota=Quota.upper(rate)))
    return made


def tokens(of: Sensor, time: Time) -> float:
    return of.metrics["tokens"].measure(time.now)


@pytest.fixture
def broker() -> Limited:
    """Return a broker that allows one partition mutation per second."""
    return Limited.of(1.0)


# ---------------------------------------------------------------- the objects


def test_strict_accepts_whole_while_the_bucket_is_not_overdrawn() -> None:
    """At 10/s with burst 100, two records of 90 are accepted, and the third is refused for 8 s (CM-1 to CM-4)."""
    time = Time()
    bucket = sensor(10.0)
    quota = ChargedMutationQuota(bucket, time, is_strict=True)
    quota.record(90)
    assert (quota.throttle_time_ms, tokens(bucket, time)) == (0, 10)
    quota.record(90)
    assert (quota.throttle_time_ms, tokens(bucket, time)) == (0, -80)
    with pytest.raises(ThrottlingQuotaExceededError) as caught:
        quota.record(90)
    assert (caught.value.error, caught.value.throttle_time_ms) == (Errors.THROTTLING_QUOTA_EXCEEDED, 8000)
    assert (quota.throttle_time_ms, tokens(bucket, time)) == (8000, -80)
    time.now += 5000
    assert quota.throttle_time_ms == 3000
    time.now += 4000
    assert quota.throttle_time_ms == 0


def test_strict_at_exactly_zero_accepts() -> None:
    """A bucket with 0 tokens accepts a record; a bucket overdrawn by less than 0.5 ms refuses with delay 0."""
    time = Time()
    bucket = sensor(10.0)
    quota = ChargedMutationQuota(bucket, time, is_strict=True)
    quota.record(100)
    quota.record(5)
    time.now += 500
    quota.record(0)
    bucket.record(0.001, time.now, check=False)
    with pytest.raises(ThrottlingQuotaExceededError) as caught:
        quota.record(1)
    assert caught.value.throttle_time_ms == 0


def test_strict_reads_the_clock_once_a_record() -> None:
    """The check and the charge use one reading of the clock."""
    time = Time()
    ChargedMutationQuota(sensor(10.0), time, is_strict=True).record(1)
    assert time.readings == 1


def test_permissive_charges_and_never_refuses() -> None:
    """A charge that overdraws the bucket is recorded too; the delay is the last record's less the time since then."""
    time = Time()
    bucket = sensor(10.0)
    quota = ChargedMutationQuota(bucket, time, is_strict=False)
    quota.record(90)
    assert (quota.throttle_time_ms, tokens(bucket, time)) == (0, 10)
    quota.record(90)
    assert (quota.throttle_time_ms, tokens(bucket, time)) == (8000, -80)
    quota.record(20)
    assert (quota.throttle_time_ms, tokens(bucket, time)) == (10_000, -100)
    time.now += 2500
    assert quota.throttle_time_ms == 7500


def test_kip_599_worked_example() -> None:
    """At 5/s with burst 500, 7 topics of 80 leave -60 tokens, and the next request is refused for 12 s (P4)."""
    time = Time()
    bucket = sensor(5.0, samples=100)
    for _ in range(7):
        ChargedMutationQuota(bucket, time, is_strict=True).record(80)
    assert tokens(bucket, time) == -60
    quota = ChargedMutationQuota(bucket, time, is_strict=True)
    with pytest.raises(ThrottlingQuotaExceededError):
        quota.record(1)
    assert quota.throttle_time_ms == 12_000
    time.now += 11_999
    with pytest.raises(ThrottlingQuotaExceededError):
        quota.record(1)
    time.now += 1
    quota.record(80)
    assert tokens(bucket, time) == -80


def test_p4_by_the_rate_of_today() -> None:
    """The same 560 mutations measured by a Rate with W = 99 s are 5.657/s, a delay of 13 s (P4)."""
    rate = Sensor("rate", MetricConfig(100, 1000, quota=Quota.upper(5.0)))
    rate.add("rate", Rate())
    delay_ms = rate.record_and_throttle(560.0, WALL)
    assert (round(rate.metrics["rate"].measure(WALL), 3), delay_ms) == (5.657, 13_000)


def test_without_any_quota_nothing_is_charged() -> None:
    """The unbounded quota is used at any version while no mutation quota is set (CM-6)."""

    class Disabled:
        is_enabled = False

        def sensor(self, user: str, client_id: str) -> None:
            raise AssertionError("no sensor is made")

    for is_strict in (False, True):
        assert new_quota(Disabled(), Time(), "u", "c", is_strict) is UNBOUNDED  # type: ignore[arg-type]
    UNBOUNDED.record(10**9)
    assert UNBOUNDED.throttle_time_ms == 0


# ---------------------------------------------------------------- in the handlers


@dataclass
class Limited:
    """Handlers of a broker with real managers on a virtual clock."""

    bench: Bench
    clock: VirtualClock
    managers: ClientQuotaManagers

    @classmethod
    def of(cls, rate: float | None, samples: int = 11, **config: object) -> Limited:
        bench = make_bench(**config)
        clock = VirtualClock()
        managers = ClientQuotaManagers(
            clock, Metrics(clock=clock), samples=11, window_seconds=1,
            controller_samples=samples, controller_window_seconds=1,
        )  # fmt: skip
        bench.ctx.clock, bench.ctx.quotas = clock, managers
        if rate is not None:
            managers.update(None, "c", "controller_mutation_rate", rate)
        return cls(bench, clock, managers)

    def ask(self, name: str, version: int, body: Body, client_id: str = "c") -> Body:
        return self.bench.ask(name, version, body, client_id=client_id)

    def create(
        self, version: int, *rows: tuple[str, int], validate: bool = False, client_id: str = "c"
    ) -> tuple[int, list[tuple[int, str | None]]]:
        topics = [{"Name": name, "NumPartitions": count, "ReplicationFactor": 1} for name, count in rows]
        body = {"Topics": topics, "timeoutMs": 1000, "validateOnly": validate}
        response = self.ask("CreateTopics", version, body, client_id)
        return response["ThrottleTimeMs"], [(row["ErrorCode"], row["ErrorMessage"]) for row in response["Topics"]]

    def grow(
        self, version: int, *rows: tuple[str, int], validate: bool = False
    ) -> tuple[int, list[tuple[int, str | None]]]:
        topics = [{"Name": name, "Count": count, "Assignments": None} for name, count in rows]
        response = self.ask("CreatePartitions", version, {"Topics": topics, "ValidateOnly": validate})
        return response["ThrottleTimeMs"], [(row["ErrorCode"], row["ErrorMessage"]) for row in response["Results"]]

    def delete(self, version: int, *names: str) -> tuple[int, list[tuple[int, str | None]]]:
        body = {"Topics": [{"Name": name} for name in names]} if version >= 6 else {"TopicNames": list(names)}
        response = self.ask("DeleteTopics", version, body)
        return response["ThrottleTimeMs"], [(row["ErrorCode"], row["ErrorMessage"]) for row in response["Responses"]]

    def tokens(self) -> float:
        """Return the number of tokens in the client's bucket without changing it."""
        (metric,) = [
            found for name, found in self.managers.controller_mutation.sensor("ANONYMOUS", "c").metrics.items()
            if name.name == "tokens"  # type: ignore[attr-defined]
        ]  # fmt: skip
        return metric.measure(self.clock.epoch_ms())

    @property
    def names(self) -> list[str]:
        return [view.name for view in self.bench.ctx.topics.all()]


OK, REFUSED = (0, None), (89, None)


@pytest.mark.parametrize("version", [6, 7])
def test_create_topics_refuses_newer_clients(broker: Limited, version: int) -> None:
    """At 1/s with burst 11, 15 partitions are accepted whole, and the next topics are refused without a charge."""
    assert broker.create(version, ("a", 15)) == (0, [OK])
    assert broker.create(version, ("b", 1), ("c", 1)) == (4000, [REFUSED, REFUSED])
    assert (broker.names, broker.tokens()) == (["a"], -4)
    broker.clock.advance_ms(4000)
    assert broker.create(version, ("b", 1), ("c", 1)) == (1000, [OK, REFUSED])
    assert broker.names == ["a", "b"]


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_create_topics_delays_older_clients(broker: Limited, version: int) -> None:
    """Below version 6 all topics are created and charged, and the delay results from the last one."""
    assert broker.create(version, ("a", 15)) == (4000, [OK])
    assert broker.create(version, ("b", 1), ("c", 1)) == (6000, [OK, OK])
    assert (broker.names, broker.tokens()) == (["a", "b", "c"], -6)


@pytest.mark.parametrize(("version", "is_strict"), [(0, False), (1, False), (2, False), (3, True)])
def test_create_partitions(broker: Limited, version: int, is_strict: bool) -> None:
    """Only added partitions are charged; version 3 is refused, and older versions are delayed."""
    broker.create(7, ("a", 1), ("b", 1))
    broker.clock.advance_ms(2000)
    result = broker.grow(version, ("a", 15), ("b", 3))
    if is_strict:
        assert result == (3000, [OK, REFUSED])
        assert (len(broker.bench.ctx.topics.get("b").partitions), broker.tokens()) == (1, -3)
    else:
        assert result == (5000, [OK, OK])
        assert (len(broker.bench.ctx.topics.get("b").partitions), broker.tokens()) == (3, -5)


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics(broker: Limited, version: int) -> None:
    """Each partition is charged. From version 5 on, excess topics are refused; older versions delete all and wait."""
    broker.create(5, ("a", 15), ("b", 2), client_id="free")
    result = broker.delete(version, "a", "b")
    if version >= 5:
        assert result == (4000, [OK, REFUSED])
        assert (broker.names, broker.tokens()) == (["b"], -4)
    else:
        assert result == (6000, [OK, OK])
        assert (broker.names, broker.tokens()) == ([], -6)


@pytest.mark.parametrize("by_id", [False, True])
def test_a_refused_deletion_names_its_topic(broker: Limited, by_id: bool) -> None:
    """The response (version 6) has the name and the id of the topic, whichever of them the request has."""
    broker.create(7, ("a", 15))
    topic_id = broker.bench.ctx.topics.get("a").topic_id
    body = {"Topics": [{"Name": None, "TopicId": topic_id} if by_id else {"Name": "a"}]}
    (row,) = broker.ask("DeleteTopics", 6, body)["Responses"]
    assert (row["Name"], row["TopicId"], row["ErrorCode"], row["ErrorMessage"]) == ("a", topic_id, 89, None)


@pytest.mark.parametrize("rate", [1e-6, 1e-300, 5e-324])
def test_a_delay_beyond_the_field_is_the_longest_one(rate: float) -> None:
    """A tiny rate refuses newer clients and throttles older ones for 2^31 - 1 ms; both get a response."""
    broker = Limited.of(rate)
    assert broker.create(5, ("a", 3)) == (2**31 - 1, [OK])
    assert broker.create(6, ("b", 1)) == (2**31 - 1, [REFUSED])
    assert broker.grow(2, ("a", 4)) == (2**31 - 1, [OK])
    assert broker.delete(4, "a") == (2**31 - 1, [OK])


def test_only_what_passed_its_own_checks_is_charged(broker: Limited) -> None:
    """Invalid names, counts and configs, existing, unknown and duplicate topics are not charged."""
    broker.create(7, ("a", 1))
    assert broker.tokens() == 10
    codes = [code for code, _ in broker.create(7, ("a", 1), ("no good", 1), ("z", 0), ("d", 1), ("d", 1))[1]]
    assert codes == [36, 17, 37, 42]
    assert broker.create(7, ("huge", 10_001))[1][0][0] == 44
    assert [code for code, _ in broker.grow(3, ("a", 1), ("none", 5))[1]] == [37, 3]
    assert [code for code, _ in broker.delete(6, "none", "a", "a")[1]] == [42, 3]
    assert broker.tokens() == 10


def test_what_is_wrong_stays_wrong_over_the_quota(broker: Limited) -> None:
    """A client over its quota still gets the error of an invalid topic instead of THROTTLING_QUOTA_EXCEEDED."""
    broker.create(7, ("a", 15))
    assert [code for code, _ in broker.create(7, ("a", 1), ("no good", 1), ("b", 1))[1]] == [36, 17, 89]
    assert [code for code, _ in broker.grow(3, ("a", 3), ("a2", 3))[1]] == [37, 3]
    assert [code for code, _ in broker.delete(6, "none", "a")[1]] == [3, 89]


def test_validate_only_is_free(broker: Limited) -> None:
    """Unlike Kafka 4.3.1, and as in KIP-599, validation is neither charged nor refused."""
    assert broker.create(7, ("a", 100), validate=True) == (0, [OK])
    broker.create(7, ("a", 15))
    before = broker.tokens()
    assert broker.create(7, ("b", 100), validate=True) == (0, [OK])
    assert broker.grow(3, ("a", 100), validate=True) == (0, [OK])
    assert broker.tokens() == before


def test_other_clients_are_not_charged(broker: Limited) -> None:
    """A quota of client id c does not apply to another client, which has its own counter."""
    assert broker.create(7, ("a", 100), client_id="other") == (0, [OK])
    assert broker.create(7, ("b", 100), client_id="other") == (0, [OK])
    assert broker.create(7, ("c", 5)) == (0, [OK])
    assert broker.tokens() == 6


def test_without_a_quota_no_sensor_is_made() -> None:
    broker = Limited.of(None)
    assert broker.create(7, ("a", 1000)) == (0, [OK])
    assert broker.delete(6, "a") == (0, [OK])


def metadata(broker: Limited, *names: str, client_id: str = "c") -> tuple[int, list[tuple[str, int]]]:
    body = {"Topics": [{"Name": name} for name in names], "AllowAutoTopicCreation": True}
    response = broker.ask("Metadata", 8, body, client_id)
    return response["ThrottleTimeMs"], [(row["Name"], row["ErrorCode"]) for row in response["Topics"]]


def test_topics_made_by_metadata_are_charged_strictly_and_silently() -> None:
    """Over the quota a topic is not created, and gets UNKNOWN_TOPIC_OR_PARTITION; a later request creates it."""
    broker = Limited.of(1.0, num_partitions=6)
    assert metadata(broker, "a", "b", "c") == (0, [("a", 0), ("b", 0), ("c", 3)])
    assert (broker.names, broker.tokens()) == (["a", "b"], -1)
    assert metadata(broker, "a", "c") == (0, [("a", 0), ("c", 3)])
    assert broker.names == ["a", "b"]
    broker.clock.advance_ms(1000)
    assert metadata(broker, "c") == (0, [("c", 0)])
    assert metadata(broker, "d", client_id="other") == (0, [("d", 0)])
    assert "d" in broker.names


def test_the_brokers_own_topics_are_free(broker: Limited) -> None:
    """The creation of __consumer_offsets is not charged to a client."""
    broker.create(7, ("a", 15))
    before = broker.tokens()
    assert metadata(broker, "__consumer_offsets") == (0, [("__consumer_offsets", 0)])
    assert broker.tokens() == before


# ---------------------------------------------------------------- storms (P5)

RATE, BURST, STORM_S = 2.0, 22, 60
STRICT = [("CreateTopics", 6), ("CreateTopics", 7), ("CreatePartitions", 3), ("DeleteTopics", 5), ("DeleteTopics", 6)]
PERMISSIVE = [
    *(("CreateTopics", version) for version in range(2, 6)),
    *(("CreatePartitions", version) for version in range(3)),
    *(("DeleteTopics", version) for version in range(1, 5)),
]
COST = 7


def storm(broker: Limited, api: str, version: int, number: int) -> tuple[int, int]:
    """Send a request of seven mutations; return its delay and the number of mutations made."""
    name = f"t{number}"
    if api == "CreateTopics":
        throttle_time_ms, ((code, _),) = broker.create(version, (name, COST))
    elif api == "CreatePartitions":
        broker.create(7, (name, 1), client_id="free")
        throttle_time_ms, ((code, _),) = broker.grow(version, (name, 1 + COST))
    else:
        broker.create(7, (name, COST), client_id="free")
        throttle_time_ms, ((code, _),) = broker.delete(version, name)
    assert code in (0, 89)
    return throttle_time_ms, COST if code == 0 else 0


@pytest.mark.parametrize(("api", "version"), STRICT)
def test_a_storm_of_newer_clients_is_held(api: str, version: int) -> None:
    """At any request rate, the mutations stay within burst + rate * time plus one request (P5)."""
    broker = Limited.of(RATE)
    made = 0
    for number in range(STORM_S * 4):
        throttle_time_ms, mutations = storm(broker, api, version, number)
        made += mutations
        assert (mutations == 0) == (throttle_time_ms > 0)
        elapsed_s = number / 4
        assert made <= BURST + RATE * elapsed_s + COST
        broker.clock.advance_ms(250)
    assert made >= BURST + RATE * (STORM_S - 1) - COST  # and the full rate is available


@pytest.mark.parametrize(("api", "version"), PERMISSIVE)
def test_a_storm_of_older_clients_is_all_accepted_and_muted(api: str, version: int) -> None:
    """Nothing is refused; a client muted for each throttle time stays within burst and rate, plus one request (P5)."""
    broker = Limited.of(RATE)
    made, number, elapsed_ms = 0, 0, 0
    while elapsed_ms <= STORM_S * 1000:
        throttle_time_ms, mutations = storm(broker, api, version, number)
        assert mutations == COST
        made += mutations
        number += 1
        assert made <= BURST + RATE * elapsed_ms / 1000 + COST
        wait_ms = max(1, throttle_time_ms)
        broker.clock.advance_ms(wait_ms)
        elapsed_ms += wait_ms
    assert made >= BURST + RATE * (STORM_S - 1) - COST


# ---------------------------------------------------------------- the response


@dataclass
class Judges:
    """Fake managers with a fixed request delay, which record the manager that throttles."""

    time_ms: int
    controller_mutation = "ControllerMutation"
    request = "Request"
    charges_time = True

    def __post_init__(self) -> None:
        self.throttled: list[tuple[str, int]] = []

    def charge(self, request: Sent) -> int:
        return self.time_ms

    def throttle(self, manager: str, request: Sent, throttle_time_ms: int) -> None:
        assert request.sent is None, "expected the throttle before the response"
        self.throttled.append((manager, throttle_time_ms))

    def settle(self, request: Sent, serves_mutations: bool) -> None:
        pass


@dataclass
class Sent:
    """Request that keeps its response."""

    api_version: int
    correlation_id: int = 1
    sent: bytes | None = None

    def respond(self, response: bytes) -> None:
        self.sent = response

    def mark_errors(self, counts: dict[int, int]) -> None:
        assert not counts


@pytest.mark.parametrize(
    ("mutations_ms", "time_ms", "throttled"),
    [
        (0, 0, []),
        (4000, 0, [("ControllerMutation", 4000)]),
        (0, 700, [("Request", 700)]),
        (4000, 700, [("ControllerMutation", 4000)]),
        (700, 4000, [("Request", 4000)]),
        (700, 700, [("Request", 700)]),
        (701, 700, [("ControllerMutation", 701)]),
    ],
)
def test_the_larger_delay_is_reported_and_served_once(
    mutations_ms: int, time_ms: int, throttled: list[tuple[str, int]]
) -> None:
    """The response has the larger delay; the mutation quota mutes the channel only if its delay is strictly larger."""
    entry = KafkaApis().find(37, 3)
    request, judges = Sent(3), Judges(time_ms)
    PendingResponse(entry, request, judges).send({"ThrottleTimeMs": mutations_ms, "Results": []})  # type: ignore[arg-type]
    sent_ms = codec.decode_response(37, 3, request.sent, 5)["ThrottleTimeMs"]  # type: ignore[arg-type]
    assert (judges.throttled, sent_ms) == (throttled, max(mutations_ms, time_ms))
