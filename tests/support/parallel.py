"""Tests on several workers of pytest-xdist: the groups of tests that one worker runs, and tests that run alone.

A worker receives one group at a time. Files that compare times are one group, the first, and hold a lock of the run
against all other tests. Tests of Spark share two sessions and therefore form two groups; tests that share an Apache
Kafka broker are one group, tests of a cluster of Apache Kafka and tests in a browser are others; every other file is a
group. (The marks of xdist for groups cannot be used: they are added to node ids, which pytest 9.2 no longer allows.)
"""

import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

try:
    import fcntl
except ImportError:  # Windows: the suite runs on one worker there
    fcntl = None  # type: ignore[assignment]

# These files compare times that other tests would lengthen: no other test runs meanwhile.
ALONE = (
    *("test_group_scale.py", "test_load_generator.py", "test_quota_flood.py", "test_quota_neighbours.py"),
    *("test_start_size.py", "test_timer_promises.py"),
)
ALONE_FIRST_S = 20.0
# In tests/integration: folders that share an Apache Kafka broker or cluster, and a file that starts its own.
FOREIGN = {"cluster": "kafka-cluster", "against_kafka": "kafka", "test_kafka_launcher.py": "kafka"}
# In tests/spark: these start Spark in other processes or do not need Spark.
SPARK_PROCESSES = (
    *("test_arrow_log.py", "test_cluster.py", "test_cluster_faults.py", "test_connect.py"),
    *("test_full_disks.py", "test_progress.py", "test_replay_core.py", "test_report_words.py", "test_s3_checkpoint.py"),
    *("test_session_checks.py", "test_start.py", "test_store_faults.py", "test_table_commits.py", "test_time_parts.py"),
    "test_two_ingests.py",
)
# Of the other files, these read and write topics; the rest are about tables.
SPARK_TOPICS = ("test_connector_", "test_internal_topics", "test_kafka_clusters", "test_sink_", "test_source_")


def group_of(nodeid: str) -> str:
    """Return the group of a test by its file, relative to the root of the project."""
    path = PurePosixPath(nodeid.partition("::")[0])
    if path.name in ALONE:
        return "alone"
    if path.parts[:2] == ("tests", "spark") and path.name not in SPARK_PROCESSES:
        return "spark-topics" if path.name.startswith(SPARK_TOPICS) else "spark-tables"
    if path.parts[:2] == ("tests", "browser"):
        return "browser"
    if path.parts[:2] == ("tests", "integration"):
        return FOREIGN.get(path.parts[2], str(path))
    return str(path)


class Groups(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Scheduler of pytest-xdist that assigns groups to workers."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Remove a worker, and assign its other tests to other workers; return the test in which it ended, or None.

        xdist itself would repeat that test on up to four new workers for each initial worker, each time up to the time
        limit. It would also assign groups whose tests are all done, and wait for them forever.
        """
        groups = self.assigned_work[node]
        ended_in: str | None = next((t for tests in groups.values() for t, done in tests.items() if not done), None)
        for group, tests in list(groups.items()):
            tests.update({t: True for t in tests if t == ended_in})
            if all(tests.values()):
                del groups[group]
        super().remove_node(node)
        return ended_in


def sort(items: list[pytest.Item]) -> None:
    """Sort the slowest groups first; the order within a group stays."""
    order = {"alone": 0, "spark-tables": 1, "spark-topics": 1, "kafka": 3, "kafka-cluster": 3}
    slow = {group_of(item.nodeid) for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> tuple[int, str]:
        group = group_of(item.nodeid)
        if group.startswith("tests/spark/"):
            return 2, group
        return order.get(group, 4 if group in slow else 5), group

    items.sort(key=place)


class Turns:
    """Locks of one run. Every test passes ``gate``, so that tests which run alone are not overtaken forever.

    Args:
        folder: of the run; workers with the same folder share the locks.

    Attributes:
        alone_first_s: maximum time for which the first test of this worker waits until one that runs alone has begun.
            A long first test, such as that of Spark, which starts a JVM, would delay that one and all other workers.
    """

    def __init__(self, folder: Path) -> None:
        self._gate = (folder / "turns.gate").open("w")
        self._room = (folder / "turns.room").open("w")
        self._begun = folder / "turns.begun"
        self._alone = False
        self.alone_first_s = 0.0

    def close(self) -> None:
        """Release the locks."""
        self._gate.close()
        self._room.close()

    def enter(self, alone: bool) -> None:
        """Wait for the turn of a test."""
        if self._alone:
            if alone:
                return
            self._leave()
        if not alone:
            self._let_alone_first()
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        self._alone = alone
        if alone:
            self._begun.touch()

    def end(self, stay: bool) -> None:
        """End the turn of a test; keep the lock if ``stay``, because the next test here runs alone too."""
        if not (self._alone and stay):
            self._leave()

    def _let_alone_first(self) -> None:
        until = time.monotonic() + self.alone_first_s
        while not self._begun.exists() and time.monotonic() < until:
            time.sleep(0.02)
        self.alone_first_s = 0.0

    def _leave(self) -> None:
        fcntl.flock(self._room, fcntl.LOCK_UN)
        self._alone = False


class TakeTurns:
    """Plugin of pytest in which each test waits for its turn; the wait is not part of the test's time limit."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note whether this run has tests that run alone, which are assigned to some worker first."""
        if any(group_of(item.nodeid) == "alone" for item in session.items):
            self._turns.alone_first_s = ALONE_FIRST_S

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        self._turns.enter(group_of(item.nodeid) == "alone")
        try:
            return (yield)
        finally:
            self._turns.end(nextitem is not None and group_of(nextitem.nodeid) == "alone")


def apply(config: pytest.Config) -> None:
    """Register the turns if this is a worker of pytest-xdist."""
    if hasattr(config, "workerinput") and fcntl is not None:
        factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
        turns = Turns(factory.getbasetemp().parent)  # the workers of a run share this folder
        config.add_cleanup(turns.close)
        config.pluginmanager.register(TakeTurns(turns), "kbroker-turns")
