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
from kbroker.client.groups import Groups
from kbroker.client.producer import Producer
from kbroker.client.transactional_producer import is_fenced
from kbroker.common.errors import KafkaError
from kbroker.spark.datasource import exactly_once
from kbroker.spark.datasource.exactly_once import (
    TaskOfBatch,
    TaskTransaction,
    Written,
    abort_batch,
    commit_batch,
    read_note,
)
from kbroker.spark.datasource.options import WriteOptions, write_options
from kbroker.spark.datasource.writer import send_batch
from kbroker.spark.errors import PipelineError
from tests.spark.exactly_once_driver import copy
from tests.spark.source_support import WORKER_STARTS, refusal, run_to_its_end
from tests.spark.standalone import ROOT, environment
from tests.support.broker import BrokerProcess
from tests.support.client import drain


@pytest.fixture(autouse=True)
def new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the runs of other tests, which this process would remember as a worker does."""
    monkeypatch.setattr(exactly_once, "_first_batches", {})


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
    cluster: Cluster,
    given: WriteOptions,
    batch_id: int,
    *batches: Any,
    query_id: str = "q",
    run: str = "r",
    task: int = 0,
) -> Written:
    """Run a task of a batch, in a run of the query."""
    transaction = TaskTransaction(cluster, given, TaskOfBatch(query_id, run, batch_id, task))
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
        commit_batch(cluster, given, [Written(2, "q", repeated=True), Written(0, "q")], 6)
    assert values(cluster) == [1, 2, 3]


def test_a_batch_that_is_split_into_fewer_tasks_is_refused_and_writes_nothing(
    cluster: Cluster, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only tasks beyond the new ones have written: these cannot find that out, and leave the decision to the driver.

    With the former tasks the next run writes the missing rows. None of its tasks waits for the driver in a later batch.
    """
    given = options(broker)
    assert write(cluster, given, 3, rows(1), run="first") == Written(1, "q")
    assert write(cluster, given, 4, rows(30), run="first", task=2) == Written(1, "q")  # then the driver is killed
    split = [
        write(cluster, given, 4, rows(10, 20), run="second"),
        write(cluster, given, 4, rows(30), run="second", task=1),
    ]
    with pytest.raises(PipelineError, match=r"x-2 has written 1 rows, and the batch has only 2 tasks now\. Spark runs"):
        commit_batch(cluster, given, split, 4)
    assert values(cluster) == [1, 30]
    monkeypatch.setattr(exactly_once, "_first_batches", {})  # another worker
    done = [write(cluster, given, 4, rows(10 * task + 10), run="third", task=task) for task in range(3)]
    assert [one.repeated for one in done] == [False, False, True]
    commit_batch(cluster, given, done, 4)
    assert write(cluster, given, 5, rows(40), run="third") == Written(1, "q")
    assert values(cluster) == [1, 10, 20, 30, 40]


def test_a_task_of_an_earlier_run_writes_nothing_more(cluster: Cluster, broker: BrokerProcess) -> None:
    """A task beyond the new ones that still runs is fenced by the driver of the new run, before that looks for rows."""
    given = options(broker)
    for batch_id in (3, 4):
        write(cluster, given, batch_id, rows(batch_id), run="first")
    write(cluster, given, 3, rows(30), run="first", task=2)
    late = exactly_once.fencing_producer(cluster, given, "x-2")
    late.begin_transaction()
    send_batch(given, late, rows(40))
    commit_batch(cluster, given, [write(cluster, given, 4, rows(4), run="second")], 4)
    with pytest.raises(KafkaError) as failure:
        late.commit_transaction()
    assert is_fenced(failure.value)
    assert values(cluster) == [3, 4, 30]


def test_a_failed_batch_leaves_no_transaction_open(cluster: Cluster, broker: BrokerProcess) -> None:
    """Readers would wait for rows that the driver never commits, so it aborts them."""
    given = options(broker)
    write(cluster, given, 0, rows(1), run="first")
    left_open = write(cluster, given, 0, rows(2), run="second", task=1)
    assert left_open.transaction is not None
    abort_batch(cluster, [None, left_open])
    with Producer(cluster) as producer:
        for partition in range(2):
            producer.send("out", b"7", partition=partition)
    assert values(cluster) == [1, 7, 7]
    with pytest.raises(KafkaError):
        commit_batch(cluster, given, [Written(1, "q", repeated=True), left_open], 0)
    assert values(cluster) == [1, 7, 7]


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


def test_a_restart_with_fewer_tasks_is_refused_before_it_writes(
    spark: Any, cluster: Cluster, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Only the later two of four tasks of a batch have written; the next run has two tasks, and the one after it four.

    The notes of the first two tasks are deleted, so that their rows count as not written.
    """
    with Producer(cluster) as producer:
        for number in range(40):
            producer.send("in", b"%d" % number, partition=number % 2)

    def start(tasks: int) -> Any:
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "in", "startingOffsets": "earliest"}
        return (
            spark.readStream.format("kbroker")
            .options(**given, minPartitions=str(tasks))
            .load()
            .select("value")
            .writeStream.format("kbroker")
            .options(**{"kafka.bootstrap.servers": broker.bootstrap, "kafka.transactional.id": "x", "topic": "out"})
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )

    query = run_to_its_end(lambda: start(4))
    notes = [read_note(cluster, options(broker), f"x-{task}") for task in range(4)]
    assert {note[1].run_id for note in notes if note} == {str(query.runId)}
    assert values(cluster) == [*range(40)]
    for name in ("0", ".0.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    for task in range(2):
        Groups(cluster).delete(f"x-{task}")
    assert "rows, and the batch has only 2 tasks now" in refusal(lambda: start(2).awaitTermination())
    assert values(cluster) == [*range(40)]
    run_to_its_end(lambda: start(4))
    assert Counter(values(cluster)).total() == 40 + sum(note[1].record_count for note in notes[:2] if note)
    assert {*values(cluster)} == {*range(40)}
