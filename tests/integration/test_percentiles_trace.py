"""Percentiles of random values, compared bit by bit with Apache Kafka's class."""

import math
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.metric_config import MetricConfig
from kbroker._core.metrics.sensor import Sensor
from kbroker._core.metrics.stats import Percentiles
from tests.support import need
from tests.support.broker import run_to_end
from tests.support.kafka import compiled, java_command

PROGRAM = Path(__file__).parents[1] / "support" / "java" / "PercentilesTrace.java"
SCRIPTS, OPERATIONS = 300, 120


def script(seed: int) -> Iterator[str]:
    """Yield lines of a script: values inside and outside the range, at its edges and NaN, at irregular times."""
    rng = random.Random(seed)
    bucketing = rng.choice(("linear", "constant"))
    smallest = 0.0 if bucketing == "linear" else rng.choice((0.0, -50.0, 10.5, rng.uniform(-1e6, 1e6)))
    largest = smallest + rng.choice((1.0, 100.0, 99.5, rng.uniform(0.001, 1e9)))
    samples, window_ms = rng.choice((1, 2, 3, 11)), rng.choice((1, 10, 1000, 30_000))
    percentiles = [rng.choice((0.0, 25.0, 50.0, 99.0, 100.0, rng.uniform(0, 100))) for _ in range(rng.randint(1, 5))]
    size_bytes = rng.choice((8, 12, 40, 400, 4000))
    words = [bucketing, size_bytes, smallest, largest, samples, window_ms, *percentiles]
    yield f"new {' '.join(map(repr, words))}".replace("'", "")
    now = rng.choice((0, 1_700_000_000_000))
    for _ in range(OPERATIONS):
        now += rng.choice((0, 0, 0, 1, window_ms - 1, window_ms, window_ms * samples, rng.randrange(window_ms + 1)))
        value = rng.choice(
            (rng.uniform(smallest, largest), smallest, largest, rng.uniform(smallest - 9, largest * 1.5), math.nan)
        )
        yield f"record {now} {'NaN' if math.isnan(value) else repr(value)}"
        if rng.random() < 0.4:
            yield f"read {now + rng.choice((0, 0, 1, window_ms, window_ms * samples))}"


def ours(lines: list[str]) -> list[str]:
    """Return the figures of kbroker's sensors for these lines, as the Java program prints them."""
    found = []
    sensor = Sensor("none")
    for line in lines:
        words = line.split(" ")
        if words[0] == "new":
            wanted = {f"p{number}": float(each) for number, each in enumerate(words[7:])}
            size_bytes, smallest, largest = int(words[2]), float(words[3]), float(words[4])
            stat = (
                Percentiles(size_bytes, largest, wanted, bucketing="linear")  # type: ignore[arg-type]
                if words[1] == "linear"
                else Percentiles(size_bytes, largest, wanted, smallest=smallest)  # type: ignore[arg-type]
            )
            sensor = Sensor("s", MetricConfig(int(words[5]), int(words[6])), clock=VirtualClock(0))
            sensor.add(None, stat)
        elif words[0] == "record":
            sensor.record(float(words[2]), int(words[1]))
        else:
            values = [metric.measure(int(words[1])) for metric in sensor.metrics.values()]
            found.append(" ".join(f"{as_bits(value):016x}" for value in values))
    return found


def as_bits(value: float) -> int:
    """Return Java's doubleToLongBits of a value, for which all NaN are equal."""
    return 0x7FF8000000000000 if math.isnan(value) else int(struct.unpack(">Q", struct.pack(">d", value))[0])


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_percentiles_are_kafkas() -> None:
    """Both kinds of bins agree with Kafka's for values beyond the range, NaN, and samples outside the window."""
    need.program("java", "javac", "mvn")
    lines = [line for seed in range(SCRIPTS) for line in script(seed)]
    output = run_to_end(java_command(PROGRAM.stem, classes=compiled(PROGRAM)), stdin="\n".join(lines), seconds=150)
    theirs = output.splitlines()
    assert len(theirs) > SCRIPTS * 20
    assert ours(lines) == theirs
