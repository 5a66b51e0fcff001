"""Random sensor scripts, which are determined by the seed."""

from collections.abc import Iterator
from random import Random

from tests.support.sensor_script import KINDS

SAMPLE_COUNTS = (1, 2, 3, 5, 11)
WINDOWS_MS = (1, 10, 500, 1000, 2000, 30_000)
RATES = ("rate", "count_rate", "simple_rate")
SAMPLED = ("rate", "count_rate", "avg", "max", "min", "windowed_sum", "windowed_count")


def _step_ms(random: Random, window_ms: int, samples: int) -> int:
    """Return a step that ends at an edge of a window, inside a window, or far beyond it."""
    whole = window_ms * samples
    edge = random.choice((0, 0, window_ms, window_ms - 1, whole, whole - 1, whole + random.randrange(-1, 2)))
    beyond = (whole + window_ms) * random.randint(1, 3) + random.randrange(-1, 2)
    inside = random.randint(0, window_ms) // random.randint(1, 4)
    return max(0, random.choices((edge, beyond, inside), (4, 1, 5))[0])


def _amount(random: Random, bound: float, window_ms: int, samples: int) -> float:
    """Return an amount near a quota of this bound or, rarely, a fraction, a negative or an extreme number."""
    fitting = bound * samples * window_ms / 1000
    return random.choice(
        (
            float(random.randint(0, max(1, int(min(fitting, 1e6))))),
            float(random.randint(0, max(1, int(min(fitting, 1e6))))),
            random.random() * bound * samples,
            float(-random.randrange(1000)),
            random.choice((0.0, bound, 1 / 3, 1e15, 5e-324)),
        )
    )


def random_script(seed: int, operations: int = 200) -> Iterator[str]:
    """Yield the lines of a script: two sensors, every kind of stat, changing quotas, steps of irregular lengths."""
    random = Random(seed)
    samples, window_ms = random.choice(SAMPLE_COUNTS), random.choice(WINDOWS_MS)
    now = random.choice((0, random.randrange(1_000_000), 1_700_000_000_000))
    bound = random.choice((float(random.randint(1, 1000)), random.randint(1, 100_000) / 16))
    yield "fresh"
    yield f"at {now}"
    yield "sensor above"
    yield f"stat above above.rate rate samples={samples} window_ms={window_ms}"
    yield "sensor s parents=above"
    for kind in KINDS:
        words = [f"stat s {kind} {kind} samples={samples} window_ms={window_ms}"]
        if random.random() < 0.25:
            words.append(f"event_window={random.randint(1, 5)}")
        if kind == "token_bucket" or (kind == "rate" and random.random() < 0.5):
            words.append(f"at_most={bound!r}")
        if kind in ("rate", "count_rate") and random.random() < 0.1:
            words.append(f"unit={random.choice(('milliseconds', 'minutes', 'microseconds'))}")
        yield " ".join(words)
    for _ in range(operations):
        step = _step_ms(random, window_ms, samples)
        if step:
            now += step
            yield f"at {now}"
        amount = _amount(random, bound, window_ms, samples)
        what = random.choices(
            ("record_unchecked", "record", "record_strict", "check", "window_ms", "configure", "value", "samples"),
            (8, 2, 2, 2, 2, 2, 5, 1),
        )[0]
        if what.startswith("record"):
            yield f"{what} {random.choice(('s', 's', 's', 'above')) if what == 'record_unchecked' else 's'} {amount!r}"
        elif what == "check":
            yield "check s"
        elif what == "window_ms":
            yield f"window_ms {random.choice(RATES)}"
        elif what == "configure":
            bound = random.choice((bound * 2, bound / 2 + 1, bound / 3 + 0.1))
            yield f"configure token_bucket at_most={bound!r}"
        elif what == "samples":
            yield f"samples {random.choice(SAMPLED)}"
        else:
            yield f"value {random.choice(KINDS)}"
    for kind in KINDS:
        yield f"value {kind}"
    yield "value above.rate"
    yield "throttle_ms token_bucket"
    for kind in SAMPLED:
        yield f"samples {kind}"
