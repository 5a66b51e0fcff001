"""Commands through a Spark Connect server, without a JVM in the client."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kbroker.cli import cli
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.common.request_log import VERSION
from kbroker.spark.tables.delta_table import REQUEST_LOG, Table, TableInfo
from kbroker.spark.tables.log_schema import spark_schema
from kbroker.spark.tables.table_place import TablePlace
from tests.spark.committing import BUCKETS, placed, two_hours, write
from tests.spark.connect_server import connect_server
from tests.spark.day import make_day
from tests.spark.executor_pythons import packed, python_without
from tests.spark.source_support import create
from tests.spark.standalone import environment
from tests.spark.watching import watch_two_runs
from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("server")) as url:
        yield url


def remotely(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the pipeline without Java."""
    call = [sys.executable, "-m", "kbroker", "pipeline", *map(str, words)]
    given = {**environment(), "JAVA_HOME": "/nowhere"}
    return subprocess.run(call, env=given, capture_output=True, text=True, check=False)


QUOTAS = "- entity: {user: null, client-id: null}\n  quotas: {producer_byte_rate: 3000, request_percentage: 1}\n"


def test_ingest(url: str, tmp_path: Path) -> None:
    """Rows are ingested once, over two runs; the client's process writes each batch."""
    lines = make_day(1_000).lines_before(2)
    log, table = tmp_path / "requests-1.jsonl", tmp_path / "table"
    log.write_text("\n".join([*lines[:40], "no record"]) + "\n")
    done = remotely("ingest", table, log, "--remote", url, "--buckets", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["run"]["rows"], found["run"]["rejected"], found["table"]["rows"]) == (40, 1, 40)
    assert "batch 0: 40 rows" in done.stderr
    with log.open("a") as opened:
        opened.write("\n".join(lines[40:]) + "\n")
    done = remotely("ingest", table, log, "--remote", url, "--quiet", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["run"]["rows"], found["table"]["rows"]) == (len(lines) - 40, len(lines))


#: A batch offered in one session of a server and taken in another, since Spark 4.3 runs `foreachBatch` in a clone.
OFFERED_ELSEWHERE = """
import sys
from pyspark.sql import SparkSession
from kbroker.spark import micro_batches
client, server = (SparkSession.builder.remote(sys.argv[1]).create() for _ in range(2))
notes, taken = micro_batches._Notes("kbroker_test", "global_temp"), []
taker = micro_batches._Client(client, notes, lambda batch, number: taken.append((number, batch.count())))
for number, rows in ((3, 7), (4, 0)):
    micro_batches._offer(notes, server.range(rows), number)
taker.close()
print(taken, [one.name for one in client.catalog.listTables("global_temp")])
for session in (client, server):
    session.stop()  # threads of a session would keep the process
"""


def test_a_batch_is_taken_in_another_session(url: str) -> None:
    """Two sessions share no settings and temporary views, and no view is left on the server."""
    call = [sys.executable, "-c", OFFERED_ELSEWHERE, url]
    done = subprocess.run(call, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "[(3, 7), (4, 0)] []\n"), done.stderr


def numbers(text: str) -> Any:
    """Parse JSON with numbers rounded to the precision of a sum in any order."""
    return json.loads(text, parse_float=lambda digits: round(float(digits), 9))


@pytest.mark.soak
def test_views_and_what_if(url: str, command: Callable[..., Result], tmp_path: Path) -> None:
    """Each job has the same results over Spark Connect as on this machine."""
    log, table, quotas = tmp_path / "requests-1.jsonl", tmp_path / "table", tmp_path / "q.yaml"
    log.write_text("\n".join(make_day(300).lines()) + "\n")
    quotas.write_text(QUOTAS)
    done = remotely("ingest", table, log, "--remote", url, "--buckets", "3", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    for name, more in (
        ("usage", ()),
        ("throttles", ()),
        ("replay", ("--quotas", quotas)),
        ("replay", ("--quotas", quotas, "--check")),
        ("recommend", ("--io-threads", "8", "--network-threads", "3")),
    ):
        words = (name, table, *more, "--json", "--quiet")
        done = remotely(*words, "--remote", url)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert numbers(done.stdout) == numbers(command("pipeline", *words).stdout), name
    page = tmp_path / "page.html"
    done = remotely("report", table, "-o", page, "--remote", url, "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert "User" in page.read_text()


@pytest.mark.soak
def test_a_topic_is_archived(url: str, broker: BrokerProcess, tmp_path: Path) -> None:
    """JSON values become columns in two runs; `lag`, which needs no Spark, uses the checkpoint."""
    table = tmp_path / "table"
    with Cluster(broker.bootstrap) as cluster:
        create(cluster, "t", 2)
        with Producer(cluster) as producer:
            for number in range(200):
                producer.send("t", b'{"id": %d}' % number, partition=number % 2, timestamp_ms=1_000_000)
            producer.send("t", b"none", partition=0, timestamp_ms=1_000_000)
    words = ("archive", table, "--topic", "t", "-b", broker.bootstrap, "--value", "json", "--value-columns", "id int")
    for rows in (200, 0):
        done = remotely(*words, "--remote", url, "--quiet", "--json", "--buckets", "1")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        found = json.loads(done.stdout)
        assert (found["run"]["rows"], found["table"]["rows"]) == (rows, 200)
    done = remotely("lag", "--checkpoint", table, "-b", broker.bootstrap, "--json")
    assert [one["lag"] for one in json.loads(done.stdout)] == [0, 0]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("compact", "x", "--remote", "sc://h"), 2, "compact runs in this process, without Spark: omit --"),
        (("lag", "--master", "local"), 2, "lag runs in this process, without Spark: omit --master"),
        (("usage", "LOG", "--remote", "URL", "--driver-memory", "2g"), 1, "memory is set there"),
        (("usage", "LOG", "--remote", "URL", "--conf", "spark.executor.memory=2g"), 1, "spark.executor.memory"),
    ],
)
def test_what_cannot_be_is_refused(url: str, tmp_path: Path, words: tuple[str, ...], status: int, said: str) -> None:
    """Each invalid combination is refused with one sentence."""
    log = tmp_path / "a.jsonl"
    log.touch()
    given = [{"URL": url, "LOG": str(log)}.get(word, word) for word in words]
    if "--conf" in words:
        done = remotely(*given)
        found = done.returncode, done.stdout, done.stderr
    else:
        result = CliRunner().invoke(cli, ["pipeline", *given])
        found = result.exit_code, result.stdout, result.stderr
    assert found[:2] == (status, "")
    assert said in found[2].splitlines()[-1]
    assert "Traceback" not in found[2]


@pytest.mark.soak
def test_a_python_is_sent_through_the_server(tmp_path: Path) -> None:
    """The Python is sent to executors only: a job that the server plans in Python is refused, others run."""
    log, table, folder = tmp_path / "requests-1.jsonl", tmp_path / "table", tmp_path / "server"
    log.write_text("\n".join(make_day(100).lines()) + "\n")
    found = Table(table)
    found.open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
    write(found, "a", 0, placed(two_hours()))
    folder.mkdir()
    sent = ("--py-env", packed(tmp_path), "--quiet")
    with connect_server(folder, python_without(tmp_path / "bare")) as bare:
        done = remotely("usage", log, "--remote", bare, "--quiet")
        assert "the Python of Spark's executor on " in done.stderr
        done = remotely("usage", log, "--remote", bare, *sent)
        assert "the Python of the Spark Connect server on " in done.stderr
        assert "has no kbroker (ModuleNotFoundError: " in done.stderr
        done = remotely("usage", table, "--remote", bare, *sent)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.soak
def test_watch(url: str, tmp_path: Path) -> None:
    """The server keeps the state, the client's process writes the table, and Ctrl-C ends both."""
    watch_two_runs([sys.executable, "-m", "kbroker", "pipeline", "watch", "--remote", url], TablePlace.of(tmp_path))
