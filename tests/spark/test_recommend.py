"""Recommended quotas: the smallest sufficient limits, with the cost of a replay, in a file that a broker accepts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kbroker.client.quota_file import read_quota_file
from kbroker.common.quotas import QuotaEntity
from kbroker.spark.errors import PipelineError
from kbroker.spark.whatif.feed import Replay, Windows
from kbroker.spark.whatif.quota_set import KEY_OF, QuotaSet
from kbroker.spark.whatif.recommend import FINEST, Need, _needs, capacity_percent, needs_of_table, recommend, yaml_text
from kbroker.spark.whatif.sum import verdict_rows
from tests.spark.logged import logged, traffic
from tests.spark.written_table import write_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def log(seed: int, count: int = 2_500) -> pa.Table:
    everyone = {QuotaEntity.of({"user": None, "client-id": None}): dict.fromkeys(KEY_OF.values(), 1e12)}
    return logged(traffic(count, seed, ("ann", "bob"), ("a", "b", "c")), everyone).table()


def throttled_seconds(table: pa.Table, need: Need, limit: float) -> int:
    """Return the number of seconds in which a quota of this entity alone would have delayed it."""
    quotas = QuotaSet({need.entity: {KEY_OF[need.quota_type]: limit}})
    verdicts = verdict_rows(Replay(quotas).feed(table)).to_pylist()
    return len({v["time_ms"] // 1000 for v in verdicts})


@pytest.mark.parametrize("by", ["user,client-id", "user", "client-id"])
@pytest.mark.parametrize("share", [0.001, 0.05, 0.4])
def test_no_smaller_quota_would_do(by: str, share: float) -> None:
    """The limit keeps its entity below the share according to a replay, and a limit one step lower does not."""
    table = log(21)
    needs = _needs([(table, None)], share, by, Windows())
    assert {need.quota_type for need in needs} == set(KEY_OF)
    for need in needs:
        step = FINEST.get(need.quota_type, 1.0)
        assert need.throttled_seconds == throttled_seconds(table, need, need.limit)
        assert need.throttled_seconds < share * need.seconds or need.throttled_seconds == 0
        if need.limit > step:
            assert throttled_seconds(table, need, round(need.limit - step, 2)) >= share * need.seconds


def test_a_table_and_a_process_agree(spark: SparkSession, tmp_path: Path) -> None:
    """Entities that span buckets are judged as one."""
    table = log(22)
    rows = spark.createDataFrame(table)
    write_table(rows, tmp_path / "t", buckets=4)
    order = {"key": lambda n: (n.quota_type, n.user or "", n.client_id or "")}
    for by in ("user", "user,client-id"):
        expected = sorted(_needs([(table, None)], 0.05, by, Windows()), **order)  # type: ignore[call-overload]
        assert needs_of_table(spark, tmp_path / "t", share=0.05, by=by) == expected


def need(name: str, limit: float) -> Need:
    return Need(None, name, "Produce", limit, 100, 1, limit * 2)


def test_defaults_and_outliers() -> None:
    """The default is enough for all but the top entities, and no other entity gets a separate quota."""
    needs = [need(f"c{i}", limit) for i, limit in enumerate([10, 20, 900, 30, 5_000])]
    found = recommend(needs, share=0.02, by="client-id", top=2)
    assert found.defaults == {"Produce": 30}
    assert [n.client_id for n in found.outliers] == ["c4", "c2"]
    assert recommend(needs, share=0.02, by="client-id", top=0).defaults == {"Produce": 5_000}
    alone = recommend([need("x", 5)], share=0.02, by="client-id", top=3)
    assert alone.defaults == {"Produce": 5}
    assert alone.outliers == []
    assert recommend([], share=0.02).quotas() == {}
    assert capacity_percent(8, 3, 2) == 1400


def test_the_file_is_one_for_apply(tmp_path: Path) -> None:
    """`kbroker quotas apply` reads the file back, with any characters in names, and also an empty file."""
    path = tmp_path / "quotas.yaml"
    for names in (['a "b" : {c} # d', "naïve\n☃", "😀", "a\x7fb", "null", "~", "123"], []):
        needs = [need(name, 100.0 + i) for i, name in enumerate(names)]
        found = recommend([*needs, *([need("z", 1)] if names else [])], share=0.02, by="client-id", top=9)
        path.write_text(yaml_text(found), encoding="utf-8")
        assert read_quota_file(path) == found.quotas()
    assert len(names) == 0


def test_arguments_that_cannot_be(spark: SparkSession, tmp_path: Path) -> None:
    """A share of 0 and an unknown kind of entity are rejected."""
    with pytest.raises(PipelineError, match="share"):
        needs_of_table(spark, tmp_path, share=0)
    with pytest.raises(PipelineError, match="got 'ip'"):
        needs_of_table(spark, tmp_path, by="ip")
