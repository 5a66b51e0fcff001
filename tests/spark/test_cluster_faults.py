"""Processes that are killed in a phase of a batch, on a cluster that shares only a store with its driver."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.spark.tables.table_place import TablePlace
from kbroker.testing.waiting import wait_until
from tests.spark.day import make_day
from tests.spark.processes import processes
from tests.spark.row_keys import keys_in, keys_of
from tests.spark.source_support import create
from tests.spark.standalone import ROOT, Standalone, environment
from tests.support import need
from tests.support.broker import BrokerProcess
from tests.support.object_store import FaultyStore, ObjectStore, as_words

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
ROWS = 300
COMPACTING = "before the checkpoint"  # in the second of two batches, when hours have two files to compact
#: The request of each phase of a batch that the store delays while a process is killed.
PHASES: dict[str, dict[str, Any]] = {
    "reading": {"kinds": ["hold"], "method": "GET", "path": r"/logs/"},
    "writing": {"kinds": ["hold"], "method": "PUT", "path": r"/batch-\d+-\w+\.parquet"},
    "before the commit": {"kinds": ["hold"], "method": "PUT", "path": r"_delta_log/0*[1-9]\d*\.json"},
    "after the commit": {"kinds": ["hold after"], "method": "PUT", "path": r"_delta_log/0*[1-9]\d*\.json"},
    COMPACTING: {"kinds": ["hold"], "method": "PUT", "path": r"/compacted-\w+\.parquet"},
}
PATIENCE_S = 900


@dataclass
class Scene:
    """Cluster of two workers, and a store with faults in front of it."""

    cluster: Standalone
    store: FaultyStore
    behind: ObjectStore
    folder: Path

    def place(self, name: str) -> TablePlace:
        return TablePlace.of(f"s3://tables/{name}", self.store.options)

    def put_log(self, name: str, lines: Sequence[str], files: int = 1) -> int:
        """Write files with lines of all hours; return the bytes per batch with which a batch is about one file."""
        texts = [("\n".join(lines[number::files]) + "\n").encode() for number in range(files)]
        for number, text in enumerate(texts):
            self.behind.put(f"{name}/logs/requests-{number + 1}.jsonl", text)
        return max(map(len, texts))

    def start(self, name: str, *source: str) -> subprocess.Popen[str]:
        words = ["ingest", self.place(name).file("table"), *(source or [self.place(name).file("logs")])]
        more = ["--buckets", "2", "--json", "--checkpoint", str(self.folder / name), *as_words(self.store.options)]
        call = self.cluster.call(*words, *more)
        return subprocess.Popen(
            call, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def finish(self, name: str, process: subprocess.Popen[str], *source: str) -> None:
        """Wait for a run; if it failed, its error is one sentence, and a second run succeeds."""
        out, said = process.communicate(timeout=PATIENCE_S)
        print(name, process.returncode, out, said)
        if process.returncode:
            failed = [line for line in said.splitlines() if line.startswith("kbroker: ")]
            assert process.returncode < 0 or len(failed) == 1, said
            again = self.start(name, *source)
            out, said = again.communicate(timeout=PATIENCE_S)
            assert again.returncode == 0, said

    def rows(self, name: str) -> Counter[tuple[Any, ...]]:
        return keys_in(self.place(name).within("table"))

    def wait_for_the_fault(self, process: subprocess.Popen[str]) -> None:
        def met() -> bool:
            assert process.poll() is None, process.communicate()
            return self.store.faults() > 0

        wait_until(met, PATIENCE_S)


def kill_executor(scene: Scene) -> None:
    """Kill one executor, with its Python workers."""
    for worker in scene.cluster.workers:
        for pid, command in processes(worker.pid).items():
            if "CoarseGrainedExecutorBackend" in command:
                os.kill(pid, signal.SIGKILL)
                return
    raise AssertionError("there is no executor")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    need.spark()
    folder = tmp_path_factory.mktemp("scene")
    private = folder / "private"
    private.mkdir()
    with ExitStack() as stack:
        behind = stack.enter_context(closing(ObjectStore()))
        store = stack.enter_context(closing(FaultyStore(behind)))
        cluster = stack.enter_context(closing(Standalone(folder / "cluster")))
        for _ in range(2):
            cluster.add_worker(hidden=private)
        yield Scene(cluster, store, behind, private)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", ["executor", "worker", "driver", "store"])
def test_what_dies(scene: Scene, victim: str, phase: str) -> None:
    name = f"{victim}-{phase}".replace(" ", "-")
    day = make_day(ROWS)
    batch_bytes = scene.put_log(name, list(day.lines()), files=2 if phase == COMPACTING else 1)
    source = (scene.place(name).file("logs"), "--max-per-batch", str(batch_bytes))
    scene.store.fail(count=1, **PHASES[phase])
    process = scene.start(name, *source)
    scene.wait_for_the_fault(process)
    if victim == "executor":
        kill_executor(scene)
    elif victim == "worker":
        scene.cluster.kill_worker(0)
    elif victim == "driver":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        scene.store.kill()
        scene.store.start()
    scene.store.heal()
    if victim == "worker":
        scene.cluster.add_worker(hidden=scene.folder)
    scene.finish(name, process, *source)
    assert scene.rows(name) == keys_of(day.rows)


@pytest.mark.parametrize("phase", list(PHASES)[1:])
def test_the_broker_dies(scene: Scene, phase: str, tmp_path: Path) -> None:
    """The log is a topic, whose broker is killed and restarted in each phase."""
    name = f"broker-{phase}".replace(" ", "-")
    day = make_day(ROWS)
    broker = BrokerProcess(tmp_path / "broker", {"log.retention.ms": "-1"})
    broker.start()
    try:
        with Cluster(broker.bootstrap) as cluster:
            create(cluster, "log")
            with Producer(cluster) as producer:
                lines = list(day.lines())
                for line in [*lines[::2], *lines[1::2]]:
                    producer.send("log", line.encode(), timestamp_ms=1_000_000)
        more = ("--max-per-batch", str(ROWS // 2)) if phase == COMPACTING else ()
        source = ("--topic", "log", "--bootstrap-server", broker.bootstrap, *more)
        scene.store.fail(count=1, **PHASES[phase])
        process = scene.start(name, *source)
        scene.wait_for_the_fault(process)
        broker.kill()
        broker.start()
        scene.store.heal()
        scene.finish(name, process, *source)
    finally:
        broker.stop()
    assert sum(scene.rows(name).values()) == ROWS
    assert max(scene.rows(name).values()) == 1


@pytest.mark.parametrize(
    "rule",
    [
        {"kinds": ["503"], "share": 0.3},
        {"kinds": ["500", "reset", "lost"], "share": 0.2},
        {"kinds": ["503"], "seconds": 20},
        {"kinds": ["hang"], "share": 0.02, "hang_s": 40},
    ],
    ids=["slow down", "errors", "down for 20 s", "silence"],
)
def test_a_store_that_fails(scene: Scene, rule: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """The job completes although some requests fail all the time, or all requests for a while."""
    name = request.node.callspec.id.replace(" ", "-")
    day = make_day(ROWS)
    scene.put_log(name, list(day.lines()))
    if "seconds" in rule:
        scene.store.fail(count=1, **PHASES["writing"])
    else:
        scene.store.fail(**rule)
    process = scene.start(name)
    if "seconds" in rule:
        scene.wait_for_the_fault(process)
        scene.store.fail(**rule)
    scene.finish(name, process)
    print(scene.store.heal())
    assert scene.rows(name) == keys_of(day.rows)
    assert process.returncode == 0
