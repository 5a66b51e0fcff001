"""Failures of Spark's own Kafka connector: each ends in one sentence within seconds, or is recovered from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.connector import clear_failures, explain, sink_options, source_options
from kbroker.testing import wait_until
from tests.spark.kafka_io import batch_sizes, drain, fill, in_turn, offsets, running, table
from tests.support.broker import BrokerProcess
from tests.support.ports import free_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kbroker.testing import EmbeddedBroker

PATIENCE_MS = 4000
SOON_S = 60.0
START_S = 240.0  # another JVM, on a busy machine
ROOT = Path(__file__).resolve().parents[2]


def patient(spark: SparkSession, address: str, topic: str, **more: str) -> DataFrame:
    """Return a stream with the time-outs under test."""
    options = {**source_options(address, patience_ms=PATIENCE_MS), "startingOffsets": "earliest", **more}
    return spark.readStream.format("kafka").options(**options, subscribe=topic).load()


def failure(action: Callable[[], object], address: str) -> str:
    """Return the sentence with which an action fails."""
    with pytest.raises(PipelineError) as caught, clear_failures(address):
        action()
    return str(caught.value)


def test_no_broker(connector: SparkSession, tmp_path: Path) -> None:
    """Without a server at the address, read, stream and write fail after seconds, not minutes."""
    address = f"127.0.0.1:{free_run(1)}"
    begun = time.monotonic()
    options = source_options(address, patience_ms=2000)
    read = connector.read.format("kafka").options(**options, subscribe="t").load()
    write = connector.range(1).selectExpr("'x' value").write.format("kafka").option("topic", "t")
    for action in (
        read.count,
        lambda: drain(patient(connector, address, "t", **options), tmp_path),
        write.options(**sink_options(address, patience_ms=2000)).save,
    ):
        assert failure(action, address).startswith(f"no broker responded in time at {address}")
    assert time.monotonic() - begun < 40


def test_no_topic(connector: SparkSession, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    """The error of reads and of writes names a topic that does not exist."""
    address = kafka.bootstrap_servers
    write = connector.range(1).selectExpr("'x' value").write.format("kafka").option("topic", "nowhere")
    for action in (
        lambda: drain(patient(connector, address, "nowhere"), tmp_path),
        write.options(**sink_options(address, patience_ms=2000)).save,
    ):
        assert failure(action, address) == f"a topic or partition that the query names does not exist at {address}"


def test_the_broker_goes(connector: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    """A broker killed in mid-stream ends the query with a sentence; a second run loses and repeats no record."""
    address = broker.bootstrap
    create(address, "t", 2)
    fill(address, "t", 200, 2)
    query = running(patient(connector, address, "t"), tmp_path)
    try:
        wait_until(lambda: sum(batch_sizes(query)) == 200, SOON_S, "the first records")
        broker.kill()
        begun = time.monotonic()
        wait_until(lambda: not query.isActive, SOON_S, "the end of the query")
        assert time.monotonic() - begun < 30
    finally:
        query.stop()
    error = query.exception()
    assert error is not None
    assert str(explain(error, address)).startswith(f"no broker responded in time at {address}")
    broker.start()
    fill(address, "t", 100, 2, first=200)
    assert drain(patient(connector, address, "t"), tmp_path) == [100]
    assert table(connector, tmp_path) == in_turn(300, 2)


def test_the_broker_comes_back(connector: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    """A query continues after a broker's absence that is shorter than the stream's time-outs."""
    address = broker.bootstrap
    create(address, "t", 2)
    fill(address, "t", 200, 2)
    options = source_options(address, patience_ms=60_000)
    query = running(patient(connector, address, "t", **options), tmp_path)
    try:
        wait_until(lambda: sum(batch_sizes(query)) == 200, SOON_S, "the first records")
        for total in (300, 400):
            broker.kill()
            broker.start()
            fill(address, "t", 100, 2, first=total - 100)
            wait_until(lambda: sum(batch_sizes(query)) == total, SOON_S, f"{total} records")  # noqa: B023
        assert query.isActive
    finally:
        query.stop()
    assert table(connector, tmp_path) == in_turn(400, 2)


def test_a_topic_made_anew(connector: SparkSession, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    """A topic deleted and created again in mid-stream ends the query, and its checkpoint is rejected afterwards."""
    address = kafka.bootstrap_servers
    topic = kafka.create_topic("anew")
    fill(address, topic, 100, 1)
    query = running(patient(connector, address, topic), tmp_path)
    try:
        wait_until(lambda: sum(batch_sizes(query)) == 100, SOON_S, "the first records")
        kafka.delete_topic(topic)
        kafka.create_topic(topic)
        fill(address, topic, 10, 1)
        wait_until(lambda: not query.isActive, SOON_S, "the end of the query")
    finally:
        query.stop()
    said = failure(lambda: drain(patient(connector, address, topic), tmp_path), address)
    assert said.startswith(f"the checkpoint stands at offset 100 of {topic}-0 and the log ends at 10: ")
    assert table(connector, tmp_path) == in_turn(100, 1)
    assert drain(patient(connector, address, topic), tmp_path / "new") == [10]


def test_wrong_checkpoints(connector: SparkSession, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    """The errors distinguish checkpoints of another topic, of another kind of source, and damaged checkpoints."""
    address = kafka.bootstrap_servers
    for name in ("mine", "other"):
        kafka.create_topic(name)
        fill(address, name, 10, 1)
    drain(patient(connector, address, "other"), tmp_path / "other")
    said = failure(lambda: drain(patient(connector, address, "mine"), tmp_path / "other"), address)
    assert said.startswith("the checkpoint is of partitions that are not read any more (other-0): ")

    rate = connector.readStream.format("rate").load().writeStream.format("noop")
    rate.option("checkpointLocation", str(tmp_path / "rate/checkpoint")).trigger(availableNow=True).start(
    ).awaitTermination()  # fmt: skip
    said = failure(lambda: drain(patient(connector, address, "mine"), tmp_path / "rate"), address)
    assert said.startswith("the checkpoint is of a query over another kind of source")

    drain(patient(connector, address, "mine"), tmp_path / "mine")
    (tmp_path / "mine/checkpoint/offsets/.0.crc").unlink()
    (tmp_path / "mine/checkpoint/offsets/0").write_text("rubbish")
    (tmp_path / "mine/checkpoint/commits/0").unlink()
    said = failure(lambda: drain(patient(connector, address, "mine"), tmp_path / "mine"), address)
    assert said.startswith(f"the checkpoint is damaged ({tmp_path}/mine/checkpoint/offsets/0 cannot be read)")


def test_offsets_that_cannot_be(connector: SparkSession, kafka: EmbeddedBroker) -> None:
    """A starting offset beyond the end of the log is named with its partition."""
    address = kafka.bootstrap_servers
    kafka.create_topic("brief")
    fill(address, "brief", 10, 1)
    options = {**source_options(address), "subscribe": "brief", "startingOffsets": offsets("brief", [5000])}
    said = failure(connector.read.format("kafka").options(**options).load().count, address)
    assert said == "the starting offset 5000 of brief-0 is after the ending one, 10"


@pytest.mark.soak
def test_the_driver_is_killed(connector: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    """After kill -9 of the driver in mid-stream, a driver with its checkpoint continues: each record is copied once."""
    address, count = broker.bootstrap, 3000
    create(address, "t", 2)
    fill(address, "t", count, 2)
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.copying_driver", address, "t", str(tmp_path)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    try:
        assert driver.stdout is not None
        jvm = int(driver.stdout.readline().split()[1])
        wait_until(lambda: (tmp_path / "checkpoint/commits/3").exists(), START_S, "four batches")
        driver.send_signal(signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{jvm}").exists(), SOON_S, "the end of the driver's JVM")
    finally:
        driver.kill()
        driver.communicate(timeout=20)
    before = len(table(connector, tmp_path))
    assert 0 < before < count, "the driver was to be killed in mid-stream"
    drain(patient(connector, address, "t", maxOffsetsPerTrigger="1000"), tmp_path)
    assert table(connector, tmp_path) == in_turn(count, 2)


def create(address: str, topic: str, partitions: int) -> None:
    from kbroker.client.admin import Admin, NewTopic
    from kbroker.client.cluster import Cluster

    with Cluster(address) as cluster:
        Admin(cluster).create_topics([NewTopic(topic, partitions)])
