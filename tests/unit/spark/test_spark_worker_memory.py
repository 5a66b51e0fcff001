"""Garbage collections skip the modules that a Spark worker has loaded; other processes are unchanged."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kbroker.spark.setup import worker_memory


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_memory, "_is_done", False)
    gc.unfreeze()  # the modules of other tests
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("fresh")
def test_once_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of the first call are frozen; later objects are collected as usual."""
    monkeypatch.setattr(worker_memory, "is_spark_worker", lambda: True)
    worker_memory.freeze_modules()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    later = [object() for _ in range(3)]
    later.append(later)
    worker_memory.freeze_modules()
    assert gc.get_freeze_count() <= frozen
    assert any(one is later for one in gc.get_objects())


@pytest.mark.usefixtures("fresh")
def test_never_elsewhere() -> None:
    before = gc.get_freeze_count()
    worker_memory.freeze_modules()
    assert gc.get_freeze_count() == before


def test_a_worker_is_known_by_its_daemon() -> None:
    """The main module of a process started as `python -m pyspark.daemon` identifies a worker."""
    program = (
        "import sys, importlib.machinery as m\n"
        "sys.modules['__main__'].__spec__ = m.ModuleSpec('pyspark.daemon', None)\n"
        "from kbroker.spark.setup.worker_memory import is_spark_worker\n"
        "print(is_spark_worker())"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "True\n"
    )
