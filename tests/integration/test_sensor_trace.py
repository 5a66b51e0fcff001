"""Random scripts through our sensors and through Apache Kafka's own classes: every number equal to the last bit."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import need
from tests.support.sensor_random import random_script
from tests.support.sensor_script import SensorScript, java_double

NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.\d+(?:E-?\d+)?|Infinity)(?![\w.])")


def trace(*args: str, text: str | None = None) -> str:
    """Run the tool; its standard output."""
    tool = need.oracle("tools/sensor_trace.sh")
    need.program("java")
    done = subprocess.run(
        [str(tool), *args], input=text, capture_output=True, text=True, timeout=1800, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def as_ours(line: str) -> str:
    """Kafka's line with its doubles written as ours are; both texts read back to the same 64 bits."""
    return NUMBER.sub(lambda m: java_double(float(m.group().replace("Infinity", "inf"))), line)


def test_rows_of_the_vector_file() -> None:
    """Every row of the shared vector script gives what Kafka's classes give, and what it expects."""
    script = need.oracle("tools/sensor_trace_vectors.txt")
    theirs = [line.partition(" ")[2] for line in trace("vectors").splitlines() if not line.startswith("sensor-trace:")]
    ours = [f"{line} -> {result}" for line, result, _ in SensorScript().run(script.read_text().splitlines())]
    assert len(ours) > 500
    assert ours == [as_ours(line) for line in theirs]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_scripts_are_the_tools(seed: int) -> None:
    """Our generator makes the script that the tool makes of the same seed."""
    theirs = [as_ours(line) for line in trace("random", str(seed)).splitlines() if not line.startswith("#")]
    assert [as_ours(line) for line in random_script(seed)] == theirs


def compare(seeds: range, folder: Path) -> int:
    """Hold our results of the scripts of these seeds against Kafka's; return how many lines there were."""
    lines = []
    for seed in seeds:
        lines += ["reset", f"# seed {seed}", *random_script(seed)]
    script = folder / "scripts.txt"
    script.write_text("\n".join(lines) + "\n")
    theirs = trace("run", str(script)).splitlines()
    ours = SensorScript().run(lines)
    seen = 0
    for their, (line, result, _) in zip(theirs, ours, strict=True):
        number, _, their_line = their.partition(" ")
        our_line = f"{line} -> {result}"
        if our_line != their_line and our_line != as_ours(their_line):
            before = lines[: int(number)]
            start = max(i for i, text in enumerate(before) if text == "reset")
            pytest.fail(f"{lines[start + 1]}\nKafka: {their_line}\nours:  {our_line}")
        seen += 1
    return seen


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_scripts(tmp_path: Path) -> None:
    """A thousand random scripts give the same bits as Kafka's classes, errors, delays and rings of samples included."""
    assert compare(range(1, 1001), tmp_path) > 200_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_random_scripts(tmp_path: Path) -> None:
    """Ten thousand random scripts give the same bits as Kafka's classes."""
    for first in range(10_001, 20_001, 1000):
        assert compare(range(first, first + 1000), tmp_path) > 200_000
