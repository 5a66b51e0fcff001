"""Start of a session: its master, the output on stderr, and an address without a server."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.cli.pipeline_session import OUR_LINES
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.client.quotas import QuotaClient
from kbroker.common.quotas import QuotaEntity
from tests.spark.day import make_day
from tests.spark.source_support import create
from tests.spark.standalone import environment
from tests.support import need
from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.slow
#: Runs a command of the pipeline, prints the session's settings, and shows all lines of the JVM.
SHOW = """
import sys
from kbroker.cli import cli, pipeline_jobs, pipeline_session

start, pipeline_session.OUR_LINES = pipeline_jobs.session, ""

def shown(common):
    spark = start(common)
    context = spark.sparkContext
    print(context.master, context.pythonExec, spark.conf.get("spark.sql.shuffle.partitions"))
    return spark

pipeline_jobs.session = shown
cli(["pipeline", *sys.argv[1:]])
"""


@pytest.fixture(autouse=True)
def _needs_spark() -> None:
    need.spark()


def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process, without the variables that name an interpreter or an address."""
    given = {**environment(), **variables}
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        given.pop(name, None)
    call = [sys.executable, *map(str, words)]
    return subprocess.run(call, env=given, capture_output=True, text=True, check=False)


def command(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the pipeline."""
    return run("-m", "kbroker", "pipeline", *words, **variables)


@pytest.mark.soak
@pytest.mark.parametrize("job", ["ingest", "usage"])
def test_quiet_is_quiet(tmp_path: Path, job: str) -> None:
    """Stderr is empty in spite of an invalid line, a setting, and a missing file system."""
    log = tmp_path / "requests-1.jsonl"
    log.write_text("\n".join([*make_day(50).lines(), "no record"]) + "\n")
    elsewhere = "spark.hadoop.fs.defaultFS=nowhere://host"
    options = ("--master", "local[1]", "--quiet", "--conf", elsewhere)
    places = [tmp_path / "table", log] if job == "ingest" else [log]
    done = command(job, *places, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"ingest": "50", "usage": "User:team-0"}[job] in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("verbosity", ["--quiet", "--verbose"])
def test_a_failure_is_one_line(tmp_path: Path, verbosity: str) -> None:
    """The line is Spark's sentence without its trace; with --verbose the trace is printed too."""
    log = tmp_path / "requests-1.jsonl"
    log.write_text("\n".join(make_day(50).lines()) + "\n")
    broken = ("--conf", "spark.sql.shuffle.partitions=none")
    done = command("usage", log, "--master", "local[1]", verbosity, *broken)
    assert done.returncode == 1
    if verbosity == "--verbose":
        assert "Traceback (most recent call last)" in done.stderr
        assert "--verbose shows" not in done.stderr
        return
    (line,) = done.stderr.splitlines()
    assert line.startswith("kbroker: ")
    assert "shuffle.partitions" in line
    assert line.endswith("(--verbose shows the trace)")


def test_spark_defaults_are_respected_and_a_throttle_is_reported(
    tmp_path: Path, start_broker: Callable[..., BrokerProcess]
) -> None:
    """The master and other settings of spark-defaults.conf apply, with this interpreter for a local master.

    The line of a task about a quota is printed through Python worker and JVM, without other lines, and the archive is
    complete.
    """
    (tmp_path / "spark-defaults.conf").write_text("spark.master local[1]\nspark.sql.shuffle.partitions 7\n")
    slow = start_broker(quota__window__num="2", quota__window__size__seconds="1")
    with Cluster(slow.bootstrap) as cluster:
        create(cluster, "t")
        with Producer(cluster) as producer:
            for number in range(40):
                producer.send("t", b"%d" % number + bytes(1_000), partition=0)
                producer.flush()
        QuotaClient(cluster).alter({QuotaEntity.of({"client-id": "slow"}): {"consumer_byte_rate": 15_000.0}})
    words = ("--topic", "t", "-b", slow.bootstrap, "--option", "kafka.client.id=slow", "--buckets", "1", "--json")
    done = run("-c", SHOW, "archive", tmp_path / "table", *words, SPARK_CONF_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    given, _, report = done.stdout.partition("\n")
    assert given == f"local[1] {sys.executable} 7"
    assert json.loads(report)["run"]["rows"] == 40
    assert f"{OUR_LINES}partition t-0: a quota of the broker throttles client slow, for " in done.stderr
    expected = ("starting Spark", OUR_LINES, "archiving, stage ", "batch 0: ", "compacted ")
    assert [line for line in done.stderr.splitlines() if not line.startswith(expected)] == []


@pytest.mark.parametrize("option", ["--master", "--remote"])
def test_an_address_where_nothing_listens(tmp_path: Path, option: str) -> None:
    """The error is one sentence, before Java is started."""
    log = tmp_path / "a.jsonl"
    log.touch()
    url = {"--master": "spark://127.0.0.1:1", "--remote": "sc://127.0.0.1:1"}[option]
    began = time.monotonic()
    done = command("usage", log, option, url, "--quiet")
    assert time.monotonic() - began < 20
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kbroker: no Spark ") or (option == "--remote" and "Spark Connect needs" in line)


def test_wrong_words() -> None:
    """Both a master and a server, and a setting without a value, are errors."""
    done = command("usage", "x", "--master", "local", "--remote", "sc://h")
    assert (done.returncode, "only one of --master and --remote" in done.stderr) == (2, True)
    done = command("usage", "x", "--conf", "spark.a")
    assert (done.returncode, "expected NAME=VALUE, got 'spark.a'" in done.stderr) == (2, True)
    assert "SPARK_REMOTE" not in os.environ
