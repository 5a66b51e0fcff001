"""Memory pool (KIP-72) smaller than the requests of all connections: memory is bounded and all are served."""

from pathlib import Path

import pytest

from bench.bench_memory_pressure import MIB, run
from tests.support.certificates import Certificates


@pytest.mark.slow
def test_memory_stays_within_the_pool_and_everyone_is_served(tmp_path: Path, soak: bool) -> None:
    """50 connections that push 8 MiB each are served evenly within the memory of the pool."""
    connections = 200 if soak else 50
    outcome = run(connections, 3, 64 * MIB, tmp_path)
    assert outcome.failed == 0
    assert outcome.answered >= 3 * connections
    assert outcome.peak_rss < outcome.allowed_rss, str(outcome)
    assert outcome.ratio <= 3, str(outcome)


@pytest.mark.slow
def test_memory_stays_within_the_pool_over_tls(tmp_path: Path) -> None:
    """30 TLS connections that push 4 MiB each are served evenly within the memory of the pool."""
    outcome = run(30, 4, 16 * MIB, tmp_path, partitions=4, certificates=Certificates(tmp_path / "certificates"))
    assert outcome.failed == 0
    assert outcome.answered >= 120
    assert outcome.peak_rss < outcome.allowed_rss, str(outcome)
    assert outcome.ratio <= 3, str(outcome)
