"""``format("kbroker")`` with a transactional id: each row is written once, with any process killed in any phase."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.common.errors import KafkaError
from kbroker.spark.datasource.exactly_once import TaskTransaction, Written, check_repeated, read_note
from kbroker.spark.datasource.options import WriteOptions, write_options
from kbroker.spark.datasource.writer import send_batch
from kbroker.spark.errors import PipelineError
from tests.spark.exactly_once_driver import copy
from tests.spark.source_support import WORKER_STARTS, refusal, run_to_its_end
from tests.spark.standalone import ROOT, environment
from tests.support.broker import BrokerProcess
from tests.support.client import drain

ROWS = 1200  # three batches; a process is killed in the second
LOCAL, TWO_EXECUTORS = "local[2,4]", "local-cluster[2,1,1024]"  # both repeat a failed task


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as opened:
        Admin(opened).create_topics([NewTopic("in", 2), NewTopic("out", 2)])
        yield opened


def values(cluster: Cluster) -> list[int]:
    """Return the values in `out`, sorted."""
    return sorted(int(one.value or b"-1") for one in drain(cluster, "out", 2, max_wait_ms=10, read_committed=True))


def drive(bootstrap: str, folder: Path, master: str, phase: str) -> subprocess.CompletedProcess[str]:
    """Run the driver once."""
    command = [sys.executable, "-m", "tests.spark.exactly_once_driver", bootstrap, str(folder), master, phase]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)


SOAK = pytest.mark.soak


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("master", "phase"),
    [
        (LOCAL, "committed"),
        pytest.param(LOCAL, "rows sent", marks=SOAK),
        pytest.param(LOCAL, "offsets sent", marks=SOAK),
        pytest.param(LOCAL, "driver commits", marks=SOAK),
        pytest.param(LOCAL, "worker dies", marks=SOAK),
        pytest.param(LOCAL, "worker dies committed", marks=SOAK),
        pytest.param(TWO_EXECUTORS, "rows sent", marks=SOAK),
        pytest.param(TWO_EXECUTORS, "offsets sent", marks=SOAK),
        pytest.param(TWO_EXECUTORS, "committed", marks=SOAK),
    ],
)
def test_whatever_dies_each_row_is_there_once(
    spark: Any, cluster: Cluster, broker: BrokerProcess, tmp_path: Path, master: str, phase: str
) -> None:
    """The driver, an executor or a worker is killed in a batch, and the query of a killed driver is restarted."""
    with Producer(cluster) as producer:
        for number in range(ROWS):
            producer.send("in", b"%d" % number, partition=number % 2)
    for turn in range(WORKER_STARTS):
        done = drive(broker.bootstrap, tmp_path, master, phase)
        print(turn, done.returncode, done.stderr[-2000:])
        if done.returncode == 0 or (tmp_path / "died").exists():
            break
    assert (tmp_path / "died").exists()
    if done.returncode:
        run_to_its_end(lambda: copy(spark, broker.bootstrap, tmp_path, phase, {}))
    found = Counter(values(cluster))
    assert found == Counter(range(ROWS))


def options(broker: BrokerProcess, **more: str) -> WriteOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "out", "kafka.transactional.id": "x"}
    return write_options(given | more)


def rows(*numbers: int) -> Any:
    return pa.record_batch({"value": pa.array([b"%d" % number for number in numbers], pa.binary())})


def write(
    cluster: Cluster, given: WriteOptions, batch_id: int, *batches: Any, query_id: str = "q", task: int = 0
) -> Written:
    transaction = TaskTransaction(cluster, given, query_id, batch_id, task)
    return transaction.write(iter(batches), lambda producer, batch: send_batch(given, producer, batch))


def test_a_batch_that_was_written_is_not_written_again(cluster: Cluster, broker: BrokerProcess) -> None:
    """A note of batch and query identifies a repetition; another query with the same id writes its own batch 0."""
    given = options(broker)
    assert write(cluster, given, 0, rows(1, 2), rows(3)) == Written(3, "q")
    assert write(cluster, given, 0, rows(1), rows(2, 3)) == Written(3, "q", repeated=True)
    assert write(cluster, given, 1, rows(4)) == Written(1, "q")
    assert write(cluster, given, 0, rows(5), query_id="another") == Written(1, "another")
    assert values(cluster) == [1, 2, 3, 4, 5]


def test_rows_that_cannot_be_distinguished_from_those_written_are_refused(
    cluster: Cluster, broker: BrokerProcess
) -> None:
    """Other rows in a repeated batch, an older checkpoint and fewer tasks are errors with the remedy."""
    given = options(broker)
    write(cluster, given, 6, rows(1, 2))
    with pytest.raises(
        PipelineError, match=r"wrote 2 rows of 2 bytes, and would now write 1 of 1\. Spark runs the batch"
    ):
        write(cluster, given, 6, rows(1))
    with pytest.raises(PipelineError, match="wrote 2 rows of 2 bytes, and would now write 0 of 0"):
        write(cluster, given, 6)
    with pytest.raises(PipelineError, match="has written batch 6 already: the checkpoint is older than the topic"):
        write(cluster, given, 5, rows(9))
    write(cluster, given, 6, rows(3), task=4)
    with pytest.raises(PipelineError, match="x-4 has written 1 rows, and the batch has only 2 tasks now"):
        check_repeated(cluster, given, [Written(2, "q", repeated=True), Written(0, "q")], 6)
    check_repeated(cluster, given, [Written(2, "q"), Written(0, "q")], 6)
    assert values(cluster) == [1, 2, 3]


def test_a_failed_task_leaves_no_rows_to_committed_readers(cluster: Cluster, broker: BrokerProcess) -> None:
    """A rejected row aborts the transaction at once, and the next attempt writes all rows."""
    given = options(broker, **{"kafka.batch.size": "100"})
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        write(cluster, given, 0, rows(1), pa.record_batch({"value": pa.array([bytes(2_000_000)], pa.binary())}))
    assert values(cluster) == []
    assert read_note(cluster, given, "x-0") is None
    write(cluster, given, 0, rows(1))
    assert values(cluster) == [1]


def test_rows_that_name_their_topics(cluster: Cluster, broker: BrokerProcess) -> None:
    """Without the option topic the note is stored with a group's offsets."""
    given = write_options({"kafka.bootstrap.servers": broker.bootstrap, "kafka.transactional.id": "x"})
    batch = pa.record_batch({"value": pa.array([b"1"], pa.binary()), "topic": ["out"]})
    assert [write(cluster, given, 0, batch).repeated for _ in range(2)] == [False, True]
    assert values(cluster) == [1]


def test_a_query_with_a_transactional_id(spark: Any, cluster: Cluster, broker: BrokerProcess, tmp_path: Path) -> None:
    """A batch and a stream are written with Spark's own numbers of query and batch."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "out", "kafka.transactional.id": "x"}
    frame = spark.range(0, 100, numPartitions=3).selectExpr("cast(id as string) value")
    frame.write.format("kbroker").options(**given).mode("append").save()
    frame.write.format("kbroker").options(**given).mode("append").save()  # another query, whose rows are written too
    assert values(cluster) == sorted([*range(100), *range(100)])
    with Producer(cluster) as producer:
        for number in range(1000, 1200):
            producer.send("in", b"%d" % number, partition=number % 2)

    def start() -> Any:
        source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "in", "startingOffsets": "earliest"}
        return (
            spark.readStream.format("kbroker")
            .options(**source, maxOffsetsPerTrigger="50")
            .load()
            .select("value")
            .writeStream.format("kbroker")
            .options(**given)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )

    run_to_its_end(start)
    assert values(cluster) == sorted([*range(100), *range(100), *range(1000, 1200)])
    assert "needs kafka.acks=all" in refusal(
        lambda: frame.write.format("kbroker").options(**given, **{"kafka.acks": "1"}).mode("append").save()
    )
