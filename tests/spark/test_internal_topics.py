"""Spark's official source reads the records of an internal topic instead of skipping them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.spark.tables.archive import archive
from kbroker.spark.tables.ingest import ingest
from kbroker.spark.tables.log_reader import KAFKA, LogSource, good, read_log
from kbroker.spark.tables.table_stream import StreamOptions
from tests.spark.source_support import create, fill
from tests.support.broker import BrokerProcess, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = "__request_log"
SETTING = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"


@pytest.fixture
def logging(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """Return a broker whose request log is a topic with at least fifty requests."""
    broker = start_broker(kbroker__request__log__topic=LOG, group__initial__rebalance__delay__ms="0")
    with Cluster(broker.bootstrap) as cluster:
        create(cluster, "t")
        for number in range(50):
            fill(cluster, "t", 1, first=number)
        place = (LOG, 0)
        wait_for("the log", lambda: Admin(cluster).list_offsets({place: -1})[place].offset >= 50)
    return broker


def test_the_official_source_reads_the_request_log(
    connector: SparkSession, logging: BrokerProcess, tmp_path: Path
) -> None:
    """The log is read in a batch, into a table, and into an archive."""
    source = LogSource.of_topic(logging.bootstrap, LOG, connector=KAFKA)
    try:
        assert good(read_log(connector, source)).count() >= 50
        assert ingest(connector, source, tmp_path / "t", StreamOptions(buckets=1)).rows >= 50
        assert archive(connector, source, tmp_path / "a", options=StreamOptions(buckets=1)).rows >= 50
    finally:
        connector.conf.unset(SETTING)
