"""Source, sink and jobs against clusters of real Kafka brokers with moving leaders and a killed broker."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from kbroker.cli import cli
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.client.quotas import QuotaClient
from kbroker.common.quotas import QuotaEntity
from kbroker.spark.tables.archive import archive
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_stream import StreamOptions
from kbroker.testing.waiting import wait_until
from tests.spark.kafka_clusters import (
    REQUEST_LOG,
    Disturbance,
    create,
    fill,
    logged,
    secured,
    start,
    values,
    while_running,
)
from tests.spark.source_support import refusal
from tests.support import need
from tests.support.certificates import Certificates
from tests.support.kafka import KafkaCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
ROWS = 1_600
AT_ONCE = 200
SOAK_ROWS, SOAK_AT_ONCE = 10_000, 400
THREE = ("kill_first", "restart", "move_leaders", "kill_second", "restart", "move_leaders", "kill_third", "restart")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(certificates: Certificates, soak: bool) -> Iterator[KafkaCluster]:
    """Yield two brokers, of which the second can be killed; only tests of the soak read their request logs."""
    need.program("java", "mvn")
    with start(2, certificates, logs_requests=soak) as cluster:
        yield cluster


def copy(spark: SparkSession, bootstrap: str, folder: Path, sink: dict[str, str], at_once: int) -> Any:
    """Start a query from `in`, with `at_once` records per batch, that ends when everything is copied."""
    servers = {"kafka.bootstrap.servers": bootstrap}
    return (
        spark.readStream.format("kbroker")
        .options(**servers, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=str(at_once))
        .load()
        .select("value", "partition")
        .writeStream.format("kbroker")
        .options(**servers, **sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def run_disturbed(
    spark: SparkSession, kafka: KafkaCluster, folder: Path, rows: int, at_once: int, steps: Sequence[str]
) -> None:
    """Copy a topic exactly once and archive it, in rounds of `rows`, while each of `steps` is executed.

    One round is enough, unless the copy is faster than the events of the brokers.
    """
    create(kafka, "in", "out")
    happens = Disturbance(kafka, ("in", "out"))
    left = [getattr(happens, step) for step in steps]
    copied = 0
    try:
        while left:
            if not all(broker.is_running for broker in kafka.brokers):
                left.pop(0)()  # the restart after a kill
            fill(kafka, "in", rows, first=copied)
            copied += rows
            copy_and_archive(spark, kafka, folder, at_once, left)
    finally:
        happens.close()
    assert happens.done == list(steps)
    assert values(kafka, "out") == list(range(copied))
    found = [int(bytes(row["value"])) for row in read_table(spark, folder / "table").select("value").collect()]
    assert sorted(found) == list(range(copied))


def copy_and_archive(
    spark: SparkSession, kafka: KafkaCluster, folder: Path, at_once: int, left: list[Callable[[], None]]
) -> None:
    """Copy and archive to the end of the topic, while the remaining steps are executed."""
    failures: list[BaseException] = []

    def keep() -> None:
        try:
            source = LogSource.of_topic(kafka.bootstrap, "in")
            archive(spark, source, folder / "table", options=StreamOptions(buckets=1, max_per_batch=2 * at_once))
        except BaseException as error:
            failures.append(error)

    archiving = threading.Thread(target=keep)
    archiving.start()
    sink = {"kafka.transactional.id": "copy", "topic": "out"}
    while_running(lambda: copy(spark, kafka.bootstrap, folder, sink, at_once), left)
    archiving.join(600)
    assert not failures, failures[0]
    assert not archiving.is_alive()


def test_rows_are_there_once_whatever_happens_to_the_brokers(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """A copy and an archive have each row once while leaders move and a broker is killed and restarted."""
    run_disturbed(spark, kafka, tmp_path, ROWS, AT_ONCE, ("move_leaders", "kill", "restart"))


@pytest.mark.soak
def test_rows_are_there_once_on_three_brokers(spark: SparkSession, certificates: Certificates, tmp_path: Path) -> None:
    """Each broker is killed once, the active controller included, and leaders move in between."""
    need.program("java", "mvn")
    with start(3, certificates) as three:
        run_disturbed(spark, three, tmp_path, SOAK_ROWS, SOAK_AT_ONCE, THREE)


@pytest.mark.soak
def test_a_batch_is_read_and_written_while_leaders_move(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """The source reads each record once, and the sink without transactions writes each at least once."""
    create(kafka, "many", "loose")
    fill(kafka, "many", SOAK_ROWS)
    happens = Disturbance(kafka, ("many", "loose"))
    moving = threading.Thread(target=happens.move_leaders)
    servers = {"kafka.bootstrap.servers": kafka.bootstrap}
    try:
        rows = spark.read.format("kbroker").options(**servers, subscribe="many").load().select("value", "partition")
        moving.start()
        rows.write.format("kbroker").options(**servers, topic="loose").mode("append").save()
        assert rows.count() == SOAK_ROWS
        moving.join(60)
    finally:
        happens.close()
    assert happens.done == ["move_leaders"]
    assert sorted(set(values(kafka, "loose"))) == list(range(SOAK_ROWS))


@pytest.mark.soak
def test_a_secured_listener(
    spark: SparkSession, kafka: KafkaCluster, certificates: Certificates, tmp_path: Path
) -> None:
    """Source, sink and archive work over SASL_SSL, and a wrong password is reported in one sentence."""
    create(kafka, "safe")
    safe = {f"kafka.{name}": value for name, value in secured(certificates).items()}
    servers = {"kafka.bootstrap.servers": kafka.secured}
    fill(kafka, "safe", 400)
    rows = spark.read.format("kbroker").options(**servers, **safe, subscribe="safe").load()
    assert sorted(int(bytes(row.value)) for row in rows.select("value").collect()) == list(range(400))
    more = rows.selectExpr("cast(cast(cast(value as string) as int) + 400 as string) value", "partition")
    sink = {**servers, **safe, "topic": "safe", "kafka.transactional.id": "safe"}
    more.write.format("kbroker").options(**sink).mode("append").save()
    assert values(kafka, "safe") == list(range(800))
    source = LogSource.of_topic(kafka.secured, "safe", options=safe)
    assert archive(spark, source, tmp_path / "table", options=StreamOptions(buckets=1)).rows == 800
    wrong = {**safe, "kafka.sasl.jaas.config": safe["kafka.sasl.jaas.config"].replace("alice-secret", "guessed")}
    said = refusal(lambda: spark.read.format("kbroker").options(**servers, **wrong, subscribe="safe").load().collect())
    assert "SASL_AUTHENTICATION_FAILED" in said
    assert "guessed" not in said


def test_quotas_of_two_brokers(kafka: KafkaCluster, certificates: Certificates) -> None:
    """The library uses the secured listeners; commands report that each broker enforces quotas by itself."""
    entity = QuotaEntity.of({"user": "carol", "client-id": None})
    with QuotaClient(kafka.secured, secured(certificates)) as quotas:
        assert quotas.broker_count() == 2
        assert quotas.apply({entity: {"producer_byte_rate": 1024.0}}).refusals == {}
        wait_until(lambda: quotas.of(entity) == {"producer_byte_rate": 1024.0})
        done = CliRunner().invoke(cli, ["quotas", "list", "--user", "carol", "--json", "-b", kafka.bootstrap])
        assert done.stderr.startswith("note: each of the 2 brokers enforces quotas by itself")
        assert [row["brokers"] for row in json.loads(done.stdout)] == [2]
        quotas.apply({entity: {}})


@pytest.fixture(scope="module")
def lines(kafka: KafkaCluster) -> list[str]:
    """Return the lines of both brokers' request loggers so far, with those of a throttled client."""
    create(kafka, "logged", "lines")
    with Cluster(kafka.bootstrap, client_id="slow") as cluster:
        QuotaClient(cluster).alter({QuotaEntity.of({"client-id": "slow"}): {"producer_byte_rate": 2_000.0}})
        with Producer(cluster) as producer:
            for _ in range(12):
                producer.send("logged", bytes(10_000), partition=0)
                producer.flush()
    return logged(kafka)


@pytest.mark.soak
def test_the_request_log_of_kafka_goes_through_the_jobs(
    command: Callable[..., Result], spark: SparkSession, lines: list[str], tmp_path: Path
) -> None:
    """Each line of Kafka's logger is a row, and the jobs have the requests and delays of the lines."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / REQUEST_LOG).write_text("".join(lines))
    records = [json.loads(line[line.index("{") : line.rindex("}") + 1]) for line in lines]
    slow = [one for one in records if one["requestHeader"].get("clientId") == "slow"]
    assert len([one for one in slow if one["requestHeader"]["requestApiKeyName"] == "PRODUCE"]) == 12
    assert sum(one["throttleTimeMs"] for one in slow) > 0
    table = tmp_path / "table"
    done = ingest(spark, LogSource.of_files(tmp_path / "logs"), table, StreamOptions(buckets=1))
    assert (done.rows, done.rejected) == (len(lines), 0)

    def shown(name: str, *more: object) -> Any:
        return json.loads(command("pipeline", name, table, *more, "--json", "--quiet").stdout)

    (used,) = [one for one in shown("usage", "--top", 100) if one["client_id"] == "slow"]
    assert used["requests"] == len(slow)
    delays: Counter[str] = Counter()
    for one in records:
        delays[one["requestHeader"].get("clientId")] += one["throttleTimeMs"]
    found = shown("throttles", "--top", 100)["throttles"]
    assert {one["client_id"]: one["delay_served_ms"] for one in found} == {n: ms for n, ms in delays.items() if ms}
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("- entity: {client-id: slow}\n  quotas: {request_percentage: 0.001}\n")
    replayed = shown("replay", "--quotas", quotas)
    assert replayed["totals"]["requests"] == len(lines)
    assert {one["client_id"] for one in replayed["clients"] if one["delay_ms"]} == {"slow"}


@pytest.mark.soak
def test_the_request_log_of_kafka_in_a_topic(
    command: Callable[..., Result], spark: SparkSession, kafka: KafkaCluster, lines: list[str], tmp_path: Path
) -> None:
    """The same lines as records of a topic fill a table that recommend and report accept."""
    with Cluster(kafka.bootstrap) as cluster, Producer(cluster) as producer:
        for number, line in enumerate(lines):
            producer.send("lines", line.encode(), partition=number % 4)
    table = tmp_path / "table"
    done = ingest(spark, LogSource.of_topic(kafka.bootstrap, "lines"), table, StreamOptions(buckets=2))
    assert (done.rows, done.rejected) == (len(lines), 0)

    def shown(name: str, *more: object) -> Any:
        return json.loads(command("pipeline", name, table, *more, "--json", "--quiet").stdout)

    assert shown("recommend", "--by", "client-id")["needs"]
    assert shown("report", "-o", tmp_path / "page.html")["size_bytes"] > 10_000
