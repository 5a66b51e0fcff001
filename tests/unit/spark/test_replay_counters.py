"""Counters of the replay give the same delays as a broker's quota managers, to the millisecond."""

import random
from array import array
from collections.abc import Sequence

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.sensor import QuotaViolationError
from kbroker.metrics.registry import Metrics
from kbroker.quota._client_quotas import ClientQuotaManagers
from kbroker.spark.whatif._replay import COUNTED, GIVEN_BACK, JUDGED, STRICT, Counters

START_MS = 1_700_000_000_000
KEYS = {
    "Produce": "producer_byte_rate",
    "Fetch": "consumer_byte_rate",
    "Request": "request_percentage",
    "ControllerMutation": "controller_mutation_rate",
}
Value = tuple[int, int, float, int, int]  # counter, time_ms, value, action, request


def managers() -> ClientQuotaManagers:
    clock = VirtualClock(START_MS)
    return ClientQuotaManagers(clock, Metrics(clock=clock, expires=True))


def run(counters: Counters, values: Sequence[Value], requests: int) -> tuple[list[int], list[int]]:
    """Return the delays of the values, and the longest delay of each request."""
    delays, served = array("i", [0]) * len(values), array("i", [0]) * requests
    columns = zip(*values, strict=True)
    counter, time_ms, value, action, request = (array(code, next(columns)) for code in "iqdbi")
    counters.run(counter, time_ms, value, action, request, delays, served)
    return list(delays), list(served)


@pytest.mark.parametrize("quota_type", ["Produce", "Fetch", "Request"])
@pytest.mark.parametrize("seed", range(8))
def test_rates_judge_as_the_broker_does(quota_type: str, seed: int) -> None:
    """Delays equal the broker's for random values, gaps, and values that are counted without a check."""
    rng = random.Random(seed)
    broker = managers()
    manager = getattr(broker, quota_type.lower())
    limit = rng.choice([1.5, 100.0, 5000.0])
    broker.update("u", "c", KEYS[quota_type], limit)
    counters = Counters()
    number = counters.add(quota_type, limit)
    now, values, expected = START_MS, [], []
    for i in range(2_000):
        now += rng.choice([0, 0, 1, 5, 250, 1000, 999, 12_000, 3_700_000]) if rng.random() < 0.5 else 3
        value = rng.choice([0.0, 1.0, limit, limit * rng.random() * 30])
        action = rng.choices([JUDGED, COUNTED], [5, 1])[0]
        if action == JUDGED:
            expected.append(manager.record_and_get_throttle("u", "c", value, now))
        else:
            expected.append(0)
            manager.record_no_throttle("u", "c", value, now)
        values.append((number, now, value, action, i))
        if now % 7 == 0:
            broker.expire_inactive(now)
    found, served = run(counters, values, len(values))
    assert found == expected
    assert served == [max(delay, 0) for delay in expected]
    assert sum(delay > 0 for delay in expected) > 100
    if quota_type == "Request":
        assert max(expected) == 1000


def test_a_delay_of_25_days_is_narrowed() -> None:
    """A delay above 2**31 - 1 ms keeps its lower 32 bits, as in Kafka, and may be negative."""
    broker = managers()
    broker.update("u", None, KEYS["Produce"], 1)
    counters = Counters()
    number = counters.add("Produce", 1)
    values = [3e6, 2e9, 5e8, 1e12]
    expected = [broker.produce.record_and_get_throttle("u", "", value, START_MS) for value in values]
    found, _ = run(counters, [(number, START_MS, value, JUDGED, 0) for value in values], 1)
    assert found == expected
    assert min(expected) < 0


@pytest.mark.parametrize("seed", range(8))
def test_mutations_judge_as_the_broker_does(seed: int) -> None:
    """Strict requests are refused without a charge, older versions are charged and delayed, as by the broker."""
    rng = random.Random(seed)
    broker = managers()
    broker.update("u", "c", KEYS["ControllerMutation"], 2.5)
    sensor = broker.controller_mutation.sensor("u", "c")
    counters = Counters()
    number = counters.add("ControllerMutation", 2.5)
    now, values, expected = START_MS, [], []
    for i in range(1_000):
        now += rng.choice([0, 1, 700, 5_000, 9_000])
        value, action = float(rng.randint(1, 6)), rng.choice([STRICT, STRICT, JUDGED])
        try:
            (sensor.record_strict if action == STRICT else sensor.record)(value, now)
            expected.append(0)
        except QuotaViolationError as violation:
            expected.append(violation.throttle_time_ms or 0)
        values.append((number, now, value, action, i))
    assert run(counters, values, len(values))[0] == expected
    assert 5 < sum(delay > 0 for delay in expected) < 1_000


def test_what_a_delayed_fetch_is_given_back() -> None:
    """The bytes of a fetch are subtracted if a quota delays the fetch, and are kept otherwise."""
    broker = managers()
    broker.update("u", None, KEYS["Fetch"], 1000)
    counters = Counters()
    number = counters.add("Fetch", 1000)
    now, values, expected = START_MS, [], []
    rng = random.Random(1)
    for i in range(500):
        now += rng.choice([0, 40, 900])
        value = float(rng.randint(1, 9_000))
        delay = broker.fetch.record_and_get_throttle("u", "", value, now)
        if delay > 0:
            broker.fetch.unrecord("u", "", value, now)
        values += [(number, now, value, JUDGED, i), (number, now, value, GIVEN_BACK, i)]
        expected += [delay, 0]
    found, _ = run(counters, values, 500)
    assert found == expected
    assert 50 < sum(delay > 0 for delay in expected) < 450


def test_batches_keep_what_the_counters_hold() -> None:
    values = [(0, START_MS + i * 7, 500.0, JUDGED, 0) for i in range(100)]
    whole, halves = Counters(), Counters()
    whole.add("Produce", 2_000)
    halves.add("Produce", 2_000)
    assert run(whole, values, 1)[0] == run(halves, values[:50], 1)[0] + run(halves, values[50:], 1)[0]


def test_observed_rates_say_which_limit_delays() -> None:
    """A value is delayed exactly if the rate after it is above the limit."""
    rng = random.Random(3)
    times = array("q", sorted(START_MS + rng.randint(0, 60_000) for _ in range(400)))
    sizes = array("d", [float(rng.randint(1, 5_000)) for _ in times])
    counters = Counters()
    number = counters.add("Produce")
    observed = array("d", [0.0]) * len(times)
    counters.observe(number, times, sizes, observed)
    limit = sorted(observed)[200]
    counters.reset(number, limit)
    values = [(number, t, v, JUDGED, 0) for t, v in zip(times, sizes, strict=True)]
    assert [delay > 0 for delay in run(counters, values, 1)[0]] == [rate > limit for rate in observed]
    counters.reset(number, limit)
    seconds = {t // 1000 for t, rate in zip(times, observed, strict=True) if rate > limit}
    actions = array("b", [JUDGED]) * len(times)
    assert counters.throttled_seconds(number, times, sizes, actions) == len(seconds)


def test_wrong_input_is_refused() -> None:
    """Unknown counters and requests, columns of different lengths, and invalid limits are refused."""
    counters = Counters()
    number = counters.add("Produce", 5)
    for bad in ((number + 1, 0), (-1, 0), (number, 1), (number, -1)):
        with pytest.raises(IndexError, match=r"expected the number of one of|does not exist"):
            run(counters, [(bad[0], START_MS, 1.0, JUDGED, bad[1])], 1)
    with pytest.raises(ValueError, match="lengths"):
        counters.throttled_seconds(number, array("q", [1]), array("d"), array("b"))
    with pytest.raises(ValueError, match="quota_type"):
        counters.add("Bytes")
    with pytest.raises(ValueError, match="above 0"):
        counters.reset(number, 0)
    with pytest.raises(IndexError):
        counters.reset(7, 1)
