"""Both experiments of KIP-599, with the controller mutation quota on and off.

    python bench/neighbours/mutations.py [--topics 5000] [--rate 50] [--runs off,on] [--json FILE]

1. Topics of 4 partitions are created by 10 requests per second of 50 topics each.
2. All of them are deleted by one request.

The client acts as Java's Admin: topics refused with THROTTLING_QUOTA_EXCEEDED are repeated after the throttle time.
The program measures the time until everything is done (drain), and the latency of another client's Produce, 50 per
second. `plot.py` draws the file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.neighbours.common import Probe, p99, served, set_quota
from tests.support.client import Client, new_topics

REFUSED = 89
TOPICS_A_REQUEST, REQUESTS_A_SECOND, PARTITIONS = 50, 10, 4


class Storm:
    """Client that creates and deletes topics; ``progress`` has seconds since the start and completed partitions."""

    def __init__(self, bootstrap: str) -> None:
        self._client = Client(bootstrap, "storm", 600)
        self.start = time.perf_counter()
        self.progress: list[tuple[float, int]] = []
        self.refusals = 0

    def ask(self, name: str, version: int, topics: list[str], body: dict[str, Any], responses: str) -> list[str]:
        """Send one request; return the refused topics after the throttle time."""
        response = self._client.call(name, version, body)
        refused = []
        for row in response[responses]:
            if row["ErrorCode"] == REFUSED:
                refused.append(row["Name"])
            elif row["ErrorCode"] != 0:
                raise RuntimeError(f"{name}: {row}")
        done = (self.progress[-1][1] if self.progress else 0) + (len(topics) - len(refused)) * PARTITIONS
        self.progress.append((time.perf_counter() - self.start, done))
        if refused:
            self.refusals += 1
            time.sleep(response["ThrottleTimeMs"] / 1000)
        return refused

    def create(self, topics: list[str]) -> list[str]:
        body = {**new_topics(*topics, partitions=PARTITIONS), "timeoutMs": 600_000}
        return self.ask("CreateTopics", 6, topics, body, "Topics")

    def delete(self, topics: list[str]) -> list[str]:
        body = {"TopicNames": topics, "TimeoutMs": 600_000}
        return self.ask("DeleteTopics", 5, topics, body, "Responses")


def create_all(storm: Storm, topics: list[str]) -> None:
    """Create topics by at most 10 requests per second, refused ones before new ones."""
    waiting = [topics[at : at + TOPICS_A_REQUEST] for at in range(0, len(topics), TOPICS_A_REQUEST)]
    for number, request in enumerate(waiting):
        time.sleep(max(0.0, storm.start + number / REQUESTS_A_SECOND - time.perf_counter()))
        left = request
        while left:
            left = storm.create(left)


def delete_all(storm: Storm, topics: list[str]) -> None:
    left = topics
    while left:
        left = storm.delete(left)


def experiment(bootstrap: str, body: Any, topics: list[str]) -> dict[str, Any]:
    """Run one of the experiments beside another client."""
    storm = Storm(bootstrap)
    with Probe(bootstrap, pause_s=0.02) as probe, probe.beside() as latencies:
        storm.start = time.perf_counter()
        body(storm, topics)
        drain_s = time.perf_counter() - storm.start
    found = [latency for _, latency in latencies]
    return {
        "drain_s": drain_s,
        "refusals": storm.refusals,
        "median_ms": statistics.median(found),
        "p99_ms": p99(found),
        "max_ms": max(found),
        "latencies": [(round(at, 3), round(took, 3)) for at, took in latencies],
        "progress": [(round(at, 3), done) for at, done in storm.progress],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--runs", default="off,on", help="which to do; the file keeps what it has of the other")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    topics = [f"storm-{number}" for number in range(given.topics)]
    results: dict[str, Any] = {"runs": {}}
    if given.json and given.json.exists():
        results = json.loads(given.json.read_text())
    results |= {"topics": given.topics, "cores": os.cpu_count(), "python": platform.python_version()}
    for name in given.runs.split(","):
        rate = given.rate if name == "on" else None
        with served({}) as broker:
            if rate is not None:
                set_quota(broker.bootstrap, "storm", "controller_mutation_rate", rate)
            for kind, body in (("create", create_all), ("delete", delete_all)):
                if rate is not None:
                    time.sleep(11)  # the bucket is full again
                found = experiment(broker.bootstrap, body, topics)
                results["runs"][f"{kind} {name}"] = {"rate": rate, **found}
                print(
                    f"{kind}, quota {name}: drained in {found['drain_s']:.1f} s, {found['refusals']} refusals; another "
                    f"client median {found['median_ms']:.2f} ms, p99 {found['p99_ms']:.1f} ms, "
                    f"most {found['max_ms']:.0f} ms",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
