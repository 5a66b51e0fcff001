"""Limits of connections on a virtual clock: Kafka's ConnectionQuotasTest, and delays exact to the millisecond.

The listeners are EXTERNAL, ADMIN and the inter-broker listener REPLICATION, each with one client address. Quotas have
two windows of 1 s.
"""

import heapq
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.network.connections._connection_quotas import UNLIMITED, ConnectionQuotas, canonical_address
from tests.native import connection_admission as admission

EXTERNAL, ADMIN, REPLICATION = LISTENERS = ("EXTERNAL", "ADMIN", "REPLICATION")
ADDRESS = {EXTERNAL: "10.0.0.1", ADMIN: "10.0.0.2", REPLICATION: "10.0.0.3"}
PAUSE = threading.Event()


def make(clock: VirtualClock | None = None, **limits: Any) -> ConnectionQuotas:
    quotas = ConnectionQuotas(
        samples=2,
        window_seconds=1,
        inter_broker_listener=REPLICATION,
        clock=VirtualClock() if clock is None else clock,
        **limits,
    )
    for listener in LISTENERS:
        quotas.update_listener(listener)
    return quotas


def until(condition: Callable[[], object]) -> None:
    for _ in range(5000):
        if condition():
            return
        PAUSE.wait(0.002)
    raise AssertionError("the condition was not met within 10 s")


class Waiter:
    """Acceptor on a separate thread with one ``inc`` that is expected to wait."""

    def __init__(self, quotas: ConnectionQuotas, listener: str) -> None:
        self.done = False
        self._quotas = quotas
        self._listener = listener
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        until(lambda: quotas.waiting(listener) == 1)

    def _run(self) -> None:
        admission.inc(self._quotas, self._listener, ADDRESS[self._listener])
        self.done = True

    def still_waits(self) -> bool:
        PAUSE.wait(0.01)
        return not self.done

    def ends(self) -> None:
        until(lambda: self.done)
        self._thread.join()


class Drive:
    """Acceptors on one virtual clock without threads.

    A connection arrives every ``interval_ms``; a delayed one delays the next ones of its listener.
    """

    def __init__(self, quotas: ConnectionQuotas, clock: VirtualClock) -> None:
        self.quotas, self.clock = quotas, clock
        self.blocked_ms = dict.fromkeys(LISTENERS, 0)
        self.admitted_ms: dict[str, list[int]] = {listener: [] for listener in LISTENERS}

    def run(self, listeners: tuple[str, ...], interval_ms: int, count: int) -> None:
        start = self.clock.epoch_ms()
        events = [(start, place, "come", 0) for place in range(len(listeners))]
        while events:
            at, place, what, number = heapq.heappop(events)
            listener = listeners[place]
            if at > self.clock.epoch_ms():
                self.clock.advance_ms(at - self.clock.epoch_ms())
            if what == "come":
                delay = admission.begin(self.quotas, listener)
                self.blocked_ms[listener] += delay
                heapq.heappush(events, (at + delay, place, "admit", number))
                continue
            admission.admit(self.quotas, listener, ADDRESS[listener])
            self.admitted_ms[listener].append(at)
            if number + 1 < count:
                due = max(at, start + (number + 1) * interval_ms)
                heapq.heappush(events, (due, place, "come", number + 1))


def test_listener_must_be_known() -> None:
    """CN-1, CN-2: a connection of an unknown listener, and the end of an unknown connection, raise an error."""
    quotas = ConnectionQuotas()
    with pytest.raises(KeyError):
        admission.inc(quotas, "EXTERNAL", "10.0.0.1")
    quotas = make()
    with pytest.raises(ValueError, match="no connection from"):
        admission.dec(quotas, EXTERNAL, "10.0.0.9")
    assert quotas.listeners == [REPLICATION, ADMIN, EXTERNAL]


def test_nothing_is_limited_by_default() -> None:
    """CN-3: each listener admits 10,000 connections at once, and the rates record them."""
    quotas = make()
    for listener in LISTENERS:
        for _ in range(10_000):
            admission.inc(quotas, listener, ADDRESS[listener])
        assert (quotas.count(ADDRESS[listener]), quotas.listener_count(listener)) == (10_000, 10_000)
        assert quotas.rate(listener) == 10_000
        assert math.isnan(quotas.throttle_time(listener))
    assert quotas.rate() == 20_000  # the inter-broker listener does not count
    admission.dec(quotas, EXTERNAL, ADDRESS[EXTERNAL])
    assert (quotas.count(ADDRESS[EXTERNAL]), quotas.count()) == (9_999, 29_999)
    assert quotas.ip_rates() == {}


def test_one_address_too_often() -> None:
    """CN-4 to CN-7: connections above the limit of an address raise an error and are counted; others are admitted."""
    quotas = make(max_per_address=17)
    for _ in range(17):
        admission.inc(quotas, EXTERNAL, "10.0.0.1")
    for _ in range(2):
        with pytest.raises(admission.TooManyConnectionsError):
            admission.inc(quotas, EXTERNAL, "10.0.0.1")
    assert (quotas.count("10.0.0.1"), quotas.refused) == (19, 2)
    for _ in range(17):
        admission.inc(quotas, EXTERNAL, "10.0.0.7")
    for _ in range(4):
        admission.dec(quotas, EXTERNAL, "10.0.0.1")
    assert quotas.count("10.0.0.1") == 15
    for _ in range(2):
        admission.inc(quotas, EXTERNAL, "10.0.0.1")
    assert quotas.count("10.0.0.1") == 17


def test_full_server_waits_but_for_the_inter_broker_listener() -> None:
    """CN-8 to CN-11: at max.connections only the inter-broker listener admits, and others must close a connection."""
    quotas = make(max_connections=800)
    for _ in range(800):
        admission.inc(quotas, EXTERNAL, ADDRESS[EXTERNAL])
    assert not admission.is_exceeded(quotas, EXTERNAL)
    waiter = Waiter(quotas, EXTERNAL)
    assert waiter.still_waits()
    admission.dec(quotas, EXTERNAL, ADDRESS[EXTERNAL])
    waiter.ends()
    admission.inc(quotas, REPLICATION, ADDRESS[REPLICATION])
    assert admission.is_exceeded(quotas, EXTERNAL)
    assert not admission.is_exceeded(quotas, REPLICATION)
    waiter = Waiter(quotas, ADMIN)
    admission.inc(quotas, REPLICATION, ADDRESS[REPLICATION])
    assert quotas.count() == 802
    for _ in range(2):
        admission.dec(quotas, EXTERNAL, ADDRESS[EXTERNAL])
    assert waiter.still_waits()
    admission.dec(quotas, EXTERNAL, ADDRESS[EXTERNAL])
    waiter.ends()


def test_full_listener_waits() -> None:
    """CN-12: each listener, the inter-broker one included, waits for its own limit."""
    quotas = make()
    waiters = []
    for listener in LISTENERS:
        quotas.update_listener(listener, max_connections=200)
        for _ in range(200):
            admission.inc(quotas, listener, ADDRESS[listener])
    for listener in LISTENERS:
        waiters.append(Waiter(quotas, listener))
    for listener, waiter in zip(LISTENERS, waiters, strict=True):
        assert waiter.still_waits()
        admission.dec(quotas, listener, ADDRESS[listener])
        waiter.ends()


def test_raised_count_lets_the_waiting_in() -> None:
    """A higher max.connections admits an acceptor that is already waiting."""
    quotas = make(max_connections=0)
    waiter = Waiter(quotas, EXTERNAL)
    quotas.update(1, UNLIMITED)
    waiter.ends()


def test_one_listener_alone_is_not_protected() -> None:
    """The limits apply to the inter-broker listener if the broker has no other listener."""
    quotas = ConnectionQuotas(max_connections=1, inter_broker_listener=REPLICATION, clock=VirtualClock())
    quotas.update_listener(REPLICATION)
    admission.inc(quotas, REPLICATION, "10.0.0.3")
    assert not admission.has_slot(quotas, REPLICATION)
    quotas.update_listener(EXTERNAL)
    quotas.update_listener(REPLICATION, max_connections=2)
    assert admission.has_slot(quotas, REPLICATION)


def test_broker_rate_below_its_limit() -> None:
    """CN-13: connections of three listeners at 40/s each pass a broker limit of 125/s without a delay."""
    clock = VirtualClock()
    drive = Drive(make(clock, max_rate=125), clock)
    drive.run(LISTENERS, 25, 200)
    assert drive.blocked_ms == dict.fromkeys(LISTENERS, 0)


def test_broker_rate_above_its_limit() -> None:
    """CN-14: a broker limit of 90/s delays two listeners at 100/s each, but not the inter-broker listener."""
    clock = VirtualClock()
    quotas = make(clock, max_rate=90)
    quotas.update_listener(REPLICATION, max_rate=UNLIMITED)
    drive = Drive(quotas, clock)
    drive.run(LISTENERS, 10, 400)
    assert drive.blocked_ms[EXTERNAL] > 0
    assert drive.blocked_ms[ADMIN] > 0
    assert drive.blocked_ms[REPLICATION] == 0
    assert quotas.count() == 1200
    ended = max(drive.admitted_ms[EXTERNAL] + drive.admitted_ms[ADMIN])
    assert pytest.approx(800 / ((ended - drive.admitted_ms[ADMIN][0]) / 1000), abs=3) == 90


def test_inter_broker_listener_inherits_the_rate() -> None:
    """The inter-broker listener without its own rate has the broker's, and does not reduce that of other listeners."""
    quotas = make(max_rate=10)
    assert [admission.begin(quotas, REPLICATION) for _ in range(11)] == [0] * 10 + [100]
    assert [admission.begin(quotas, EXTERNAL) for _ in range(11)] == [0] * 10 + [100]


def test_listener_rate_above_its_limit() -> None:
    """CN-15: a limit of 30/s delays 40/s of each listener to 30/s, and the delays are recorded."""
    clock = VirtualClock()
    quotas = make(clock)
    for listener in LISTENERS:
        quotas.update_listener(listener, max_rate=30)
    drive = Drive(quotas, clock)
    drive.run(LISTENERS, 25, 600)
    for listener in LISTENERS:
        times = drive.admitted_ms[listener]
        assert pytest.approx(599 / ((times[-1] - times[0]) / 1000), abs=1) == 30
        assert drive.blocked_ms[listener] > 0
        assert quotas.throttle_time(listener) > 0
        assert math.isnan(quotas.ip_throttle_time(listener))


def test_address_rate_below_its_limit() -> None:
    """CN-16: connections every 40 ms pass an address limit of 30/s."""
    clock = VirtualClock()
    quotas = make(clock)
    quotas.update_ip_rate(None, 30)
    drive = Drive(quotas, clock)
    drive.run((EXTERNAL,), 40, 200)
    assert quotas.count() == 200
    assert quotas.throttled == 0


def test_address_rate_above_its_limit() -> None:
    """CN-17: 39 of 80 connections at 40/s pass an address limit of 20/s; their acceptor does not wait."""
    clock = VirtualClock()
    quotas = make(clock)
    quotas.update_ip_rate(ADDRESS[EXTERNAL], 20)
    accepted = 0
    delays = []
    for _ in range(80):
        try:
            admission.inc(quotas, EXTERNAL, ADDRESS[EXTERNAL])
            accepted += 1
        except admission.ConnectionThrottledError as error:
            delays.append((error.throttle_time_ms, error.end_ms - clock.epoch_ms()))
        clock.advance_ms(25)
    assert all(0 < delay <= 1000 and delay == left for delay, left in delays)
    throttled = len(delays)
    assert (accepted, throttled, quotas.count(), quotas.throttled) == (39, 41, 39, 41)
    assert quotas.ip_throttle_time(EXTERNAL) > 0
    assert math.isnan(quotas.ip_throttle_time(ADMIN))
    assert math.isnan(quotas.throttle_time(EXTERNAL))


def test_throttled_address_is_taken_out_of_every_rate() -> None:
    """CN-18: with limit 0 a connection is refused, and is subtracted from the rates of address, listener and broker."""
    quotas = make()
    quotas.update_ip_rate(None, 0)
    for listener in (EXTERNAL, REPLICATION):
        with pytest.raises(admission.ConnectionThrottledError) as caught:
            admission.inc(quotas, listener, ADDRESS[listener])
        assert caught.value.throttle_time_ms == 1000  # at most one window
        assert quotas.rate(listener) == 0
        assert quotas.ip_rates()[ADDRESS[listener]] == 0
    assert (quotas.rate(), quotas.count()) == (0, 0)


def test_limits_that_cannot_be() -> None:
    """CN-19: a listener's limit below 1, a negative limit and an invalid address are refused."""
    quotas = make()
    for limits in ({"max_rate": 0}, {"max_connections": 0}, {"max_rate": -1}):
        with pytest.raises(ValueError, match="must be >= 1"):
            quotas.update_listener(EXTERNAL, **limits)
    with pytest.raises(ValueError, match="must be >= 0"):
        quotas.update_ip_rate("10.0.0.1", -1)
    with pytest.raises(TypeError):
        quotas.update_ip_rate("10.0.0.1", 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is neither an IP address nor a host name"):
        quotas.update_ip_rate("no such host.invalid", 5)
    with pytest.raises(ValueError, match="must be >= 0"):
        quotas.update(1, 1, None, -1)


def test_broker_rate_changes_at_run_time() -> None:
    """CN-20: a limit of 50/s set at run time delays 200/s to 50/s."""
    clock = VirtualClock()
    quotas = make(clock)
    for listener in LISTENERS:
        quotas.update_listener(listener, max_rate=UNLIMITED)
    quotas.update(UNLIMITED, UNLIMITED, None, 50)
    drive = Drive(quotas, clock)
    drive.run((EXTERNAL,), 5, 400)
    times = drive.admitted_ms[EXTERNAL]
    assert pytest.approx(399 / ((times[-1] - times[0]) / 1000), abs=20) == 50
    # the first window's 50 connections are not delayed
    assert times[-1] - times[0] == pytest.approx(1000 * (400 - 50) / 50, abs=20)
    assert drive.blocked_ms[EXTERNAL] > 0


def test_delay_is_exact() -> None:
    """The 11th connection at 10/s waits exactly 100 ms; a higher limit does not shorten the wait."""
    clock = VirtualClock()
    quotas = make(clock)
    quotas.update_listener(EXTERNAL, max_rate=10)
    for _ in range(10):
        admission.inc(quotas, EXTERNAL, "10.0.0.1")
    waiter = Waiter(quotas, EXTERNAL)
    quotas.update_listener(EXTERNAL, max_rate=UNLIMITED)
    clock.advance_ms(99)
    assert waiter.still_waits()
    clock.advance_ms(1)
    waiter.ends()
    assert (quotas.throttle_time(EXTERNAL), quotas.rate(EXTERNAL)) == (100, 10)


def test_delay_is_at_most_a_window() -> None:
    """A connection waits at most one window, and the larger of the broker's and the listener's delay."""
    quotas = make(max_rate=1)
    quotas.update_listener(EXTERNAL, max_rate=2)
    assert [admission.begin(quotas, EXTERNAL) for _ in range(5)] == [0, 1000, 1000, 1000, 1000]
    quotas.update(UNLIMITED, UNLIMITED, None, UNLIMITED)
    quotas.update_listener(ADMIN, max_rate=4)
    assert [admission.begin(quotas, ADMIN) for _ in range(6)] == [0, 0, 0, 0, 250, 500]


def test_waiting_for_a_slot_after_the_throttle() -> None:
    """A connection waits for both the end of the delay and a free slot."""
    clock = VirtualClock()
    quotas = make(clock, max_connections=10)
    quotas.update_listener(EXTERNAL, max_rate=10)
    for _ in range(10):
        admission.inc(quotas, EXTERNAL, "10.0.0.1")
    waiter = Waiter(quotas, EXTERNAL)
    clock.advance_ms(100)
    assert waiter.still_waits()
    admission.dec(quotas, EXTERNAL, "10.0.0.1")
    waiter.ends()


def test_address_rates_follow_their_entity() -> None:
    """The rate of an address overrides the default until it is removed; the recorded rate is kept."""
    clock = VirtualClock()
    quotas = make(clock)
    quotas.update_ip_rate(None, 2)
    quotas.update_ip_rate("10.0.0.1", 4)
    for _ in range(4):
        admission.inc(quotas, EXTERNAL, "10.0.0.1")
    with pytest.raises(admission.ConnectionThrottledError):
        admission.inc(quotas, EXTERNAL, "10.0.0.1")
    quotas.update_ip_rate("10.0.0.1", None)
    with pytest.raises(admission.ConnectionThrottledError) as caught:
        admission.inc(quotas, EXTERNAL, "10.0.0.1")
    assert caught.value.throttle_time_ms == 1000  # 5 in 1 s against 2: 1,500 ms, limited to one window
    quotas.update_ip_rate(None, 5)
    admission.inc(quotas, EXTERNAL, "10.0.0.1")
    assert quotas.ip_rates() == {"10.0.0.1": 5}
    quotas.update_ip_rate(None, None)
    for _ in range(50):
        admission.inc(quotas, EXTERNAL, "10.0.0.1")
    assert quotas.ip_rates() == {"10.0.0.1": 5}  # without a limit nothing is recorded


def test_addresses_expire() -> None:
    """The rate of an address without a connection for more than an hour is deleted by the next expiration."""
    clock = VirtualClock()
    quotas = make(clock)
    quotas.update_ip_rate(None, 100)
    admission.inc(quotas, EXTERNAL, "10.0.0.1")
    clock.advance_ms(3_600_000)
    admission.inc(quotas, EXTERNAL, "10.0.0.2")
    assert sorted(quotas.ip_rates()) == ["10.0.0.1", "10.0.0.2"]
    clock.advance_ms(30_000)
    assert sorted(quotas.ip_rates()) == ["10.0.0.2"]
    assert quotas.count("10.0.0.1") == 1


def test_many_addresses() -> None:
    """Each of 3,000 addresses has its own count, which ends with its last connection."""
    quotas = make(max_per_address=1)
    names = [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(3000)]
    for name in names:
        admission.inc(quotas, EXTERNAL, name)
    assert all(quotas.count(name) == 1 for name in names)
    for name in names:
        admission.dec(quotas, EXTERNAL, name)
    assert quotas.count() == 0


def test_addresses_have_one_form() -> None:
    """IPv4-mapped addresses, brackets and host names are converted to the form of sockets."""
    assert canonical_address("::ffff:10.1.2.3") == "10.1.2.3"
    assert canonical_address("[0:0:0:0:0:0:0:1]") == "::1"
    assert canonical_address("localhost") in ("127.0.0.1", "::1")
