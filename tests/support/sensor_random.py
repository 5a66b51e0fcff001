"""Random sensor scripts, the same as the trace tool's `random SEED`: everything follows from the seed.

`JavaRandom` is the documented linear congruential generator of java.util.Random.
"""

from collections.abc import Iterator

MASK = (1 << 48) - 1

KINDS = (
    "rate",
    "count_rate",
    "simple_rate",
    "windowed_sum",
    "windowed_count",
    "avg",
    "max",
    "min",
    "value",
    "cumulative_sum",
    "cumulative_count",
    "token_bucket",
)


class JavaRandom:
    """The sequence of java.util.Random(seed)."""

    def __init__(self, seed: int) -> None:
        self.state = (seed ^ 0x5DEECE66D) & MASK

    def bits(self, count: int) -> int:
        self.state = (self.state * 0x5DEECE66D + 0xB) & MASK
        taken = self.state >> (48 - count)
        return taken - (1 << count) if count == 32 and taken >= 1 << 31 else taken

    def below(self, bound: int) -> int:
        """nextInt(bound)"""
        taken = self.bits(31)
        if bound & (bound - 1) == 0:
            return (bound * taken) >> 31
        while True:
            rest = taken % bound
            if taken - rest + bound - 1 < 1 << 31:
                return rest
            taken = self.bits(31)

    def boolean(self) -> bool:
        return self.bits(1) != 0

    def double(self) -> float:
        return ((self.bits(26) << 27) + self.bits(27)) * (1.0 / (1 << 53))


def next_value(random: JavaRandom, bound: float, samples: int, window: int) -> float:
    if random.below(8) == 0:
        return float(-random.below(1000))
    if random.below(4) == 0:
        return random.double() * bound * samples
    return float(random.below(1 + int(min(1e6, bound * samples * window / 1000))))


def random_script(seed: int, operations: int = 200) -> Iterator[str]:
    """Yield the lines of the script of a seed: one sensor, every kind of stat, steps in time of awkward lengths."""
    random = JavaRandom(seed)
    samples = (1, 2, 3, 5, 11)[random.below(5)]
    window = (1, 10, 500, 1000, 2000, 30_000)[random.below(6)]
    now = 0 if random.below(4) == 0 else random.below(1_000_000)
    bound = float(random.below(1000) + 1) if random.below(3) == 0 else (random.below(100_000) + 1) / 16.0
    yield f"{now} sensor s"
    for kind in KINDS:
        has_quota = kind == "token_bucket" or (kind == "rate" and random.boolean())
        events = f" event_window={random.below(5) + 1}" if random.below(4) == 0 else ""
        quota = f" quota={bound!r}" if has_quota else ""
        yield f"{now} stat s {kind} {kind} samples={samples} window_ms={window}{events}{quota}"
    for _ in range(operations):
        step = random.below(10)
        if step == 1:
            now += window
        elif step == 2:
            now += window - 1
        elif step == 3:
            now += window * samples
        elif step == 4:
            now += window * (samples + 1) * (random.below(3) + 1) + random.below(3) - 1
        elif step > 4:
            now += random.below(min(window, 1 << 20) + 1) // (random.below(4) + 1)
        value = next_value(random, bound, samples, window)
        name = KINDS[random.below(len(KINDS))]
        what = random.below(12)
        if what < 4:
            yield f"{now} record s {value!r} nocheck"
        elif what == 4:
            yield f"{now} record s {value!r}"
        elif what == 5:
            yield f"{now} strict s {value!r}"
        elif what == 6:
            yield f"{now} check s"
        elif what == 7:
            yield f"{now} window {'rate' if random.boolean() else 'simple_rate'}"
        elif what == 8:
            bound = bound * 2 if random.below(3) == 0 else bound / 2 + 1
            yield f"{now} config token_bucket quota={bound!r}"
        else:
            yield f"{now} read {name}"
    for kind in KINDS:
        yield f"{now} read {kind}"
    yield f"{now} ring rate"
