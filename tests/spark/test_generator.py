"""Generated request logs of bench/pipeline: the same rows for the same seed, and complete values of counters."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from bench.pipeline.generate import generate_files, generate_table
from bench.pipeline.population import Population, Shape
from bench.pipeline.rows import block_rows
from kbroker.common.quotas import QuotaEntity
from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import LogSource
from kbroker.spark.tables.log_schema import arrow_schema
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_stream import StreamOptions
from kbroker.spark.usage_views.throttles import throttles
from kbroker.spark.whatif.check import check, replay_exact
from kbroker.spark.whatif.quota_set import QuotaSet
from tests.support.fixtures import fixture_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPE = Shape(6_789, 40, days=1 / 12, buckets=2)


def made(shape: Shape) -> pa.Table:
    people = Population(shape)
    return pa.concat_tables([block_rows(people, block)[0] for block in range(shape.blocks)])


log = fixture_of(made, SHAPE, scope="module")


def test_as_many_requests_as_asked_for(log: pa.Table) -> None:
    """Any numbers of requests and entities are exact; the columns are those of the log, ordered by time."""
    assert log.schema.equals(arrow_schema())
    assert log["sequence"].to_pylist() == list(range(1, SHAPE.requests + 1))
    time = np.asarray(log["time"].cast(pa.int64()))
    assert np.all(np.diff(time) >= 0)
    assert SHAPE.start_us <= time[0] <= time[-1] < SHAPE.start_us + 2 * 3_600_000_000
    for requests, entities, hot in ((1, 1, 0.3), (1_000, 1, 0.3), (10, 1_000, 0.0), (999, 7, 1.0), (5_001, 3, 0.5)):
        assert made(Shape(requests, entities, days=0.1, hot_share=hot)).num_rows == requests


def test_the_first_entity_has_its_share_and_the_others_fall_off(log: pa.Table) -> None:
    """The other entities follow Zipf's law."""
    counts: dict[str, int] = defaultdict(int)
    for client_id in log["client_id"].to_pylist():
        counts[client_id] += 1
    assert abs(counts["app-0000000"] - 0.3 * SHAPE.requests) < 20
    assert counts["app-0000001"] > 3 * counts["app-0000020"] > 0


def test_another_seed_is_another_log(log: pa.Table) -> None:
    """A seed determines the log, independently of the blocks generated before."""
    people = Population(SHAPE)
    assert block_rows(people, 1)[0].equals(block_rows(Population(SHAPE), 1)[0])
    other = Population(Shape(SHAPE.requests, SHAPE.entities, 2, SHAPE.days, buckets=2))
    assert not block_rows(people, 1)[0].equals(block_rows(other, 1)[0])


def test_counters_lack_nothing(log: pa.Table) -> None:
    """Each counter's values are numbered from 1; verdicts refer to such a value, with a delay by the formula."""
    numbers: dict[Any, list[int]] = defaultdict(list)
    kinds = set()
    for row in log.to_pylist():
        assert (row["api_key"] is None) == (row["verdicts"] != [] and row["updates"] == [])
        values = {(u["quota_type"], u["sequence"]): u for u in row["updates"]}
        for update in row["updates"]:
            key = (update["quota_type"], update["user"], update["client_id"])
            numbers[key].append(update["sequence"])
            assert (update["value"] < 0) <= (update["quota_type"] == "Fetch" and row["throttle_time_ms"] > 0)
        for verdict in row["verdicts"]:
            kinds.add((verdict["quota_type"], verdict["refused"]))
            assert round((verdict["observed"] / verdict["limit"] - 1) * 11_000) == verdict["delay_asked_ms"] > 0
            if verdict["refused"]:
                assert (row["error_code"], row["throttle_time_ms"]) == (89, 0)
            elif verdict["ip"] is None:
                assert values[verdict["quota_type"], verdict["sequence"]]["checked"]
        served = [verdict["delay_served_ms"] for verdict in row["verdicts"]]
        assert max(served, default=0) == (row["throttle_time_ms"] or 0) or row["api_key"] is None
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in numbers.values())
    assert {kind for kind, *_ in numbers} == {"Produce", "Fetch", "Request", "ControllerMutation"}
    assert kinds >= {("Produce", False), ("Request", False), ("ConnectionRate", False)}


def test_a_table_and_files_have_the_same_rows(spark: SparkSession, log: pa.Table, tmp_path: Path) -> None:
    """The number of processes has no effect on the rows, and the jobs read tables and files."""
    rows, files, size = generate_table(tmp_path / "t", SHAPE, processes=2)
    assert (rows, files) == (SHAPE.requests, 4)
    assert size > 0
    assert generate_files(tmp_path / "logs", SHAPE)[:2] == (SHAPE.requests, 2)
    done = ingest(spark, LogSource.of_files(str(tmp_path / "logs")), tmp_path / "u", StreamOptions(buckets=2))
    assert (done.rows, done.rejected) == (SHAPE.requests, 0)
    tables = [read_table(spark, tmp_path / name).toArrow() for name in "tu"]
    straight, ingested = (table.sort_by("sequence").select(log.column_names).combine_chunks() for table in tables)
    assert straight["time"].to_pylist() == ingested["time"].to_pylist() == log["time"].to_pylist()
    assert straight.equals(ingested)
    for name in ("bucket", "hour", "principal"):
        assert tables[0].sort_by("sequence")[name].to_pylist() == tables[1].sort_by("sequence")[name].to_pylist()
    assert throttles(read_table(spark, tmp_path / "t")).count() > 2
    limits = QuotaSet({QuotaEntity.of({"user": None, "client-id": None}): {"producer_byte_rate": 1e9}})
    assert check(replay_exact(read_table(spark, tmp_path / "t"), limits)).missing == 0
    with pytest.raises(PipelineError, match="has rows: name a new table"):
        generate_table(tmp_path / "t", SHAPE)


@pytest.mark.parametrize(
    "shape", [Shape(0), Shape(1, 0), Shape(1, hot_share=1.5), Shape(1, days=0), Shape(1, start_us=1)]
)
def test_a_shape_that_cannot_be(shape: Shape) -> None:
    """The error states the expected values."""
    with pytest.raises(PipelineError, match="expected"):
        shape.check()
