"""Each command in one place where Spark can run and its data can be stored, and in the soak in all such places.

Another combination, a store and a cluster that shares nothing else with its driver, is in `test_cluster.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from click.testing import Result

from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.spark.tables.table_place import TablePlace
from kbroker.testing import EmbeddedBroker
from tests.spark.connect_server import connect_server
from tests.spark.day import make_day
from tests.spark.matrix import ALONE, CONNECT, DISK, HDFS, HERE, PLACES, SHARED, STORES, Cell, run_commands, table
from tests.spark.source_support import create
from tests.spark.standalone import Standalone
from tests.support import need
from tests.support.hdfs import Hdfs
from tests.support.object_store import ObjectStore

ROWS = 400
PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipeline-cluster.md"


class World:
    """Stores, clusters and a broker, each started at its first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._made: dict[str, object] = {}
        self._folders = 0
        self.private = folder / "private"  # the driver's own: workers of ALONE have empty folders there
        self.private.mkdir()
        (folder / "shared").mkdir()

    def _once(self, name: str, make: Callable[[], object]) -> object:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def base(self, place: str, store: str) -> TablePlace:
        """Return a new folder of a store."""
        self._folders += 1
        name = f"{self._folders}-{place}".replace(" ", "-").lower()
        if store == DISK:
            return TablePlace.of((self.private if place == ALONE else self._folder / "shared") / name)
        if store == HDFS:
            hdfs = self._once(store, lambda: self._open.enter_context(closing(Hdfs(self._folder / "hdfs"))))
            assert isinstance(hdfs, Hdfs)
            return TablePlace.of(f"{hdfs.uri}/{name}")
        s3 = self._once(store, lambda: self._open.enter_context(closing(ObjectStore())))
        assert isinstance(s3, ObjectStore)
        return TablePlace.of(f"s3://tables/{name}", s3.options)

    def spark(self, place: str) -> list[str]:
        """Return the words for a command that uses Spark."""
        if place == HERE:
            return ["--master", "local[2]"]
        if place == CONNECT:
            (self._folder / "server").mkdir(exist_ok=True)
            server = connect_server(self._folder / "server", compiled=True)
            return ["--remote", str(self._once(place, lambda: self._open.enter_context(server)))]
        cluster = self._once(place, lambda: self._cluster(None if place == SHARED else self.private))
        assert isinstance(cluster, Standalone)
        return cluster.options

    def _cluster(self, hidden: Path | None) -> Standalone:
        found = self._open.enter_context(closing(Standalone(self._folder / f"cluster-{len(self._made)}")))
        for _ in range(2):
            found.add_worker(hidden)
        return found

    def broker(self) -> EmbeddedBroker:
        """Return a broker with a topic of a hundred records."""

        def make() -> EmbeddedBroker:
            broker = self._open.enter_context(EmbeddedBroker({"log.retention.ms": -1}))
            with Cluster(broker.bootstrap_servers) as cluster:
                create(cluster, "t")
                with Producer(cluster) as producer:
                    for number in range(100):
                        producer.send("t", b"%d" % number, timestamp_ms=1_000_000 + number)
            return broker

        found = self._once("broker", make)
        assert isinstance(found, EmbeddedBroker)
        return found

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    need.spark()
    found = World(tmp_path_factory.mktemp("world"))
    yield found
    found.close()


def cell(world: World, place: str, store: str, lines: Sequence[str]) -> Cell:
    base = world.base(place, store)
    made = Cell(
        place, store, base, world.private / f"driver-{base.uri.rpartition('/')[2]}",
        world.spark(place), world.broker().bootstrap_servers, "t", len(lines),
    )  # fmt: skip
    made.prepare(lines)
    return made


@pytest.mark.slow
def test_a_store_in_which_spark_keeps_offsets(world: World, command: Callable[..., Result]) -> None:
    """Logs, tables and results are in HDFS, for the commands that reach it in different ways."""
    made = cell(world, HERE, HDFS, make_day(1_000).lines_before(2))
    found = {}
    for name in ("ingest", "compact"):
        done = command("pipeline", *made.words()[name])
        found[name] = {"status": done.exit_code, "out": done.stdout, "err": done.stderr}
    made.judge(found)


@pytest.mark.soak
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("place", PLACES)
def test_every_command(world: World, place: str, store: str) -> None:
    """A command that works has its result, and any other is refused in one sentence."""
    made = cell(world, place, store, list(make_day(ROWS).lines()))
    found, _ = run_commands(made.words())
    made.judge(found)


def test_the_page_says_so() -> None:
    """The table of the documentation is the tested one."""
    assert table() in PAGE.read_text(encoding="utf-8")
