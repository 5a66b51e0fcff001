"""Kafka's purgatory under the workload of the purgatory study: the same random requests, each completed once."""

import json
import subprocess
from typing import Any

import pytest

from bench.purgatory.build import native
from bench.purgatory.run import kafka_command
from tests.support import need
from tests.support.broker import run_to_end

pytestmark = pytest.mark.slow


def run(*options: str) -> dict[str, Any]:
    need.program("java", "javac", "mvn")
    output = run_to_end([*kafka_command(), *options], seconds=200)
    found: dict[str, Any] = json.loads(output)
    return found


@pytest.mark.parametrize(("mix", "p50", "p75"), [("low", 20.0, 60.0), ("high", 200.0, 400.0)])
@pytest.mark.parametrize("seed", [1, 7])
def test_both_programs_draw_the_same_requests(mix: str, p50: float, p75: float, seed: int) -> None:
    due_ms, latency_ms, _ = native("workload").drawn(20_000, 5000.0, p50, p75, seed=seed, show=20_000)
    theirs = run("--show", "20000", "--rate", "5000", "--mix", mix, "--seed", str(seed))
    assert theirs == {"due_ms": due_ms, "latency_ms": latency_ms}


def test_every_request_ends_once() -> None:
    """At a moderate rate, the share of expired requests is the share drawn beyond the timeout."""
    found = run("--n", "20000", "--rate", "5000", "--mix", "high", "--warmup", "5000")
    assert found["immediate"] + found["completed"] + found["expired"] == 20_000
    assert found["drawn_to_complete"] == native("workload").drawn(20_000, 5000.0, 200.0, 400.0, show=1)[2]
    assert abs(found["expired"] - found["expired_though_due"] - (20_000 - found["drawn_to_complete"])) <= 2
    assert found["expiry_late_ms"]["min"] >= -1.0
    bare = run("--n", "20000", "--bare")
    assert bare["completed"] == bare["drawn_to_complete"]
    assert bare["expired"] == 0


def test_wrong_options_are_refused() -> None:
    need.program("java", "javac", "mvn")
    for options in (["--rate", "-1"], ["--mix", "middle"], ["--n"], ["--nothing", "1"]):
        done = subprocess.run([*kafka_command(), *options], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("KafkaPurgatory: ")
