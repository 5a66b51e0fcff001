"""Requests per CPU second of a replay: an hour of a hundred clients, as an Arrow table, under two sets of quotas.

Accepted (two cores, Linux, CPython 3.11): at least 1,000,000 requests per CPU second. All steps of a request are
counted: look-up of its client and counter, computation of its values, sorting, sensors, and delays.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kbroker.common.quotas import QuotaEntity
from kbroker.spark.whatif.feed import Replay
from kbroker.spark.whatif.quota_set import QuotaSet

REQUESTS, CLIENTS, ACCEPTED = 1_000_000, 100, 1_000_000
SETS = {
    "bytes of each client": {QuotaEntity.of({"user": None, "client-id": None}): {"producer_byte_rate": 20_000.0}},
    "bytes of users": {QuotaEntity.of({"user": None}): {"producer_byte_rate": 200_000.0}},
}


def hour() -> pa.Table:
    """Return rows in the order of a table's file: by client, then by time."""
    rng = np.random.default_rng(1)
    who = np.sort(rng.integers(0, CLIENTS, REQUESTS))
    counts = np.bincount(who, minlength=CLIENTS)
    times = np.concatenate([np.sort(rng.integers(0, 3_600_000_000, count)) for count in counts])
    place = pa.array(who)
    return pa.table(
        {
            "time": pa.array(1_767_312_000_000_000 + times, pa.timestamp("us", "UTC")),
            "sequence": np.arange(REQUESTS),
            "api_key": np.zeros(REQUESTS, np.int16),
            "principal": pa.array([f"User:u{i % 10}" for i in range(CLIENTS)]).take(place),
            "client_id": pa.array([f"c{i}" for i in range(CLIENTS)]).take(place),
            "request_bytes": rng.integers(100, 10_000, REQUESTS),
            "response_bytes": rng.integers(30, 40, REQUESTS),
            "local_time_us": rng.integers(10, 400, REQUESTS),
            "throttle_time_ms": np.zeros(REQUESTS, np.int32),
        }
    )


@pytest.mark.parametrize("name", SETS)
def bench_replay(benchmark: Any, name: str) -> None:
    """Replay whole requests, whose values are computed from sizes."""
    table, used = hour(), []

    def run() -> int:
        started = time.process_time()
        outcome = Replay(QuotaSet(SETS[name])).feed(table)
        used.append(time.process_time() - started)
        return int((outcome.served_ms > 0).sum())

    delayed = benchmark.pedantic(run, rounds=5)
    assert delayed >= 0
    per_second = REQUESTS / min(used)
    benchmark.extra_info["requests_per_cpu_second"] = round(per_second)
    assert per_second >= ACCEPTED
