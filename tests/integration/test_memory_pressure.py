"""KIP-72 end to end: a small pool under many big requests, both bounds of the queue, and the three sensors."""

from pathlib import Path

import pytest

from bench.bench_memory_pressure import MIB, run
from tests.support.certificates import Certificates


@pytest.mark.slow
def test_memory_stays_within_the_pool_and_everyone_is_served(tmp_path: Path, soak: bool) -> None:
    """50 connections pushing 8 MiB at once: memory within pool + one request + idle + 10 %, all served, fairly."""
    connections = 200 if soak else 50
    outcome = run(connections, 3, 64 * MIB, tmp_path)
    assert outcome.failed == 0
    assert outcome.answered >= 3 * connections
    assert outcome.peak_rss < outcome.allowed_rss, str(outcome)
    assert outcome.ratio <= 3, str(outcome)


@pytest.mark.slow
def test_memory_stays_within_the_pool_over_tls(tmp_path: Path) -> None:
    """30 TLS connections pushing 4 MiB at once against 16 MiB: what waits inside TLS is small, and none is stuck."""
    outcome = run(30, 4, 16 * MIB, tmp_path, partitions=4, certificates=Certificates(tmp_path / "certificates"))
    assert outcome.failed == 0
    assert outcome.answered >= 120
    assert outcome.peak_rss < outcome.allowed_rss, str(outcome)
    assert outcome.ratio <= 3, str(outcome)
