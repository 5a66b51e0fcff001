"""Scripts of sensor operations with kbroker and with Apache Kafka's classes, whose results are equal bit by bit."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support import need
from tests.support.broker import run_to_end
from tests.support.kafka import compiled, java_command
from tests.support.sensor_random import random_script
from tests.support.sensor_scenarios import SCENARIOS
from tests.support.sensor_script import WITHOUT_RESULT, SensorScript

PROGRAM = Path(__file__).parents[1] / "support" / "java" / "SensorOracle.java"
CONTEXT_LINES = 12


def kafkas(lines: Iterable[str]) -> list[str]:
    """Return the results of Kafka's classes, for each line that has a result."""
    need.program("java", "javac", "mvn")
    command = java_command(PROGRAM.stem, classes=compiled(PROGRAM), log_level="error")
    script = "".join(f"{line}\n" for line in lines)
    return run_to_end(command, stdin=script, seconds=1800).splitlines()


def asked_in(lines: list[str]) -> list[int]:
    """Return the numbers of the lines that have a result."""
    return [n for n, line in enumerate(lines) if line.split(" ")[0] not in WITHOUT_RESULT]


def compare(lines: list[str], theirs: list[str] | None = None) -> int:
    """Compare kbroker's results with Kafka's, which `theirs` has if they are known; return their number."""
    asked = asked_in(lines)
    theirs = kafkas(lines) if theirs is None else theirs
    ours = list(SensorScript().results(lines))
    assert len(theirs) == len(ours) == len(asked)
    for n, their, our in zip(asked, theirs, ours, strict=True):
        if their != our:
            begun = max(i for i in range(n) if lines[i] == "fresh")
            before = "\n".join(lines[begun : begun + 2] + lines[max(begun + 2, n - CONTEXT_LINES) : n + 1])
            pytest.fail(f"{before}\nKafka: {their}\nours:  {our}")
    return len(asked)


@pytest.fixture(scope="module")
def kafkas_results() -> list[list[str]]:
    """Results of Kafka's classes for each scenario, all from one JVM."""
    scripts = [list(scenario()) for scenario in SCENARIOS]
    results = iter(kafkas(itertools.chain.from_iterable(scripts)))
    return [list(itertools.islice(results, len(asked_in(lines)))) for lines in scripts]


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=lambda number: SCENARIOS[number].__name__)
def test_scenarios_of_kafkas_tests(number: int, kafkas_results: list[list[str]]) -> None:
    """The scenarios of Kafka's tests of metrics and quotas have Kafka's results."""
    assert compare(list(SCENARIOS[number]()), kafkas_results[number]) > 5


def test_the_comparison_can_fail() -> None:
    """The comparison detects a difference in the last bit."""
    lines = ["fresh", "sensor s", "stat s m value", "record s 0.1", "value m"]
    assert kafkas(lines)[-1] == "3fb999999999999a"
    assert (
        list(SensorScript().results([*lines[:-2], "record s 0.10000000000000002", "value m"]))[-1] != kafkas(lines)[-1]
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_scripts() -> None:
    """Random scripts have Kafka's results, including errors, throttle times and lists of samples."""
    assert compare([line for seed in range(250) for line in random_script(seed)]) > 50_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_random_scripts() -> None:
    """Ten thousand random scripts have Kafka's results."""
    for first in range(10_000, 20_000, 1000):
        assert compare([line for seed in range(first, first + 1000) for line in random_script(seed)]) > 200_000
