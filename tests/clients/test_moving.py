"""Every client follows moving leaders and coordinators without lost or duplicate records; see moving.py.

All clients run against one cluster at the same time, so that each move concerns several of them.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kbroker.testing import EmbeddedCluster, wait_until
from tests.clients.moving import PACE_S, PARTITIONS
from tests.clients.programs import go_program, java_program, node_folder

PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "librdkafka": lambda: [sys.executable, "-m", "tests.clients.moving_python", "librdkafka"],
    "kafka-python": lambda: [sys.executable, "-m", "tests.clients.moving_python", "kafka-python"],
    "Java": lambda: java_program("Moving"),
    "franz-go": lambda: [str(go_program())],
    "sarama": lambda: [str(go_program("sarama"))],
    "platformatic": lambda: ["node", str(node_folder() / "moving.mjs")],
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program that is killed at the end of the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def move(cluster: EmbeddedCluster, topics: list[str], rng: random.Random) -> None:
    """Move the leader of one partition of each topic, and sometimes the coordinator of its group."""
    for topic in topics:
        cluster.move_leader(topic, rng.randrange(PARTITIONS), rng.choice(cluster.live))
        if rng.random() < 0.2:
            cluster.move_coordinator(topic, rng.choice(cluster.live))


def judge(cluster: EmbeddedCluster, name: str, count: int, output: tuple[str, str], status: int) -> None:
    """Assert that a client has sent and read each record, and that the log has each record once and in order."""
    assert status == 0, f"{name}: {output[1][-3000:]}"
    found: dict[str, Any] = json.loads(output[0].splitlines()[-1])
    assert (found["acked"], found["failed"], found["read"]) == (count, [], count), name
    for index in range(PARTITIONS):
        values = [int(record.value or b"") for record in cluster.records(name, index)]
        assert values == list(range(index, count, PARTITIONS)), f"{name}-{index}"


def follow(names: list[str], moves: int) -> None:
    """Run clients during `moves` moves of the leaders of each client's topic.

    On a busy machine, a client that waits for each acknowledgement takes several times as long as the moves.
    """
    rng = random.Random(11)
    seconds = moves * 0.1
    count = int(seconds / PACE_S)
    commands = {name: PROGRAMS[name]() for name in names}
    with EmbeddedCluster(3, {"offsets.topic.num.partitions": 5}) as cluster:
        running = {}
        blocks = []
        for name, command in commands.items():
            cluster.create_topic(name, PARTITIONS)
            verb = ["moving"] if name == "franz-go" else []
            block = started([*command, cluster.bootstrap, *verb, name, str(count)])
            running[name] = block.__enter__()
            blocks.append(block)
        try:
            wait_until(lambda: all(cluster.records(name) for name in names), 60, "the first records of all clients")
            for _ in range(moves):
                move(cluster, names, rng)
                time.sleep(0.1)
            end = time.monotonic() + 120 + 4 * seconds
            for name, process in running.items():
                output = process.communicate(timeout=end - time.monotonic())
                judge(cluster, name, count, output, process.returncode)
                assert max(cluster.partition(name, index).leader_epoch for index in range(PARTITIONS)) > moves // 9
        finally:
            for block in blocks:
                block.__exit__(None, None, None)


def test_moves() -> None:
    """All clients follow 30 moves in one cluster."""
    follow(list(PROGRAMS), 30)


@pytest.mark.soak
def test_a_thousand_moves() -> None:
    """All clients follow moves for 100 seconds."""
    follow(list(PROGRAMS), 1000)
