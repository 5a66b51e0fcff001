"""Checkpoint on S3 with the jars of Hadoop's client, which must be given to Spark."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.spark.tables.checkpoint import hadoop_settings, place_of_checkpoint
from kbroker.spark.tables.table_place import TablePlace
from tests.spark.day import make_day
from tests.spark.standalone import ROOT, environment
from tests.support import need
from tests.support.kafka.jars import Unavailable, classpath
from tests.support.object_store import ObjectStore, as_words

ROWS = 600
POM = ROOT / "tests" / "support" / "java" / "s3a.pom.xml"


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    found = ObjectStore()
    yield found
    found.close()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_stream_with_its_checkpoint_on_s3(store: ObjectStore) -> None:
    """Two runs read each record once, and Hadoop gets the store's options without further settings."""
    try:
        jars = classpath(pom=POM).replace(os.pathsep, ",")
    except Unavailable as error:
        need.lack(str(error))
    lines = list(make_day(ROWS).lines())
    table = TablePlace.of("s3://tables/table", store.options)

    def ingest() -> dict[str, dict[str, int]]:
        words = ["ingest", table.uri, "s3://tables/logs", "--checkpoint", "s3a://tables/table/_checkpoint", "--json"]
        more = ["--master", "local[2]", "--conf", f"spark.jars={jars}", "--buckets", "2", *as_words(store.options)]
        call = [sys.executable, "-m", "kbroker", "pipeline", *words, *more]
        done = subprocess.run(call, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, dict[str, int]] = json.loads(done.stdout)
        return found

    store.put("logs/requests-1.jsonl", "".join(f"{line}\n" for line in lines[:400]).encode())
    assert ingest()["run"]["rows"] == 400
    store.put("logs/requests-2.jsonl", "".join(f"{line}\n" for line in lines[400:]).encode())
    found = ingest()
    assert (found["run"]["rows"], found["table"]["rows"]) == (200, ROWS)
    assert len(table.listed("_checkpoint/commits")) >= 2


def test_what_hadoop_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop's settings have the options of delta-rs, or the environment."""
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    place = TablePlace.of("s3://bucket/c", {"AWS_ACCESS_KEY_ID": "key", "aws_secret_access_key": "secret"})
    wanted = {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "secret", "fs.s3a.endpoint.region": "eu-north-1"}
    assert hadoop_settings(place) == wanted
    named = TablePlace.of("s3://bucket/c", {**place.storage_options, "AWS_ENDPOINT_URL": "http://host:1"})
    path_style = {"fs.s3a.endpoint": "http://host:1", "fs.s3a.path.style.access": "true"}
    assert hadoop_settings(named) == {**wanted, **path_style}
    assert hadoop_settings(TablePlace.of("hdfs://host:1/c")) == {}


def test_where_a_checkpoint_lies_by_itself(tmp_path: Path) -> None:
    """The default checkpoint is inside the table, where Spark can write without further jars."""
    assert place_of_checkpoint(None, TablePlace.of(tmp_path)).uri == f"{tmp_path}/_checkpoint"
    assert place_of_checkpoint(None, TablePlace.of("hdfs://host:1/t")).uri == "hdfs://host:1/t/_checkpoint"
    assert place_of_checkpoint("s3a://b/c", TablePlace.of("/t")).spark_uri == "s3a://b/c"
