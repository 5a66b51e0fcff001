"""Spark driver in its own process: copies topic `in` to topic `out` exactly once, and is killed in a phase of a batch.

    python -m tests.spark.exactly_once_driver BOOTSTRAP FOLDER MASTER PHASE [OPTION=VALUE ...]

PHASE is one of PHASES, or "" for no kill. The status is 0 when all of `in` is copied. The killed process is the task's
Java process, which is the driver's with the master `local[...]` and an executor's with `local-cluster[...]`, or the
task's Python worker.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kbroker.client.transactional_producer import TransactionalProducer
from kbroker.spark.datasource.exactly_once import BATCH_ID
from kbroker.spark.datasource.source import KbrokerDataSource
from kbroker.spark.datasource.writer import KbrokerStreamWriter
from kbroker.spark.setup.session import build_session

BATCH = "1"
PHASES = ("rows sent", "offsets sent", "committed", "driver commits", "worker dies", "worker dies committed")
DONE = "died"


def java_process() -> int:
    """Return the Java process of this Python worker: the first one among its ancestors."""
    pid = os.getppid()
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


class DyingWriter(KbrokerStreamWriter):
    """Writer that kills a process in a phase of batch BATCH, once."""

    def __init__(self, whole: KbrokerStreamWriter, folder: Path, phase: str) -> None:
        super().__init__(whole.options)
        self.folder = folder
        self.phase = phase

    def die(self, pid: int) -> None:
        (self.folder / DONE).touch()
        os.kill(pid, signal.SIGKILL)
        signal.pause()

    def write(self, iterator: Any) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        if context.getLocalProperty(BATCH_ID) != BATCH or context.partitionId() or (self.folder / DONE).exists():
            return super().write(iterator)
        before = TransactionalProducer.send_offsets, TransactionalProducer.commit_transaction
        try:
            self.arm(*before)
            return super().write(iterator)
        finally:  # Spark reuses the worker
            TransactionalProducer.send_offsets, TransactionalProducer.commit_transaction = before  # type: ignore[method-assign]

    def arm(self, send_offsets: Callable[..., None], commit: Callable[..., None]) -> None:
        def sending(producer: TransactionalProducer, *args: Any) -> None:
            producer.flush()
            if self.phase == "rows sent":
                self.die(java_process())
            if self.phase == "worker dies":
                self.die(os.getpid())
            send_offsets(producer, *args)
            if self.phase == "offsets sent":
                self.die(java_process())

        def committing(producer: TransactionalProducer) -> None:
            commit(producer)
            if self.phase == "committed":
                self.die(java_process())
            if self.phase == "worker dies committed":
                self.die(os.getpid())

        TransactionalProducer.send_offsets = sending  # type: ignore[method-assign, assignment]
        TransactionalProducer.commit_transaction = committing  # type: ignore[method-assign, assignment]

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if self.phase == "driver commits" and str(batchId) == BATCH and not (self.folder / DONE).exists():
            self.die(java_process())


class DyingSource(KbrokerDataSource):
    """``format("kbroker")`` with a writer that is killed."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        folder, phase = Path(self.options.pop("folder")), self.options.pop("phase")
        whole = super().streamWriter(schema, overwrite)
        assert isinstance(whole, KbrokerStreamWriter)
        return DyingWriter(whole, folder, phase)


def copy(spark: SparkSession, bootstrap: str, folder: Path, phase: str, given: dict[str, str]) -> Any:
    """Start the query in a session, or continue it from its checkpoint in `folder`."""
    spark.dataSource.register(DyingSource)
    return (
        spark.readStream.format("kbroker")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="400", **given)
        .load()
        .select("value", "partition")
        .writeStream.format("dying")
        .options(**{"kafka.bootstrap.servers": bootstrap, "kafka.transactional.id": "copy", "topic": "out"})
        .options(folder=str(folder), phase=phase)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    bootstrap, folder, master, phase = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    given = dict(word.split("=", 1) for word in sys.argv[5:])
    assert phase in ("", *PHASES), phase
    copy(build_session("exactly once", master=master), bootstrap, folder, phase, given).awaitTermination()


if __name__ == "__main__":
    main()
