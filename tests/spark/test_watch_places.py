"""`kbroker pipeline watch` on a cluster that shares only a store, which has the table, the log and the state."""

import os
import signal
from pathlib import Path

import pytest

from kbroker.spark.errors import LOST_PART
from kbroker.spark.tables.table_place import TablePlace
from kbroker.spark.tables.table_stream import PASSING
from kbroker.testing.waiting import wait_until
from tests.spark.processes import processes
from tests.spark.test_cluster_faults import PATIENCE_S, PHASES, Scene, scene
from tests.spark.watching import watch_two_runs
from tests.support import need
from tests.support.kafka.jars import Unavailable, classpath
from tests.support.object_store import as_words

__all__ = ["scene"]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
EXECUTOR = "CoarseGrainedExecutorBackend"
POM = Path(__file__).resolve().parents[1] / "support" / "java" / "s3a.pom.xml"


def test_executors_that_end_with_their_parts_of_a_batch(scene: Scene) -> None:
    """After executors are killed while they write, `watch` goes on; its state is in the store."""
    try:
        jars = classpath(pom=POM).replace(os.pathsep, ",")
    except Unavailable as error:
        need.lack(str(error))
    place = scene.place("watched")

    def kill() -> None:
        scene.store.fail(count=1, **PHASES["writing"])
        wait_until(lambda: scene.store.faults() > 0, PATIENCE_S)
        found = [pid for one in scene.cluster.workers for pid, name in processes(one.pid).items() if EXECUTOR in name]
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        assert found
        scene.store.heal()

    words = ("--checkpoint", "s3a://tables/watched/checkpoint", "--conf", f"spark.jars={jars}")
    said = watch_two_runs(scene.cluster.call("watch"), place, *words, between=kill)
    assert f"{PASSING[LOST_PART]}; trying again" in said
    assert place.listed("checkpoint/state/0/0"), "the state is not in the store"


def test_a_checkpoint_that_is_not_shared_is_refused(scene: Scene) -> None:
    """A folder of the driver is enough for the offsets of `ingest`; `watch` needs it for the executors' state."""
    place = TablePlace.of("s3://tables/refused", scene.behind.options)
    place.write("logs/requests-1.jsonl", b"")
    checkpoint = scene.folder / "refused"
    words = [place.file("views"), place.file("logs"), "--checkpoint", str(checkpoint), *as_words(scene.behind.options)]
    done = scene.cluster.run("watch", *words, "--quiet")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"has another {checkpoint} than this machine" in line
    assert not list(checkpoint.glob("*"))
