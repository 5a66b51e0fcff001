"""Replay job over tables and DataFrames, with the same results for both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kbroker.spark.tables.table import read_table
from kbroker.spark.whatif import group
from kbroker.spark.whatif.check import check, replay_exact, replay_updates
from kbroker.spark.whatif.feed import Replay
from kbroker.spark.whatif.group import spread_clients, units_of
from kbroker.spark.whatif.quota_set import QuotaSet
from kbroker.spark.whatif.replay import replay_rows, replay_table, verdicts_of_rows, verdicts_of_table
from kbroker.spark.whatif.sum import by_client, second_rows
from tests.spark.logged import LoggedBroker, in_order, lacking, logged, traffic
from tests.spark.test_replay_core import SETS, verdicts_of
from tests.spark.written_table import write_table
from tests.support.fixtures import fixture_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USERS, CLIENTS = ("ann", "bob", "eve"), ("a", "b", "c", "d", "")


broker = fixture_of(lambda: logged(traffic(3_000, 11, USERS, CLIENTS), SETS["users"]), scope="module")


@pytest.fixture(scope="module")
def table(spark: SparkSession, broker: LoggedBroker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of the broker's log, written in two batches."""
    path = tmp_path_factory.mktemp("table")
    rows = broker.table()
    for part in (range(1_700), range(1_700, len(rows))):  # copies: createDataFrame accepts no slice of lists with nulls
        write_table(spark.createDataFrame(rows.take(list(part))), path, buckets=4)
    return path


def of_spark(found: DataFrame) -> list[tuple[int, str, str, str, int]]:
    rows = found.toArrow().to_pylist()
    return sorted((r["sequence"], r["quota_type"], r["user"], r["counter_client_id"], r["delay_ms"]) for r in rows)


@pytest.mark.parametrize("name", SETS)
def test_a_table_gives_what_one_process_gives(
    spark: SparkSession, broker: LoggedBroker, table: Path, name: str
) -> None:
    """A counter whose clients are in several buckets is judged as a whole, and other counters in their bucket."""
    quotas = QuotaSet(SETS[name])
    expected = verdicts_of(Replay(quotas).feed(broker.table()))
    assert len(expected) > 20
    assert of_spark(verdicts_of_table(spark, table, quotas)) == expected
    assert of_spark(verdicts_of_rows(read_table(spark, table), quotas)) == expected


@pytest.mark.parametrize("name", SETS)
def test_a_table_with_one_large_bucket(
    spark: SparkSession, broker: LoggedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each row counts once, whether or not several tasks share the bucket."""
    monkeypatch.setattr(group, "ROWS_PER_TASK", 100)
    write_table(spark.createDataFrame(broker.table()), tmp_path / "table", buckets=1)
    found = verdicts_of_table(spark, tmp_path / "table", QuotaSet(SETS[name]))
    assert of_spark(found) == verdicts_of(Replay(QuotaSet(SETS[name])).feed(broker.table()))


def test_an_hour_without_a_client_that_shares_a_counter(broker: LoggedBroker) -> None:
    """Nothing is shuffled of a bucket's hour whose clients share nothing with those of another bucket."""
    assert list(group._packed(broker.table(), 7, lambda client: -1)) == []
    (packed,) = group._packed(broker.table(), 7, lambda client: 3 if client[1] == "a" else -1)
    assert (packed["unit"].to_pylist(), packed["hour"].to_pylist()) == ([3], [7])


def test_sums_by_client(spark: SparkSession, broker: LoggedBroker, table: Path) -> None:
    """The logged and the replayed delays of each client are equal for the table and a DataFrame."""
    quotas = QuotaSet(SETS["mixed"])
    outcome = Replay(quotas).feed(broker.table())
    rows = by_client(replay_table(spark, table, quotas)).collect()
    assert sum(row.requests for row in rows) == 3_000
    assert sum(row.logged_delay_ms for row in rows) == sum(broker.served)
    assert sum(row.delay_ms for row in rows) == outcome.served_ms.sum()
    seconds = {
        (r["principal"], r["client_id"], r["second"]) for r in second_rows(outcome).to_pylist() if r["delayed"] > 0
    }
    assert sum(row.delayed_seconds for row in rows) == len(seconds)
    assert by_client(replay_rows(read_table(spark, table), quotas)).collect() == rows


def test_a_log_against_its_own_verdicts(spark: SparkSession, broker: LoggedBroker, table: Path) -> None:
    """The log's updates give its verdicts; with other quotas they do not, which the check counts."""
    rows = read_table(spark, table)
    exact = replay_exact(rows, QuotaSet(SETS["users"])).toArrow().to_pylist()
    delays = sorted((r["sequence"], r["quota_type"], r["user"], r["client_id"], r["delay_ms"]) for r in exact)
    assert delays == sorted(broker.delays)
    assert check(replay_exact(rows, QuotaSet(SETS["users"]))) == (len(broker.delays), 0, 0, 0, 0, 0, 0)
    other = check(replay_exact(rows, QuotaSet(SETS["each client"])))
    assert other.different + other.only_logged + other.only_replayed > 0


def test_logs_that_lack_a_record(spark: SparkSession, broker: LoggedBroker) -> None:
    """Logs of many brokers, each without one record with verdicts or several values, are replayed as without Spark."""
    judged = [row for row in broker.rows if len(row["updates"]) > 2 or row["verdicts"]]
    refused = [row for row in judged if any(verdict["refused"] for verdict in row["verdicts"])]
    dropped = [row["sequence"] for row in (*judged[:3], *refused[:3], *judged[-200::40], refused[-1])]
    logs = lacking(broker.table(), dropped)
    quotas = QuotaSet(SETS["users"])
    exact = replay_exact(spark.createDataFrame(logs), quotas).toArrow()
    assert len({row["broker"] for row in exact.to_pylist() if row["missing"]}) == len(dropped)
    assert in_order(exact) == in_order(replay_updates(logs, quotas))


def test_a_name_that_is_missing_is_empty(spark: SparkSession) -> None:
    """A null and a missing value are equal: a verdict belongs to the values of the same counter."""
    broker = logged(traffic(2_000, 12), SETS["client ids"])
    assert {delay[2] for delay in broker.delays} == {""}
    for row in broker.rows:
        row["broker"] = None if row["sequence"] % 2 else 0
        for verdict in row["verdicts"]:
            verdict["user"] = None
    found = check(replay_exact(spark.createDataFrame(broker.table()), QuotaSet(SETS["client ids"])))
    assert found == (len(broker.delays), 0, 0, 0, 0, 0, 0)


def test_a_log_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    """A growing log is read once: no verdict refers to a value that is added later, and none counts as missing."""
    broker = logged(traffic(2_000, 11), SETS["users"])
    refusals = [row for row, kind, *_ in broker.delays if kind == "ControllerMutation"]
    assert refusals[-1] > 1_000
    readings, now_there = tmp_path / "readings", 1_000

    def growing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        is_first = not readings.exists()
        readings.touch()
        for batch in batches:
            yield batch.filter(pc.less(batch["sequence"], now_there)) if is_first else batch

    whole = spark.createDataFrame(broker.table()).coalesce(1)
    found = check(replay_exact(whole.mapInArrow(growing, whole.schema), QuotaSet(SETS["users"])))
    assert found == (sum(delay[0] < now_there for delay in broker.delays), 0, 0, 0, 0, 0, 0)


def test_who_belongs_together() -> None:
    """Clients that share a counter, even indirectly, are one unit; only units of several buckets are spread."""

    def shared(user: str | None, client_id: str | None) -> list[str]:
        return [f"user {user}"] if client_id != "alone" else []

    clients = [("u", "a"), ("v", "a"), ("u", "b"), ("u", "alone")]
    assert sorted(map(sorted, units_of(clients, shared))) == [[("u", "a"), ("u", "b")], [("u", "alone")], [("v", "a")]]
    places = [(0, "u", "a"), (1, "u", "b"), (0, "v", "a"), (1, "v", "b"), (2, "u", "alone")]
    spread = spread_clients(places, shared)
    assert set(spread) == {("u", "a"), ("u", "b"), ("v", "a"), ("v", "b")}
    assert spread["u", "a"] == spread["u", "b"] != spread["v", "a"]
    assert spread_clients([(0, "u", "a"), (0, "u", "b")], shared) == {}
