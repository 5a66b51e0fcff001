"""Pipeline on the log of a real broker: the jobs' results equal the counts of clients and broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbroker.client.cluster import Cluster
from kbroker.quota._entities import DEFAULT_ENTITY
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource, good, read_log
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_stream import Ingested, StreamOptions
from kbroker.spark.usage_views.lag import checkpoint_lag
from kbroker.spark.usage_views.throttles import throttles
from kbroker.spark.usage_views.usage import usage
from kbroker.spark.whatif.check import check, replay_exact, replay_updates
from kbroker.spark.whatif.feed import Windows
from kbroker.spark.whatif.quota_set import QuotaSet
from kbroker.spark.whatif.recommend import needs_of_table, recommend
from kbroker.spark.whatif.replay import replay_table
from kbroker.spark.whatif.sum import by_client
from kbroker.testing import EmbeddedBroker, VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.spark.logged import in_order, lacking
from tests.spark.real_traffic import LOG, QUOTAS, SAMPLES, SETTINGS, Traffic, entity, make_traffic
from tests.support.client import Client, new_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOWS = Windows(samples=SAMPLES, controller_samples=SAMPLES)
RAW = ("raw-writer", "raw-reader", "busy", "strict", "old", "last")


@dataclass
class Scene:
    """Broker whose log was ingested, as JSON or Arrow, with the counts of its clients."""

    form: str
    broker: EmbeddedBroker
    traffic: Traffic
    files: Path
    table: Path
    first: Ingested

    @property
    def source(self) -> LogSource:
        return LogSource.of_topic(self.broker.bootstrap_servers, LOG)


@pytest.fixture(scope="module", params=["json", pytest.param("arrow", marks=pytest.mark.soak)])
def scene(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp(request.param)
    settings = {
        **SETTINGS,
        "kbroker.request.log.format": request.param,
        "kbroker.request.log.dir": str(folder / "files"),
    }
    with EmbeddedBroker(settings) as broker:
        traffic = make_traffic(broker)
        source = LogSource.of_topic(broker.bootstrap_servers, LOG)
        done = ingest(spark, source, folder / "table", StreamOptions(buckets=2))
        yield Scene(request.param, broker, traffic, folder / "files", folder / "table", done)


@pytest.fixture
def rows(spark: SparkSession, scene: Scene) -> DataFrame:
    return read_table(spark, scene.table)


def test_usage_is_what_the_clients_have_counted(scene: Scene, rows: DataFrame) -> None:
    """Requests, bytes and mutations equal the counts of raw clients and the statistics of librdkafka."""
    assert scene.first.rejected == 0
    found = {row.client_id: row for row in usage(rows).collect()}
    written = (
        rows.where("client_id = 'writer' and api_name = 'PRODUCE'").selectExpr("count(*)", "sum(request_bytes)").first()
    )
    assert written is not None
    assert written[0] == scene.traffic.librdkafka["requests"]
    sent, counted = scene.traffic.librdkafka["request_bytes"], found["writer"].request_bytes
    assert written[1] < sent <= counted  # a producer also requests metadata, even after its last statistics
    for client_id, known in scene.traffic.known.items():
        row = found[client_id]
        assert (row.requests, row.request_bytes, row.response_bytes, row.mutations) == (
            known.requests, known.request_bytes, known.response_bytes, known.mutations,
        ), client_id  # fmt: skip
    assert all(found[client_id].connections == 1 for client_id in RAW)
    assert all(row.principal == "User:ANONYMOUS" for row in found.values())
    assert found["reader"].response_bytes > 60_000


def test_throttles_are_the_brokers_verdicts(scene: Scene, rows: DataFrame) -> None:
    """Counts, refusals and delays by quota and counter equal the verdicts', served delays the throttle times."""
    expected: dict[Any, Counter[str]] = {}
    for v in scene.traffic.verdicts:
        ip = v.address if v.quota_type == "ConnectionRate" else None
        sums = expected.setdefault((v.quota_type, v.user, v.client_tag, ip), Counter())
        sums.update(n=1, refused=v.refused, asked=v.delay_asked_ms, served=v.delay_served_ms)
    found = {
        (r.quota_type, r.user, r.client_id, r.ip): Counter(
            n=r.verdicts, refused=r.refused, asked=r.delay_asked_ms, served=r.delay_served_ms
        )
        for r in throttles(rows).collect()
    }
    assert found == expected
    assert {key[0] for key in found} == {"Produce", "Fetch", "Request", "ControllerMutation", "ConnectionRate"}
    waited_ms = {
        r.client_id: r.throttle_ms
        for r in rows.groupBy("client_id").agg({"throttle_time_ms": "sum"}).toDF("client_id", "throttle_ms").collect()
    }
    for client_id in RAW:
        assert waited_ms[client_id] == scene.traffic.known[client_id].throttle_ms, client_id
    assert sum(waited_ms[client_id] for client_id in RAW) > 0


def test_verdicts_of_shadows_stand_apart(scene: Scene, rows: DataFrame) -> None:
    """Shadow verdicts are in their own list, which throttles and replays do not read, or null in an older log."""

    def named(kind: str, user: str, client_id: str, asked_ms: int, served_ms: int, refused: bool) -> tuple[Any, ...]:
        return kind, user, client_id, asked_ms, served_ms, refused

    found = rows.selectExpr("explode(shadow_verdicts) as v").select("v.*").collect()
    assert Counter(
        named(v.quota_type, v.user, v.client_id, v.delay_asked_ms, v.delay_served_ms, v.refused) for v in found
    ) == Counter(
        named(v.quota_type, v.user, v.client_tag, v.delay_asked_ms, v.delay_served_ms, v.refused)
        for v in scene.traffic.shadows
    )
    assert {v.quota_type for v in found} == {"Produce", "Fetch", "Request", "ControllerMutation", "ConnectionRate"}
    assert rows.where("size(shadow_verdicts) = 0").count() == 0
    assert rows.where("shadow_verdicts is null").count() > 0


def test_a_replay_gives_the_verdicts_to_the_millisecond(scene: Scene, rows: DataFrame) -> None:
    """From cold counters, a replay has the verdicts on bytes, request time, and mutations with and without error 89."""
    judged = [v for v in scene.traffic.verdicts if v.quota_type != "ConnectionRate"]
    exact = replay_exact(rows, QuotaSet(QUOTAS), windows=WINDOWS).cache()
    assert check(exact) == (len(judged), 0, 0, 0, 0, 0, 0)
    found = exact.select("quota_type", "refused", "delay_ms").collect()
    kinds = {(r.quota_type, r.refused) for r in found}
    mutation = "ControllerMutation"
    assert kinds == {("Produce", False), ("Fetch", False), ("Request", False), (mutation, False), (mutation, True)}
    assert Counter(r.delay_ms for r in found if r.quota_type != "Request") == Counter(
        v.delay_asked_ms for v in judged if v.quota_type != "Request"
    )
    exact.unpersist()
    other = check(
        replay_exact(rows, QuotaSet({entity(client_id=None): {"producer_byte_rate": 5_000.0}}), windows=WINDOWS)
    )
    assert other.equal < len(judged)


def test_a_replay_without_any_one_record(spark: SparkSession, rows: DataFrame) -> None:
    """A replay of many logs that each lack one record equals the replay without Spark, row by row."""
    log = rows.toArrow()
    logs = lacking(log, log["sequence"].to_pylist())
    exact = replay_exact(spark.createDataFrame(logs), QuotaSet(QUOTAS), windows=WINDOWS).toArrow()
    assert {row["missing"] for row in exact.to_pylist()} >= {0, 1, 2}
    assert in_order(exact) == in_order(replay_updates(logs, QuotaSet(QUOTAS), windows=WINDOWS))


def test_what_if_and_recommendation(spark: SparkSession, scene: Scene, rows: DataFrame) -> None:
    """The results have the log's requests and delays by client, no delays without quotas, few with recommended ones."""
    freed = by_client(replay_table(spark, scene.table, QuotaSet({}), windows=WINDOWS)).collect()
    by_name = {row.client_id: row for row in freed}
    for client_id in RAW:
        known = scene.traffic.known[client_id]
        row = by_name[client_id]
        assert (row.requests, row.request_bytes, row.response_bytes, row.logged_delay_ms, row.delay_ms) == (
            known.requests, known.request_bytes, known.response_bytes, known.throttle_ms, 0,
        ), client_id  # fmt: skip
    needs = needs_of_table(spark, scene.table, share=0.3, windows=WINDOWS)
    found = recommend(needs, share=0.3, top=100)
    assert {(n.quota_type, n.client_id) for n in needs} >= {
        ("Produce", "writer"), ("Produce", "raw-writer"), ("Fetch", "raw-reader"), ("Request", "busy"),
        ("ControllerMutation", "strict"),
    }  # fmt: skip
    after = by_client(replay_table(spark, scene.table, QuotaSet(found.quotas()), windows=WINDOWS)).collect()
    allowed: Counter[str | None] = Counter()
    for need in needs:
        assert need.share < 0.3
        allowed[need.client_id] += need.throttled_seconds
    assert all(row.delayed_seconds <= allowed[row.client_id] for row in after)


def test_the_next_run_goes_on_and_lag_says_how_far(spark: SparkSession, scene: Scene, rows: DataFrame) -> None:
    """Records added by Spark's own reading are read once, and no partition lags afterwards."""
    with Cluster(scene.broker.bootstrap_servers) as cluster:
        before = checkpoint_lag(cluster, scene.table)
        assert {(lag.topic, lag.partition) for lag in before} == {(LOG, 0), (LOG, 1)}
        if scene.form == "json":  # each row is a Kafka record
            assert sum(lag.offset or 0 for lag in before) == scene.first.rows
        scene.broker.request_log.flush()
        done = ingest(spark, scene.source, scene.table, StreamOptions(buckets=2))
        after = checkpoint_lag(cluster, scene.table)
    assert sum(lag.offset or 0 for lag in after) > sum(lag.offset or 0 for lag in before)
    everything = read_table(spark, scene.table)
    numbers = everything.selectExpr("count(*)", "count(distinct sequence)", "min(sequence)").first()
    assert numbers is not None
    assert (numbers[0], numbers[1], numbers[2]) == (scene.first.rows + done.rows,) * 2 + (1,)


def test_files_hold_what_the_topic_holds(spark: SparkSession, scene: Scene, rows: DataFrame, tmp_path: Path) -> None:
    """The rolling files, ingested while the broker writes them, give the same rows with all columns."""
    scene.broker.request_log.flush()
    done = ingest(spark, LogSource.of_files(scene.files), tmp_path / "table", StreamOptions(buckets=2))
    assert done.rejected == 0
    last = rows.selectExpr("max(sequence)").first()
    assert last is not None
    of_files = read_table(spark, tmp_path / "table").where(f"sequence <= {last[0]}")
    both = [frame.orderBy("sequence").toArrow() for frame in (rows, of_files)]
    assert both[0].num_rows > 100
    assert both[0].equals(both[1])


def is_written(broker: EmbeddedBroker, count: int) -> bool:
    broker.request_log.flush()
    return broker.request_log.figures.written >= count


def test_counters_that_expire_or_are_evicted_begin_anew(spark: SparkSession, tmp_path: Path) -> None:
    """When a counter's numbers start at 1 again, the replay starts another counter too."""
    settings = {"num.network.threads": 1, "kbroker.request.log.dir": str(tmp_path), "kbroker.quota.max.counters": 2}
    names, requests = ("a", "b", "c"), 0
    with VirtualBroker(settings) as broker:
        broker.create_topic("t")
        broker.context.quotas.update(None, DEFAULT_ENTITY, "producer_byte_rate", 100)
        broker.context.quotas.update(None, "m", "controller_mutation_rate", 0.001)
        for turn in range(4):
            with Client(broker.bootstrap_servers, "m") as client:
                client.call("CreateTopics", 6, new_topics(f"m{turn}", partitions=90))
                requests += 1
            for size in (400, 800, 1200):
                for name in names:
                    with Client(broker.bootstrap_servers, name) as client:
                        client.produce("t", size)
                        throttle_ms = client.end()["ThrottleTimeMs"]
                        requests += 1
                    wait_until(partial(is_written, broker, requests))
                    broker.advance_ms(throttle_ms + 7)
            broker.advance_ms(3 * 3_600_000 if turn == 1 else 1000)
        verdicts = len(broker.take_verdicts())
    log = good(read_log(spark, LogSource.of_files(tmp_path, format="json")))
    quotas = QuotaSet(
        {
            entity(client_id=None): {"producer_byte_rate": 100.0},
            entity(client_id="m"): {"controller_mutation_rate": 0.001},
        }
    )
    firsts = log.selectExpr("inline(updates)").where("sequence = 1").groupBy("quota_type", "client_id").count()
    lives = {(r.quota_type, r.client_id): r["count"] for r in firsts.collect()}
    assert lives["ControllerMutation", "m"] == 2  # it expired while overdrawn
    assert max(lives["Produce", name] for name in names) > 2  # other counters were evicted
    assert check(replay_exact(log, quotas)) == (verdicts, 0, 0, 0, 0, 0, 0)
