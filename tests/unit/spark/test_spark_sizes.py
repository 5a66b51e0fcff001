"""Numbers of tasks by the size of the cluster and the amount of work."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.spark.session_kind import parallelism
from kbroker.spark.tables.table import _tasks
from kbroker.spark.whatif.group import _is_mine, _shares
from kbroker.spark.whatif.read import Client


def session(cores: int, **settings: str) -> Any:
    """Return a fake session of a cluster with this number of cores."""
    known = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    conf = SimpleNamespace(get=lambda name, default=None: known.get(name, default))
    return SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(defaultParallelism=cores))


def test_the_cores_of_the_cluster_count() -> None:
    """Parallelism is an explicit setting, or the registered cores, or the maximum of dynamic allocation."""
    assert parallelism(session(48)) == 48
    assert parallelism(session(48, task_cpus="4")) == 12
    assert parallelism(session(48, default_parallelism="7")) == 7
    on_demand = {"dynamicAllocation_enabled": "true", "executor_cores": "4"}
    assert parallelism(session(2, **on_demand)) == 2
    assert parallelism(session(2, **on_demand, dynamicAllocation_maxExecutors="10")) == 40
    assert parallelism(session(2, **on_demand, dynamicAllocation_maxExecutors="2147483647")) == 2
    assert parallelism(session(1, task_cpus="2")) == 1


@pytest.mark.parametrize(
    ("before", "slots", "tasks"),
    [
        ({}, 2, 4),  # a first batch may have rows of many hours
        ({}, 100, 192),
        ({0: 10}, 2, 4),
        ({0: 10}, 100, 8),  # a small batch uses at most one task for each bucket
        ({0: 3_000_000, 1: 2_000_000}, 100, 100),
        ({0: 3_000_000, 1: 2_000_000}, 20, 40),
    ],
)
def test_a_batch_is_written_by_as_many_tasks_as_it_is_worth(before: dict[int, int], slots: int, tasks: int) -> None:
    assert _tasks(before, 8, slots, 50_000) == tasks


def test_a_bucket_is_shared_out_where_there_are_cores() -> None:
    """Only large buckets are shared, and only while cores are free, because each share reads its whole bucket."""

    def shares(slots: int, *rows: int) -> list[int]:
        return list(_shares(dict(enumerate(rows)), slots).values())

    assert shares(2, *[400_000] * 8) == [1] * 8
    assert shares(2, *[400_000_000] * 8) == [1] * 8
    assert shares(32, *[400_000] * 8) == [8] * 8
    assert shares(32, 400_000, 60_000) == [8, 1]


def test_each_client_is_in_one_share() -> None:
    """A counter in several buckets is in no share."""
    clients: list[Client] = [(f"User:{number}", "c") for number in range(50)]
    spread = {clients[2]: 0}
    homes = {client: [part for part in range(4) if _is_mine(spread, part, 4, client)] for client in clients}
    assert homes.pop(clients[2]) == []
    assert all(len(parts) == 1 for parts in homes.values())
    assert {parts[0] for parts in homes.values()} == {0, 1, 2, 3}
