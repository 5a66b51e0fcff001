"""Quotas that change while a request is judged: each record goes to the counter that applies at that time.

Kafka looks the sensors of a client up for each record: ``recordAndGetThrottleTimeMs``, ``unrecordQuotaSensor``,
``throttle`` and ``recordNoThrottle`` of ``ClientQuotaManager`` begin with ``getOrCreateQuotaSensors``.
"""

import gc
import threading

import pytest

from kbroker._core.metrics.metric import Metric
from kbroker.metrics.registry import MetricName
from kbroker.quota._entities import DEFAULT_ENTITY
from tests.native.quota_charges import ChargedRequest, HeldCounter
from tests.support import quotas
from tests.support.broker import wait_for
from tests.support.fixtures import fixture_of

MS = 1_000_000
KINDS = ("produce", "fetch", "other")  # in the order of the managers
BEFORE, AFTER = ("", "c"), ("u", "c")  # tags of the counter: a quota of the client id, then of the user's client id


class Bench(quotas.Bench):
    """Managers with requests of one client."""

    def charged(self, caches: bool) -> ChargedRequest:
        """Return a request of user u with client id c."""
        return ChargedRequest(self.managers, b"u", b"c", caches)

    def measure(self, metric: str, group: str) -> dict[tuple[str, str], float]:
        """Return the values of a metric by the tags of its counters."""
        self.managers.publish_to_registry()
        found = {}
        for tags in (BEFORE, AFTER):
            name = MetricName.of(metric, group, dict(zip(("user", "client-id"), tags, strict=True)))
            if isinstance(counter := self.registry.get(name), Metric):
                found[tags] = counter.measure()
        return found


bench = fixture_of(Bench)


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize(
    ("key", "group"), [("request_percentage", "Request"), ("shadow.request_percentage", "kbroker:shadow-request")]
)
def test_network_time_is_charged_to_the_counter_of_the_end(bench: Bench, caches: bool, key: str, group: str) -> None:
    """Handler time is charged before the change, and network time after it."""
    bench.managers.update(None, DEFAULT_ENTITY, key, 50)
    request = bench.charged(caches)
    assert request.judge("other", 0, 20 * MS) == 0
    bench.managers.update("u", "c", key, 50)
    request.sent(30 * MS)
    times = bench.measure("request-time", group)
    assert times == {BEFORE: pytest.approx(0.2), AFTER: pytest.approx(0.3)}


@pytest.mark.parametrize("caches", [False, True])
def test_network_time_of_unchanged_quotas(bench: Bench, caches: bool) -> None:
    """Handler time and network time are charged to one counter."""
    bench.managers.update(None, DEFAULT_ENTITY, "request_percentage", 50)
    request = bench.charged(caches)
    assert request.judge("other", 0, 20 * MS) == 0
    request.sent(30 * MS)
    assert bench.measure("request-time", "Request") == {BEFORE: pytest.approx(0.5)}


def test_network_time_after_the_managers() -> None:
    """A request may end after the managers were freed; its counter still exists."""
    bench = Bench()
    bench.managers.update(None, DEFAULT_ENTITY, "request_percentage", 50)
    request = bench.charged(True)
    assert request.judge("other", 0, 20 * MS) == 0
    bench.managers.update("u", "c", "request_percentage", 50)
    request.forget_managers()
    del bench
    gc.collect()
    request.sent(30 * MS)


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize(
    ("kind", "key", "group"),
    [
        ("produce", "producer_byte_rate", "Produce"),
        ("fetch", "consumer_byte_rate", "Fetch"),
        ("fetch", "shadow.consumer_byte_rate", "kbroker:shadow-fetch"),
        ("other", "request_percentage", "Request"),
    ],
)
def test_throttle_time_is_recorded_at_the_counter_of_the_throttle(
    bench: Bench, caches: bool, kind: str, key: str, group: str
) -> None:
    """The throttle time is recorded at the new counter if the quota changes while a record waits for a lock."""
    bench.managers.update(None, DEFAULT_ENTITY, key, 1)
    bench.clock.advance_ms(1)
    managers = bench.managers.shadows if key.startswith("shadow.") else bench.managers.enforced
    counter = HeldCounter(managers[KINDS.index(kind)], "u", "c")
    bench.clock.advance_ms(1)
    request, delays = bench.charged(caches), list[int]()
    judging = threading.Thread(target=lambda: delays.append(request.judge(kind, 1000, 1000 * MS)))
    judging.start()
    wait_for("a record into the held counter", counter.is_awaited, every=0.001)
    bench.managers.update("u", "c", key, 1)
    counter.release()
    judging.join()
    throttles = bench.measure("throttle-time", group)
    assert throttles.pop(AFTER) > 0
    assert all(value != value for value in throttles.values())  # NaN: the earlier counter has no throttle time
    if kind == "fetch":  # the bytes of a throttled fetch are subtracted from the later counter too
        rates = bench.measure("byte-rate", group)
        assert rates[BEFORE] > 0 > rates[AFTER]
