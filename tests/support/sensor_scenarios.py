"""Sensor scripts that correspond to Kafka's own tests of its metrics and quotas.

The scripts have no expected values: Kafka's classes produce them, and tests/unit/core/metrics/test_sensor_vectors.py
contains them as constants.
"""

from collections.abc import Iterable, Iterator, Sequence

WALL_MS = 1_000_000_000_000  # for tests in which Kafka uses the time of day


def at(now_ms: int, *lines: str) -> list[str]:
    return [f"at {now_ms}", *lines]


def one(kind: str, config: str, now_ms: int = 0) -> list[str]:
    """Return the lines of a sensor `s` with one metric `m`."""
    return at(now_ms, "sensor s", f"stat s m {kind} {config}".rstrip())


def recorded(times_ms: Iterable[int], amount: float, *reads: str, after_ms: int = 0) -> Iterator[str]:
    """Yield lines that record the same amount at each time and then run ``reads``, ``after_ms`` later."""
    for now in times_ms:
        yield from at(now, f"record s {amount!r}")
        yield from at(now + after_ms, *reads)


def rates() -> Iterator[str]:
    """Yield lines for rates: at the end of the first window, with eleven samples, and over a steady stream."""
    for samples, window_ms, read_ms in ((1, 1000, 999), (11, 11_000, 10_999)):
        yield from ["fresh", *one("rate", f"samples={samples} window_ms={window_ms}"), "record s 50"]
        yield from at(read_ms, "value m", "window_ms m", "samples m")
    yield from ["fresh", *one("rate", "samples=2 window_ms=1000")]
    yield from recorded((*range(0, 1000, 100), *range(1100, 2200, 100)), 1.0, "value m", "window_ms m")
    yield from recorded((99, 199), 1.0)
    yield from ["fresh", *one("rate", "samples=2 window_ms=1000"), "record s 1"]
    yield from recorded(range(99, 1000, 100), 1.0)
    yield from recorded(range(1100, 2200, 99), 1.0, "value m", "samples m")


def simple_rates() -> Iterator[str]:
    """Yield lines for a simple rate, whose window grows from the first record up to the length of all samples."""
    yield from ["fresh", *one("simple_rate", "samples=10 window_ms=1000"), "record s 1000"]
    for now in (0, 100, 200, 400, 1000, 1200, 1400):
        yield from at(now, "value m")
    yield from recorded((1400, 2500, 9000, 10_500), 1000.0, "value m", "window_ms m", after_ms=0)
    yield from recorded((10_501, 12_000, 40_000), 1000.0, "value m", after_ms=1100)


def token_buckets() -> Iterator[str]:
    """Yield lines for a token bucket, which is full at first, fills with time, and can be overdrawn once."""
    for now_ms in (0, WALL_MS):
        yield from ["fresh", *one("token_bucket", "samples=10 window_ms=2000 at_most=5", now_ms), "value m"]
        yield "record_unchecked s 60"
        yield "value m"
        yield from at(now_ms + 2000, "record_unchecked s 5", "value m")
        yield from at(now_ms + 4000, "record s 60", "value m", "throttle_ms m")
        yield from at(now_ms + 7000, "value m")
        yield from at(now_ms + 90_000, "value m", "check s")
    yield from ["fresh", *one("token_bucket", "samples=10 window_ms=1000 at_most=10", WALL_MS)]
    yield from ("record s 100", "throttle_ms m", "record s 5", "record s 5", "record s -200", "value m")


def windows() -> Iterator[str]:
    """Yield lines for sampled stats: windows by events, old samples, defaults, meters that lose a window."""
    yield from ["fresh", *one("windowed_count", "samples=2 window_ms=1"), "record s 1"]
    yield from recorded((1, 2), 1.0, "value m")
    yield from ["fresh", *one("windowed_count", "samples=2 window_ms=100000 event_window=1")]
    yield from recorded((1, 1, 2, 3), 1.0, "value m", "samples m")
    sampled = ("max", "min", "avg", "windowed_count", "windowed_sum")
    yield from ["fresh", "sensor s", *(f"stat s {kind} {kind} samples=2 window_ms=100" for kind in sampled)]
    yield "record s 50"
    for now in (99, 100, 199, 200):
        yield from at(now, *(f"value {kind}" for kind in sampled))
    yield from ["fresh", "sensor s", *(f"stat s {kind} {kind}" for kind in (*sampled, "meter", "count_meter"))]
    yield from (f"record s {n}" for n in range(10))
    for now in (0, 2000):
        yield from at(now, *(f"value {kind}" for kind in sampled))
        yield from (f"value {meter}.{part}" for meter in ("meter", "count_meter") for part in ("rate", "total"))
    yield from ["fresh", "sensor s", *(f"stat s {kind} {kind} samples=3 window_ms=30000" for kind in METERS)]
    yield "record s 100"
    yield from at(30_000, "record s 100")
    for now in (75_000, 165_000):
        yield from at(now, *(f"value {kind}.{part}" for kind in METERS for part in ("rate", "total")))
        yield "window_ms meter.rate"


METERS = ("meter", "count_meter")


def families() -> Iterator[str]:
    """Yield lines for parents, which record each value once, and for duplicate ancestors and metric names."""
    yield "fresh"
    for name, parents in (("p1", ""), ("p2", ""), ("c1", "p1,p2"), ("c2", "p1"), ("gc", "c1")):
        yield f"sensor {name}" + (f" parents={parents}" if parents else "")
        yield f"stat {name} n.{name} cumulative_count"
    yield from (f"record {name} 1" for name in ("p1", "p2", "c1", "c2", "gc"))
    yield from (f"value n.{name}" for name in ("p1", "p2", "c1", "c2", "gc"))
    yield from ("sensor bad parents=c1,c2", "stat p1 n.p2 avg", "stat p1 n.p1 cumulative_count", "remove p1")
    yield from (f"is_known {name}" for name in ("p1", "c1", "c2", "gc", "p2"))


def expiry() -> Iterator[str]:
    """Yield lines for expiry: a sensor expires after its time without a record, and then refuses stats."""
    yield from ("fresh", "sensor a expires_s=1", "sensor b expires_s=3", "is_expired a")
    yield from at(1000, "is_expired a")
    yield from at(1001, "is_expired a", "is_expired b", "record b 1")
    for now in (3001, 4001, 4002):
        yield from at(now, "is_expired b")
    yield "stat b late avg"
    yield "is_known b"


def levels() -> Iterator[str]:
    """Yield lines for recording levels: a sensor records if its level is at or below the configured level."""
    yield "fresh"
    for configured in ("INFO", "DEBUG", "TRACE"):
        for level in ("INFO", "DEBUG", "TRACE"):
            name = f"{level}.{configured}"
            yield f"sensor {name} level={level} record_level={configured}"
            yield f"stat {name} n.{name} cumulative_count"
            yield f"record {name} 1"
            yield f"value n.{name}"


def limits() -> Iterator[str]:
    """Yield lines for upper and lower bounds, a bound that is changed, and throttle times of violations."""
    yield from ("fresh", "sensor s", "stat s up cumulative_sum at_most=5", "stat s low cumulative_sum at_least=0")
    for amount in (5, 1):
        yield f"record s {amount}"
    yield from ("value up", "record s -6", "record s -1", "configure up at_most=none", "record s 100", "check s")
    yield from ["fresh", *one("rate", "samples=11 window_ms=1000 at_most=5")]
    yield from ("record s 60", "configure m at_most=10", "check s")
    for samples, amount in ((3, 200), (2, 55), (11, 100_000)):
        yield from ["fresh", *one("rate", f"samples={samples} window_ms=1000 at_most=50"), f"record s {amount}"]
        yield from ("throttle_ms m 500", "throttle_ms m 50", "configure m at_most=100", "throttle_ms m")
    yield from ["fresh", *one("rate", "samples=11 window_ms=1000 at_most=2000"), "record s 27500"]
    for bound, amount in ((3000, 0), (500, 0), (4000, 11_000)):
        yield f"configure m at_most={bound}"
        yield f"record s {amount}"
    for bound, amounts in ((10, (30, 1)), (5000, (49_500, 0)), (4000, (49_500, 0)), (3000, (27_500, 38_500))):
        samples = 4 if bound == 10 else 11
        yield from ["fresh", *one("rate", f"samples={samples} window_ms=1000 at_most={bound}")]
        yield from (f"record s {amount}" for amount in amounts)


def _burst(bound: float, steady: float, burst: float, wait_ms: int) -> Iterator[str]:
    """Yield lines for ten steady seconds, a burst, a check at the end of its delay, and steady seconds again."""
    yield from ["fresh", *one("rate", f"samples=11 window_ms=1000 at_most={bound!r}")]
    yield from recorded(range(0, 10_000, 1000), steady)
    yield from at(10_500, f"record s {burst!r}", "throttle_ms m")
    for early_ms in (1, 0):
        yield from at(10_500 + wait_ms - early_ms, "check s")
    yield from recorded((10_500 + wait_ms + second * 1000 for second in range(12)), steady, "check s")


def client_quotas() -> Iterator[str]:
    """Yield lines for quotas of bytes and request time, which throttle a client after a burst."""
    yield from _burst(500.0, 400.0, 2300.0, 2100)
    yield from _burst(1.0, 0.4, 6.71, 210)


def mutation_quotas() -> Iterator[str]:
    """Yield lines for strict recording, which accepts an amount that begins within the bound."""
    for kind, bound, amount in (("rate", 2, 30), ("token_bucket", 2, 30), ("token_bucket", 10, 90)):
        samples = 11 if kind == "rate" else 10
        yield from ["fresh", *one(kind, f"samples={samples} window_ms=1000 at_most={bound}", WALL_MS)]
        for wait_ms in (0, 0, 0, 5000, 5000, 10_000):
            yield from (f"record_strict s {amount}", "value m", "throttle_ms m")
            yield f"at {WALL_MS + wait_ms}"


def replication_quotas() -> Iterator[str]:
    """Yield lines for a simple rate that is checked separately from recording, at its bound and one byte above."""
    yield from ["fresh", *one("simple_rate", "samples=10 window_ms=1000 at_most=100"), "check s"]
    steps: Sequence[tuple[int, Sequence[int]]] = (
        (1500, (1, 149)),
        (1500, (1,)),
        (2000, ()),
        (2500, (99,)),
        (2500, (1,)),
    )
    for now, amounts in (*steps, (4500, ())):
        yield from at(now, *(f"record_unchecked s {amount}" for amount in amounts), "value m", "check s")


def connection_rates() -> Iterator[str]:
    """Yield lines for a connection every 25 ms against 20 a second, of which refused connections are subtracted."""
    yield from ["fresh", *one("rate", "samples=2 window_ms=1000 at_most=20")]
    for now in range(0, 2000, 25):
        yield from at(now, "record s 1", "throttle_ms m", "record_unchecked s -1" if now >= 975 else "value m")


SCENARIOS = (
    rates, simple_rates, token_buckets, windows, families, expiry, levels, limits, client_quotas, mutation_quotas,
    replication_quotas, connection_rates,
)  # fmt: skip
